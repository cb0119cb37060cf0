"""How JAX arrays on the CPU travel. They arrive as jax.Array, without a copy."""

from __future__ import annotations

from typing import Any

import jax
import numpy

from syncline import _syncline
from syncline.multiprocessing import pickling, sharing

_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
    " complex64 complex128 float8_e4m3fn float8_e5m2".split()
)


def reductions() -> dict[type, pickling.Reduce]:
    """For Pickler."""
    if not hasattr(jax, "dlpack"):
        return {}
    try:
        from jax._src.array import ArrayImpl
    except ImportError:
        return {}
    return {ArrayImpl: _reduce}


def is_sharable(array: jax.Array) -> bool:
    """Whether it has elements, all in this host's main memory."""
    return (
        array.size > 0
        and getattr(array.dtype, "name", "") in _DTYPES
        and array.is_fully_addressable
        and len(array.devices()) == 1
        and next(iter(array.devices())).platform == "cpu"
    )


def _reduce(collector: pickling.Collector, array: Any) -> pickling.Reduction:
    if not is_sharable(array) or array.weak_type:
        return collector.by_default(array)
    elements = numpy.asarray(array)  # A view.
    if not elements.flags.c_contiguous:
        return collector.by_default(array)
    collector.keep.append(elements)
    low = elements.ctypes.data
    place = collector.place(low, elements.nbytes)
    buffer: pickling.Shared | pickling.Copied
    if place is not None:
        handle, offset, size = place
        buffer = pickling.Shared(handle, offset, elements.nbytes, size, array)
    elif elements.nbytes < sharing._threshold:
        return collector.by_default(array)
    else:
        plain = elements.reshape(-1).view(numpy.uint8)
        buffer = pickling.Copied(low, low + elements.nbytes, plain)
    return _rebuild, (collector.stand_in(buffer), array.dtype.name, elements.shape)


def _rebuild(place: tuple[Any, int], dtype: str, shape: tuple[int, ...]) -> jax.Array:
    whole, offset = place
    return jax.dlpack.from_dlpack(_syncline._part_of(whole, offset, dtype, list(shape)))
