"""How the ranks of a new torch group join a world: through a store of Syncline's.

Its address goes through torch's store, once; no byte passes through Python afterwards.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import uuid
from datetime import timedelta
from typing import Any

import torch.distributed

from syncline import _syncline
from syncline.errors import DistTimeoutError

_KEY = "syncline/store"
_ANYWHERE = ("192.0.2.1", 9)  # Of a network for documentation (RFC 5737): nothing is sent there.


def join(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    backend: str = "auto",
    device: str | None = None,
) -> _syncline.World:
    """The world of the ranks that share `store`, a torch.distributed.Store; may be called again.

    With a `device`, its communicator of NCCL is made at once.

    Rank 0 hosts its store, on loopback if torch's is there, for as long as it uses it.
    """
    met = f"{_KEY}/met/{rank}"  # How often this rank has: equal on all, whatever failed before.
    key = f"{_KEY}/{store.add(met, 0)}"
    try:
        world = _syncline.World.init(
            backend,
            store=_store_of(store, key, rank, size, timeout),
            rank=rank,
            world_size=size,
            timeout=timeout,
            device_id=device,
        )
    except BaseException:
        if rank == 0:
            with contextlib.suppress(RuntimeError):  # The store may be what has failed.
                store.delete_key(key)  # Nobody is to join by it any more.
        raise
    store.add(met, 1)
    return world


def _store_of(store: Any, key: str, rank: int, size: int, timeout: timedelta) -> _syncline.Store:
    """A store of Syncline's, whose address goes through `key` of torch's."""
    if size == 1:
        return _syncline.HashStore.create()
    if rank == 0:
        host = _own_address(store)
        server = _syncline.TCPStore.create(host, 0, True)
        name = uuid.uuid4().hex
        store.set(key, f"{name} {server.port} {host}")
        return _syncline.PrefixStore.create(name, server)
    try:
        store.wait([key], timeout)
    except RuntimeError as error:
        late = DistTimeoutError(
            f"rank {rank} of {size}: rank 0 has not made the group within {timeout}: every rank of "
            f"a group must make it ({error})"
        )
        late.ranks = (0,)
        raise late from None
    name, port, host = store.get(key).decode().split(" ")
    return _syncline.PrefixStore.create(name, _syncline.TCPStore.create(host, int(port)))


def _own_address(store: Any) -> str:
    """The address at which the other ranks reach this process."""
    given = os.environ.get("SYNCLINE_HOST_ADDRESS")
    if given:
        return given
    while isinstance(store, torch.distributed.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, torch.distributed.TCPStore):
        return "127.0.0.1"  # A file, or this process's memory.
    if store.host == "localhost" or _is_loopback(store.host):
        return "127.0.0.1"
    chosen = _syncline._chosen_interface_address()
    if chosen is not None:
        return chosen
    towards_store = _address_towards(store.host, store.port)
    if not _is_loopback(towards_store):
        return towards_store
    # It is on this host, whose own name may stand for loopback here, but not on the others.
    return _address_towards(*_ANYWHERE)


def _address_towards(host: str, port: int) -> str:
    """This host's address on the way to another; loopback if there is none."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
