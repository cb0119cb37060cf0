"""Makes stores, by the names and parameters that users of torch.distributed know.

All return a syncline.Store. A timeout is how long calls wait where they are given none.
"""

from __future__ import annotations

import os
from datetime import timedelta

from syncline import _syncline
from syncline._syncline import Store

_TIMEOUT = timedelta(seconds=300)


def TCPStore(
    host_name: str,
    port: int,
    world_size: int | None = None,
    is_master: bool = False,
    timeout: timedelta = _TIMEOUT,
) -> _syncline.TCPStore:
    """Connects to the store's server at `host_name`:`port`; with `is_master`, starts it there.

    With port 0 the system chooses; the store's `port` tells which. `world_size` is accepted for
    compatibility: stores do not count their clients. Raises DistNetworkError if the port is in use,
    DistTimeoutError if no server answers within `timeout`.
    """
    del world_size
    return _syncline.TCPStore.create(host_name, port, is_master, timeout)


def FileStore(
    file_name: str | os.PathLike[str], world_size: int = -1, timeout: timedelta = _TIMEOUT
) -> _syncline.FileStore:
    """Opens the store in the file `file_name`, made if it is absent; its folder must exist.

    `world_size` is accepted for compatibility. Raises DistStoreError if the file is another kind
    of file or cannot be opened.
    """
    del world_size
    return _syncline.FileStore.create(os.fspath(file_name), timeout)


def HashStore(timeout: timedelta = _TIMEOUT) -> _syncline.HashStore:
    """Makes an empty store for the threads of this process."""
    return _syncline.HashStore.create(timeout)


def PrefixStore(prefix: str, store: Store) -> _syncline.PrefixStore:
    """The part of `store` whose keys begin with `prefix` and a slash."""
    return _syncline.PrefixStore.create(prefix, store)
