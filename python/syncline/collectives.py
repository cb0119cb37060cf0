"""The operations between ranks, as functions on the default group or another.

A tensor is any array that shares its memory: NumPy, PyTorch, JAX, CuPy, array.array, memoryview.
It is never copied; it must be contiguous, and writable where it is written. With `async_op` a
function returns a Work at once, on which to wait() before the tensors are touched again.

Ranks in arguments are those of the world, also when the operation is that of a smaller group. On a
process that is not in the group nothing happens but a warning.

All raise, besides what is said at each: ValueError (a tensor is strided, lists have wrong lengths,
a rank is out of range), TypeError (no array, unknown or unequal element types, read-only memory),
NotImplementedError (outside what the backend serves), DistTimeoutError, DistNetworkError,
DistBackendError and DistMismatchError. All but the first three break the group.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from syncline._syncline import ProcessGroup, ReduceOp, Work
from syncline.process_groups import NonGroupMember, rank_in, resolve

if TYPE_CHECKING:
    from syncline._syncline import Tensor


def broadcast(
    tensor: Tensor,
    src: int,
    group: ProcessGroup | NonGroupMember | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copies rank `src`'s tensor over every other rank's, of the same type and size."""
    members = _members(group, "broadcast")
    if members is None:
        return None
    root = rank_in(members, src, "src")
    if async_op:
        return members.broadcast_async(tensor, root)
    members.broadcast(tensor, root)
    return None


def all_reduce(
    tensor: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | NonGroupMember | None = None,
    async_op: bool = False,
) -> Work | None:
    """Replaces `tensor` by its elementwise reduction over all ranks, bitwise equal on all.

    Raises ValueError if `op` is not defined on the element type.
    """
    members = _members(group, "all_reduce")
    if members is None:
        return None
    if async_op:
        return members.all_reduce_async(tensor, op)
    members.all_reduce(tensor, op)
    return None


def all_gather(
    tensor_list: Sequence[Tensor],
    tensor: Tensor,
    group: ProcessGroup | NonGroupMember | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copies every rank's `tensor` to tensor_list[its rank in the group].

    `tensor_list` has one array for each rank of the group, of the type and size of `tensor`; an
    array with one more dimension serves too.
    """
    members = _members(group, "all_gather")
    if members is None:
        return None
    outputs = list(tensor_list)
    if async_op:
        return members.all_gather_async(outputs, tensor)
    members.all_gather(outputs, tensor)
    return None


def barrier(
    group: ProcessGroup | NonGroupMember | None = None, async_op: bool = False
) -> Work | None:
    """Returns once every rank has called it."""
    members = _members(group, "barrier")
    if members is None:
        return None
    if async_op:
        return members.barrier_async()
    members.barrier()
    return None


def send(
    tensor: Tensor, dst: int, group: ProcessGroup | NonGroupMember | None = None, tag: int = 0
) -> None:
    """Sends `tensor` to rank `dst`; may return before it has been received."""
    members = _members(group, "send")
    if members is not None:
        members.send(tensor, rank_in(members, dst, "dst"), tag)


def recv(
    tensor: Tensor, src: int, group: ProcessGroup | NonGroupMember | None = None, tag: int = 0
) -> int:
    """Receives from rank `src` what it sends with `tag` into `tensor`, of equal type and size.

    Returns the sender's rank; -1 on a process that is not in the group.
    """
    members = _members(group, "recv")
    if members is None:
        return -1
    members.recv(tensor, rank_in(members, src, "src"), tag)
    return src


def isend(
    tensor: Tensor, dst: int, group: ProcessGroup | NonGroupMember | None = None, tag: int = 0
) -> Work | None:
    """As send, in the background."""
    members = _members(group, "isend")
    if members is None:
        return None
    return members.send_async(tensor, rank_in(members, dst, "dst"), tag)


def irecv(
    tensor: Tensor, src: int, group: ProcessGroup | NonGroupMember | None = None, tag: int = 0
) -> Work | None:
    """As recv, in the background."""
    members = _members(group, "irecv")
    if members is None:
        return None
    return members.recv_async(tensor, rank_in(members, src, "src"), tag)


def _members(group: ProcessGroup | NonGroupMember | None, operation: str) -> ProcessGroup | None:
    """The group to work on; None, with a warning, if this process is not in it."""
    if not isinstance(group, NonGroupMember):
        return resolve(group)
    warnings.warn(f"{operation} does nothing here: this process is not in the group", stacklevel=3)
    return None
