"""Queues of processes, in which arrays travel as shared memory."""

# What the standard module has inside has no types.
# mypy: disable-error-code="attr-defined,has-type,misc,type-arg"

from __future__ import annotations

import errno
import socket
import threading
import time
import weakref
from multiprocessing import queues as standard
from multiprocessing import util
from queue import Empty, Full
from typing import Any

from syncline.multiprocessing import connection, pickling

__all__ = ["Empty", "Full", "JoinableQueue", "Queue", "SimpleQueue"]

_END = object()
_LONGEST_PAUSE = 0.05


class Queue(standard.Queue):
    """A queue of multiprocessing. `put` pickles and copies before it returns.

    It sends at once if the pipe has room; otherwise a thread does. An object that cannot be pickled
    is an error of `put`.
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any) -> None:
        super().__init__(maxsize, ctx=ctx)
        self._reader.close()
        self._writer.close()
        self._reader, self._writer = connection.Pipe(duplex=False)
        self._reset()

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)
        self._sending = _Sending()

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Puts an object. Raises queue.Full if there is no room for it after `timeout` seconds."""
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        if not self._sem.acquire(block, timeout):
            raise Full
        try:
            message = pickling.dumps(obj)
        except Exception as error:
            self._sem.release()
            if not self._handles_errors():
                raise
            self._on_queue_feeder_error(error, obj)
            return
        except BaseException:
            self._sem.release()
            raise
        with self._notempty:
            self._count_task()
            if not self._buffer and not self._sending.now and self._sent_at_once(message):
                return
            if self._thread is None:
                self._start_thread()
            self._buffer.append((message, obj if self._handles_errors() else None))
            self._notempty.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Takes an object. Raises queue.Empty if there is none after `timeout` seconds."""
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        if block and timeout is None:
            with self._rlock:
                received = connection.receive_message(self._reader)
            self._sem.release()
            return received.load()
        end = time.monotonic() + timeout if block and timeout is not None else 0.0
        if not self._rlock.acquire(block, timeout):
            raise Empty
        try:
            if not self._reader.poll(max(end - time.monotonic(), 0.0) if block else 0.0):
                raise Empty
            received = connection.receive_message(self._reader)
            self._sem.release()
        finally:
            self._rlock.release()
        return received.load()

    def close(self) -> None:
        """Says that this process puts nothing more. What it has put is sent, by the thread."""
        started = self._thread is not None
        closed = self._closed
        super().close()
        if not started and not closed:
            self._reader.close()
            self._writer.close()

    def _count_task(self) -> None:
        """For JoinableQueue."""

    def _handles_errors(self) -> bool:
        return type(self)._on_queue_feeder_error is not standard.Queue._on_queue_feeder_error

    def _sent_at_once(self, message: pickling.Message) -> bool:
        try:
            connection.send_message(self._writer, message, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                return False
            message.close()
            if error.errno == errno.EPIPE and self._ignore_epipe:
                return True
            self._sem.release()
            raise
        message.close()
        return True

    def _start_thread(self) -> None:
        util.debug("Queue._start_thread()")
        self._buffer.clear()
        self._sending = _Sending()
        feeder = _Feeder(
            self._buffer,
            self._notempty,
            self._sending,
            self._reader,
            self._writer,
            self._ignore_epipe,
            self._on_queue_feeder_error,
            self._sem,
        )
        self._thread = threading.Thread(target=feeder.run, name="QueueFeederThread", daemon=True)
        self._thread.start()
        # At the process's exit what was put is sent before the pipe closes, unless
        # cancel_join_thread was called.
        if not self._joincancelled:
            self._jointhread = util.Finalize(
                self._thread, _join, [weakref.ref(self._thread)], exitpriority=-5
            )
        self._close = util.Finalize(
            self, _tell_end, [self._buffer, self._notempty], exitpriority=10
        )


def _join(reference: Any) -> None:
    thread = reference()
    if thread is not None:
        thread.join()


def _tell_end(buffer: Any, notempty: threading.Condition) -> None:
    with notempty:
        buffer.append(_END)
        notempty.notify()


class _Sending:
    """Whether the thread has a message that is no longer in the buffer."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = False


class _Feeder:
    """The thread that sends what `put` could not. Has no reference to the queue, which ends it."""

    def __init__(
        self,
        buffer: Any,
        notempty: threading.Condition,
        sending: _Sending,
        reader: connection.Connection,
        writer: connection.Connection,
        ignores_epipe: bool,
        on_error: Any,
        room: Any,
    ) -> None:
        self._buffer = buffer
        self._notempty = notempty
        self._sending = sending
        self._reader = reader
        self._writer = writer
        self._ignores_epipe = ignores_epipe
        self._on_error = on_error
        self._room = room

    def run(self) -> None:
        util.debug("starting thread to feed data to pipe")
        while True:
            with self._notempty:
                self._sending.now = False
                while not self._buffer:
                    self._notempty.wait()
                entry = self._buffer.popleft()
                self._sending.now = True
            if entry is _END:
                self._reader.close()
                self._writer.close()
                return
            message, value = entry
            try:
                self._send(message)
            except Exception as error:
                if self._ignores_epipe and getattr(error, "errno", 0) == errno.EPIPE:
                    return
                if util.is_exiting():
                    util.info("error in queue thread: %s", error)
                    return
                self._room.release()
                self._on_error(error, value)
            finally:
                message.close()
                del entry, message, value

    def _send(self, message: pickling.Message) -> None:
        pause = 0.001
        while True:
            try:
                connection.send_message(self._writer, message)
                return
            except OSError as error:
                # As many descriptors are in flight as the kernel allows: as with a pipe that is
                # full, receivers make room.
                if error.errno != errno.ETOOMANYREFS:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


class JoinableQueue(Queue):
    """A queue whose `join` waits until each object that was put has been marked by `task_done`."""

    def __init__(self, maxsize: int = 0, *, ctx: Any) -> None:
        super().__init__(maxsize, ctx=ctx)
        self._unfinished_tasks = ctx.Semaphore(0)
        self._cond = ctx.Condition()

    def __getstate__(self) -> Any:
        return (super().__getstate__(), self._cond, self._unfinished_tasks)

    def __setstate__(self, state: Any) -> None:
        state, self._cond, self._unfinished_tasks = state
        super().__setstate__(state)

    def _count_task(self) -> None:
        with self._cond:
            self._unfinished_tasks.release()

    task_done = standard.JoinableQueue.task_done
    join = standard.JoinableQueue.join


class SimpleQueue(standard.SimpleQueue):
    """A pipe that many processes write to and read from."""

    def __init__(self, *, ctx: Any) -> None:
        super().__init__(ctx=ctx)
        self._reader.close()
        self._writer.close()
        self._reader, self._writer = connection.Pipe(duplex=False)
        self._poll = self._reader.poll

    def get(self) -> Any:
        """Takes an object; waits until there is one."""
        with self._rlock:
            received = connection.receive_message(self._reader)
        return received.load()

    def put(self, obj: Any) -> None:
        """Puts an object; waits until there is room in the pipe."""
        self._writer.send(obj)


def __getattr__(name: str) -> Any:
    """What else the standard module of this name has."""
    return getattr(standard, name)
