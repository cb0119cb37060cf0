"""The stores, by the names, parameters and defaults of torch.distributed's.

A timeout is how long calls wait where they are given none. Values are bytes; where a value is
given, a str will do, which is stored as UTF-8. docs/compatibility.md says where a method differs
from torch's.

Classes can be derived from these. One that is derived from Store itself has a store of its own,
written in Python: see syncline.store_bridge.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from syncline import _syncline
from syncline._syncline import Store
from syncline.errors import DistStoreTimeoutError, DistTimeoutError, QueueEmptyError

_TIMEOUT = timedelta(seconds=300)
_ARRIVALS = "init/"  # The key by which a TCPStore counts its workers, as in torch.
_PAUSE = 0.01  # Between two looks at how many have arrived.

if TYPE_CHECKING:

    class TCPStore(_syncline.TCPStore):
        """See _init_tcp_store."""

        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,
            timeout: timedelta = _TIMEOUT,
            wait_for_workers: bool = True,
            multi_tenant: bool = False,
            master_listen_fd: int | None = None,
            use_libuv: bool = True,
        ) -> None: ...

    class FileStore(_syncline.FileStore):
        """See _init_file_store."""

        def __init__(
            self,
            file_name: str | os.PathLike[str],
            world_size: int = -1,
            timeout: timedelta = _TIMEOUT,
        ) -> None: ...

    class HashStore(_syncline.HashStore):
        """See _init_hash_store."""

        def __init__(self, timeout: timedelta = _TIMEOUT) -> None: ...

    class PrefixStore(_syncline.PrefixStore):
        """See _init_prefix_store."""

        def __init__(self, prefix: str, store: Store) -> None: ...

else:
    TCPStore = _syncline.TCPStore
    FileStore = _syncline.FileStore
    HashStore = _syncline.HashStore
    PrefixStore = _syncline.PrefixStore

# What the extension has, which the functions below go on with.
_construct: dict[type[Store], Callable[..., None]] = {
    kind: kind.__init__  # type: ignore[misc]
    for kind in (Store, TCPStore, FileStore, HashStore, PrefixStore)
}
_set, _get, _compare_set = Store.set, Store.get, Store.compare_set
_append, _wait = Store.append, Store.wait
_multi_get, _multi_set, _list_keys = Store.multi_get, Store.multi_set, Store.list_keys


def _init_store(self: Store) -> None:
    """Makes a store whose methods are those of the class of Python that is derived from Store."""
    from syncline.store_bridge import weak_bridge_to

    _construct[Store](self, weak_bridge_to(self))


def _init_tcp_store(
    self: _syncline.TCPStore,
    host_name: str,
    port: int,
    world_size: int | None = None,
    is_master: bool = False,
    timeout: timedelta = _TIMEOUT,
    wait_for_workers: bool = True,
    multi_tenant: bool = False,
    master_listen_fd: int | None = None,
    use_libuv: bool = True,
) -> None:
    """Connects to the store's server at `host_name`:`port`; with `is_master`, starts it there.

    With port 0 the system chooses; the store's `port` tells which. With a `world_size` and
    `wait_for_workers` the store counts its clients, and the master waits until there are that many,
    itself among them. With `multi_tenant` a second master of this process at the same port is
    another client of the first one's server, which ends with the last of them. `master_listen_fd`
    is a socket that listens already, and belongs to the server from then on. `use_libuv` has no
    effect: gRPC serves. Raises DistNetworkError if the port is in use, DistTimeoutError if no
    server answers within `timeout`, DistStoreError if workers are missing.
    """
    del use_libuv
    listen_fd = master_listen_fd if is_master else None
    if listen_fd is None and not multi_tenant:
        made = _syncline.TCPStore.create(host_name, port, is_master, timeout)
    else:
        made = _syncline._create_tcp_store(
            host_name, port, is_master, timeout, listen_fd, multi_tenant
        )
    _construct[TCPStore](self, made)
    if world_size is not None and world_size > 0 and wait_for_workers:
        self.add(_ARRIVALS, 1)
        if is_master:
            _wait_for_workers(self, world_size, timeout)


def _wait_for_workers(store: Store, world_size: int, timeout: timedelta) -> None:
    end = time.monotonic() + timeout.total_seconds()
    while (arrived := store.add(_ARRIVALS, 0)) < world_size:
        if time.monotonic() > end:
            raise DistStoreTimeoutError(
                f"Timed out after {timeout.total_seconds():g} seconds waiting for clients. "
                f"{arrived}/{world_size} clients joined."
            )
        time.sleep(_PAUSE)


def _init_file_store(
    self: Store,
    file_name: str | os.PathLike[str],
    world_size: int = -1,
    timeout: timedelta = _TIMEOUT,
) -> None:
    """Opens the store in the file `file_name`, made if it is absent; its folder must exist.

    `world_size` is accepted for compatibility: the last process to leave removes the file, however
    many there were. Raises DistStoreError if the file is another kind of file or cannot be opened.
    """
    del world_size
    _construct[FileStore](self, _syncline.FileStore.create(os.fspath(file_name), timeout))


def _init_hash_store(self: Store, timeout: timedelta = _TIMEOUT) -> None:
    """Makes an empty store for the threads of this process."""
    _construct[HashStore](self, _syncline.HashStore.create(timeout))


def _init_prefix_store(self: Store, prefix: str, store: Store) -> None:
    """The part of `store` whose keys begin with `prefix` and a slash."""
    _construct[PrefixStore](self, _syncline.PrefixStore.create(prefix, store))


def _store_set(self: Store, key: str, value: bytes | str) -> None:
    """Sets `key`, replacing any earlier value."""
    _set(self, key, _octets(value))


def _store_get(self: Store, key: str, timeout: timedelta | None = None) -> bytes:
    """Waits until `key` is set and returns its value."""
    try:
        return _get(self, key, timeout)
    except DistTimeoutError as error:
        _raise_wait_timeout(error)


def _store_compare_set(self: Store, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
    """Sets `key` to `desired` if it holds `expected` (empty: if it is absent).

    Returns the value after the call; if the key is still absent, `expected`.
    """
    present: bytes = _octets(expected)
    value = _compare_set(self, key, present, _octets(desired))
    if not value and present and not self.check([key]):
        return present
    return value


def _store_append(self: Store, key: str, value: bytes | str) -> None:
    """Appends to the value of `key`, which is created if it is absent."""
    _append(self, key, _octets(value))


def _store_wait(self: Store, keys: list[str], timeout: timedelta | None = None) -> None:
    """Waits until all `keys` are set, or are queues with values."""
    try:
        _wait(self, keys, timeout)
    except DistTimeoutError as error:
        _raise_wait_timeout(error)


def _store_multi_get(self: Store, keys: list[str], timeout: timedelta | None = None) -> list[bytes]:
    """Waits until all `keys` are set; returns their values in the same order."""
    try:
        return _multi_get(self, keys, timeout)
    except DistTimeoutError as error:
        _raise_wait_timeout(error)


def _store_multi_set(self: Store, keys: list[str], values: list[bytes | str]) -> None:
    """Sets keys[i] to values[i] for all i in one step."""
    _multi_set(self, keys, [_octets(value) for value in values])


def _store_list_keys(self: Store, prefix: str = "") -> list[str]:
    """The keys that begin with `prefix`, sorted; without that which counts the workers."""
    keys = _list_keys(self, prefix)
    if isinstance(self, TCPStore):
        keys = [key for key in keys if key != _ARRIVALS]
    return keys


def _store_set_timeout(self: Store, timeout: timedelta) -> None:
    """Changes how long calls of this object wait where they are given no timeout."""
    if isinstance(timeout, timedelta) and timeout <= timedelta():
        raise ValueError(f"timeout must be positive, not {timeout}")
    _syncline._store_set_timeout(self, timeout)


def _store_clone(self: Store) -> Store:
    """Another client of the same store, with a timeout of its own."""
    return _syncline._store_clone(self)


def _store_has_extended_api(self: Store) -> bool:
    """Whether there are append, multi_get and multi_set."""
    return True


def _store_barrier(
    self: Store, key: str, world_size: int, timeout: timedelta | None = None
) -> None:
    """Waits until `world_size` callers have called it with this key; it can be used again."""
    if world_size < 1:
        raise ValueError(f"world_size must be positive, not {world_size}")
    round, place = divmod(self.add(f"{key}/arrived", 1) - 1, world_size)
    last = f"{key}/complete/{round}"
    if place == world_size - 1:
        self.set(last, b"")
    self.wait([last], timeout)


def _store_queue_push(self: Store, key: str, value: bytes | str) -> None:
    """Adds a value to the end of the queue `key`."""
    _syncline._queue_push(self, key, _octets(value))


def _store_queue_pop(
    self: Store, key: str, block: bool = True, timeout: timedelta | None = None
) -> bytes:
    """Takes the oldest value of the queue `key`, which is waited for.

    If `block` is false, raises QueueEmptyError where the queue is empty.
    """
    if not block:
        value = _syncline._queue_try_pop(self, key)
        if value is None:
            raise QueueEmptyError("queue is empty")
        return value
    try:
        return _syncline._queue_pop(self, key, timeout)
    except DistTimeoutError as error:
        _raise_wait_timeout(error)


def _store_queue_len(self: Store, key: str) -> int:
    """How many values the queue `key` has."""
    return _syncline._queue_len(self, key)


def _octets(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value  # The extension checks the rest.


def _raise_wait_timeout(error: DistTimeoutError) -> NoReturn:
    """Begins with torch's words, and is what torch raises: a DistStoreError."""
    raise DistStoreTimeoutError(f"Wait timeout: {str(error).removeprefix('Timed out: ')}") from None


def _has_libuv_backend(self: Store) -> bool:
    """False: gRPC serves."""
    return False


def add_to_stores() -> None:
    """Adds them to the classes. To be called once."""
    for kind, init in {
        Store: _init_store,
        TCPStore: _init_tcp_store,
        FileStore: _init_file_store,
        HashStore: _init_hash_store,
        PrefixStore: _init_prefix_store,
    }.items():
        kind.__init__ = init  # type: ignore[misc]
        kind.__doc__ = f"{kind.__doc__}\n\n{init.__doc__}"
    for name, method in list(globals().items()):
        if name.startswith("_store_"):
            method.__name__ = name.removeprefix("_store_")
            method.__qualname__ = f"Store.{method.__name__}"
            setattr(Store, method.__name__, method)
    backend: Any = property(_has_libuv_backend)
    TCPStore.libuvBackend = backend  # type: ignore[assignment]


__all__ = ["FileStore", "HashStore", "PrefixStore", "Store", "TCPStore"]
