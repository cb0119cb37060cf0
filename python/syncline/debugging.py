"""A debugger in one worker, while the others wait."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import TextIO

from syncline import process_groups
from syncline.calls import member_of

_PATIENCE = 24 * 3600.0  # Seconds, of those that wait: people think slowly.
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")

_calls = 0
_terminal: tuple[TextIO, TextIO] | None = None  # Open while the process lives: it may be in steps.


def breakpoint(rank: int = 0, skip: int = 0, timeout_s: float | None = _PATIENCE) -> None:
    """Stops rank `rank` in the debugger, where it has been called; the others wait.

    All ranks call it. The first command that goes on (c, n, s) lets all go on; from then on steps
    over a collective wait for the others, as ever. The debugger has the terminal of the launcher,
    whose workers have no input of their own. The first `skip` calls do nothing. The others
    wait for `timeout_s` seconds (None: the group's timeout). RuntimeError if there is no terminal,
    on all ranks.
    """
    global _calls
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    _calls += 1
    if _calls <= skip:
        return
    group = member_of(None, "breakpoint") if process_groups.is_initialized() else None
    debugger = terminal = None
    frame = sys._getframe(1)
    problem = ""
    if group is None or group.rank() == rank:
        try:
            terminal = _open_terminal(rank)
        except RuntimeError as error:
            problem = str(error)
    if group is not None:
        problem = group.broadcast_bytes(problem.encode(), rank, timeout=timeout).decode()
    if problem:
        raise RuntimeError(problem)
    if terminal is not None:
        from syncline.rank_debugger import RankDebugger  # pdb takes 20 ms to import.

        debugger = RankDebugger(rank, terminal)
        debugger.ask(frame)
    if group is not None:
        group.barrier(timeout=timeout)
    if debugger is not None and debugger.needs_trace:
        debugger.trace(frame)


def _open_terminal(rank: int) -> tuple[TextIO, TextIO]:
    """This process's own, or its launcher's."""
    global _terminal
    if _terminal is None:
        if sys.stdin is not None and sys.stdin.isatty():
            _terminal = (sys.stdin, sys.stdout)
        else:
            path = _terminal_of(os.getppid())
            if path is None:
                raise RuntimeError(
                    f"rank {rank}: breakpoint has no terminal, nor has this process's parent; "
                    "start the launcher in one"
                )
            flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
            try:
                _terminal = (os.fdopen(os.open(path, flags)), os.fdopen(os.open(path, flags), "w"))
            except OSError as error:
                raise RuntimeError(
                    f"rank {rank}: breakpoint cannot open its terminal: {error}"
                ) from error
    return _terminal


def _terminal_of(pid: int) -> str | None:
    for descriptor in (0, 2, 1):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue
        if path.startswith(_TERMINALS):
            return path
    return None
