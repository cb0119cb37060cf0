"""How a parameter lies in memory, and as what it and its gradient are handed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Layout:
    """A parameter's type, place, and order of dimensions in memory, which channels_last changes.

    Buckets hold gradients in the order in which their parameters lie in memory, so that a
    gradient, which autograd makes alike, is copied straight through.
    """

    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]  # Of the dimensions in the order of memory.
    order: tuple[int, ...] | None  # Which dimension of the parameter each is; None: all in order.

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        """The layout of `tensor`; one with gaps or overlaps counts as contiguous."""
        shape = tuple(tensor.shape)
        order = None
        if not tensor.is_contiguous():
            strides = tensor.stride()
            by_stride = sorted(range(tensor.dim()), key=lambda d: strides[d], reverse=True)
            if tensor.permute(by_stride).is_contiguous():
                order = tuple(by_stride)
                shape = tuple(tensor.shape[d] for d in order)
        return Layout(tensor.dtype, tensor.device, shape, order)

    def is_plain(self, place: torch.device) -> bool:
        """Whether a gradient is what a reducer with buckets at `place` takes: contiguous, there."""
        return self.order is None and self.device == place

    def stand_in(self, place: torch.device) -> torch.Tensor:
        """Has the type and the shape by which a bucket holds the gradient, and no values."""
        return torch.empty(self.shape, dtype=self.dtype, device=place)

    def restore(self, dense: torch.Tensor) -> torch.Tensor:
        """A view of `dense`, whose dimensions are in the order of memory, as the parameter's."""
        if self.order is None:
            return dense
        return dense.permute([self.order.index(d) for d in range(len(self.order))])

    def copy_of(self, view: torch.Tensor) -> torch.Tensor:
        """A copy of what `restore` returned, where the parameter is."""
        return view.to(self.device, copy=True)


def place_of_buckets(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Where the buckets of these are: on their CUDA device if all are on one, else the CPU."""
    devices = {tensor.device for tensor in tensors}
    one = next(iter(devices), None)
    is_on_device = one is not None and one.type == "cuda" and len(devices) == 1
    return one if one is not None and is_on_device else torch.device("cpu")


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """A contiguous view of all of `tensor`'s memory, or None if it has gaps or overlaps."""
    layout = Layout.of(tensor)
    dense = tensor.detach() if layout.order is None else tensor.detach().permute(layout.order)
    return dense if dense.is_contiguous() else None
