"""Arrays in memory that the other processes of this host can map."""

from __future__ import annotations

import importlib
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
        return torch.from_dlpack(_syncline._empty_shared(lengths, known_dtype(name)))
    import numpy

    return numpy.asarray(_syncline._empty_shared(lengths, known_dtype(numpy.dtype(dtype).name)))


def shared_handle(x: Any) -> str:
    """A short text by which other processes of this user and host open the same memory.

    In Python by `open_shared`, in C++ by OpenShared, in Java by Tensor.openShared: all see each
    other's writes. It is good as long as this process runs and keeps the memory; a process that has
    opened it keeps the memory itself, and may make a handle of its own.

    Args:
      x: a NumPy array or torch tensor in memory of `empty_shared`, of
        syncline.multiprocessing.share_memory_, or that was received as shared memory: all of it or
        a view; contiguous, writable, of at least one element.

    Raises:
      ValueError: it is another one; says why.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach()
    return _syncline._shared_handle(x)


def open_shared(handle: str, library: str = "numpy") -> Any:
    """The array of a handle, over the same memory.

    Args:
      handle: what shared_handle has returned in the process that made it, or its like in C++ and
        Java.
      library: "numpy" or "torch", whose array it becomes.

    Raises:
      ValueError: it is no handle, or there is no such library.
      DistBackendError: the process that made it has ended or has freed the memory, or is of another
        host, pid namespace (container) or user; names its pid.
    """
    if library not in ("numpy", "torch"):
        raise ValueError(f'library must be "numpy" or "torch", not {library!r}')
    view = _syncline._open_shared(handle)
    if library == "torch":
        return importlib.import_module("torch").from_dlpack(view)
    import numpy

    return numpy.asarray(view)


_TYPES = set(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
    " complex64 complex128 float8_e4m3fn float8_e5m2".split()
)


def known_dtype(dtype: str) -> str:
    """The name of an element type; TypeError if there is none of this name."""
    if dtype not in _TYPES:
        raise TypeError(f"dtype must be one of {', '.join(sorted(_TYPES))}, not {dtype}")
    return dtype
