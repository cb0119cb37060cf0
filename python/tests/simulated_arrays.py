"""Arrays on the simulated CUDA devices of core/device/testing/fake_cuda, as libraries have them.

To be imported before anything asks for a device. Their memory is the host's, so that `peek` sees
what is there, without waiting for anybody.
"""

import ctypes
import gc
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
from dlpack_structs import (
    CODES,
    CUDA,
    CurrentStream,
    Deleter,
    Export,
    Managed,
    Table,
    Tensor,
    Unversioned,
    Version,
    capsule,
)
from numpy.typing import NDArray

_LIBRARY = "syncline/core/device/testing/fake_cuda/libfake_cuda.so"
os.environ.setdefault(
    "SYNCLINE_CUDA_LIBRARY", str(pathlib.Path(os.environ["TEST_SRCDIR"]) / _LIBRARY)
)
os.environ.setdefault("FAKE_CUDA_DEVICES", "2")

LONG = 60.0  # Seconds.

driver = ctypes.CDLL(os.environ["SYNCLINE_CUDA_LIBRARY"])
driver.fake_cuda_calls.restype = ctypes.c_int64
driver.fake_cuda_calls.argtypes = [ctypes.c_char_p]

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def call(function: str, *arguments: Any) -> None:
    """Calls the driver; AssertionError if it fails."""
    result = getattr(driver, function)(*arguments)
    assert result == 0, f"{function} failed with {result}"


def calls(function: str) -> int:
    """How often the process has called a function of the driver."""
    return driver.fake_cuda_calls(function.encode())


class Counts(ctypes.Structure):
    """What the process has made and not given back."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "contexts", "streams", "events", "device_allocations", "pinned_allocations",
            "libraries", "graphs", "pending_items",
        )
    ]  # fmt: skip


def counts() -> Counts:
    made = Counts()
    driver.fake_cuda_live_objects(ctypes.byref(made))
    return made


@contextmanager
def slow(microseconds: int) -> Iterator[None]:
    """Streams begin each item late, by a random time up to this."""
    driver.fake_cuda_delay_us(ctypes.c_int64(microseconds))
    try:
        yield
    finally:
        driver.fake_cuda_delay_us(ctypes.c_int64(0))


_contexts: dict[int, ctypes.c_void_p] = {}


class on_device:
    """Makes a device's context current on this thread."""

    def __init__(self, device: int) -> None:
        if device not in _contexts:
            call("cuInit", 0)
            made = ctypes.c_void_p()
            call("cuDevicePrimaryCtxRetain", ctypes.byref(made), device)
            _contexts[device] = made
        self.context = _contexts[device]

    def __enter__(self) -> None:
        call("cuCtxPushCurrent_v2", self.context)

    def __exit__(self, *_: object) -> None:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def synchronize(device: int = 0) -> None:
    """Waits for all streams of a device."""
    with on_device(device):
        call("cuCtxSynchronize")


def await_that(condition: Callable[[], bool], what: str) -> None:
    """Waits for what another thread does soon; AssertionError if it does not."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        gc.collect()
        time.sleep(0.001)


class Memory:
    """Memory of a device, which is given back with the object."""

    def __init__(self, size: int, device: int) -> None:
        self.address = ctypes.c_uint64()
        self._device = device
        with on_device(device):
            call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(size, 1)))

    def __del__(self) -> None:
        if self.address.value:
            with on_device(self._device):
                call("cuMemFree_v2", self.address)


class Stream:
    """A stream, which is given back with the object; `cuda_stream` is its number, as in PyTorch."""

    def __init__(self, device: int = 0) -> None:
        made = ctypes.c_void_p()
        self._device = device
        with on_device(device):
            call("cuStreamCreateWithPriority", ctypes.byref(made), 1, 0)  # 1: not blocking.
        self.cuda_stream = made.value or 0

    def enqueue(self, action: Callable[[], None]) -> None:
        """Has `action` called behind what is on the stream."""
        enqueue(self.cuda_stream, action, self._device)

    def synchronize(self) -> None:
        with on_device(self._device):
            call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))

    def __del__(self) -> None:
        with on_device(self._device):
            call("cuStreamDestroy_v2", ctypes.c_void_p(self.cuda_stream))


_enqueued: dict[int, Any] = {}


def enqueue(stream: int, action: Callable[[], None], device: int = 0) -> None:
    """Has `action` called behind what is on the stream with this number."""

    @HostFunction
    def run(_: int) -> None:
        action()

    _enqueued[id(run)] = run  # While the process lives: who calls it cannot free it.
    with on_device(device):
        call("cuLaunchHostFunc", ctypes.c_void_p(stream), run, None)


class Gate:
    """Holds a stream where it is enqueued, until it is opened, or for a minute."""

    def __init__(self, stream: int = 0, device: int = 0) -> None:
        self._opened = threading.Event()
        enqueue(stream, lambda: self._opened.wait(LONG) and None, device)

    def open(self) -> None:
        self._opened.set()


lent: dict[int, tuple[Any, ...]] = {}  # What is exported by DLPack, by address.


@Deleter
def _give_back(address: int) -> None:
    del lent[address]


class Array:
    """A contiguous array on a device; its ways to share memory are added by subclasses."""

    def __init__(self, values: Any, device: int = 0) -> None:
        values = numpy.asarray(values)
        self.dtype, self.shape, self.device = values.dtype, values.shape, device
        self._memory = Memory(values.nbytes, device)
        self.peek()[...] = values

    @property
    def address(self) -> int:
        return self._memory.address.value

    def read(self) -> NDArray[Any]:
        """A copy of the elements when all streams of the device have done what is on them."""
        synchronize(self.device)
        return self.peek().copy()

    def peek(self) -> NDArray[Any]:
        """The elements as they are at this moment; the array must live as long."""
        count = int(numpy.prod(self.shape))
        memory = (ctypes.c_char * max(1, count * self.dtype.itemsize)).from_address(self.address)
        return numpy.frombuffer(memory, self.dtype, count).reshape(self.shape)


class DLPackArray(Array):
    """Speaks DLPack, and notes of which streams it was asked."""

    def __init__(self, values: Any, device: int = 0) -> None:
        super().__init__(values, device)
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, self.device)

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.asked.append(stream)
        tensor, extents = _described(self)
        managed = Unversioned(tensor, None, _give_back)
        lent[ctypes.addressof(managed)] = (managed, extents, self)
        return capsule(managed, b"dltensor")


class ExchangeArray(Array):
    """Has DLPack's C exchange API alone, with a current stream for each device, as PyTorch."""

    current: dict[int, int] = {}  # The number of the stream, by device.


@Export
def _export(array: ExchangeArray, out: Any) -> int:
    tensor, extents = _described(array)
    managed = Managed(Version(1, 3), None, _give_back, 0, tensor)
    lent[ctypes.addressof(managed)] = (managed, extents, array)
    out[0] = ctypes.addressof(managed)
    return 0


@CurrentStream
def _current_stream(kind: int, device: int, out: Any) -> int:
    assert kind == CUDA
    out[0] = ExchangeArray.current.get(device, 0)
    return 0


_TABLE = Table(Version(1, 3), None, None, _export, None, None, _current_stream)
ExchangeArray.__dlpack_c_exchange_api__ = capsule(_TABLE)  # type: ignore[attr-defined]


def _described(array: Array) -> tuple[Tensor, Any]:
    """And what it points to."""
    extents = (ctypes.c_int64 * len(array.shape))(*array.shape)
    device = (ctypes.c_int32 * 2)(CUDA, array.device)
    code, bits = CODES[array.dtype.kind], 8 * array.dtype.itemsize
    return Tensor(array.address, device, len(array.shape), code, bits, 1, extents), extents


class CudaArray(Array):
    """Has __cuda_array_interface__ alone, as Numba's arrays do; `changes` are made to it."""

    def __init__(self, values: Any, device: int = 0, **changes: Any) -> None:
        super().__init__(values, device)
        self.changes = changes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": None,
            **self.changes,
        }
