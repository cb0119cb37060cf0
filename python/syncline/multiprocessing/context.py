"""Contexts: one for each start method, and the default one, whose methods the package exports.

They are independent of those of multiprocessing: its default start method is another one.
"""

# What the standard module has inside has no types.
# mypy: disable-error-code="attr-defined,has-type,misc,assignment"

from __future__ import annotations

import socket
import threading
from multiprocessing import context as standard
from multiprocessing import process, reduction
from typing import Any

from syncline.multiprocessing import connection, named_segments, pickling, sharing


class _SharingContext(standard.BaseContext):
    """What the contexts have in common: what carries objects is of this package."""

    def get_context(self, method: str | None = None) -> Any:
        """The context of a start method; this one if None."""
        if method is None:
            return self
        if method not in _contexts:
            raise ValueError(f"cannot find context for {method!r}")
        context = _contexts[method]
        context._check_available()
        return context

    def Pipe(self, duplex: bool = True) -> Any:  # noqa: N802
        """Two connections, each other's ends."""
        return connection.Pipe(duplex)

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: N802
        """A queue."""
        from syncline.multiprocessing import queues

        return queues.Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize: int = 0) -> Any:  # noqa: N802
        """A queue that can be joined."""
        from syncline.multiprocessing import queues

        return queues.JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self) -> Any:  # noqa: N802
        """A pipe that many processes write to and read from."""
        from syncline.multiprocessing import queues

        return queues.SimpleQueue(ctx=self.get_context())

    def TensorQueue(  # noqa: N802
        self, capacity: int = 64 << 20, max_messages: int = 0, timeout: float | None = None
    ) -> Any:
        """A queue of arrays, bounded by bytes: see syncline.tensor_queue."""
        from syncline import tensor_queue

        return tensor_queue.TensorQueue(capacity, max_messages, timeout)

    def Pool(  # noqa: N802
        self,
        processes: int | None = None,
        initializer: Any = None,
        initargs: Any = (),
        maxtasksperchild: int | None = None,
    ) -> Any:
        """A pool of processes."""
        from syncline.multiprocessing import pool

        return pool.Pool(
            processes, initializer, initargs, maxtasksperchild, context=self.get_context()
        )

    def Manager(self) -> Any:  # noqa: N802
        """A manager whose server runs: its proxies' arguments and results travel as here."""
        from syncline.multiprocessing import managers

        manager = managers.SyncManager(ctx=self.get_context())
        manager.start()
        return manager

    @property
    def reducer(self) -> Any:
        """The module of what reduces objects. It cannot be replaced, unlike the standard one."""
        return reduction

    @reducer.setter
    def reducer(self, reduction: Any) -> None:
        raise AttributeError(
            "the reducer of syncline.multiprocessing cannot be replaced: register functions by"
            " syncline.multiprocessing.Pickler.register"
        )


class _SharingProcess(process.BaseProcess):
    """A process whose arguments travel as shared memory to a child that does not inherit them."""

    def start(self) -> None:
        """Starts the process."""
        named_segments.mark_job()
        super().start()
        relay = self._popen.__dict__.pop("_syncline_relay", None)
        if relay is not None:
            relay.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        popen = standard.get_spawning_popen()
        if popen is None or getattr(_pickled, "now", None) is self:
            return super().__reduce_ex__(protocol)
        _pickled.now = self
        try:
            message = pickling.dumps(self)
        finally:
            _pickled.now = None
        relayed = None
        count = len(message.descriptors)
        if count > 0:
            popen._syncline_relay = connection.relay_descriptors(message.descriptors)
            relayed = reduction.DupFd(popen._syncline_relay.fileno())
        body = bytes(message.body)
        table = message.table
        message.is_sent = True
        message.close()
        method = _default_context._actual_context
        name = None if method is None else method._name
        return _load_process, (name, sharing._strategy, body, table, relayed, count)

    def _bootstrap(self, *args: Any, **kwargs: Any) -> Any:
        if self._start_method is not None:
            _default_context._actual_context = _contexts[self._start_method]
        return super()._bootstrap(*args, **kwargs)


_pickled = threading.local()


def _load_process(
    start_method: str | None,
    sharing_strategy: str,
    body: bytes,
    table: bytes,
    relayed: Any,
    count: int,
) -> Any:
    sharing._strategy = sharing_strategy
    if start_method is not None:
        _default_context._actual_context = _contexts[start_method]
    descriptors: list[int] = []
    if relayed is not None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, relayed.detach()) as relay:
            descriptors = connection.receive_relayed(relay, count)
    return pickling.loads(body, table, descriptors)


class Process(_SharingProcess):
    """A process of the default start method."""

    _start_method = None

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        return _default_context.get_context().Process._Popen(process_obj)

    @staticmethod
    def _after_fork() -> Any:
        return _default_context.get_context().Process._after_fork()


class ForkProcess(_SharingProcess, standard.ForkProcess):
    """A process started by fork."""


class SpawnProcess(_SharingProcess, standard.SpawnProcess):
    """A process started in a new interpreter."""


class ForkServerProcess(_SharingProcess, standard.ForkServerProcess):
    """A process started by a fork of the server process."""


class ForkContext(_SharingContext, standard.ForkContext):
    """The context of start method fork."""

    Process = ForkProcess


class SpawnContext(_SharingContext, standard.SpawnContext):
    """The context of start method spawn."""

    Process = SpawnProcess


class ForkServerContext(_SharingContext, standard.ForkServerContext):
    """The context of start method forkserver."""

    Process = ForkServerProcess


_contexts: dict[str, Any] = {
    "fork": ForkContext(),
    "spawn": SpawnContext(),
    "forkserver": ForkServerContext(),
}


class DefaultContext(_SharingContext, standard.DefaultContext):
    """The context whose start method can be set once. Fork, until then."""

    Process = Process

    def get_context(self, method: str | None = None) -> Any:
        """The context of a start method; that of the one that is set if None."""
        if method is not None:
            return super().get_context(method)
        if self._actual_context is None:
            self._actual_context = self._default_context
        return self._actual_context


_default_context = DefaultContext(_contexts["fork"])


def __getattr__(name: str) -> Any:
    """What else the standard module of this name has."""
    return getattr(standard, name)
