"""Stopping all ranks at the same step, so that they can save and be started again later.

    from syncline import preemption

    dist.init_process_group()
    preemption.install()
    for step in range(first, last):
        if preemption.reached(step):  # On all ranks at the same step.
            save(step)
            break
        ...

A notice is given by a signal to any rank (SIGTERM, which launchers and clusters send), by `notify`
on any rank, or by whoever sets the key "preempt/notice" in the job's store.
"""

from __future__ import annotations

import atexit
import os
import signal
import types
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from syncline import job
from syncline._syncline import Preemption
from syncline.errors import DistError

_installed: Preemption | None = None
_previous: dict[int, Callable[[int, types.FrameType | None], Any] | int | None] = {}


def install(
    signals: Iterable[int] = (signal.SIGTERM,), timeout: timedelta = timedelta(seconds=60)
) -> None:
    """Begins to look for a notice, on every rank; after init_process_group.

    Args:
      signals: those that are a notice. A handler that was set in Python before is still called, the
        system's own is not. Only the main thread can give any.
      timeout: how long the ranks have to agree on a step, once there is a notice.

    Raises:
      DistError: this process has not joined a job, or has installed it before.
      ValueError: signals are given outside of the main thread, or one cannot be handled.
    """
    global _installed
    if _installed is not None:
        raise DistError("preemption is installed: call preemption.uninstall() first")
    world = job.joined()
    _installed = Preemption.create(world.store, world.rank, world.size, timeout)
    try:
        for number in signals:
            previous = signal.getsignal(number)
            signal.signal(number, _on_signal)
            _previous[number] = previous
    except BaseException:
        uninstall()
        raise


def uninstall() -> None:
    """Ends that, and sets the signals' previous handlers again. Does nothing if it has ended."""
    global _installed
    _installed = None
    while _previous:
        number, previous = _previous.popitem()
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


def notify() -> None:
    """Asks all ranks to stop. Returns at once."""
    _watching().give_notice()


def reached(step: int) -> bool:
    """Whether to save and stop, instead of beginning `step`.

    To be called at the beginning of every step, with the same numbers, which count up from 0, on
    all ranks. True from the same step on all of them, the first that none had begun when they
    agreed. Takes well under a microsecond, and waits only between a notice and the agreement.

    Raises:
      DistTimeoutError: not all ranks have taken part in the agreement in time; it names the others.
      ValueError: `step` is lower than the one before.
      DistError: `install` has not been called.
    """
    return _watching().reached(step)


def agreed_step() -> int | None:
    """The step at which the ranks stop; None while they have not agreed on one."""
    step = _watching().agreed_step
    return None if step < 0 else step


def _watching() -> Preemption:
    if _installed is None:
        raise DistError("nobody looks for a notice: call preemption.install() on every rank first")
    return _installed


def _on_signal(number: int, frame: types.FrameType | None) -> None:
    if _installed is not None:
        _installed.give_notice()
    previous = _previous.get(number)
    # That of SIGINT is the system's, so to speak.
    if callable(previous) and previous is not signal.default_int_handler:
        previous(number, frame)


atexit.register(uninstall)
os.register_at_fork(after_in_child=uninstall)  # Store and thread are the parent's.
