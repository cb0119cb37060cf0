"""Arrays in new memory of a CUDA device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from syncline import _syncline
from syncline.shared_memory import known_dtype


def empty(
    shape: int | Sequence[int],
    dtype: Any = "float32",
    *,
    device: Any = "cuda",
    registered: bool = False,
) -> Any:
    """A new array on a CUDA device, its elements not set to anything.

        x = dist.empty(1 << 24, torch.float32, device="cuda", registered=True)
        dist.all_reduce(x)  # NCCL reads and writes it where it is, where the hardware lets it.

    With `registered` its memory is NCCL's (ncclMemAlloc), and each communicator registers it when a
    call first uses it (ncclCommRegister): over NVLink SHARP, between devices that reach each other,
    and over networks with RDMA, NCCL then needs no buffers of its own and fewer of the device's
    cores. That helps if the arrays of all ranks are such. It takes whole pages of the device, 2 MiB
    as a rule: make few and large arrays, and slice them. torch.cuda.MemPool has torch's own
    allocator use such memory; this serves arrays of all libraries.

    Args:
      shape: the length of each dimension.
      dtype: with one of PyTorch (torch.float32) the array is a tensor of PyTorch; with one of
        NumPy, or its name, an array of CuPy if that is imported, else an object that libraries
        take by DLPack (torch.from_dlpack, cupy.from_dlpack) and calls of this package as it is.
      device: "cuda:1", a number, or what has a type and an index, as a torch.device. "cuda" is the
        current device of PyTorch or CuPy if one is imported, else the first.
      registered: whether the memory is to be NCCL's.

    The memory is freed with the last array over it, which may outlive its groups. What uses it on
    streams outside of this package must have ended by then.

    Raises:
      TypeError: `dtype` or `device` is none.
      ValueError: a dimension is negative, or the process has no such device.
      DistBackendError: there is not so much memory; says how much.
      NotImplementedError: there is no CUDA, or, with `registered`, no NCCL of 2.19 or later; says
        what is missing.
    """
    lengths = [shape] if isinstance(shape, int) else list(shape)
    index = _index_of(device)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        name = known_dtype(str(dtype).removeprefix("torch."))
        return torch.from_dlpack(_syncline._empty_on_device(lengths, name, index, registered))
    import numpy

    name = known_dtype(numpy.dtype(dtype).name)
    made = _syncline._empty_on_device(lengths, name, index, registered)
    cupy = sys.modules.get("cupy")
    return made if cupy is None else cupy.from_dlpack(made)


def _index_of(device: Any) -> int:
    index: Any = device
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        index = int(number) if number.isdecimal() else _current() if not colon else None
    else:
        kind = getattr(device, "type", "cuda")
        if hasattr(device, "type"):
            index = getattr(device, "index", None)
            index = _current() if index is None else index
    if kind != "cuda" or not isinstance(index, int) or isinstance(index, bool):
        raise TypeError(f'device must be a CUDA device, such as "cuda:0", not {device!r}')
    return index


def _current() -> int:
    """The current device of the library that has one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    cupy = sys.modules.get("cupy")
    return 0 if cupy is None else int(cupy.cuda.runtime.getDevice())
