"""Starts the launcher for real, where nobody reads its output and disks do not answer."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import time

import pytest

from launch.job_for_tests import DEADLINE, processes_with, wait_until

# The launcher is done once it has given up on its readers and files, within some seconds.
SOON = 30

# More than a terminal, a pipe or a FIFO takes; then a sign that the worker was not held up.
FLOOD = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_DFL)
line = b"0123456789" * 9 + b"\\n"
for i in range(5000):
    os.write(1, line)
open("written", "w").close()
signal.pause()
"""


@pytest.fixture
def terminal():
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def end(process, number=signal.SIGTERM):
    """Sends the signal; returns the exit code and the seconds until the end."""
    begin = time.monotonic()
    process.send_signal(number)
    try:
        code = process.wait(SOON)
    except subprocess.TimeoutExpired:
        pytest.fail("the launcher is still there %d s after %s" % (SOON, number.name))
    return code, time.monotonic() - begin


@pytest.mark.parametrize("stopped", [False, True], ids=["full", "stopped"])
def test_a_terminal_that_nobody_reads_leaves_the_launcher_able_to_act(
    launch, tmp_path, terminal, stopped
):
    master, slave = terminal
    (tmp_path / "script.py").write_text(FLOOD)
    if stopped:
        os.write(master, b"\x13")  # Ctrl-S.
    job = launch("--nproc-per-node=1", "script.py", stdout=slave, stderr=slave)
    wait_until((tmp_path / "written").exists, "the worker's lines, though nobody reads them")
    code, _ = end(job.process)
    assert code == 128 + signal.SIGTERM
    assert processes_with(job.mark) == []


def test_lines_of_both_outputs_in_one_pipe_are_whole(launch, tmp_path):
    (tmp_path / "script.py").write_text(
        """
import sys
for i in range(6000):
    sys.stdout.write("O" * 101 + "\\n")
    sys.stderr.write("E" * 103 + "\\n")
"""
    )
    job = launch("--nproc-per-node=2", "script.py", stderr=subprocess.STDOUT)
    out = b""
    deadline = time.monotonic() + DEADLINE
    while True:  # In odd pieces, so that the pipe is full most of the time.
        piece = os.read(job.process.stdout.fileno(), 3001)
        if not piece:
            break
        out += piece
        assert time.monotonic() < deadline
    assert job.process.wait(DEADLINE) == 0
    lines = [line for line in out.split(b"\n") if not line.startswith(b"syncline-run: ")]
    assert lines.pop() == b""
    torn = [line for line in lines if not re.fullmatch(rb"\[rank\d\]: (O{101}|E{103})", line)]
    assert torn == []
    assert len(lines) == 2 * 2 * 6000


def test_lines_of_two_launchers_in_one_pipe_are_whole(launch, tmp_path):
    (tmp_path / "script.py").write_text(
        """
import os
for i in range(200):
    os.write(1, b"".join(b"%d " % j + b"x" * 90 + b"\\n" for j in range(50)))
"""
    )
    reader, writer = os.pipe()
    jobs = [launch("--nproc-per-node=2", "script.py", stdout=writer) for _ in range(2)]
    os.close(writer)
    with open(reader, "rb") as pipe:
        lines = pipe.read().split(b"\n")
    assert [job.process.wait(DEADLINE) for job in jobs] == [0, 0]
    assert lines.pop() == b""
    assert [x for x in lines if not re.fullmatch(rb"\[rank\d\]: \d+ x{90}", x)] == []
    assert len(lines) == 2 * 2 * 200 * 50


def test_a_log_that_takes_nothing_leaves_the_launcher_able_to_act(python, tmp_path):
    folder = tmp_path / "logs" / "job7" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    os.mkfifo(str(folder / "stdout.log"))
    reader = os.open(str(folder / "stdout.log"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        job = python(FLOOD, "--log-dir=logs", "--rdzv-id=job7", "-r=1")
        wait_until((tmp_path / "written").exists, "the worker's lines")
        assert end(job.process)[0] == 128 + signal.SIGTERM
        _, _, err = job.finish()
        assert re.search(r"the last \d+ bytes of the logs were not written", err), err
    finally:
        os.close(reader)


def test_a_log_that_cannot_even_be_opened_holds_up_nobody(python, tmp_path):
    folder = tmp_path / "logs" / "job7" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    os.mkfifo(str(folder / "stdout.log"))  # To open it is to wait for a reader.
    job = python(FLOOD, "--log-dir=logs", "--rdzv-id=job7", "-r=1")
    wait_until((tmp_path / "written").exists, "the worker's lines")
    assert end(job.process)[0] == 128 + signal.SIGTERM
    _, _, err = job.finish()
    assert "does not answer" in err


def test_events_on_the_console_go_to_a_socket_too(shell):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            job = shell("echo worker >&2", "--event-log-handler=console", stderr=theirs)
        ours.settimeout(DEADLINE)
        err = b"".join(iter(lambda: ours.recv(65536), b""))
        assert job.process.wait(DEADLINE) == 0, err
    lines = err.decode().splitlines()
    assert "worker" in lines
    events = [json.loads(line)["event"] for line in lines if line.startswith("{")]
    assert events[0] == "launcher_started" and events[-1] == "launcher_ended"


def test_events_on_the_console_leave_the_other_lines_of_the_file(shell, tmp_path):
    with open(str(tmp_path / "err"), "wb") as err:
        job = shell(
            "for i in 1 2 3; do echo line $i >&2; done", "--event-log-handler=console", stderr=err
        )
        assert job.process.wait(DEADLINE) == 0
    lines = (tmp_path / "err").read_text().splitlines()
    assert [line for line in lines if not line.startswith("{")] == ["line 1", "line 2", "line 3"]
    assert [json.loads(x)["event"] for x in lines if x.startswith("{")][-1] == "launcher_ended"


def test_an_event_log_that_takes_nothing_leaves_the_launcher_able_to_act(shell, tmp_path):
    os.mkfifo(str(tmp_path / "events"))
    reader = os.open(str(tmp_path / "events"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        job = shell("echo started; sleep 600", "--event-log=events")
        job.expect("started")
        assert end(job.process)[0] == 128 + signal.SIGTERM
        os.set_blocking(reader, True)
        events = [json.loads(line)["event"] for line in os.read(reader, 65536).splitlines()]
        assert events[-1] == "launcher_ended"
    finally:
        os.close(reader)


def test_lines_of_the_log_do_not_stand_within_those_of_workers(shell, tmp_path):
    os.mkfifo(str(tmp_path / "go"))
    script = '[ "$RANK" = 0 ] || exit 0; echo "$SYNCLINE_STORE"; printf begun >&2; read line < go'
    job = shell(script, "--nproc-per-node=2", env={"OMP_NUM_THREADS": "1"})
    host, port = re.search(r"(\S+):(\d+)\n", job.expect("\n")).groups()
    err = b""
    while b"begun" not in err:
        err += os.read(job.process.stderr.fileno(), 65536)
    with socket.create_connection((host, int(port)), DEADLINE) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        try:
            while stranger.recv(65536):
                pass
        except ConnectionError:
            pass
    while b"store" not in err:
        err += os.read(job.process.stderr.fileno(), 65536)
    (tmp_path / "go").write_text("go\n")
    code, _, rest = job.finish()
    assert code == 0
    lines = (err.decode() + rest).splitlines()
    assert lines[0] == "[rank0]: begun"
    assert re.fullmatch(r"\[W \d\d:\d\d:\d\d\.\d{6} %d\] store .*" % job.process.pid, lines[1])


def test_a_guardian_that_hangs_does_not_keep_the_launcher(shell):
    job = shell("echo started; sleep 600")
    job.expect("started")
    children = "/proc/%d/task/%d/children" % (job.process.pid, job.process.pid)
    with open(children) as file:
        guardian = [
            pid for pid in map(int, file.read().split()) if name_of(pid) == "syncline-guard"
        ]
    assert len(guardian) == 1
    os.kill(guardian[0], signal.SIGSTOP)
    try:
        assert end(job.process)[0] == 128 + signal.SIGTERM
    finally:
        os.kill(guardian[0], signal.SIGCONT)
    wait_until(lambda: processes_with(job.mark) == [], "the guardian's end")


def name_of(pid):
    with open("/proc/%d/comm" % pid) as file:
        return file.read().strip()


def test_an_error_recorded_before_time_began_does_not_end_the_job(python):
    code, out, err = python(
        """
import json, os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        info = {"syncline_time": -1e308, "timestamp": "0"}
        json.dump({"message": {"message": "odd", "extraInfo": info}}, file)
    sys.exit(3)
print("again")
""",
        "--max-restarts=1",
    ).finish()
    assert (code, out) == (0, "again\n"), err
    assert float(re.search(r"failed (\d+\.\d) s", err).group(1)) < DEADLINE
