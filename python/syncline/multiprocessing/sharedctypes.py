"""Values and arrays of ctypes in shared memory, as in multiprocessing, with our locks."""

from __future__ import annotations

from multiprocessing import sharedctypes as standard
from typing import Any

from syncline.multiprocessing.context import _default_context


def Value(  # noqa: N802
    typecode_or_type: Any, *args: Any, lock: Any = True, ctx: Any = None
) -> Any:
    """A value in shared memory, with a lock."""
    ctx = _default_context.get_context() if ctx is None else ctx
    return standard.Value(typecode_or_type, *args, lock=lock, ctx=ctx)


def Array(  # noqa: N802
    typecode_or_type: Any, size_or_initializer: Any, *, lock: Any = True, ctx: Any = None
) -> Any:
    """An array in shared memory, with a lock."""
    ctx = _default_context.get_context() if ctx is None else ctx
    return standard.Array(typecode_or_type, size_or_initializer, lock=lock, ctx=ctx)


def __getattr__(name: str) -> Any:
    """What else the standard module of this name has."""
    return getattr(standard, name)
