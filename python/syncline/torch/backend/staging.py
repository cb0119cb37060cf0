"""Contiguous stand-ins for tensors that are not: Syncline moves contiguous memory only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from syncline.errors import DistValueError

Copies = list[tuple[Tensor, Tensor]]
"""Tensors that an operation writes to, each with the stand-in whose values it is to have."""


def contiguous(tensor: Tensor) -> Tensor:
    """What an operation reads in place of `tensor`: itself, or a copy."""
    if tensor.layout is not torch.strided or _is_as_in_memory(tensor):
        return tensor
    return _copied(tensor)


def stand_in(tensor: Tensor, copies: Copies) -> Tensor:
    """What an operation writes to in place of `tensor`: itself, or a copy, noted in `copies`.

    ValueError if elements of it share their memory, as those that expand() makes do.
    """
    if tensor.layout is not torch.strided or _is_as_in_memory(tensor):
        return tensor
    sizes_and_strides = zip(tensor.shape, tensor.stride(), strict=True)
    if any(size > 1 and stride == 0 for size, stride in sizes_and_strides):
        raise DistValueError(
            f"elements of the tensor that is to be written to (shape {list(tensor.shape)}, "
            f"strides {list(tensor.stride())}) share their memory: pass tensor.contiguous()"
        )
    copy = _copied(tensor)
    copies.append((tensor, copy))
    return copy


def _is_as_in_memory(tensor: Tensor) -> bool:
    """Whether elements lie side by side, and are not yet to be conjugated or negated when read."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def staged(arguments: tuple[Any, ...], copies: Copies) -> list[Any]:
    """An operation's arguments: of these the first is written to, the others are read."""
    if not arguments:
        return []
    first = _each(arguments[0], lambda tensor: stand_in(tensor, copies))
    return [first, *(_each(argument, contiguous) for argument in arguments[1:])]


def copy_back(copies: Copies) -> None:
    """Gives the tensors what the operation has written to their stand-ins."""
    for tensor, copy in copies:
        tensor.data.copy_(copy)  # As Syncline writes to memory: autograd does not see it.


def _each(argument: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(argument, Tensor):
        return function(argument)
    if isinstance(argument, list) and argument and isinstance(argument[0], Tensor):
        return [function(tensor) for tensor in argument]
    return argument
