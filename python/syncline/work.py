"""What Work has in Python besides the generated methods: results, futures, `await`."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from syncline._syncline import ProcessGroup, Work
from syncline.futures import Future

# The arrays that each operation in flight writes to: its first argument.
_results: WeakKeyDictionary[Work, list[Any]] = WeakKeyDictionary()
_WRITES_NOTHING = ("barrier_async", "send_async")


def _is_success(self: Work) -> bool:
    return self.is_completed() and self.exception() is None


def _exception(self: Work) -> BaseException | None:
    if not self.is_completed():
        return None
    try:
        self.synchronize()
    except Exception as error:
        return error
    return None


def _result(self: Work) -> list[Any]:
    return _results.get(self, [])


def _get_future(self: Work) -> Future:
    future = Future()

    def finish() -> None:
        error = self.exception()
        if error is None:
            future.set_result(self.result())
        else:
            future.set_exception(error)

    self._on_complete(finish)
    return future


def _await(self: Work) -> Generator[Any, None, list[Any]]:
    if not self.is_completed():
        loop = asyncio.get_running_loop()
        finished = loop.create_future()

        def finish() -> None:
            if not finished.done():  # The task may have been cancelled.
                finished.set_result(None)

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:  # The loop has been closed: nobody waits.
                pass

        self._on_complete(wake)
        yield from finished
    self.synchronize()
    return self.result()


class FinishedWork:
    """The Work of an operation that has been waited for."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self, timeout: timedelta | None = None) -> None:
        pass

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> list[Any]:
        return []

    def source_rank(self) -> int:
        return -1

    def get_future(self) -> Future:
        future = Future()
        future.set_result([])
        return future


def _block_current_stream(self: Work) -> None:
    """As wait: of an operation on a device the current stream waits, else this thread."""
    self.wait()


def _sequence_number(self: Work) -> int:
    """That of the operation among those of its group, as messages name it."""
    number = re.search(r" #(\d+)", self.description)
    return int(number[1]) if number else 0


def _remembers_result(start: Callable[..., Work]) -> Callable[..., Work]:
    @functools.wraps(start)
    def method(self: ProcessGroup, *args: Any, **kwargs: Any) -> Work:
        work = start(self, *args, **kwargs)
        written = args[0] if args else next(kwargs[name] for name in _FIRST if name in kwargs)
        _results[work] = list(written) if isinstance(written, (list, tuple)) else [written]
        return work

    return method


_FIRST = ("tensor", "tensors", "output", "outputs")  # By which names it can be passed.


def add_to_work() -> None:
    """Adds them to the class. To be called once."""
    additions = {
        "is_success": _is_success,
        "exception": _exception,
        "result": _result,
        "get_future": _get_future,
        "block_current_stream": _block_current_stream,
        "_get_sequence_number": _sequence_number,
        "_source_rank": Work.source_rank,
        "__await__": _await,
    }
    for name, function in additions.items():
        setattr(Work, name, function)
    for name in dir(ProcessGroup):
        if name.endswith("_async") and name not in _WRITES_NOTHING:
            setattr(ProcessGroup, name, _remembers_result(getattr(ProcessGroup, name)))
