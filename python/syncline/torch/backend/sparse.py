"""All-reduce of sparse tensors: gradients of embeddings."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch import Tensor

from syncline._syncline import ProcessGroup, ReduceOp
from syncline.errors import DistValueError


def all_reduce(
    group: ProcessGroup, tensor: Tensor, op: ReduceOp, timeout: timedelta | None
) -> None:
    """Replaces the sparse (COO) `tensor` by the sum or the average over all ranks, coalesced.

    Ranks may have different numbers of entries; what is stored is gathered, and added up in the
    order of ranks on each. ValueError if ranks pass tensors of different shapes, on all of them.
    """
    if tensor.layout is not torch.sparse_coo:
        raise DistValueError(
            f"all_reduce takes strided and sparse_coo tensors, not {tensor.layout}"
        )
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise DistValueError(f"all_reduce of sparse tensors can only be SUM or AVG, not {op.name}")
    mine = tensor.detach().coalesce()
    stored = _stored_by_rank(group, mine, timeout)
    indices, values = mine.indices(), mine.values()
    all_indices = [indices.new_empty(mine.sparse_dim(), count) for count in stored]
    all_values = [values.new_empty(count, *values.shape[1:]) for count in stored]
    group.all_gather(all_indices, indices.contiguous(), timeout)
    group.all_gather(all_values, values.contiguous(), timeout)
    total = torch.sparse_coo_tensor(
        torch.cat(all_indices, dim=1), torch.cat(all_values), mine.shape, check_invariants=False
    ).coalesce()
    if op is ReduceOp.AVG:
        total = total / group.size()
    with torch.no_grad():
        tensor.copy_(total)


def _stored_by_rank(group: ProcessGroup, mine: Tensor, timeout: timedelta | None) -> list[int]:
    """How many entries each rank has stored."""
    layout = [mine.values().size(0), mine.sparse_dim(), *mine.shape]
    if len(layout) > _MAX_LAYOUT:
        raise DistValueError(
            f"all_reduce of sparse tensors takes up to {_MAX_LAYOUT - 2} dimensions"
        )
    padded = torch.tensor(layout + [-1] * (_MAX_LAYOUT - len(layout)))
    table = torch.empty(group.size(), _MAX_LAYOUT, dtype=torch.int64)
    group.all_gather_single(table, padded, timeout)
    for rank in range(1, group.size()):
        if not torch.equal(table[rank, 1:], table[0, 1:]):
            raise DistValueError(
                "all_reduce of sparse tensors: ranks have different shapes: rank 0 "
                f"{_shape(table[0])}, rank {rank} {_shape(table[rank])}"
            )
    return [int(count) for count in table[:, 0]]


def _shape(row: Tensor) -> str:
    sizes = [size for size in row[2:].tolist() if size >= 0]
    return f"{sizes} ({int(row[1])} sparse dimensions)"


_MAX_LAYOUT = 16
