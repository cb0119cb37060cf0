"""Starts the launcher for real, and looks at what becomes of its workers' output."""

import os
import re
import select
import signal
import subprocess

from launch.job_for_tests import DEADLINE, LAUNCHER, lines_of, processes_with, wait_until


def test_the_output_of_a_single_worker_is_passed_on_unchanged(shell):
    code, out, err = shell(r"printf 'a\rb\n\nc'; printf 'd' >&2").finish()
    assert (code, out, err) == (0, "a\rb\n\nc", "d")


def test_two_outputs_of_a_single_worker_in_one_file_are_passed_on_unchanged(tmp_path):
    command = [LAUNCHER, "--no-python", "/bin/sh", "-c", "printf a; sleep 0.05; printf b >&2"]
    with open(str(tmp_path / "both"), "wb") as both:
        subprocess.run(command, stdout=both, stderr=both, timeout=DEADLINE, check=True)
    assert (tmp_path / "both").read_bytes() == b"ab"


def test_lines_of_several_workers_are_whole(python):
    # They write many lines at one go: the launcher passes half a line on if its end comes late.
    code, out, _ = python(
        """
import os
rank = os.environ["RANK"]
os.write(1, "".join(f"line {i} of {rank}\\n" for i in range(2000)).encode())
""",
        "--nproc-per-node=3",
    ).finish()
    assert code == 0
    for rank in range(3):
        assert lines_of(rank, out) == ["line %d of %d" % (i, rank) for i in range(2000)]
    assert len(out.splitlines()) == 6000


def test_logs_are_written_where_they_are_wanted(shell, tmp_path):
    code, out, err = shell(
        'echo "out $RANK"; echo "err $RANK" >&2',
        "--nproc-per-node=2",
        "--log-dir=logs",
        "--rdzv-id=job7",
        "-r",
        "0:3",
        "-t",
        "1:1",
        env={"OMP_NUM_THREADS": "1"},
    ).finish()
    assert (code, out, err) == (0, "[rank1]: out 1\n", "[rank1]: err 1\n")
    attempt = tmp_path / "logs" / "job7" / "attempt_0"
    assert (attempt / "0" / "stdout.log").read_text() == "out 0\n"
    assert (attempt / "0" / "stderr.log").read_text() == "err 0\n"
    assert (attempt / "1" / "stdout.log").read_text() == "out 1\n"
    assert not (attempt / "1" / "stderr.log").exists()


def test_lines_begin_as_the_template_says(shell):
    code, out, err = shell(
        "echo out; echo $$",
        "--nproc-per-node=2",
        "--role=train",
        "--log-line-prefix-template=<${role_name}${rank}/${local_rank}/${group_rank} $pid> ",
    ).finish()
    assert code == 0, err
    pids = dict(re.findall(r"<train(\d)/\1/0 (\d+)> out\n", out))
    assert set(pids) == {"0", "1"}
    for rank, pid in pids.items():
        assert "<train%s/%s/0 %s> %s\n" % (rank, rank, pid, pid) in out


def test_torchruns_variable_for_the_template_counts(shell):
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${time} ${host}| "}
    code, out, _ = shell("echo text", env=env).finish()
    assert code == 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \S+\| text\n", out)


def test_an_unknown_macro_is_an_error_with_the_nearest_one(shell):
    code, out, err = shell("echo never", "--log-line-prefix-template=${rnk}").finish()
    assert code != 0 and out == ""
    assert "there is no ${rnk}. Did you mean ${rank}?" in err


def test_filters_copy_whole_lines_of_all_workers_to_one_file(shell, tmp_path):
    code, out, err = shell(
        'echo "epoch $RANK"; printf "lo"; echo "ss $RANK"; echo "oops loss" >&2; printf "last acc"',
        "--nproc-per-node=2",
        "--log-dir=logs",
        "--rdzv-id=job7",
        "--duplicate-stdout-filters=loss,acc",
        "--duplicate-stderr-filters=oops",
    ).finish()
    assert code == 0, err
    attempt = tmp_path / "logs" / "job7" / "attempt_0"
    filtered = (attempt / "filtered_stdout.log").read_text().splitlines()
    for rank in range(2):
        prefix = "[rank%d]: " % rank
        own = [line for line in filtered if line.startswith(prefix)]
        assert own == [prefix + "loss %d" % rank, prefix + "last acc"]
        assert lines_of(rank, out) == ["epoch %d" % rank, "loss %d" % rank, "last acc"]
    assert len(filtered) == 4
    assert sorted((attempt / "filtered_stderr.log").read_text().splitlines()) == [
        "[rank0]: oops loss",
        "[rank1]: oops loss",
    ]


def test_logs_are_rotated_between_lines(shell, tmp_path):
    code, _, err = shell(
        "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done",
        "--log-dir=logs",
        "--rdzv-id=job7",
        "-r=1",
        "--log-rotate-size=4K",
        "--log-rotate-keep=3",
    ).finish()
    assert code == 0, err
    folder = tmp_path / "logs" / "job7" / "attempt_0" / "0"
    names = ["stdout.log.3", "stdout.log.2", "stdout.log.1", "stdout.log"]
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    texts = [(folder / name).read_text() for name in names]
    assert all(4000 < len(text) <= 4096 for text in texts[:-1])
    lines = "".join(texts).splitlines()
    assert lines == ["line %d" % i for i in range(2000 - len(lines), 2000)]


BINARY = b"nul \0 and \xff\xfe " + b"x" * (3 << 20) + b"\r\n\0end"


def test_bytes_that_are_no_text_reach_console_and_log_unchanged(python, tmp_path):
    (tmp_path / "bytes").write_bytes(BINARY)
    job = python(
        "import sys; sys.stdout.buffer.write(open('bytes', 'rb').read())",
        "--log-dir=logs",
        "--rdzv-id=job7",
        "-t=1",
    )
    out, err = job.process.communicate(timeout=DEADLINE)
    assert job.process.returncode == 0, err
    assert out == BINARY
    assert (tmp_path / "logs/job7/attempt_0/0/stdout.log").read_bytes() == BINARY


def test_nothing_is_lost_of_what_a_worker_wrote_before_it_was_killed(python, tmp_path):
    code, out, _ = python(
        """
import os
os.write(1, b"x" * 60000)
os.write(2, b"last words\\n")
os.kill(os.getpid(), 9)
""",
        "--log-dir=logs",
        "--rdzv-id=job7",
        "-t=3",
    ).finish()
    assert code == 137
    folder = tmp_path / "logs" / "job7" / "attempt_0" / "0"
    assert out.count("x") == 60000
    assert (folder / "stdout.log").stat().st_size == 60000
    assert (folder / "stderr.log").read_text() == "last words\n"


def test_what_a_grandchild_writes_after_its_workers_end_is_kept(shell):
    # It outlives the worker, in a session of its own, until the launcher ends it.
    code, out, _ = shell(
        'setsid sh -c "trap \\"echo late; exit\\" TERM; echo ready > fifo; '
        'while :; do sleep 0.05; done" & mkfifo fifo; read line < fifo; echo done'
    ).finish()
    assert code == 0
    assert sorted(out.splitlines()) == ["done", "late"]


def test_a_reader_that_stops_blocks_no_worker_and_learns_what_it_missed(python, tmp_path):
    # 100 MB: more than the launcher keeps for the reader.
    job = python(
        """
import os
line = b"x" * 999 + b"\\n"
with open(1, "wb", 1 << 20, closefd=False) as out:
    for i in range(100000):
        out.write(line)
open("done%s" % os.environ["RANK"], "w").close()
""",
        "--nproc-per-node=1",
        "--log-line-prefix-template=[rank${rank}]: ",
        "--log-dir=logs",
        "--rdzv-id=job7",
        "-t=1",
    )
    wait_until((tmp_path / "done0").exists, "the worker's end though nobody reads")
    out, _ = job.process.communicate(timeout=DEADLINE)
    assert job.process.returncode == 0
    lines = out.decode().splitlines()
    note = r"\[rank0\]: \.\.\. (\d+) lines? dropped, reader too slow"
    gaps = [gap for gap in (re.fullmatch(note, line) for line in lines) if gap]
    dropped = sum(int(gap.group(1)) for gap in gaps)
    whole = [line for line in lines if not re.fullmatch(note, line)]
    assert dropped > 0 and set(whole) == {"[rank0]: " + "x" * 999}
    assert dropped + len(whole) == 100000
    log = tmp_path / "logs" / "job7" / "attempt_0" / "0" / "stdout.log"
    assert log.stat().st_size == 100000 * 1000


def test_a_full_disk_is_said_once_and_the_job_goes_on(shell, tmp_path):
    folder = tmp_path / "logs" / "job7" / "attempt_0"
    for rank in range(2):
        (folder / str(rank)).mkdir(parents=True)
        (folder / str(rank) / "stdout.log").symlink_to("/dev/full")
    code, out, err = shell(
        "echo one; sleep 0.05; echo two",
        "--nproc-per-node=2",
        "--log-dir=logs",
        "--rdzv-id=job7",
        "-t=1",
        env={"OMP_NUM_THREADS": "1"},
    ).finish()
    assert (code, lines_of(0, out), lines_of(1, out)) == (0, ["one", "two"], ["one", "two"])
    assert err.count("\n") == 1 and "No space left on device" in err


def test_output_that_a_full_disk_never_takes_is_told_of_at_the_end(shell):
    with open("/dev/full", "wb") as full:
        job = shell("echo one; sleep 0.05; echo two", stdout=full)
        err = job.process.communicate(timeout=DEADLINE)[1].decode()
    assert job.process.returncode == 0
    expected = "syncline-run: stdout lacks some of the output: 2 lines (No space left on device)\n"
    assert err == expected


def test_a_reader_that_goes_away_stops_the_job_as_in_a_pipeline(shell):
    job = shell("while :; do echo line; sleep 0.01; done", "--nproc-per-node=2")
    job.expect("line")
    job.process.stdout.close()
    assert job.process.wait(DEADLINE) == 128 + signal.SIGPIPE
    err = job.process.stderr.read().decode()
    assert err.count("nobody reads") == 1 and "failed" not in err
    assert processes_with(job.mark) == []


def test_folders_may_be_relative(shell, tmp_path):
    (tmp_path / "tmp").mkdir()
    code, out, _ = shell(
        'cd /; [ -e "$SYNCLINE_SECRET_FILE" ] && echo found; echo "$TORCHELASTIC_ERROR_FILE"',
        "--log-dir=logs",
        "--rdzv-id=job7",
        env={"TMPDIR": "tmp"},
    ).finish()
    assert code == 0
    assert out == "found\n%s/logs/job7/attempt_0/0/error.json\n" % tmp_path
    assert os.listdir(str(tmp_path / "tmp")) == []


def test_signals_are_heeded_though_nobody_reads_the_output(shell):
    job = shell("while :; do echo 0123456789012345678901234567890123456789; done")
    wait_until(lambda: len(select.select([job.process.stdout], [], [], 0)[0]) == 1, "output")
    job.process.terminate()
    wait_until(
        lambda: not [p for p in processes_with(job.mark) if p != job.process.pid],
        "the worker's end",
    )
    assert job.finish()[0] == 143
