"""Processes of jobs are killed at random moments; the seeds are fixed."""

import pathlib
import subprocess
import sys

ROUNDS = 15


def test_whoever_is_killed_nothing_is_left_and_nobody_sees_anothers_bytes():
    program = pathlib.Path(__file__).with_name("kill_storm.py")
    ended = subprocess.run(
        [sys.executable, str(program), str(ROUNDS)],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{ROUNDS} rounds, 0 problems" in ended.stdout
