"""Arrays in memory that the other processes of this host can map."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from syncline import _syncline


def empty_shared(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """A new array that ranks on this host read where it is, in collectives on large arrays.

    Its elements are zero. With a `dtype` of NumPy, or its name ("float32"), it is a NumPy array;
    with one of PyTorch (torch.float32) a tensor of PyTorch. Views, slices and torch.from_numpy of
    it share the memory and are as good. Collectives with the backends "shm" and "auto" then move
    nothing through buffers of their own, if all ranks of the host pass such arrays; the results
    are the same.

    The memory has no name in /dev/shm, takes one open file, and is freed with the last array
    over it. Raises TypeError for an unknown `dtype`, ValueError for a negative dimension, and
    DistBackendError, with the size, if there is not so much memory.
    """
    lengths = [shape] if isinstance(shape, int) else list(shape)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        name = str(dtype).removeprefix("torch.")
        return torch.from_dlpack(_syncline._empty_shared(lengths, _known(name)))
    import numpy

    return numpy.asarray(_syncline._empty_shared(lengths, _known(numpy.dtype(dtype).name)))


_TYPES = set(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
    " complex64 complex128".split()
)


def _known(dtype: str) -> str:
    if dtype not in _TYPES:
        raise TypeError(f"dtype must be one of {', '.join(sorted(_TYPES))}, not {dtype}")
    return dtype
