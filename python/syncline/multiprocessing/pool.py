"""Pools of processes, whose tasks and results travel as shared memory."""

from __future__ import annotations

from multiprocessing import pool as standard
from multiprocessing.pool import ThreadPool
from typing import Any

__all__ = ["Pool", "ThreadPool"]


class Pool(standard.Pool):
    """A pool of multiprocessing, of processes of this package."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Any = None,
        initargs: Any = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        if context is None:
            from syncline.multiprocessing.context import _default_context

            context = _default_context.get_context()
        super().__init__(processes, initializer, initargs, maxtasksperchild, context)


def __getattr__(name: str) -> Any:
    """What else the standard module of this name has."""
    return getattr(standard, name)
