"""How NumPy arrays travel."""

# Arrays of any element type.
# mypy: disable-error-code="type-arg,var-annotated,return-value"

from __future__ import annotations

from typing import Any

import numpy

from syncline.multiprocessing import pickling, sharing

# An array whose elements lie further apart than this travels without the gaps.
_SPREAD = 2


def reductions() -> dict[type, pickling.Reduce]:
    """For Pickler."""
    if not hasattr(numpy, "ndarray"):
        return {}
    return {numpy.ndarray: _reduce}


def byte_bounds(array: numpy.ndarray) -> tuple[int, int]:
    """The address of the first byte of an array that has elements, and that after the last one."""
    low = array.ctypes.data
    if array.flags.c_contiguous:
        return low, low + array.nbytes
    high = low + array.itemsize
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride > 0:
            high += (length - 1) * stride
        else:
            low += (length - 1) * stride
    return low, high


def shared_copy(array: numpy.ndarray) -> numpy.ndarray:
    """A copy in shared memory, in the same order."""
    if array.dtype.hasobject:
        raise TypeError("an array of objects cannot be shared: its elements are addresses")
    if array.size == 0:
        return array
    dense = numpy.empty_like(array, order="K", subok=False)
    view = sharing.new_memory(array.nbytes)
    copy = numpy.ndarray(array.shape, array.dtype, view, 0, dense.strides)
    _assign(copy, array)
    return copy


def _assign(to: numpy.ndarray, array: numpy.ndarray) -> None:
    """Copies all bytes of the elements, those between the fields of a structure included."""
    if array.dtype.fields is not None:
        plain = numpy.dtype((numpy.void, array.itemsize))
        to, array = to.view(plain), array.view(plain)
    numpy.copyto(to, array)


def _dense(array: numpy.ndarray) -> numpy.ndarray | None:
    """The elements of an array without gaps, in the order of memory; None if it has gaps."""
    flags = array.flags
    if flags.c_contiguous:
        ordered = array
    elif flags.f_contiguous:
        ordered = array.T
    else:
        forward = array[tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)]
        axes = sorted(range(array.ndim), key=lambda axis: -forward.strides[axis])
        ordered = forward.transpose(axes)
        if not ordered.flags.c_contiguous:
            return None
    return ordered.reshape(-1).view(numpy.uint8)


def _reduce(collector: pickling.Collector, array: numpy.ndarray) -> pickling.Reduction:
    nbytes = array.nbytes
    if array.base is None and nbytes < sharing._threshold:  # Shared memory has an owner.
        return _by_value(array)
    dtype = array.dtype
    if nbytes == 0 or dtype.hasobject:
        return array.__reduce_ex__(5)
    low, high = byte_bounds(array)
    place = collector.place(low, high - low)
    buffer: pickling.Shared | pickling.Copied
    strides: Any = None if array.flags.c_contiguous else array.strides
    first = array.ctypes.data - low
    if place is not None:
        handle, offset, size = place
        buffer = pickling.Shared(handle, offset, high - low, size, array)
    elif nbytes < sharing._threshold:
        return _by_value(array)
    else:
        source = _dense(array)
        if source is None and high - low > _SPREAD * nbytes:
            # A copy in the same order is without gaps.
            array_copy = array.copy(order="K")
            array_copy.flags.writeable = array.flags.writeable
            return _reduce(collector, array_copy)

        def copy_to(whole: Any, offset: int) -> None:
            to = numpy.ndarray(array.shape, dtype, whole, offset + first, array.strides)
            _assign(to, array)

        buffer = pickling.Copied(low, high, source, copy_to)
    # A type that its string says wholly is short.
    kind = dtype.str if dtype.isbuiltin == 1 and dtype.metadata is None else dtype
    writable = array.flags.writeable
    stand_in = collector.stand_in(buffer)
    return _rebuild, (stand_in, array.shape, kind, strides, first, writable)


def _by_value(array: numpy.ndarray) -> pickling.Reduction:
    # Protocol 4 costs a third of 5 where it is read, and makes all arrays writable.
    return array.__reduce_ex__(4 if array.flags.writeable else 5)


def _rebuild(
    place: tuple[Any, int],
    shape: tuple[int, ...],
    dtype: Any,
    strides: tuple[int, ...] | None,
    first: int,
    writable: bool,
) -> numpy.ndarray:
    whole, offset = place
    array: numpy.ndarray = numpy.ndarray(shape, dtype, whole, offset + first, strides)
    if not writable:
        array.flags.writeable = False
    return array
