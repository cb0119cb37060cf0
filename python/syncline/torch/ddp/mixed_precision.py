"""Forward and backward in one precision, parameters and optimizer in another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from syncline import _syncline


@dataclass
class MixedPrecision:
    """What DistributedDataParallel takes as `mixed_precision`; as torch's of the same fields.

    Only floating-point tensors are cast. Parameters, gradients and checkpoints stay as they are.
    """

    param_dtype: torch.dtype | None = None
    """Of parameters and inputs within forward and backward."""
    reduce_dtype: torch.dtype | None = None
    """In which gradients are sent; `param_dtype` if None."""
    buffer_dtype: torch.dtype | None = None
    """To which buffers are cast, once."""


def cast(value: Any, dtype: torch.dtype | None) -> Any:
    """`value` with all floating-point tensors in it, at any depth, cast to `dtype`."""
    if dtype is None:
        return value

    def one(item: Any) -> Any:
        if isinstance(item, torch.Tensor) and item.is_floating_point():
            return item.to(dtype)
        return item

    return tree_map(one, value)


def run(
    module: torch.nn.Module,
    parameters: dict[str, torch.nn.Parameter],
    dtype: torch.dtype | None,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """module(*inputs, **kwargs) in `dtype`.

    The casts of parameters are part of the graph, so gradients arrive in the parameters' own type.
    """
    if dtype is None:
        return module(*inputs, **kwargs)
    inputs, kwargs = cast(inputs, dtype), cast(kwargs, dtype)
    lower = {name: cast(parameter, dtype) for name, parameter in parameters.items()}
    return torch.func.functional_call(module, lower, inputs, kwargs)


def cast_buffers(buffers: Iterable[torch.Tensor], dtype: torch.dtype | None) -> None:
    """Casts floating-point `buffers` in place."""
    for buffer in buffers:
        buffer.data = cast(buffer.data, dtype)


def reduction_hook(config: Any) -> _syncline.CommHook | None:
    """How gradients are sent: compressed, if in a type of 16 bits."""
    dtype = config.reduce_dtype or config.param_dtype
    if dtype == torch.float16:
        return _syncline.CommHook.float16_compress()
    if dtype == torch.bfloat16:
        return _syncline.CommHook.bfloat16_compress()
    return None
