"""Countdowns: who does not leave a block of code in time is killed. As torch's elastic.timer.

    with timer.expires(after=60):
        batch = next(batches)

A server of the same host watches over the clients' requests, which travel by a named pipe
(FileTimerServer, FileTimerClient) or a multiprocessing queue (LocalTimerServer, LocalTimerClient).
In a worker of `syncline-run --health-timeout` heartbeats do the same without a server.

Where the environment variable TORCHELASTIC_TIMER_FILE names the pipe of a server, `expires` finds
it by itself; otherwise it needs `configure`.
"""

from __future__ import annotations

import abc
import contextlib
import json
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_VARIABLE = "TORCHELASTIC_TIMER_FILE"
_STOP_GRACE = 5.0
_PAUSE = 1.0  # Of a server, at most, after an error.
_MAX_PID = (1 << 31) - 1

_log = logging.getLogger(__name__)


class TimerRequest:
    """A countdown that begins, or with a negative time one that ends; worker_id is a pid."""

    __slots__ = ("expiration_time", "scope_id", "worker_id")

    def __init__(self, worker_id: Any, scope_id: str, expiration_time: float):
        self.worker_id = worker_id
        self.scope_id = scope_id
        self.expiration_time = expiration_time

    def _fields(self) -> tuple[Any, ...]:
        return self.worker_id, self.scope_id, self.expiration_time

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimerRequest) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())


class FileTimerRequest(TimerRequest):
    """What travels by the named pipe: one line of JSON, in the format of torch's."""

    __slots__ = ("signal", "version")

    def __init__(self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0):
        super().__init__(worker_pid, scope_id, expiration_time)
        self.version = 1
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        return int(self.worker_id)

    def _fields(self) -> tuple[Any, ...]:
        return *super()._fields(), self.version, self.signal

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_pid,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": int(self.signal),
            }
        )

    @staticmethod
    def from_json(line: str) -> FileTimerRequest:
        fields = json.loads(line)
        number = int(fields["signal"])
        if number >= signal.NSIG:
            raise ValueError(f"there is no signal {number}")
        return FileTimerRequest(
            _checked_pid(fields["pid"]),
            str(fields["scope_id"]),
            float(fields["expiration_time"]),
            number,
        )


class TimerClient(abc.ABC):
    """One worker's side."""

    @abc.abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Begins the countdown `scope_id`, which ends at a time of time.time()."""

    @abc.abstractmethod
    def release(self, scope_id: str) -> None:
        """Ends it."""


class FileTimerClient(TimerClient):
    """Sends requests to the FileTimerServer whose named pipe is `file_path`.

    `signal` is what the server kills this process with; 0 or less does not kill it.
    """

    def __init__(self, file_path: str, signal: int = signal.SIGKILL):
        self._file_path = file_path
        self.signal = signal

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._send(FileTimerRequest(os.getpid(), scope_id, expiration_time, self.signal))

    def release(self, scope_id: str) -> None:
        self._send(FileTimerRequest(os.getpid(), scope_id, -1))

    def _send(self, request: FileTimerRequest) -> None:
        line = (request.to_json() + "\n").encode()
        if len(line) > select.PIPE_BUF:  # Longer ones are not written as a whole.
            raise ValueError(
                f"the scope of a timer has {len(request.scope_id)} characters; that is more than "
                f"the {select.PIPE_BUF} bytes that a pipe takes at once"
            )
        try:
            # Fails at once if no server reads.
            descriptor = os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise BrokenPipeError(
                f"no timer server reads {self._file_path}: {error.strerror}; start a "
                "FileTimerServer of this path first"
            ) from error
        try:
            os.set_blocking(descriptor, True)
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


class LocalTimerClient(TimerClient):
    """Sends requests by a queue of multiprocessing, which a LocalTimerServer reads."""

    def __init__(self, mp_queue: Any):
        self._queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        self._queue.put(TimerRequest(os.getpid(), scope_id, -1))


class RequestQueue(abc.ABC):
    """Where a TimerServer takes requests from."""

    @abc.abstractmethod
    def size(self) -> int: ...

    @abc.abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Up to `size` requests, waiting for `timeout` seconds at most."""


class MultiprocessingRequestQueue(RequestQueue):
    """A queue of multiprocessing."""

    def __init__(self, mp_queue: Any):
        self._queue = mp_queue

    def size(self) -> int:
        return int(self._queue.qsize())

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        end = time.monotonic() + timeout
        requests: list[TimerRequest] = []
        while len(requests) < size and (left := end - time.monotonic()) > 0:
            try:
                requests.append(self._queue.get(timeout=left))
            except queue.Empty:
                break
        return requests


class _Watchdog:
    """A server's thread, which looks at its countdowns every `max_interval` seconds at least."""

    def __init__(self, max_interval: float, daemon: bool):
        self._max_interval = max_interval
        self._daemon = daemon
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_progress = time.time()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, daemon=self._daemon, name="timers")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(self._max_interval + _STOP_GRACE)
            self._thread = None

    def get_last_progress_time(self) -> int:
        """When the thread last looked; in seconds since 1970."""
        return int(self._last_progress)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
            except Exception:  # Whoever is late later must still be killed.
                _log.exception("the timer server could not look at its countdowns; it goes on")
                self._stopping.wait(min(self._max_interval, _PAUSE))
            self._last_progress = time.time()

    def _look(self) -> None:
        raise NotImplementedError


class TimerServer(_Watchdog, abc.ABC):
    """Reads requests from a queue, and kills the workers whose countdowns have ended."""

    def __init__(self, request_queue: RequestQueue, max_interval: float, daemon: bool = True):
        super().__init__(max_interval, daemon)
        self._request_queue = request_queue

    @abc.abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None: ...

    @abc.abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None: ...

    @abc.abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]: ...

    @abc.abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool: ...

    def _look(self) -> None:
        wanted = max(self._request_queue.size(), 1)
        self.register_timers(self._request_queue.get(wanted, self._max_interval))
        ended = {worker for worker in self.get_expired_timers(time.time())}
        self.clear_timers({worker for worker in ended if self._reap_worker(worker)})


class LocalTimerServer(TimerServer):
    """For workers of this host, named by their pids, over a queue of multiprocessing."""

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True):
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._timers: dict[tuple[int, str], TimerRequest] = {}

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        _register(self._timers, timer_requests)

    def clear_timers(self, worker_ids: set[int]) -> None:
        for key in [key for key in self._timers if key[0] in worker_ids]:
            del self._timers[key]

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        return _expired(self._timers, deadline)

    def _reap_worker(self, worker_id: int) -> bool:
        return _kill(worker_id, signal.SIGKILL)


class FileTimerServer(_Watchdog):
    """For workers of this host, over a named pipe that it makes at `file_path`.

    A worker whose countdown has ended gets the signal of its client. Unlike torch's, the server
    does not end its own process besides: the launcher sees the worker's end and restarts all.
    `log_event(name, request)` hears of what happens.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: Callable[[str, FileTimerRequest | None], None] | None = None,
    ):
        super().__init__(max_interval, daemon)
        self._file_path = file_path
        self._run_id = run_id
        self._log_event = log_event or (lambda name, request: None)
        self._timers: dict[tuple[int, str], FileTimerRequest] = {}
        self._rest = b""
        with contextlib.suppress(FileNotFoundError):
            os.remove(file_path)
        os.mkfifo(file_path, 0o600)
        # Both ends, so that reading does not end when the last client leaves.
        self._pipe = os.open(file_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self) -> None:
        super().start()
        self._log_event("watchdog started", None)

    def stop(self) -> None:
        super().stop()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._file_path)
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Looks once at what clients have sent, and ends."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(self._max_interval + _STOP_GRACE)
        self._look()
        self.stop()

    @staticmethod
    def is_process_running(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        _register(self._timers, timer_requests)

    def clear_timers(self, worker_pids: set[int]) -> None:
        for key in list(self._timers):
            if key[0] in worker_pids or not self.is_process_running(key[0]):
                del self._timers[key]

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        return _expired(self._timers, deadline)

    def _look(self) -> None:
        self.register_timers(self._requests())
        late = []
        for pid, ended in self.get_expired_timers(time.time()).items():
            deadly = next((request for request in ended if request.signal > 0), None)
            if deadly is not None:
                _kill(pid, deadly.signal)
            self.clear_timers({pid})
            late.append((ended, deadly))
        # What writes and calls may fail or wait, so all are killed by now.
        for ended, deadly in late:
            for request in ended:
                self._log_event("timer expired", request)
            if deadly is not None:
                self._log_event("kill worker process", deadly)
                print(
                    f"rank of pid {deadly.worker_pid}: still in {deadly.scope_id} after its time; "
                    f"it got {_name_of(deadly.signal)} (job {self._run_id})",
                    file=sys.stderr,
                    flush=True,
                )

    def _requests(self) -> list[FileTimerRequest]:
        """What comes until the next countdown ends, or within the interval."""
        soonest = min((r.expiration_time for r in self._timers.values()), default=float("inf"))
        pause = max(0.0, min(self._max_interval, soonest - time.time(), 1.0))
        if self._stopping.is_set():
            pause = 0.0
        if not select.select([self._pipe], [], [], pause)[0]:
            return []
        *lines, self._rest = (self._rest + os.read(self._pipe, 1 << 16)).split(b"\n")
        requests = []
        for line in lines:
            try:
                requests.append(FileTimerRequest.from_json(line.decode()))
            except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
                continue  # Somebody else writes there.
        return requests


_client: TimerClient | None = None


def configure(timer_client: TimerClient) -> None:
    """Has `expires` use this client."""
    global _client
    _client = timer_client


@contextlib.contextmanager
def expires(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> Iterator[None]:
    """Kills this process, by the server, if the block is not left within `after` seconds."""
    client = client or _client
    if client is None:
        path = os.environ.get(_VARIABLE)
        if not path:
            raise RuntimeError(
                f"no timer client: call configure first, or set {_VARIABLE} to the pipe of a server"
            )
        client = FileTimerClient(path)
    if scope is None:
        caller = sys._getframe(2)  # Over the context manager's own.
        scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    client.acquire(scope, time.time() + after)
    try:
        yield
    finally:
        client.release(scope)


def _register(timers: dict[Any, Any], requests: list[Any]) -> None:
    for request in requests:
        try:
            _checked_pid(request.worker_id)
        except (TypeError, ValueError, OverflowError) as error:
            _log.warning("a countdown in %s is refused: %s", request.scope_id, error)
            continue
        key = (request.worker_id, request.scope_id)
        if request.expiration_time < 0:
            timers.pop(key, None)
        else:
            timers[key] = request


def _checked_pid(pid: Any) -> int:
    # kill() means by 0 and less a whole process group, or all that there is.
    if not 0 < int(pid) <= _MAX_PID:
        raise ValueError(f"{pid} is not the pid of a process")
    return int(pid)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _expired(timers: dict[Any, Any], deadline: float) -> dict[Any, list[Any]]:
    """By worker, the earliest first."""
    ended: dict[Any, list[Any]] = {}
    for request in sorted(timers.values(), key=lambda request: float(request.expiration_time)):
        if request.expiration_time <= deadline:
            ended.setdefault(request.worker_id, []).append(request)
    return ended


def _kill(pid: int, number: int) -> bool:
    """Whether the process is gone, or was there to be killed."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True
