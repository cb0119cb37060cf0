"""Operations on several tensors at once.

The `_coalesced` functions make one transfer of many small tensors; `coalescing` does so with the
calls of a block. The `_multigpu` functions, from torch.distributed's early versions, treat the
tensors of a process, on one device or on several, as if each were a rank's own. What the module
collectives says of arrays, groups, ranks and errors holds here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

from syncline._syncline import ReduceOp, Work
from syncline.calls import choose_rank, member_of, start
from syncline.coalesced_calls import Coalescing, open_contexts
from syncline.job import Group, NonGroupMember, resolve
from syncline.reduce_ops import Op, split_op

if TYPE_CHECKING:
    from syncline._syncline import Tensor


@contextmanager
def coalescing(group: Group = None, async_ops: bool = False) -> Iterator[Coalescing]:
    """Makes one operation of those that are called inside, as far as they go together.

        with syncline.coalescing(async_ops=True) as cm:
            for gradient in gradients:
                syncline.all_reduce(gradient)
        ...
        cm.wait()

    Calls of all_reduce, broadcast, all_gather_single and reduce_scatter_single on `group` by this
    thread are collected. Those in a row that are of one kind, with equal reductions or roots, are
    issued together; all at the end of the block, or before any other operation on the group, so
    that the order stays. They return None; their own `async_op` has no meaning. Other operations
    work as always.

    The end of the block waits for all, or with `async_ops` not: cm.wait() does. If the block is
    left by an exception, what has not been issued is not. Raises ValueError if this thread has such
    a block open on the group.
    """
    if isinstance(group, NonGroupMember):
        yield Coalescing(None)
        return
    members = resolve(group)
    key = (get_ident(), members)
    if key in open_contexts:
        raise ValueError(f"group '{members.name()}' is coalescing in this thread already")
    context = open_contexts[key] = Coalescing(members)
    try:
        yield context
    finally:
        del open_contexts[key]
    context.issue()
    if not async_ops:
        context.wait()


@contextmanager
def _coalescing_manager(
    group: Group = None, device: Any = None, async_ops: bool = False
) -> Iterator[Coalescing]:
    """As coalescing, with torch.distributed's name and parameters; tensors know their device."""
    del device
    with coalescing(group, async_ops) as context:
        yield context


def broadcast_coalesced(
    tensors: Sequence[Tensor],
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copies rank `src`'s tensors, of any types and sizes, over every other rank's."""
    members = member_of(group, "broadcast_coalesced")
    if members is None:
        return None
    root = choose_rank(members, src, group_src, "src")
    return start(members, "broadcast_coalesced", async_op, list(tensors), root)


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Replaces each of `tensors`, of one type, by its elementwise reduction over all ranks."""
    members = member_of(group, "all_reduce_coalesced")
    if members is None:
        return None
    reduce_op, factor = split_op(op)
    return start(members, "all_reduce_coalesced", async_op, list(tensors), reduce_op, None, factor)


def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[Tensor]],
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Copies rank r's input_tensor_list[i] to output_tensor_lists[r][i] on every rank.

    All ranks pass inputs of equal types and sizes; types may differ with i.
    """
    members = member_of(group, "all_gather_coalesced")
    if members is None:
        return None
    inputs = list(input_tensor_list)
    outputs = _by_tensor(output_tensor_lists, "output_tensor_lists", members.size(), len(inputs))
    return start(members, "all_gather_coalesced", async_op, outputs, inputs)


def reduce_scatter_coalesced(
    output_tensor_list: Sequence[Tensor],
    input_tensor_lists: Sequence[Sequence[Tensor]],
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Reduces input_tensor_lists[r][i] of all ranks to output_tensor_list[i] of rank r.

    All tensors have one type; sizes may differ with i.
    """
    members = member_of(group, "reduce_scatter_coalesced")
    if members is None:
        return None
    outputs = list(output_tensor_list)
    inputs = _by_tensor(input_tensor_lists, "input_tensor_lists", members.size(), len(outputs))
    reduce_op, factor = split_op(op)
    return start(
        members, "reduce_scatter_coalesced", async_op, outputs, inputs, reduce_op, None, factor
    )


def broadcast_multigpu(
    tensor_list: Sequence[Tensor],
    src: int,
    group: Group = None,
    async_op: bool = False,
    src_tensor: int = 0,
) -> Work | None:
    """Copies tensor_list[src_tensor] of rank `src` over all tensors of all ranks."""
    members = member_of(group, "broadcast_multigpu")
    if members is None:
        return None
    root = choose_rank(members, src, None, "src")
    return start(members, "broadcast_multi", async_op, list(tensor_list), root, src_tensor)


def all_reduce_multigpu(
    tensor_list: Sequence[Tensor],
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Replaces all tensors of all ranks, of one type and size, by their elementwise reduction."""
    members = member_of(group, "all_reduce_multigpu")
    if members is None:
        return None
    reduce_op, factor = split_op(op)
    return start(members, "all_reduce_multi", async_op, list(tensor_list), reduce_op, None, factor)


def reduce_multigpu(
    tensor_list: Sequence[Tensor],
    dst: int,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    dst_tensor: int = 0,
) -> Work | None:
    """As all_reduce_multigpu into tensor_list[dst_tensor] of rank `dst` only."""
    members = member_of(group, "reduce_multigpu")
    if members is None:
        return None
    root = choose_rank(members, dst, None, "dst")
    reduce_op, factor = split_op(op)
    return start(
        members,
        "reduce_multi",
        async_op,
        list(tensor_list),
        root,
        reduce_op,
        dst_tensor,
        None,
        factor,
    )


def all_gather_multigpu(
    output_tensor_lists: Sequence[Sequence[Tensor]],
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Copies rank r's input_tensor_list[j] to output_tensor_lists[i][r * n + j], for every i.

    Each rank has n input tensors and n lists of n times the number of ranks.
    """
    members = member_of(group, "all_gather_multigpu")
    if members is None:
        return None
    outputs = [output for outputs in output_tensor_lists for output in outputs]
    return start(members, "all_gather_multi", async_op, outputs, list(input_tensor_list))


def reduce_scatter_multigpu(
    output_tensor_list: Sequence[Tensor],
    input_tensor_lists: Sequence[Sequence[Tensor]],
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Reduces input_tensor_lists[i][r * n + j] of all ranks, over all i, to the j-th output of r.

    Each rank has n output tensors and n lists of n times the number of ranks.
    """
    members = member_of(group, "reduce_scatter_multigpu")
    if members is None:
        return None
    inputs = [input for inputs in input_tensor_lists for input in inputs]
    reduce_op, factor = split_op(op)
    return start(
        members,
        "reduce_scatter_multi",
        async_op,
        list(output_tensor_list),
        inputs,
        reduce_op,
        None,
        factor,
    )


def _by_tensor(
    lists: Sequence[Sequence[Tensor]], argument: str, size: int, length: int
) -> list[Tensor]:
    """lists[r][i] for all r of 0 to size - 1, for i = 0, for i = 1 and so on to length - 1."""
    if len(lists) != size:
        raise ValueError(f"{argument} needs a list for each of the {size} ranks, not {len(lists)}")
    for rank, tensors in enumerate(lists):
        if len(tensors) != length:
            raise ValueError(
                f"{argument}[{rank}] must have {length} tensors, as many as the other argument, "
                f"not {len(tensors)}"
            )
    return [lists[rank][i] for i in range(length) for rank in range(size)]
