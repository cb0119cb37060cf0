"""What a worker of an elastic job knows of it, and reports to its launcher.

    from syncline import elastic

    @elastic.record
    def main():
        ...
        elastic.heartbeat()  # In every step, for --health-timeout.

Under syncline-run and under torchrun alike; without either, a job of one round.
"""

from __future__ import annotations

import faulthandler
import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from syncline import failures
from syncline._syncline import Heartbeat

_P = ParamSpec("_P")
_R = TypeVar("_R")

_heartbeat = Heartbeat.create()


def record(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A decorator for a program's main function: what it raises is recorded for the launcher.

    In the file that TORCHELASTIC_ERROR_FILE names, as torch's decorator of this name does; the
    exception goes on. Also makes Python print the stacks of all threads if the process is killed by
    SIGSEGV and the like. After init_process_group exceptions are recorded without it.
    """

    @functools.wraps(function)
    def recorded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            faulthandler.enable(all_threads=True)
        except Exception:  # stderr is no file.
            pass
        try:
            return function(*args, **kwargs)
        except Exception as error:
            failures.record(error)
            raise

    return recorded


def heartbeat() -> None:
    """Says to the launcher that this process makes progress; for every step.

    Touches the file that SYNCLINE_HEARTBEAT_FILE named when this module was imported, at most ten
    times a second; otherwise costs about 0.1 microseconds. Without that variable does nothing.
    """
    _heartbeat.beat()


def round() -> int:
    """How often the job's ranks have formed again: 0 in its first round.

    After a failure, and when nodes have come or gone. Under torchrun, the number of restarts.
    """
    return _number("SYNCLINE_ROUND", restart_count())


def restart_count() -> int:
    """How often the job has been restarted after a failure."""
    return _number("SYNCLINE_RESTART_COUNT", _number("TORCHELASTIC_RESTART_COUNT", 0))


def max_restarts() -> int:
    """How often it may be."""
    return _number("SYNCLINE_MAX_RESTARTS", _number("TORCHELASTIC_MAX_RESTARTS", 0))


def run_id() -> str:
    """The job's name, the same on all its nodes and in all its rounds; "" without a launcher."""
    theirs = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return os.environ.get("SYNCLINE_RUN_ID", theirs)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"environment variable {name}, which the launcher sets, is not a number: {text!r}"
        ) from None
