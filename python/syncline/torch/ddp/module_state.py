"""A module's parameters and buffers as one rank has them, on all ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from syncline._syncline import ProcessGroup
from syncline.torch.ddp.layout import in_memory_order

BROADCAST_BYTES = 250 << 20
"""About how much is sent at once."""


def broadcast(
    tensors: Iterable[torch.Tensor], group: ProcessGroup, root: int, at_once: int = BROADCAST_BYTES
) -> None:
    """Copies `root`'s tensors over the other ranks' of the same types and shapes, in order."""
    batch: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        if batch and tensor.device != batch[0].device:  # A call has tensors of one device.
            _broadcast_at_once(batch, group, root)
            batch, size = [], 0
        batch.append(tensor)
        size += tensor.numel() * tensor.element_size()
        if size >= at_once:
            _broadcast_at_once(batch, group, root)
            batch, size = [], 0
    if batch:
        _broadcast_at_once(batch, group, root)


def _broadcast_at_once(tensors: list[torch.Tensor], group: ProcessGroup, root: int) -> None:
    """Through copies where memory is not one piece, or not that of the CPU or of CUDA."""
    with torch.no_grad():
        sent: list[torch.Tensor] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for tensor in tensors:
            is_served = tensor.device.type in ("cpu", "cuda")
            dense = in_memory_order(tensor) if is_served else None
            if dense is None:
                dense = (tensor.detach() if is_served else tensor.detach().cpu()).contiguous()
                copies.append((tensor, dense))
            sent.append(dense)
        group.broadcast_coalesced(sent, root)
        for tensor, copy in copies:
            tensor.copy_(copy)
