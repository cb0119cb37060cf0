"""The stores, made by the names and parameters that users of torch.distributed know.

A timeout is how long calls wait where they are given none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from syncline import _syncline
from syncline._syncline import Store

_TIMEOUT = timedelta(seconds=300)

if TYPE_CHECKING:

    class TCPStore(_syncline.TCPStore):
        """See _new_tcp_store."""

        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,
            timeout: timedelta = _TIMEOUT,
            wait_for_workers: bool = True,
        ) -> None: ...

    class FileStore(_syncline.FileStore):
        """See _new_file_store."""

        def __init__(
            self,
            file_name: str | os.PathLike[str],
            world_size: int = -1,
            timeout: timedelta = _TIMEOUT,
        ) -> None: ...

    class HashStore(_syncline.HashStore):
        """See _new_hash_store."""

        def __init__(self, timeout: timedelta = _TIMEOUT) -> None: ...

    class PrefixStore(_syncline.PrefixStore):
        """See _new_prefix_store."""

        def __init__(self, prefix: str, store: Store) -> None: ...

else:
    TCPStore = _syncline.TCPStore
    FileStore = _syncline.FileStore
    HashStore = _syncline.HashStore
    PrefixStore = _syncline.PrefixStore


def _new_tcp_store(
    _: type,
    host_name: str,
    port: int,
    world_size: int | None = None,
    is_master: bool = False,
    timeout: timedelta = _TIMEOUT,
    wait_for_workers: bool = True,
) -> _syncline.TCPStore:
    """Connects to the store's server at `host_name`:`port`; with `is_master`, starts it there.

    With port 0 the system chooses; the store's `port` tells which. `world_size` and
    `wait_for_workers` are accepted for compatibility: stores do not count their clients. Raises
    DistNetworkError if the port is in use, DistTimeoutError if no server answers within `timeout`.
    """
    del world_size, wait_for_workers
    return _syncline.TCPStore.create(host_name, port, is_master, timeout)


def _new_file_store(
    _: type,
    file_name: str | os.PathLike[str],
    world_size: int = -1,
    timeout: timedelta = _TIMEOUT,
) -> _syncline.FileStore:
    """Opens the store in the file `file_name`, made if it is absent; its folder must exist.

    `world_size` is accepted for compatibility. Raises DistStoreError if the file is another kind
    of file or cannot be opened.
    """
    del world_size
    return _syncline.FileStore.create(os.fspath(file_name), timeout)


def _new_hash_store(_: type, timeout: timedelta = _TIMEOUT) -> _syncline.HashStore:
    """Makes an empty store for the threads of this process."""
    return _syncline.HashStore.create(timeout)


def _new_prefix_store(_: type, prefix: str, store: Store) -> _syncline.PrefixStore:
    """The part of `store` whose keys begin with `prefix` and a slash."""
    return _syncline.PrefixStore.create(prefix, store)


def _is_made(self: Store, *args: Any, **kwargs: Any) -> None:
    """__init__: __new__ has done all."""


def _construct_by(kind: type[Store], new: Callable[..., Store]) -> None:
    for name, method in {"__new__": staticmethod(new), "__init__": _is_made}.items():
        setattr(kind, name, method)
    kind.__doc__ = f"{kind.__doc__}\n\n{new.__doc__}"


_construct_by(_syncline.TCPStore, _new_tcp_store)
_construct_by(_syncline.FileStore, _new_file_store)
_construct_by(_syncline.HashStore, _new_hash_store)
_construct_by(_syncline.PrefixStore, _new_prefix_store)
