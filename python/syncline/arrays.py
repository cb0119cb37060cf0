"""New arrays of the library of another array, for results that are not written in place."""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from syncline import _syncline

_DLPACK_CUDA = 2  # kDLCUDA.


@dataclass(frozen=True)
class Library:
    """How a library makes arrays.

    Until `finish`, an array is one in main memory or on the device that can be written in place.
    """

    copy: Callable[[Any], Any]  # A contiguous copy of an array.
    empty: Callable[[Any, Sequence[int], Any], Any]  # Like an array, but of this shape and type,
    # which is the array's own if it is None.
    finish: Callable[[Any, Any], Any]  # What was written, as a result like an array.


def library_of(like: Any) -> Library:
    """The library of `like`: NumPy, PyTorch, JAX, CuPy or array.array. TypeError for others."""
    module = type(like).__module__.split(".", 1)[0]
    if module in ("jax", "jaxlib"):
        device = cuda_device_of(like)
        return _jax() if device is None else _jax_on_cuda(device)
    if module in ("torch", "cupy"):
        return _torch() if module == "torch" else _cupy()
    if isinstance(like, _numpy_array()):
        return _numpy()
    if isinstance(like, _torch_tensor()):
        return _torch()
    if isinstance(like, array.array):
        return _ARRAY
    raise TypeError(
        f"an array of NumPy, PyTorch, JAX, CuPy or of the module array is needed, not "
        f"{type(like).__name__}: pass numpy.asarray(x)"
    )


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape; array.array has one dimension."""
    return (len(x),) if isinstance(x, array.array) else tuple(x.shape)


def _numpy_array() -> type | tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    return numpy.ndarray if numpy is not None else ()


def _torch_tensor() -> type | tuple[type, ...]:
    torch = sys.modules.get("torch")
    return torch.Tensor if torch is not None else ()


def _numpy() -> Library:
    numpy = sys.modules["numpy"]
    return Library(
        copy=lambda x: numpy.array(x, order="C", copy=True),
        empty=lambda like, shape, dtype: numpy.empty(tuple(shape), dtype or like.dtype),
        finish=lambda written, _: written,
    )


def _cupy() -> Library:
    """Arrays are made on the device of the given one, which need not be the current one."""
    cupy = sys.modules["cupy"]

    def copy(x: Any) -> Any:
        with x.device:
            return cupy.array(x, order="C", copy=True)

    def empty(like: Any, shape: Sequence[int], dtype: Any) -> Any:
        with like.device:
            return cupy.empty(tuple(shape), dtype or like.dtype)

    return Library(copy=copy, empty=empty, finish=lambda written, _: written)


def _torch() -> Library:
    torch = sys.modules["torch"]
    return Library(
        copy=lambda x: x.detach().clone(memory_format=torch.contiguous_format),
        empty=lambda like, shape, dtype: torch.empty(
            tuple(shape), dtype=dtype or like.dtype, device=like.device
        ),
        finish=lambda written, _: written,
    )


def _jax() -> Library:
    """Through NumPy: JAX's arrays are never written in place."""
    import jax
    import numpy

    return Library(
        copy=lambda x: numpy.array(x, order="C", copy=True),
        empty=lambda like, shape, dtype: numpy.empty(tuple(shape), dtype or like.dtype),
        finish=lambda written, like: jax.device_put(written, like.sharding),
    )


def _jax_on_cuda(device: int) -> Library:
    """In memory of the device that is Syncline's until JAX takes it over."""
    import jax

    def empty(like: Any, shape: Sequence[int], dtype: Any) -> Any:
        return _syncline._empty_on_device(list(shape), str(dtype or like.dtype), device, False)

    def copy(x: Any) -> Any:
        made = empty(x, x.shape, None)
        _syncline._copy_to_device(made, x)
        return made

    return Library(
        copy=copy, empty=empty, finish=lambda written, _: jax.dlpack.from_dlpack(written)
    )


def cuda_device_of(x: Any) -> int | None:
    """The number of the one CUDA device where an array of JAX lies; None for others."""
    ask = getattr(x, "__dlpack_device__", None)
    if ask is None:
        return None
    try:
        kind, index = ask()
    except Exception:  # noqa: BLE001 JAX has several for arrays of several devices.
        return None
    return int(index) if kind == _DLPACK_CUDA else None


def _empty_array(like: Any, shape: Sequence[int], dtype: Any) -> Any:
    count = 1
    for length in shape:
        count *= length
    code = dtype or like.typecode
    return array.array(code, bytes(count * array.array(code).itemsize))


_ARRAY = Library(copy=lambda x: x[:], empty=_empty_array, finish=lambda written, _: written)
