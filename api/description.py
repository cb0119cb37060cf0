"""The decorators and types that the description of the API, syncline.pyi, is written with.

What cannot be seen from a signature is said at the method, by these. They do nothing when they are
called: stub.py reads their names. The stub that is shipped has none of them, see stub_emitter.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C", bound=type)

# ---- Types ----

Int32: TypeAlias = int
"""An int that Java has as an `int`, not as a `long`: a port, an index, a small count."""

Rank: TypeAlias = int
"""A rank, or a number of ranks: an `int` in Java and, unlike an Int32, in C++.

Python's binding refuses numbers that do not fit, so no function behind it sees them.
"""

BytesOrStr: TypeAlias = bytes
"""Bytes, for which the Python package takes a str too: it is stored as UTF-8."""

InputTensor: TypeAlias = Any
"""A Tensor whose elements are only read."""

OutputTensor: TypeAlias = Any
"""A Tensor whose elements are only written. A plain Tensor is both."""

# ---- Decorators of methods ----


def collective(method: _F) -> _F:
    """An operation, which has a blocking form and one in the background.

    The description has the blocking form. The other one is `<name>_async`, takes the same
    arguments, and returns a Work; in Java a WorkFuture. In C++ they are two methods, AllReduce and
    AllReduceAsync. In Python `calls.start` chooses between them by `async_op`.
    """
    return method


def accessor(method: _F) -> _F:
    """A method, as torch has it, that is an accessor in C++ like those of properties: rank()."""
    return method


def adapted(method: _F) -> _F:
    """C++ has it in another shape: it calls api::<Class><Method>(self, ...) of adapters.h."""
    return method


def field(property: _F) -> _F:
    """A property that is a field of a C++ struct."""
    return property


def java_arrays(method: _F) -> _F:
    """In Java its tensor may also be a plain array of numbers, in the blocking form."""
    return method


def nonblocking(method: _F) -> _F:
    """It returns at once: in Java it need not leave a virtual thread. So do all properties."""
    return method


def on_streams(method: _F) -> _F:
    """It makes the current streams wait: in Python those of all libraries whose arrays came in."""
    return method


def true_in_python(method: _F) -> _F:
    """Of a method without a result: in Python it returns True, as torch's does."""
    return method


def python_only(method: _F) -> _F:
    """The package adds it to the class by hand; other languages do not have it.

    So is whatever begins with an underscore.
    """
    return method


# ---- Decorators of classes ----


def java_base(name: str) -> Callable[[_C], _C]:
    """In Java `name`, written by hand, is between the class and NativeHandle."""

    def mark(handle: _C) -> _C:
        return handle

    return mark
