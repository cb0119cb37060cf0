"""The operations of all ranks of a group, as functions on the default group or another.

A tensor is any array that shares its memory: NumPy, PyTorch, JAX, CuPy, array.array, memoryview.
It is never copied; it must be contiguous, and writable where it is written. With `async_op` a
function returns a Work at once, on which to wait() before the tensors are touched again.

Ranks in arguments are those of the world, also when the operation is that of a smaller group;
arguments that begin with group_ are the twins that count in the group. On a process that is not in
the group nothing happens but a warning.

All raise, besides what is said at each: ValueError (a tensor is strided, lists have wrong lengths,
a rank is out of range), TypeError (no array, unknown or unequal element types, read-only memory),
NotImplementedError (outside what the backend serves), DistTimeoutError, DistNetworkError,
DistBackendError and DistMismatchError. All but the first three break the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from syncline._syncline import ProcessGroup, ReduceOp, Work
from syncline.calls import choose_rank, member_of, start
from syncline.coalesced_calls import collect, open_contexts, parts
from syncline.errors import DistTimeoutError, with_words
from syncline.job import Group
from syncline.reduce_ops import Op, split_op

if TYPE_CHECKING:
    from syncline._syncline import Tensor


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copies rank `src`'s tensor over every other rank's, of the same type and size."""
    members = member_of(group, "broadcast", collected=True)
    if members is None:
        return None
    root = choose_rank(members, src, group_src, "src")
    if open_contexts and collect(members, "broadcast", root, tensor):
        return None
    return start(members, "broadcast", async_op, tensor, root)


def all_reduce(
    tensor: Tensor, op: Op = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Replaces `tensor` by its elementwise reduction over all ranks, bitwise equal on all.

    Raises ValueError if `op` is not defined on the element type.
    """
    members = member_of(group, "all_reduce", collected=True)
    if members is None:
        return None
    reduce_op, factor = split_op(op)
    if open_contexts and collect(members, "all_reduce", (reduce_op, factor), tensor):
        return None
    return start(members, "all_reduce", async_op, tensor, reduce_op, None, factor)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """As all_reduce on rank `dst` only; the other ranks' tensors keep their elements."""
    members = member_of(group, "reduce")
    if members is None:
        return None
    root = choose_rank(members, dst, group_dst, "dst")
    reduce_op, factor = split_op(op)
    return start(members, "reduce", async_op, tensor, root, reduce_op, None, factor)


def all_gather(
    tensor_list: Sequence[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False
) -> Work | None:
    """Copies every rank's `tensor` to tensor_list[its rank in the group].

    `tensor_list` has one array for each rank of the group, of the type and size of that rank's
    `tensor`; sizes may differ between ranks. An array with one more dimension serves too.
    """
    members = member_of(group, "all_gather")
    if members is None:
        return None
    return start(members, "all_gather", async_op, list(tensor_list), tensor)


def all_gather_single(
    output_tensor: Tensor, input_tensor: Tensor, group: Group = None, async_op: bool = False
) -> Work | None:
    """Copies every rank's `input_tensor` to its part of `output_tensor`, in the order of ranks.

    The output has as many elements as all inputs together: of shape (size * n, ...) or
    (size, n, ...) for inputs of shape (n, ...).
    """
    members = member_of(group, "all_gather_single", collected=True)
    if members is None:
        return None
    if open_contexts and collect(members, "all_gather_single", None, output_tensor, input_tensor):
        return None
    return start(members, "all_gather_single", async_op, output_tensor, input_tensor)


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Copies every rank's `tensor` to gather_list[its rank in the group] on rank `dst`.

    `dst` is 0 if neither it nor `group_dst` is given. On it `gather_list` has one array for each
    rank, all of the type and size of `tensor`; on the other ranks it must be None or empty.
    """
    members = member_of(group, "gather")
    if members is None:
        return None
    root = choose_rank(members, dst, group_dst, "dst", default=0)
    outputs = _list_of_root(gather_list, "gather_list", members.rank() == root)
    return start(members, "gather", async_op, outputs, tensor, root)


def gather_single(
    output_tensor: Tensor | None,
    input_tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """As all_gather_single on rank `dst` only, 0 if neither it nor `group_dst` is given.

    `output_tensor` must be given on it, and must be None elsewhere.
    """
    members = member_of(group, "gather_single")
    if members is None:
        return None
    root = choose_rank(members, dst, group_dst, "dst", default=0)
    if (output_tensor is not None) != (members.rank() == root):
        raise ValueError("output_tensor must be given on the root, and there only")
    outputs = [] if output_tensor is None else parts(output_tensor, members.size())
    return start(members, "gather", async_op, outputs, input_tensor, root)


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copies scatter_list[r] of rank `src` to the `tensor` of rank r of the group.

    `src` is 0 if neither it nor `group_src` is given. On it `scatter_list` has one array for each
    rank, all of the type and size of `tensor`; on the other ranks it must be None or empty.
    """
    members = member_of(group, "scatter")
    if members is None:
        return None
    root = choose_rank(members, src, group_src, "src", default=0)
    inputs = _list_of_root(scatter_list, "scatter_list", members.rank() == root)
    return start(members, "scatter", async_op, tensor, inputs, root)


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Reduces input_list[r] of all ranks to the `output` of rank r of the group, for every r.

    `input_list` has one array for each rank, of the type and size of that rank's output.
    """
    members = member_of(group, "reduce_scatter")
    if members is None:
        return None
    reduce_op, factor = split_op(op)
    return start(
        members, "reduce_scatter", async_op, output, list(input_list), reduce_op, None, factor
    )


def reduce_scatter_single(
    output: Tensor,
    input: Tensor,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """As reduce_scatter of one tensor that holds the ranks' parts one after another.

    The input has as many elements as all outputs together: of shape (size * n, ...) or
    (size, n, ...) for outputs of shape (n, ...).
    """
    members = member_of(group, "reduce_scatter_single", collected=True)
    if members is None:
        return None
    reduce_op, factor = split_op(op)
    reduction = (reduce_op, factor)
    if open_contexts and collect(members, "reduce_scatter_single", reduction, output, input):
        return None
    return start(members, "reduce_scatter_single", async_op, output, input, reduce_op, None, factor)


def scan(
    tensor: Tensor, op: Op = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Replaces `tensor` on rank r by its reduction over the ranks 0 to r, in that order.

    As MPI_Scan. Raises ValueError for an average, whose divisor would differ from rank to rank.
    """
    members = member_of(group, "scan")
    if members is None:
        return None
    reduce_op, factor = split_op(op)
    return start(members, "scan", async_op, tensor, reduce_op, None, factor)


def exscan(
    tensor: Tensor, op: Op = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """As scan over the ranks 0 to r - 1; the tensor of rank 0 keeps its elements (MPI_Exscan)."""
    members = member_of(group, "exscan")
    if members is None:
        return None
    reduce_op, factor = split_op(op)
    return start(members, "exscan", async_op, tensor, reduce_op, None, factor)


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Copies input_tensor_list[r] to output_tensor_list[own rank] of rank r, for every r.

    Both lists have one array for each rank; each pair of ranks may have a size of its own.
    """
    members = member_of(group, "all_to_all")
    if members is None:
        return None
    return start(members, "all_to_all", async_op, list(output_tensor_list), list(input_tensor_list))


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """As all_to_all between parts of two tensors, split along the first dimension.

    Split sizes have one number of rows for each rank; without them the parts are equal.
    """
    members = member_of(group, "all_to_all_single")
    if members is None:
        return None
    return start(
        members,
        "all_to_all_single",
        async_op,
        output,
        input,
        list(output_split_sizes or []),
        list(input_split_sizes or []),
    )


def barrier(
    group: Group = None,
    async_op: bool = False,
    device_ids: Sequence[int] | None = None,
    timeout: timedelta | None = None,
) -> Work | None:
    """Returns once every rank has called it, within `timeout` (None: the group's).

    `device_ids` is accepted for compatibility: a barrier needs no device.
    """
    members = member_of(group, "barrier")
    if members is None:
        return None
    if device_ids is not None and not isinstance(device_ids, (list, tuple)):
        raise TypeError(f"device_ids must be a list of ints, not {type(device_ids).__name__}")
    return start(members, "barrier", async_op, timeout)


def monitored_barrier(
    group: Group = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """As barrier, through the store alone: for finding out who is missing.

    If not all ranks have come within `timeout` (None: the group's), all that have, and those that
    come later, get a DistTimeoutError that names every one that had not; `wait_all_ranks`, which
    asks for that, makes no difference.
    """
    members = member_of(group, "monitored_barrier")
    if members is None:
        return
    try:
        members.monitored_barrier(timeout)
    except DistTimeoutError as error:
        with_words(error, words_of_monitored_barrier(error, timeout, members, wait_all_ranks))
        raise


def words_of_monitored_barrier(
    error: DistTimeoutError, timeout: timedelta | None, members: ProcessGroup, wait_all_ranks: bool
) -> str:
    """What torch says of ranks that are missing: it names one, or all if it has waited for all.

    It says "Ranks 1" then, even where that is the only one.
    """
    missing = error.ranks or (0,)
    if not wait_all_ranks:
        missing = missing[:1]
    noun = "Ranks" if wait_all_ranks else "Rank"
    limit = (members.timeout if timeout is None else timeout) // timedelta(milliseconds=1)
    return f"{noun} {', '.join(map(str, missing))} failed to pass monitoredBarrier in {limit} ms"


def _list_of_root(tensors: Sequence[Tensor] | None, argument: str, is_root: bool) -> list[Tensor]:
    if is_root and tensors is None:
        raise ValueError(f"{argument} is needed on the root, with one tensor for each rank")
    if not is_root and tensors is not None and len(tensors) > 0:
        raise ValueError(f"{argument} must be given on the root only")
    return [] if tensors is None else list(tensors)


# What torch.distributed calls them, too.
all_gather_into_tensor = all_gather_single
gather_into_tensor = gather_single
reduce_scatter_tensor = reduce_scatter_single
_all_gather_base = all_gather_single
_reduce_scatter_base = reduce_scatter_single
