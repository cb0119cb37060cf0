"""What torch passes to process groups, as Syncline takes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp as TorchReduceOp

from syncline._syncline import ReduceOp
from syncline.errors import DistTypeError, DistValueError

_NO_TIMEOUT = timedelta(0)
_REDUCTIONS = {
    getattr(TorchReduceOp, name): getattr(ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
    if hasattr(TorchReduceOp, name)
}


def reduction(op: TorchReduceOp) -> tuple[ReduceOp, float]:
    """Syncline's operation of torch's, and its factor, which is 1 for all but PREMUL_SUM."""
    found = _REDUCTIONS[op.op]
    if found is not ReduceOp.PREMUL_SUM:
        return found, 1.0
    return found, float(op.__getstate__()[1])


def options(kind: type[Any], given: Any, timeout: timedelta | None = None, **fields: Any) -> Any:
    """`given` if it is torch's struct `kind`; otherwise one made of the other overload's arguments.

    There, `given` is a reduction, a root or nothing.
    """
    if isinstance(given, kind):
        return given
    made = kind()
    if isinstance(given, timedelta):
        timeout = given
    elif given is not None:
        setattr(made, "rootRank" if isinstance(given, int) else "reduceOp", given)
    for name, value in fields.items():
        if value is not None:
            setattr(made, name, value)
    if timeout is not None:
        made.timeout = timeout
    return made


def as_timeout(given: timedelta | float | None, default: timedelta | None) -> timedelta | None:
    """A timeout as users give it, in seconds if it is a number; `default` if it is None.

    Zero is no default: Syncline refuses it. Raises TypeError for anything else.
    """
    if given is None:
        return default
    if isinstance(given, timedelta):
        return given
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return timedelta(seconds=given)
    raise DistTypeError(
        f"timeout must be a timedelta, a number of seconds or None, not {type(given).__name__}"
    )


def timeout_of(given: Any, default: timedelta | None) -> timedelta | None:
    """The timeout in torch's options, where it is set."""
    timeout: timedelta = given.timeout
    return timeout if timeout > _NO_TIMEOUT else default


def only(tensors: Any, argument: str = "tensors") -> Any:
    """The one element of `tensors`; a tensor, or a list of them where each rank has one."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise DistValueError(
            f"{argument} must have one element for this process, not {len(tensors)}"
        )
    return tensors[0]


def distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`tensors` without those that are the same memory as one before, in type, shape and strides.

    What is reduced in place is reduced once, as by gloo.
    """
    found: dict[Any, Tensor] = {}
    for index, tensor in enumerate(tensors):
        is_empty = tensor.numel() == 0
        memory = index if is_empty else (tensor.data_ptr(), tensor.device)
        found.setdefault((memory, tensor.dtype, tensor.shape, tensor.stride()), tensor)
    return list(found.values())


def chunks(tensor: Tensor, parts: int) -> list[Tensor]:
    """The `parts` equal parts of the contiguous `tensor`, rank by rank."""
    if tensor.numel() % parts != 0:
        raise DistValueError(
            f"a tensor of {tensor.numel()} elements cannot be divided into {parts} equal parts, "
            "one for each rank"
        )
    return list(flat(tensor).chunk(parts)) if tensor.numel() else [flat(tensor)] * parts


def flat(tensor: Tensor) -> Tensor:
    """The elements of the contiguous `tensor` in one dimension."""
    return tensor.detach().view(-1)


# Types of elements that Syncline does not know; bytes of them can be moved all the same.
_AS_BYTES = {
    getattr(torch, name)
    for name in (
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
}


def movable(tensor: Tensor) -> Tensor:
    """`tensor`, or its memory as a type that can be moved; rows of it are rows of the tensor."""
    if tensor.dtype in _AS_BYTES:
        return tensor.view(torch.uint8)
    if tensor.dtype == torch.complex32:
        return torch.view_as_real(tensor)
    return tensor


def all_movable(tensors: Sequence[Tensor]) -> list[Tensor]:
    """As movable, for each."""
    return [movable(tensor) for tensor in tensors]
