"""The operations as functions from array to array, which write to nothing they are given.

For arrays that cannot or shall not be written in place: JAX's, read-only ones of NumPy. The result
is a new array of the library, element type and device of the input (NumPy, PyTorch, JAX, CuPy,
array.array, which is always flat). Not for the inside of jax.jit, where there are no elements yet:
syncline.jax is, and for trees.

What syncline.collectives says of groups, ranks and errors holds here too, but that a process that
is not in the group gets a ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from syncline import coalesced_calls
from syncline._syncline import ProcessGroup, ReduceOp
from syncline.arrays import library_of, shape_of
from syncline.calls import choose_rank
from syncline.coalesced_calls import parts
from syncline.job import Group, NonGroupMember, resolve
from syncline.reduce_ops import Op, split_op

if TYPE_CHECKING:
    from syncline._syncline import Tensor

_ANY = -1


def all_reduce(x: Tensor, op: Op = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The elementwise reduction of all ranks' `x`, bitwise equal on all; of the shape of `x`."""
    members = _members(group)
    library = library_of(x)
    result = library.copy(x)
    reduce_op, factor = split_op(op)
    members.all_reduce(result, reduce_op, None, factor)
    return library.finish(result, x)


def reduce(x: Tensor, dst: int, op: Op = ReduceOp.SUM, group: Group = None) -> Tensor:
    """As all_reduce on rank `dst`; `x` itself on the others."""
    members = _members(group)
    library = library_of(x)
    root = choose_rank(members, dst, None, "dst")
    result = library.copy(x)
    reduce_op, factor = split_op(op)
    members.reduce(result, root, reduce_op, None, factor)
    return library.finish(result, x) if members.rank() == root else x


def broadcast(x: Tensor, src: int, group: Group = None) -> Tensor:
    """Rank `src`'s `x`; the others pass arrays of its shape and type; only their kind matters."""
    members = _members(group)
    library = library_of(x)
    result = library.copy(x)
    members.broadcast(result, choose_rank(members, src, None, "src"))
    return library.finish(result, x)


def all_gather(x: Tensor, group: Group = None) -> Tensor:
    """All ranks' `x`, all of one shape (...), stacked: of shape (size, ...)."""
    members = _members(group)
    library = library_of(x)
    result = library.empty(x, (members.size(), *shape_of(x)), None)
    members.all_gather_single(result, library.copy(x))
    return library.finish(result, x)


def gather(x: Tensor, dst: int, group: Group = None) -> Tensor | None:
    """As all_gather on rank `dst`; None on the others."""
    members = _members(group)
    library = library_of(x)
    root = choose_rank(members, dst, None, "dst")
    if members.rank() != root:
        members.gather([], library.copy(x), root)
        return None
    result = library.empty(x, (members.size(), *shape_of(x)), None)
    members.gather(parts(result, members.size()), library.copy(x), root)
    return library.finish(result, x)


def scatter(x: Tensor, src: int, group: Group = None) -> Tensor:
    """x[r] of rank `src`, on rank r of the group.

    On `src`, `x` has shape (size, ...); the others pass arrays of shape (...) and its type, whose
    elements are ignored.
    """
    members = _members(group)
    library = library_of(x)
    root = choose_rank(members, src, None, "src")
    if members.rank() != root:
        result = library.empty(x, shape_of(x), None)
        members.scatter(result, [], root)
        return library.finish(result, x)
    result = library.empty(x, _rows(x, members), None)
    members.scatter(result, parts(library.copy(x), members.size()), root)
    return library.finish(result, x)


def reduce_scatter(x: Tensor, op: Op = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The reduction of all ranks' x[r], on rank r of the group; `x` has shape (size, ...)."""
    members = _members(group)
    library = library_of(x)
    result = library.empty(x, _rows(x, members), None)
    reduce_op, factor = split_op(op)
    members.reduce_scatter_single(result, library.copy(x), reduce_op, None, factor)
    return library.finish(result, x)


def all_to_all(x: Tensor, group: Group = None) -> Tensor:
    """An array whose row r is the row of rank r that has this rank's number.

    `x` and the result have shape (size, ...).
    """
    members = _members(group)
    library = library_of(x)
    _rows(x, members)
    result = library.empty(x, shape_of(x), None)
    members.all_to_all_single(result, library.copy(x))
    return library.finish(result, x)


def send(x: Tensor, dst: int, group: Group = None, tag: int = 0) -> None:
    """Sends `x` to rank `dst`; may return before it has been received."""
    members = _members(group)
    members.send(library_of(x).copy(x), choose_rank(members, dst, None, "dst"), tag)


def recv(
    shape: Sequence[int],
    dtype: Any,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    like: Tensor | None = None,
) -> Tensor:
    """An array that rank `src` (None: whichever sends first) sends with `tag`.

    It is of this shape and element type, and of the library and device of `like`, NumPy if None.
    """
    members = _members(group)
    if like is None:
        import numpy

        like = numpy.empty(0)
    library = library_of(like)
    result = library.empty(like, tuple(shape), dtype)
    members.recv(result, _ANY if src is None else choose_rank(members, src, None, "src"), tag)
    return library.finish(result, like)


def _members(group: Group) -> ProcessGroup:
    if isinstance(group, NonGroupMember):
        raise ValueError("this process is not in the group")
    members = resolve(group)
    if coalesced_calls.open_contexts:
        coalesced_calls.issue(members)
    return members


def _rows(x: Tensor, members: ProcessGroup) -> tuple[int, ...]:
    """The shape of x[r]; ValueError unless `x` has one row for each rank."""
    shape = shape_of(x)
    if len(shape) == 1 and not hasattr(x, "shape"):  # array.array: parts of it.
        if shape[0] % members.size() == 0:
            return (shape[0] // members.size(),)
    elif shape[:1] == (members.size(),):
        return shape[1:]
    raise ValueError(
        f"x must have one row for each of the {members.size()} ranks; its shape is {shape}"
    )
