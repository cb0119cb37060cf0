"""What operations return: torch's Work over Syncline's.

torch's C++ code calls `wait` and `get_future`; the other methods are for Python. It finds them
through the Python object. It keeps that object if a process group returned the Work. If Python code
hands the Work over, it keeps only the C++ half, which waits for ever once the Python object is
gone: there, `lasting` makes a Work that C++ code can keep.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from syncline import _syncline
from syncline.errors import DistError
from syncline.torch.backend.errors import translated
from syncline.torch.backend.staging import Copies, copy_back

Value = list[Tensor]
_SHORTEST = timedelta(milliseconds=1)  # Zero would be none.

_thread = threading.local()  # Its `callbacks_of` is the group whose callback runs on this thread.


def runs_callback_of(group: _syncline.ProcessGroup) -> bool:
    """Whether the caller is a callback of a future, on the thread that runs the operations."""
    return getattr(_thread, "callbacks_of", None) is group


def lasting(work: Any) -> Any:
    """`work` as C++ code can keep it: another if it is one of these, with the same future."""
    if not type(work).__module__.startswith("syncline."):
        return work
    return torch._C._distributed_c10d._create_work_from_future(work.get_future())


class FinishedWork(torch.distributed.Work):  # type: ignore[misc]
    """An operation that was over, and well, when its call returned."""

    def __init__(self, tensors: Value, source: int = -1):
        super().__init__()
        self._tensors = tensors
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> Value:
        """The tensors that the operation has written to."""
        return self._tensors

    def source_rank(self) -> int:
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def synchronize(self) -> None:
        pass

    def block_current_stream(self) -> None:
        pass

    def get_future(self) -> torch.futures.Future[Value]:
        is_on_device = bool(self._tensors) and self._tensors[0].is_cuda
        devices = [self._tensors[0].device] if is_on_device else None  # Whose stream is behind it.
        future: torch.futures.Future[Value] = torch.futures.Future(devices=devices)
        future.set_result(self._tensors)
        return future


class RunningWork(torch.distributed.Work):  # type: ignore[misc]
    """An operation in the background.

    Its future has the tensors it writes to as its value. Callbacks of the future run on the thread
    that runs the group's operations, or at once if it is over; they cannot call operations of the
    group themselves. `copies` are made once it is over, before anybody is notified.
    """

    def __init__(
        self,
        group: _syncline.ProcessGroup,
        work: _syncline.Work,
        tensors: Value,
        copies: Copies | None = None,
    ):
        super().__init__()
        self._group = group
        self._work = work
        self._tensors = tensors
        self._future: torch.futures.Future[Value] | None = None
        self._copies = copies or []
        self._copying = threading.Lock()
        if self._copies:
            work._on_complete(self._copy_back)  # Even if nobody asks.

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns True once it is over; raises its error, or DistTimeoutError after `timeout`."""
        try:
            self._work.wait(timeout or None)  # torch's C++ code says "no timeout" by zero.
        except DistError as error:
            raise translated(error) from None
        self._copy_back()
        return True

    def _copy_back(self) -> None:
        """Of an operation that is over; once, where it has not failed."""
        if not self._copies:
            return
        with self._copying:
            try:
                self._work.wait()
            except DistError:
                return
            copy_back(self._copies)
            self._copies = []

    def is_completed(self) -> bool:
        if not self._work.is_completed():
            return False
        self._copy_back()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        if not self._work.is_completed():
            return None
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> Value:
        """The tensors that the operation writes to."""
        return self._tensors

    def source_rank(self) -> int:
        return self._work.source_rank()

    def _source_rank(self) -> int:
        return self._work.source_rank()

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Value]:
        if self._future is None:
            self._future = self._make_future()
        return self._future

    def _make_future(self) -> torch.futures.Future[Value]:
        over: torch.futures.Future[None] = torch.futures.Future()

        # What set_exception sets is no error to torch's C++ code; what a callback raises is.
        def value(_: torch.futures.Future[None]) -> Value:
            self.wait()
            return self._tensors

        def complete() -> None:
            before = getattr(_thread, "callbacks_of", None)
            _thread.callbacks_of = self._group
            try:
                over.set_result(None)
            finally:
                _thread.callbacks_of = before

        future = over.then(value)
        self._work._on_complete(complete)
        return future


class AllWork(torch.distributed.Work):  # type: ignore[misc]
    """Several operations as one."""

    def __init__(self, works: Sequence[Any]):
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        deadline = time.monotonic() + timeout.total_seconds() if timeout else None
        for work in self._works:
            if deadline is not None:
                timeout = max(timedelta(seconds=deadline - time.monotonic()), _SHORTEST)
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next(filter(None, (work.exception() for work in self._works)), None)

    def result(self) -> Value:
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Value]:
        def value(futures: Any) -> Value:
            return [tensor for future in futures.wait() for tensor in future.wait()]

        return torch.futures.collect_all([work.get_future() for work in self._works]).then(value)
