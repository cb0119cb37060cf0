"""Runs a function in several processes, each with its rank, as torch.multiprocessing.spawn does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection as standard
from multiprocessing import process
from typing import Any

from syncline.multiprocessing.context import _default_context

_DEFAULT_GRACE = 30.0
_PR_SET_PDEATHSIG = 1


class ProcessException(Exception):  # noqa: N818
    """A process has failed: which one. The base of the two below."""

    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.pid = pid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.pid)


class ProcessRaisedException(ProcessException):
    """The function has raised an exception; the message has its traceback."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg, error_index, error_pid)


class ProcessExitedException(ProcessException):
    """A process has exited with a code, or was killed by a signal."""

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.pid, self.exit_code, self.signal_name)


class ProcessContext:
    """The processes that spawn and start_processes have started."""

    def __init__(self, processes: list[Any], errors: list[Any]) -> None:
        self.processes = processes
        self._errors = errors  # For each process, a connection with the traceback of its error.
        self.sentinels = {process.sentinel: index for index, process in enumerate(processes)}

    def pids(self) -> list[int]:
        """The processes' numbers, by rank."""
        return [int(process.pid) for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Waits for processes to end, for at most `timeout` seconds. True if all have ended.

        With the first one that fails, the others get SIGTERM, and after `grace_period` seconds (30)
        SIGKILL. Then the error is raised: ProcessRaisedException or ProcessExitedException. Returns
        False after the timeout, or when some have ended: call it in a loop.
        """
        if not self.sentinels:
            return True
        failed = None
        for sentinel in standard.wait(list(self.sentinels), timeout):
            index = self.sentinels.pop(sentinel)
            self.processes[index].join()
            if self.processes[index].exitcode != 0 and failed is None:
                failed = index
        if failed is None:
            return not self.sentinels
        self._end_all(_DEFAULT_GRACE if grace_period is None else grace_period)
        raise self._error(failed)

    def _end_all(self, grace_period: float) -> None:
        for each in self.processes:
            if each.is_alive():
                each.terminate()
        end = time.monotonic() + grace_period
        for each in self.processes:
            each.join(max(0.0, end - time.monotonic()))
        for each in self.processes:
            if each.is_alive():
                each.kill()
            each.join()

    def _error(self, index: int) -> ProcessException:
        failed = self.processes[index]
        code = failed.exitcode
        pid = failed.pid
        if self._errors[index].poll():
            try:
                text = self._errors[index].recv()
            except EOFError:
                text = None
            if text is not None:
                return ProcessRaisedException(
                    f"rank {index} (process {pid}) has raised:\n\n{text}", index, pid
                )
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return ProcessExitedException(
                f"rank {index} (process {pid}) was ended by {name}", index, pid, code, name
            )
        return ProcessExitedException(
            f"rank {index} (process {pid}) has exited with code {code}", index, pid, code
        )


# The name that torch.multiprocessing had for it.
SpawnContext = ProcessContext


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Starts `nprocs` processes that call fn(rank, *args), by any start method.

    With `join` waits until all have ended, and raises the error of the first that fails after it
    has ended the others; otherwise returns their ProcessContext. They end with the process that
    calls this.
    """
    context = _default_context.get_context(start_method)
    # The signal at the parent's death is that of the thread that starts the child.
    signalled = (
        start_method != "forkserver" and threading.current_thread() is threading.main_thread()
    )
    processes: list[Any] = []
    errors: list[Any] = []
    try:
        for rank in range(nprocs):
            reader, writer = context.Pipe(duplex=False)
            errors.append(reader)
            with writer:
                each = context.Process(
                    target=_run,
                    args=(fn, rank, args, writer, os.getpid() if signalled else 0),
                    daemon=daemon,
                )
                each.start()
            processes.append(each)
    except BaseException:
        ProcessContext(processes, errors)._end_all(0.0)
        raise
    started = ProcessContext(processes, errors)
    if not join:
        return started
    while not started.join():
        pass
    return None


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Starts `nprocs` processes that call fn(rank, *args) in interpreters of their own.

    See start_processes, which also has the other start methods.
    """
    return start_processes(fn, args, nprocs, join, daemon, start_method)


def _run(fn: Any, rank: int, args: tuple[Any, ...], errors: Any, parent: int) -> None:
    _end_with_parent(parent)
    try:
        fn(rank, *args)
    except KeyboardInterrupt:
        pass  # The parent has it, too.
    except Exception:
        errors.send(traceback.format_exc())
        sys.exit(1)


def _end_with_parent(parent: int) -> None:
    if parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    known = process.parent_process()
    if known is not None:
        watcher = threading.Thread(target=_watch, args=(known.sentinel,), daemon=True)
        watcher.start()


def _watch(sentinel: int) -> None:
    """Ends this process when its parent has ended."""
    standard.wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
