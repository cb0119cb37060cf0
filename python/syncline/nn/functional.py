"""Collectives that torch's autograd differentiates: those of torch.distributed.nn.functional.

    y = syncline.nn.functional.all_reduce(x)  # A new tensor; x stays as it is.
    y.sum().backward()                        # The gradients of all ranks, added up, come to x.

All ranks call the forward functions in the same order, and then the backward pass goes through them
on all ranks. A backward pass with `create_graph=True` can be differentiated again, on all ranks.
Ranks in arguments are those of the world; a group of None is that of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from syncline import collectives
from syncline._syncline import ProcessGroup, ReduceOp
from syncline.calls import choose_rank
from syncline.errors import DistValueError
from syncline.job import Group, NonGroupMember, resolve
from syncline.reduce_ops import Op

_Function: Any = torch.autograd.Function


def broadcast(tensor: Tensor, src: int, group: Group = None) -> Tensor:
    """Rank `src`'s tensor; its gradient is the sum of all ranks'."""
    return _Broadcast.apply(src, group, tensor)


def gather(tensor: Tensor, dst: int = 0, group: Group = None) -> tuple[Tensor, ...]:
    """All ranks' tensors on rank `dst`, on the others as many zeros."""
    result: tuple[Tensor, ...] = _Gather.apply(dst, group, tensor)
    return result


def scatter(tensors: Sequence[Tensor], src: int = 0, group: Group = None) -> Tensor:
    """tensors[r] of rank `src` on rank r; the other ranks pass tensors of the same shapes.

    Raises ValueError on a rank that passes fewer or more tensors than there are ranks.
    """
    return _Scatter.apply(src, group, *tensors)


def reduce(tensor: Tensor, dst: int, op: Op = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The reduction of all ranks' tensors on rank `dst`, on the others their own tensor."""
    return _Reduce.apply(dst, op, group, tensor)


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: Op = ReduceOp.SUM, group: Group = None
) -> Tensor:
    """The reduction of all ranks' input_list[r] on rank r, written to `output`."""
    return _ReduceScatter.apply(op, group, output, *input_list)


def all_gather(tensor: Tensor, group: Group = None) -> tuple[Tensor, ...]:
    """All ranks' tensors, on every rank."""
    result: tuple[Tensor, ...] = _AllGather.apply(group, tensor)
    return result


def _all_gather_base(output_tensor: Tensor, input_tensor: Tensor, group: Group = None) -> Tensor:
    """The same in one tensor, written to `output_tensor`."""
    return _AllGatherBase.apply(output_tensor, input_tensor, group)


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Group = None
) -> tuple[Tensor, ...]:
    """input_tensor_list[own rank] of every rank, written to `output_tensor_list`."""
    result: tuple[Tensor, ...] = _AllToAll.apply(group, output_tensor_list, *input_tensor_list)
    return result


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
) -> Tensor:
    """As all_to_all between parts of two tensors, split along the first dimension."""
    return _AllToAllSingle.apply(group, output, output_split_sizes, input_split_sizes, input)


def all_reduce(tensor: Tensor, op: Op = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The reduction of all ranks' tensors; the gradients are reduced in the same way."""
    return _AllReduce.apply(op, group, tensor)


def _of(group: Group) -> ProcessGroup:
    if isinstance(group, NonGroupMember):
        raise DistValueError("this rank is not in the group")
    return resolve(group)


def _is_root(group: ProcessGroup, rank: int) -> bool:
    return group.rank() == choose_rank(group, rank, None, "rank")


class _Broadcast(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, src: int, group: Group, tensor: Tensor) -> Tensor:
        ctx.src, ctx.group = src, _of(group)
        ctx.is_root = _is_root(ctx.group, src)
        made = tensor.clone(memory_format=torch.contiguous_format)
        collectives.broadcast(made, src, ctx.group)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        total = _Reduce.apply(ctx.src, ReduceOp.SUM, ctx.group, gradient)
        if not ctx.is_root:
            total.zero_()  # Stays in the graph: the next backward pass is one of all ranks.
        return None, None, total


class _Gather(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, dst: int, group: Group, tensor: Tensor) -> tuple[Tensor, ...]:
        ctx.dst, ctx.group = dst, _of(group)
        ctx.is_root = _is_root(ctx.group, dst)
        given = tensor.contiguous()
        made = [torch.zeros_like(given) for _ in range(ctx.group.size())]
        collectives.gather(given, made if ctx.is_root else None, dst, ctx.group)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, _Scatter.apply(ctx.dst, ctx.group, *gradients)


class _Scatter(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, src: int, group: Group, *tensors: Tensor) -> Tensor:
        ctx.src, ctx.group = src, _of(group)
        ctx.is_root = _is_root(ctx.group, src)
        if len(tensors) != ctx.group.size():
            raise DistValueError(
                f"tensors must have one for each of the {ctx.group.size()} ranks, on every rank, "
                f"not {len(tensors)}"
            )
        parts = [tensor.contiguous() for tensor in tensors]
        made = torch.empty_like(parts[ctx.group.rank()])
        collectives.scatter(made, parts if ctx.is_root else None, src, ctx.group)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return (None, None, *_Gather.apply(ctx.src, ctx.group, gradient))


class _Reduce(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, dst: int, op: Op, group: Group, tensor: Tensor) -> Tensor:
        ctx.dst, ctx.group = dst, _of(group)
        ctx.is_root = _is_root(ctx.group, dst)
        made = tensor.clone(memory_format=torch.contiguous_format)
        collectives.reduce(made, dst, op, ctx.group)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, None, _Broadcast.apply(ctx.dst, ctx.group, gradient)


class _ReduceScatter(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, op: Op, group: Group, output: Tensor, *inputs: Tensor) -> Tensor:
        ctx.group = _of(group)
        parts = [part.contiguous() for part in inputs]
        collectives.reduce_scatter(output, parts, op, ctx.group)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return (None, None, None, *_AllGather.apply(ctx.group, gradient))


class _AllGather(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, group: Group, tensor: Tensor) -> tuple[Tensor, ...]:
        ctx.group = _of(group)
        given = tensor.contiguous()
        made = [torch.empty_like(given) for _ in range(ctx.group.size())]
        collectives.all_gather(made, given, ctx.group)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        mine = torch.empty_like(gradients[ctx.group.rank()], memory_format=torch.contiguous_format)
        return None, _ReduceScatter.apply(ReduceOp.SUM, ctx.group, mine, *gradients)


class _AllGatherBase(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, output: Tensor, tensor: Tensor, group: Group) -> Tensor:
        ctx.group, ctx.shape = _of(group), tensor.shape
        collectives.all_gather_single(output, tensor.contiguous(), ctx.group)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        mine = gradient.new_empty(ctx.shape)
        parts = gradient.reshape(ctx.group.size(), *ctx.shape).unbind()
        return None, _ReduceScatter.apply(ReduceOp.SUM, ctx.group, mine, *parts), None


class _AllToAll(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, group: Group, outputs: Sequence[Tensor], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.group = _of(group)
        ctx.shapes = [tensor.shape for tensor in inputs]
        collectives.all_to_all(outputs, [tensor.contiguous() for tensor in inputs], ctx.group)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        made = [gradients[0].new_empty(shape) for shape in ctx.shapes]
        return (None, None, *_AllToAll.apply(ctx.group, made, *gradients))


class _AllToAllSingle(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        group: Group,
        output: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        tensor: Tensor,
    ) -> Tensor:
        ctx.group, ctx.shape = _of(group), tensor.shape
        ctx.output_splits, ctx.input_splits = output_splits, input_splits
        collectives.all_to_all_single(
            output, tensor.contiguous(), output_splits, input_splits, ctx.group
        )
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        made = gradient.new_empty(ctx.shape)
        splits = ctx.input_splits, ctx.output_splits
        sent_back = _AllToAllSingle.apply(ctx.group, made, *splits, gradient)
        return None, None, None, None, sent_back


class _AllReduce(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, op: Op, group: Group, tensor: Tensor) -> Tensor:
        ctx.group, ctx.op = _of(group), op
        made = tensor.clone(memory_format=torch.contiguous_format)
        collectives.all_reduce(made, op, ctx.group)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, _AllReduce.apply(ctx.op, ctx.group, gradient)
