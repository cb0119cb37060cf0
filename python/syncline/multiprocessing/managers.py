"""Managers, in whose proxies arrays travel as shared memory."""

from __future__ import annotations

from multiprocessing import managers as standard
from typing import Any

from syncline.multiprocessing import connection

__all__ = ["BaseManager", "SyncManager"]


class _Serializer(str):
    """The name of how managers and proxies connect. Who unpickles it imports this module."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _serializer, ()


def _serializer() -> _Serializer:
    return _SERIALIZER


_SERIALIZER = _Serializer("syncline")
# A name of its own in the standard module's table, where its proxies look.
standard.listener_client[_SERIALIZER] = (  # type: ignore[attr-defined]
    connection.Listener,
    connection.Client,
)


class BaseManager(standard.BaseManager):
    """A manager of multiprocessing. Arrays in calls and results travel as shared memory.

    Only where the manager's address is that of a Unix socket, which is the default; otherwise by
    value.
    """

    def __init__(
        self,
        address: Any = None,
        authkey: bytes | None = None,
        serializer: str = "pickle",
        ctx: Any = None,
        **kwargs: Any,
    ) -> None:
        if ctx is None:
            from syncline.multiprocessing.context import _default_context

            ctx = _default_context.get_context()
        chosen = _SERIALIZER if serializer == "pickle" else serializer
        super().__init__(address, authkey, chosen, ctx, **kwargs)


class SyncManager(BaseManager, standard.SyncManager):
    """The manager of lists, dictionaries, queues, locks and the like."""


def __getattr__(name: str) -> Any:
    """What else the standard module of this name has."""
    return getattr(standard, name)
