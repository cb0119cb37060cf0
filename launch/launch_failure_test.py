"""Starts the launcher for real, and lets workers fail, or stops or kills it."""

import os
import re
import signal
import socket
import subprocess
import time

import pytest

from launch.job_for_tests import DEADLINE, LAUNCHER, RUN, Job, lines_of, processes_with, wait_until

# Failures.


def test_the_exit_code_is_that_of_the_first_worker_that_fails(shell):
    # Rank 0 fails when the test says so; the others fail in another way when they are stopped.
    job = shell(
        '[ $RANK = 0 ] && { read line; exit 7; }; trap "exit 9" TERM; echo ready; '
        "while :; do sleep 0.05; done",
        "--nproc-per-node=3",
        stdin=subprocess.PIPE,
    )
    job.expect("ready", times=2)
    code, _, err = job.finish()  # Closes rank 0's input.
    assert code == 7
    assert "rank 0 (pid" in err
    assert "rank 1 (exit code 9)" in err and "rank 2 (exit code 9)" in err


def test_a_peers_error_is_not_taken_for_the_cause(python):
    # Rank 1 fails last, in the time that the others leave it; rank 2 fails with another code.
    code, _, err = python(
        """
import json, os, sys, time
rank = os.environ["RANK"]
if rank == "0":
    info = {"syncline_time": time.time(), "syncline_peer_error": True}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": "rank 1 has left", "extraInfo": info}}, file)
    while not os.path.exists("ready"):
        time.sleep(0.001)
    sys.exit(1)
if rank == "1":
    open("ready", "w").close()
other = os.environ["SYNCLINE_SECRET_FILE"].replace("secret", "error_0_0.json")
while not os.path.exists(other):
    time.sleep(0.001)
sys.exit(42 if rank == "1" else 0)
""",
        "--nproc-per-node=3",
    ).finish()
    assert code == 42
    assert "rank 1 (pid" in err and "also failed: rank 0 (exit code 1)" in err
    assert "stopped because of it" not in err


JOINED = """
import os, sys, syncline as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    %s
dist.barrier()
"""


@pytest.mark.parametrize(
    "failure, code, messages",
    [
        ("raise ValueError('boom')", 1, ["recorded:\n    ValueError: boom"]),
        ("sys.exit(42)", 42, ["exit code 42"]),
        ("os._exit(43)", 43, ["exit code 43"]),
        ("os.kill(os.getpid(), 9)", 137, ["SIGKILL"]),
    ],
)
def test_the_rank_whose_failure_breaks_the_group_is_named(tmp_path, failure, code, messages):
    (tmp_path / "script.py").write_text(JOINED % failure)
    job = Job(tmp_path, ["--nproc-per-node=3", "script.py"], program=RUN)
    try:
        ended, _, err = job.finish()
    finally:
        job.close()
    assert ended == code, err
    report = err[err.index("syncline-run: rank ") :]
    assert report.startswith("syncline-run: rank 1 (pid")
    assert "rank 0 (" in report and "rank 2 (" in report
    for message in messages:
        assert message in report


def test_a_failure_is_reported_with_all_that_is_known(python):
    code, _, err = python(
        """
import os
if os.environ["RANK"] == "1":
    raise ValueError("the cause")
os.kill(os.getpid(), 19)
""",
        "--nproc-per-node=2",
    ).finish()
    assert code == 1
    assert re.search(
        r"syncline-run: rank 1 \(pid \d+, host \S+\) failed \d+\.\d s after its start: exit code 1",
        err,
    )
    report = err[err.index("syncline-run: rank 1") :]
    for part in (
        "local rank 1",
        "host " + socket.gethostname(),
        "0 of 0 restarts",
        "ValueError: the cause",
        "stopped because of it: rank 0 (SIG",
        "exit code 1",
    ):
        assert part in report


def test_the_recorded_error_of_a_worker_is_reported(python):
    code, _, err = python("""
import json, os
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "recorded cause"}}, file)
os._exit(3)
""").finish()
    assert code == 3
    assert "recorded cause" in err


def test_an_exception_is_reported_though_nobody_recorded_it(python):
    code, _, err = python("def f():\n    raise ValueError('the cause')\nf()\n").finish()
    assert code == 1
    assert "  its error:\n    ValueError: the cause\n" in err


def test_a_worker_without_progress_shows_where_it_is_and_is_the_cause(python):
    code, _, err = python(
        """
import os, time
def stuck():
    while True:
        time.sleep(1)
if os.environ["RANK"] == "1":
    stuck()
while True:
    os.utime(os.environ["SYNCLINE_HEARTBEAT_FILE"])
    time.sleep(0.02)
""",
        "--nproc-per-node=2",
        "--health-timeout=5",
    ).finish()
    assert code == 128 + signal.SIGABRT
    assert re.search(
        r"syncline-run: rank 1 \(pid \d+\) has made no progress for [\d.]+ s "
        r"\(limit --health-timeout=5\): no heartbeat since its start",
        err,
    )
    report = err[err.index("syncline-run: rank 1 (pid") :]
    assert "in stuck" in report  # Of faulthandler.
    assert "(SIGABRT): rank 1 has made no progress" in report
    assert "stopped because of it: rank 0 (SIGTERM)" in report


def test_a_worker_that_survives_its_abort_is_killed(python):
    code, _, err = python(
        """
import signal, time
signal.signal(signal.SIGABRT, signal.SIG_IGN)
while True:
    time.sleep(1)
""",
        "--health-timeout=5",
        env={"PYTHONFAULTHANDLER": ""},
    ).finish()
    assert code == 137
    assert "rank 0 is still there; it gets SIGKILL" in err
    assert "(SIGKILL): rank 0 has made no progress" in err


def test_heartbeats_keep_a_worker_alive(python):
    code, out, err = python(
        """
import os, time
end = time.monotonic() + 6
while time.monotonic() < end:
    os.utime(os.environ["SYNCLINE_HEARTBEAT_FILE"])
    time.sleep(0.02)
print("done")
""",
        "--health-timeout=5",
    ).finish()
    assert (code, out) == (0, "done\n"), err


def test_kill_9_is_named_and_the_others_are_gone_soon(shell):
    # They ignore SIGTERM, and so does a grandchild in a session of its own.
    job = shell(
        'trap "" TERM; setsid sleep 1000 & echo "pid $$"; while :; do sleep 0.05; done',
        "--nproc-per-node=3",
    )
    job.expect("\n", times=3)
    victim = int(re.search(r"\[rank1\]: pid (\d+)", job.out.decode()).group(1))
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    code, _, err = job.finish()
    assert time.monotonic() - began < 10  # A busy machine takes its time.
    assert code == 137
    assert "rank 1 (pid %d, host " % victim in err
    assert "SIGKILL" in err and "out-of-memory" in err
    assert "stopped because of it: rank 0 (SIGKILL), rank 2 (SIGKILL)" in err


def test_a_failed_job_restarts_and_succeeds(shell):
    code, out, err = shell(
        'echo "$TORCHELASTIC_RESTART_COUNT"; [ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || exit 3',
        "--nproc-per-node=2",
        "--max-restarts=1",
    ).finish()
    assert code == 0, err
    assert lines_of(1, out) == ["0", "1"]
    assert lines_of(0, out)[-1] == "1"
    assert re.search(r"rank 1 \(pid \d+.*\) failed .*exit code 3; all 2 .*restart 1 of 1", err)


def test_restarts_are_used_up(shell):
    code, out, err = shell("echo go; exit 4", "--max-restarts=2").finish()
    assert (code, out.count("go")) == (4, 3)
    assert "after 2 of 2 restarts" in err


def test_early_success_of_one_worker_stops_nobody(shell):
    job = shell(
        '[ $RANK = 1 ] && { echo "pid $$"; exit 0; }; read line; echo done',
        "--nproc-per-node=2",
        stdin=subprocess.PIPE,
    )
    pid = int(re.search(r"pid (\d+)\n", job.expect("\n")).group(1))
    wait_until(lambda: not os.path.exists("/proc/%d" % pid), "the end of rank 1")
    code, out, _ = job.finish()
    assert code == 0
    assert lines_of(0, out) == ["done"]


def test_the_grace_after_a_failure_is_an_option(shell):
    # Rank 1 needs longer than the default to save. Its child gets SIGTERM too.
    job = shell(
        '[ $RANK = 0 ] && { read line; exit 7; }; trap "sleep 1.5; echo saved; exit 0" TERM; '
        "echo ready; while :; do sleep 0.05; done",
        "--nproc-per-node=2",
        "--failure-grace=50.5",
        "--shutdown-timeout=60",
        stdin=subprocess.PIPE,
    )
    job.expect("ready")
    code, out, err = job.finish()  # Closes rank 0's input.
    assert code == 7, err
    assert lines_of(1, out) == ["ready", "saved"]


def test_restarts_follow_at_once_if_the_backoff_is_none(shell):
    began = time.monotonic()
    options = ["--max-restarts=6", "--rdzv-conf=restart_backoff=0"]
    code, out, err = shell("echo go; exit 4", *options).finish()
    assert (code, out.count("go")) == (4, 7), err
    assert time.monotonic() - began < 20  # With the default they wait for 1 + 2 + 4 + 8 + 16 s.


def test_the_deciding_node_says_when_a_new_one_is_taken_in(shell, tmp_path):
    options = ["--nnodes=1:2", "--rdzv-backend=file", "--rdzv-id=j", "--rdzv-endpoint=rdzv"]
    script = 'echo "round $SYNCLINE_ROUND"; [ $SYNCLINE_ROUND = 1 ] || exec sleep 1000'
    conf = "--rdzv-conf=last_call_timeout=0.1,scale_up_delay="
    first = shell(script, *options, conf + "2.5")
    first.expect("round 0")
    began = time.monotonic()
    second = shell(script, *options, conf + "0")
    first.expect("round 1")
    assert time.monotonic() - began > 2.5
    second.process.wait(DEADLINE)
    first.process.wait(DEADLINE)
    assert (first.finish()[0], second.finish()[0]) == (0, 0)


# Signals.


def test_sigterm_lets_workers_finish_and_ends_with_143(python):
    job = python(
        """
import signal, sys
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
""",
        "--nproc-per-node=2",
    )
    job.expect("ready", times=2)
    job.process.terminate()
    code, out, err = job.finish()
    assert code == 143
    assert out.count("saved") == 2
    assert "SIGTERM received" in err and "failed" not in err


def test_the_shutdown_timeout_ends_in_sigkill(shell):
    job = shell('trap "" TERM; echo ready; while :; do sleep 0.05; done', "--shutdown-timeout=0.2")
    job.expect("ready")
    job.process.terminate()
    assert job.finish()[0] == 143


def test_a_second_interrupt_kills_at_once(shell):
    job = shell(
        'trap "echo caught" INT; echo ready; while :; do sleep 0.05; done',
        "--shutdown-timeout=1000",
    )
    job.expect("ready")
    job.process.send_signal(signal.SIGINT)
    job.expect("caught")
    job.process.send_signal(signal.SIGINT)
    assert job.finish()[0] == 130


def test_user_signals_are_passed_on_without_stopping(shell):
    job = shell(
        'trap "echo usr1" USR1; trap "echo usr2; exit 0" USR2; echo ready; '
        "while :; do sleep 0.05; done",
        "--nproc-per-node=2",
    )
    job.expect("ready", times=2)
    job.process.send_signal(signal.SIGUSR1)
    job.expect("usr1", times=2)
    job.process.send_signal(signal.SIGUSR2)
    assert job.finish()[0] == 0


# Shows each signal that comes, until SIGTERM.
SHOW_SIGNALS = """
import signal, sys
NAMES = "HUP USR1 USR2 CONT WINCH INT TERM".split()
def say(word):  # In one piece: a signal may come between two.
    print(word + "\\n", end="", flush=True)
for name in NAMES:
    def show(number, _):
        say(signal.Signals(number).name)
        if number == signal.SIGTERM:
            sys.exit(0)
    signal.signal(getattr(signal, "SIG" + name), show)
say("ready")
while True:
    signal.pause()
"""


def test_which_signals_stop_the_job_and_which_are_passed_on_are_options(python):
    job = python(
        SHOW_SIGNALS,
        "--nproc-per-node=2",
        "--signals-to-handle=SIGTERM",
        "--signals-to-forward=SIGHUP,usr1,CONT,WINCH",
    )
    job.expect("ready", times=2)
    job.process.send_signal(signal.SIGUSR2)  # Neither passed on nor the launcher's end.
    passed = [signal.SIGHUP, signal.SIGUSR1, signal.SIGCONT, signal.SIGWINCH]
    for number in passed:
        job.process.send_signal(number)
        job.expect(number.name + "\n", times=2)
    job.process.send_signal(signal.SIGTERM)
    code, out, err = job.finish()
    assert code == 128 + signal.SIGTERM
    expected = ["ready", *(number.name for number in passed), "SIGTERM"]
    assert lines_of(0, out) == lines_of(1, out) == expected
    assert "SIGTERM received" in err and "SIGHUP" not in err and "failed" not in err


def test_a_stopped_launcher_is_continued_and_so_are_its_workers(python):
    job = python(SHOW_SIGNALS, "--signals-to-forward=SIGCONT,SIGUSR1")
    job.expect("ready")
    job.process.send_signal(signal.SIGSTOP)
    job.process.send_signal(signal.SIGUSR1)
    job.process.send_signal(signal.SIGCONT)
    job.expect("SIGUSR1")
    job.expect("SIGCONT")
    job.process.terminate()
    assert job.finish()[0] == 128 + signal.SIGTERM


def test_what_no_list_has_of_usr1_and_usr2_does_nothing(python):
    job = python(SHOW_SIGNALS, "--signals-to-forward=")
    job.expect("ready")
    job.process.send_signal(signal.SIGUSR1)
    job.process.send_signal(signal.SIGUSR2)
    job.process.terminate()
    code, out, _ = job.finish()
    assert (code, out) == (128 + signal.SIGTERM, "ready\nSIGTERM\n")


def test_an_interrupt_that_no_list_has_ends_the_launcher_and_nothing_survives(python):
    job = python(SHOW_SIGNALS, "--nproc-per-node=2", "--signals-to-handle=SIGTERM")
    job.expect("ready", times=2)
    job.process.send_signal(signal.SIGINT)
    out, _ = job.process.communicate(timeout=DEADLINE)
    assert job.process.returncode == -signal.SIGINT
    assert b"SIG" not in out  # The kernel kills the workers.
    wait_until(lambda: processes_with(job.mark) == [], "the end of all processes")
    wait_until(lambda: os.listdir(str(job.tmp)) == [], "the end of the temporary folder")


def test_sigterm_can_be_passed_on_without_stopping_the_job(shell):
    # As for a worker that ends by itself with the next checkpoint.
    job = shell(
        'trap "echo noticed" TERM; trap "exit 3" INT; echo ready; while :; do sleep 0.05; done',
        "--signals-to-handle=SIGINT",
        "--signals-to-forward=SIGTERM",
    )
    job.expect("ready")
    for times in (1, 2):
        job.process.terminate()
        job.expect("noticed", times=times)
    job.process.send_signal(signal.SIGINT)
    code, _, err = job.finish()
    assert code == 130 and "SIGTERM" not in err


def test_workers_do_not_inherit_what_a_shell_has_background_jobs_ignore(python):
    def ignore():
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)

    job = python(
        "import signal; print([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGQUIT)])",
        "--signals-to-handle=SIGTERM",
        preexec_fn=ignore,
    )
    code, out, _ = job.finish()
    assert code == 0
    assert "default_int_handler" in out and "SIG_DFL" in out and "SIG_IGN" not in out


def test_a_hangup_is_passed_on_if_asked_though_nohup_ignores_it(python):
    job = python(
        SHOW_SIGNALS,
        "--signals-to-handle=SIGTERM",
        "--signals-to-forward=SIGHUP",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    job.expect("ready")
    job.process.send_signal(signal.SIGHUP)
    job.expect("SIGHUP")
    job.process.terminate()
    assert job.finish()[0] == 128 + signal.SIGTERM


def test_an_interrupt_is_heeded_though_a_shell_ignores_it_for_its_background_jobs(python):
    job = python(
        "import signal; print('ready', flush=True); signal.pause()",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    job.expect("ready")
    job.process.send_signal(signal.SIGINT)
    code, _, err = job.finish()
    assert code == 130
    assert "KeyboardInterrupt" in err


def test_nohup_is_respected(shell):
    job = shell(
        "echo ready; read line; exit 6",
        stdin=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    job.expect("ready")
    job.process.send_signal(signal.SIGHUP)
    assert job.finish()[0] == 6


def test_nothing_survives_a_launcher_that_is_killed(shell):
    job = shell("sleep 1000 & echo ready; sleep 1000", "--nproc-per-node=2")
    job.expect("ready", times=2)
    assert len(processes_with(job.mark)) >= 5
    job.process.kill()
    job.process.wait(DEADLINE)
    wait_until(lambda: processes_with(job.mark) == [], "the end of all processes")
    assert os.listdir(str(job.tmp)) == []  # Nor does the secret.


def test_what_a_worker_leaves_behind_ends_with_the_job(shell):
    code, out, _ = shell("setsid sleep 1000 & sleep 1000 & echo done").finish()
    assert (code, out) == (0, "done\n")


def test_a_process_that_was_there_before_is_left_alone(tmp_path):
    job = Job(
        tmp_path,
        ["-c", "sleep 1000 & echo pid $!; exec %s --no-python /bin/true" % LAUNCHER],
        program="/bin/sh",
    )
    stranger = int(job.expect("\n").split()[1])
    try:
        assert job.process.wait(DEADLINE) == 0
        os.kill(stranger, 0)
    finally:
        os.kill(stranger, signal.SIGKILL)
        job.process.communicate()
