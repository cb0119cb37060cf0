"""How ranks find each other, by torch's names: URLs, and schemes of one's own.

def meet(url, timeout):
    yield store, rank, world_size

syncline.register_rendezvous_handler("zeus", meet)
syncline.init_process_group("gloo", init_method="zeus://olympus")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlparse, urlunparse

from syncline.errors import DistTypeError, DistUsageError, DistValueError
from syncline.stores import FileStore, Store, TCPStore

Place: TypeAlias = tuple[Store, int, int]
"""The store of a job, this process's rank, and the number of ranks."""

Handler: TypeAlias = Callable[..., Iterator[Place]]
"""A generator function of a URL and `timeout=`; its first value is the place in the job."""

_TIMEOUT = timedelta(minutes=30)
_handlers: dict[str, Handler] = {}  # Of users.


def register_rendezvous_handler(scheme: str, handler: Handler) -> None:
    """Lets `handler` find the ranks of jobs whose init_method begins with `scheme`://.

    It is called with the URL, to whose query `rank` and `world_size` are added where they were
    given, and with `timeout`; it yields the store, the rank and the number of ranks. Raises
    RuntimeError if the scheme has a handler.
    """
    if scheme in _handlers or scheme in _OWN:
        raise RuntimeError(f"Rendezvous handler for {scheme}:// already registered")
    _handlers[scheme] = handler


def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[Place]:
    """A generator whose first value is the store, the rank and the number of ranks of `url`.

    For schemes that are registered, and env://, tcp:// and file://, which need a rank: the stores
    are a TCPStore, hosted by rank 0, and a FileStore. `timeout` is that of the store.
    """
    for name, value, kind in (("url", url, str), ("rank", rank, int)):
        if not isinstance(value, kind):
            raise DistTypeError(f"`{name}` must be {kind.__name__}, not {type(value).__name__}")
    parts = urlparse(url)
    handler = _handlers.get(parts.scheme) or _OWN.get(parts.scheme)
    if handler is None:
        raise RuntimeError(f"No rendezvous handler for {parts.scheme}://")
    query = dict(parse_qsl(parts.query))
    query |= {name: str(n) for name, n in (("rank", rank), ("world_size", world_size)) if n != -1}
    return handler(urlunparse(parts._replace(query=urlencode(query))), **kwargs)


def has_own_handler(init_method: str) -> bool:
    """Whether a handler that a user has registered serves this URL."""
    return bool(_handlers) and urlparse(init_method).scheme in _handlers


def meet(init_method: str, rank: int, world_size: int, timeout: timedelta) -> Place:
    """What the user's handler finds."""
    try:
        store, own_rank, size = next(
            iter(rendezvous(init_method, rank, world_size, timeout=timeout))
        )
    except StopIteration:
        raise DistUsageError(f"the handler of {init_method} has yielded nothing") from None
    return store, own_rank, size


def _number(query: dict[str, str], name: str, scheme: str) -> int:
    words = {"rank": "rank parameter", "world_size": "world size parameter"}
    if name not in query:
        raise DistValueError(
            f"Error initializing torch.distributed using {scheme}:// rendezvous: "
            f"{words[name]} missing"
        )
    try:
        return int(query[name])
    except ValueError:
        raise DistValueError(f"{name} must be a number, not {query[name]!r}") from None


def _tcp(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[Place]:
    parts = urlparse(url)
    query = dict(parse_qsl(parts.query))
    rank, size = _number(query, "rank", "tcp"), _number(query, "world_size", "tcp")
    if parts.hostname is None or parts.port is None:
        raise DistValueError(
            "Error initializing torch.distributed using tcp:// rendezvous: port number missing"
        )
    yield TCPStore(parts.hostname, parts.port, size, rank == 0, timeout, False), rank, size


def _env(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[Place]:
    query = dict(parse_qsl(urlparse(url).query))
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ and name.lower() not in query:
            raise DistValueError(
                "Error initializing torch.distributed using env:// rendezvous: "
                f"environment variable {name} expected, but not set"
            )
    rank = int(query.get("rank") or os.environ["RANK"])
    size = int(query.get("world_size") or os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    yield TCPStore(host, port, size, rank == 0, timeout, False), rank, size


def _file(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[Place]:
    parts = urlparse(url)
    query = dict(parse_qsl(parts.query))
    rank, size = _number(query, "rank", "file"), _number(query, "world_size", "file")
    if not parts.path:
        raise DistValueError(
            "Error initializing torch.distributed using file:// rendezvous: path missing"
        )
    yield FileStore(parts.path, size, timeout), rank, size


def _by_init(url: str, **_: Any) -> Iterator[Place]:
    scheme = urlparse(url).scheme
    raise NotImplementedError(f"{scheme}:// is for init_process_group, which makes its own store")


_OWN: dict[str, Handler] = {
    "env": _env,
    "tcp": _tcp,
    "file": _file,
    "etcd": _by_init,
    "mpi": _by_init,
}
