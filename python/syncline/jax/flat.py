"""Many arrays as one: flat buffers, which collectives move in one piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy

from syncline import _syncline
from syncline.shared_memory import empty_shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNMENT = 64  # Bytes. JAX takes memory that is so aligned as it is,
_DEVICE_ALIGNMENT = 256  # on a device that which its own allocator makes.
_LEAST_SHARED = 1 << 20  # Bytes. Collectives on less gain nothing by being read in place.


class Room(Protocol):
    """Where flat buffers are made."""

    def copies_of(self, arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
        """A flat buffer of the arrays' one element type, and a copy of each in it, of its shape.

        Copies are aligned as JAX wants it; what lies between them is of no meaning.
        """

    def finish(self, part: Any) -> Any:
        """A copy, when it has become what it is to be, for JAX."""


class _HostRoom:
    """Main memory, which is used again when no array, JAX's included, looks at it any more."""

    def copies_of(self, arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        whole, parts = room_for(arrays)
        for part, array in zip(parts, arrays, strict=True):
            part[...] = array
        return whole, parts

    def finish(self, part: NDArray[Any]) -> NDArray[Any]:
        return part


HOST_ROOM: Room = _HostRoom()


class DeviceRoom:
    """Memory of a CUDA device, which JAX takes over part by part; streams wait, the host does not.

    The arrays of JAX lie on that device.
    """

    def __init__(self, device: int) -> None:
        self._device = device

    def copies_of(self, arrays: Sequence[jax.Array]) -> tuple[Any, list[Any]]:
        dtype, starts = arrays[0].dtype, _starts_of(arrays, _DEVICE_ALIGNMENT)
        memory = _syncline._empty_on_device(
            [starts[-1] * dtype.itemsize], "uint8", self._device, False
        )
        whole = _syncline._part_of(memory, 0, str(dtype), [starts[-1]])
        parts = []
        for start, array in zip(starts, arrays, strict=False):
            part = _syncline._part_of(memory, start * dtype.itemsize, str(dtype), list(array.shape))
            _syncline._copy_to_device(part, array)
            parts.append(part)
        return whole, parts

    def finish(self, part: Any) -> jax.Array:
        return jax.dlpack.from_dlpack(part)


def _starts_of(arrays: Sequence[Any], alignment: int) -> list[int]:
    """Where each begins in a flat buffer of their type, and where the last ends, in elements."""
    step = alignment // arrays[0].dtype.itemsize
    starts = [0]
    for array in arrays:
        starts.append(starts[-1] + -(-array.size // step) * step)
    return starts


def room_for(
    arrays: Sequence[NDArray[Any]],
) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """A flat buffer of the arrays' one element type, and a view in it for each, of its shape."""
    dtype = arrays[0].dtype
    starts = _starts_of(arrays, _ALIGNMENT)
    memory = numpy.asarray(_Lease(_pool.take(max(1, starts[-1]) * dtype.itemsize)))
    whole = memory[: starts[-1] * dtype.itemsize].view(dtype)
    parts = [
        whole[start : start + array.size].reshape(array.shape)
        for start, array in zip(starts, arrays, strict=False)
    ]
    return whole, parts


class _Pool:
    """A pool of memory. Its pages are made, and mapped by peers, once.

    Without a lock, as a lease can end anywhere, by garbage collection: each call of the deque is
    atomic.
    """

    def __init__(self) -> None:
        self._free: deque[NDArray[numpy.uint8]] = deque(maxlen=6)  # What is too much is let go.

    def take(self, size: int) -> NDArray[numpy.uint8]:
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # Another thread was faster.
                break
            if memory.size == size:
                return memory
            self._free.append(memory)
        return _allocate(size)

    def give_back(self, memory: NDArray[numpy.uint8]) -> None:
        self._free.append(memory)


def _allocate(size: int) -> NDArray[numpy.uint8]:
    """Zeros, aligned."""
    if size >= _LEAST_SHARED:
        shared: NDArray[numpy.uint8] = numpy.asarray(empty_shared((size,), "uint8"))
        return shared
    memory = numpy.zeros(size + _ALIGNMENT, numpy.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


_pool = _Pool()


class _Lease:
    """Memory of the pool. Whatever array is made of it refers to it, and keeps it."""

    def __init__(self, memory: NDArray[numpy.uint8]) -> None:
        self._pool = _pool  # Which may be gone when Python exits.
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._pool.give_back(self._memory)
