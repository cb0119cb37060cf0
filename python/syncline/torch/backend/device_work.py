"""Operations on tensors of a CUDA device, as torch's Work: streams wait for them, not the host."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from syncline import _syncline
from syncline.errors import DistError
from syncline.torch.backend.errors import translated
from syncline.torch.backend.staging import Copies, copy_back
from syncline.torch.backend.work import Value


class DeviceWork(torch.distributed.Work):  # type: ignore[misc]
    """An operation that is enqueued behind torch's current stream, on streams of Syncline's.

    Has the semantics of ProcessGroupNCCL's: `wait` makes the current stream wait; with a timeout
    it blocks the host. Its future is done once the operation is enqueued; its callbacks, and
    whoever waits for it, run behind the operation. `copies` are made behind it.

    An operation keeps its tensors, the stand-ins too, until the device is done with them, so that
    torch's allocator gives their memory to nobody before.
    """

    def __init__(
        self,
        work: _syncline.Work,
        tensors: Value,
        copies: Copies,
        device: torch.device,
        waiter: Waiter,
    ):
        super().__init__()
        self._work = work
        self._tensors = tensors
        self._copies = copies
        self._device = device
        self._waiter = waiter
        self._future: torch.futures.Future[Value] | None = None
        self._lock = threading.Lock()
        self._copied: Any = None  # The event behind the copies.
        if copies:
            work._on_complete(self._copy_if_nobody_has)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Makes the current stream wait; with a `timeout`, the host waits as long, and raises."""
        try:
            self._work.wait(timeout or None)  # torch's C++ code says "no timeout" by zero.
        except DistError as error:
            raise translated(error) from None
        if self._copies:
            self._copy_back().wait(torch.cuda.current_stream(self._device))
            if timeout:
                self._copied.synchronize()
        return True

    def synchronize(self) -> None:
        """As wait: the host does not wait."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        if not self._work.is_completed():
            return False
        if not self._copies or self.exception() is not None:
            return True
        return bool(self._copy_back().query())

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        if not self._work.is_completed():
            return None
        try:
            self._work.synchronize()  # Which does not block now, and knows the outcome.
        except DistError as error:
            return translated(error)
        return None

    def result(self) -> Value:
        """The tensors that the operation writes to."""
        return self._tensors

    def source_rank(self) -> int:
        return self._work.source_rank()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Value]:
        if self._future is None:
            begun = new_future(self._device)

            # What set_exception sets is no error to torch's C++ code; what a callback raises is.
            # The callback's current stream, which the future's waiters wait for, waits.
            def value(_: Any) -> Value:
                self.wait()
                return self._tensors

            def begin() -> None:
                begun.set_result(None)

            self._future = begun.then(value)
            self._waiter.submit(begin)
        return self._future

    def _copy_back(self) -> Any:
        """Enqueues the copies, once, on the current stream; returns the event behind them."""
        with self._lock:
            if self._copied is None:
                stream = torch.cuda.current_stream(self._device)
                copy_back(self._copies)
                for tensor, copy in self._copies:
                    tensor.record_stream(stream)
                    copy.record_stream(stream)
                self._copied = stream.record_event()
        return self._copied

    def _copy_if_nobody_has(self) -> None:
        """On the thread that notices the end of the operation."""
        if self.exception() is None:
            with torch.cuda.stream(torch.cuda.Stream(self._device)):
                self._copy_back()


def new_future(device: torch.device) -> torch.futures.Future[Any]:
    """A future whose value is of `device`: what waits for it waits on streams."""
    return torch.futures.Future(devices=[device])


class Waiter:
    """Runs what may block until an operation is enqueued: if a backend works in the host's memory.

    In order, on one thread, which ends when the object that `owner` is has gone. Where a backend
    always enqueues within the call (`blocks` is False), the caller runs it.
    """

    def __init__(self, owner: Any, *, blocks: bool):
        self._blocks = blocks
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        if owner is not None:
            weakref.finalize(owner, self._jobs.put, None)

    def submit(self, job: Callable[[], None]) -> None:
        if not self._blocks:
            job()
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_run, args=(self._jobs,), name="syncline-futures", daemon=True
                )
                self._thread.start()
        self._jobs.put(job)


def _run(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job
