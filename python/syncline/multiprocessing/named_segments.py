"""The process that frees named segments: for the sharing strategy file_system.

Segments are files in /dev/shm, whose names travel in messages. A manager, a program of its own,
counts who maps them and which messages carry them. The processes of a job find it by the
environment; the first one that needs it starts it.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
from multiprocessing import util
from typing import Any

from syncline import _syncline, errors

# The name of the job's manager.
_MANAGER = "SYNCLINE_SEGMENT_MANAGER"
# The job's first process: its pid, and when it was started.
_JOB = "SYNCLINE_SEGMENT_JOB"

_PROGRAM = pathlib.Path(__file__).parent.parent / "bin" / "syncline-segment-manager"
_START_TIMEOUT = 60.0

# The process that has arranged to leave its managers when it ends.
_leaver = -1


def mark_job() -> None:
    """Makes this process the first one of its job, unless it is in one. For all that it starts."""
    job = os.environ.get(_JOB, "")
    if job == "" or _started(job.partition(":")[0]) != job.partition(":")[2]:
        os.environ[_JOB] = f"{os.getpid()}:{_started('self')}"


def use_manager() -> None:
    """Connects to the job's manager, or starts it. RuntimeError if it cannot start."""
    leave_at_exit()
    if _syncline._segment_manager():  # Looking at a parent's segments connects, too.
        return
    inherited = os.environ.get(_MANAGER)
    if inherited:
        try:
            _syncline._use_segment_manager(inherited)
            return
        except errors.DistNetworkError:
            pass  # It was killed, or its job is over.
    mark_job()
    manager = _start()
    _syncline._use_segment_manager(manager)
    os.environ[_MANAGER] = manager


def leave_at_exit() -> None:
    """What this process has sent is to be received, though it ends of its own accord."""
    global _leaver
    if _leaver == os.getpid():
        return
    _leaver = os.getpid()
    # After the threads of queues have sent what was put.
    util.Finalize(None, _syncline._leave_segments, exitpriority=-100)


def write(size: int, parts: list[tuple[int, Any]]) -> tuple[str, int]:
    """A new segment that a message carries: its name, and the sender's number."""
    use_manager()
    try:
        return _syncline._write_named(size, parts)
    except errors.DistNetworkError:
        use_manager()  # It has just been killed.
        return _syncline._write_named(size, parts)


def carry(name: str) -> tuple[str, int]:
    """Has a message carry a segment that this process maps: its name, and the sender's number."""
    leave_at_exit()
    return _syncline._carry_named(name)


def make(size: int) -> Any:
    """A new segment that this process maps, a _syncline.TensorView."""
    use_manager()
    try:
        return _syncline._make_named(size)
    except errors.DistNetworkError:
        use_manager()
        return _syncline._make_named(size)


def _started(pid: str) -> str:
    """When a process was started, in ticks; empty if there is none."""
    try:
        text = pathlib.Path("/proc", pid, "stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _start() -> str:
    """Starts a manager, and returns its name."""
    pid = os.environ[_JOB].partition(":")[0]
    command = [str(_PROGRAM), pid]
    try:
        ended = subprocess.run(
            command, capture_output=True, timeout=_START_TIMEOUT, text=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(
            f"the manager of shared segments ({_PROGRAM}) cannot be started: {error}; the sharing"
            " strategy file_descriptor needs none"
        ) from error
    if ended.returncode != 0:
        raise RuntimeError(
            f"the manager of shared segments ({_PROGRAM}) has not started:"
            f" {ended.stderr.strip() or ended.returncode}; the sharing strategy file_descriptor"
            " needs none"
        )
    return ended.stdout.strip()
