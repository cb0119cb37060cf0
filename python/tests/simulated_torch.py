"""PyTorch's tensors on the simulated CUDA devices, for a PyTorch that is built without CUDA.

Imported in the process of a rank, where RANK is set, it puts stand-ins for the parts of torch.cuda
that Syncline uses in their places; to be imported before syncline.torch. Each rank has a device of
its own. A DeviceTensor has its elements in memory of the
simulated driver. To PyTorch's C++ code it is on the CPU, so that autograd runs it; in Python it
says that it is on "cuda:0", and to DLPack too. Each operation of PyTorch waits for the current
stream alone, then computes on the host: it sees wrong values if something that it depends on is
under way on a stream that the current one does not wait for.
"""

import ctypes
import os
import pathlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import simulated_arrays
import torch
import torch.utils.dlpack
from dlpack_structs import CUDA, Unversioned, capsule
from dlpack_structs import Tensor as DLTensor
from simulated_arrays import call, on_device
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_NCCL = "syncline/backends/nccl/testing/fake_nccl/libfake_nccl.so"
os.environ.setdefault("SYNCLINE_NCCL_LIBRARY", str(pathlib.Path(os.environ["TEST_SRCDIR"]) / _NCCL))

host_waits = 0
"""How often the host has waited for a stream or an event because Python code asked for it."""

_CODES = {torch.bool: 6, torch.bfloat16: 4}
_of_torch: dict[str, Any] = {}


class Event:
    """torch.cuda.Event."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._handle = ctypes.c_void_p()
        with on_device(device):
            call("cuEventCreate", ctypes.byref(self._handle), 2)

    def record(self, stream: "Stream | None" = None) -> None:
        stream = stream or current_stream(self._device)
        with on_device(self._device):
            call("cuEventRecord", self._handle, ctypes.c_void_p(stream.cuda_stream))

    def wait(self, stream: "Stream | None" = None) -> None:
        stream = stream or current_stream(self._device)
        with on_device(self._device):
            call("cuStreamWaitEvent", ctypes.c_void_p(stream.cuda_stream), self._handle, 0)

    def query(self) -> bool:
        with on_device(self._device):
            return simulated_arrays.driver.cuEventQuery(self._handle) == 0

    def synchronize(self) -> None:
        global host_waits
        host_waits += 1
        with on_device(self._device):
            call("cuEventSynchronize", self._handle)

    def __del__(self) -> None:
        with on_device(self._device):
            call("cuEventDestroy_v2", self._handle)


class Stream:
    """torch.cuda.Stream. Never given back, as those of PyTorch's pool."""

    def __init__(self, device: Any = 0, number: int | None = None) -> None:
        self.device = torch.device("cuda", _index_of(device))
        made = ctypes.c_void_p(number)
        if number is None:
            with on_device(self.device.index):
                call("cuStreamCreateWithPriority", ctypes.byref(made), 1, 0)
        self.cuda_stream = made.value or 0

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self.device.index)
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        stream.record_event().wait(self)

    def query(self) -> bool:
        return self.record_event().query()

    def synchronize(self) -> None:
        global host_waits
        host_waits += 1
        self.finish()

    def finish(self) -> None:
        """Waits until the device has done what is on the stream, as an operation's inputs do."""
        with on_device(self.device.index):
            call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))


def _index_of(device: Any) -> int:
    if device is None:
        return 0
    return device if isinstance(device, int) else torch.device(device).index or 0


_thread = threading.local()


def current_stream(device: Any = None) -> Stream:
    streams = getattr(_thread, "streams", {})
    index = _index_of(device)
    return streams.get(index) or Stream(index, 0)


@contextmanager
def stream(chosen: Stream | None) -> Iterator[None]:
    if chosen is None:
        yield
        return
    before = getattr(_thread, "streams", {})
    _thread.streams = {**before, chosen.device.index: chosen}
    try:
        yield
    finally:
        _thread.streams = before


class Future(torch.futures.Future):
    """Callbacks of one that has devices run at once, on the current stream.

    Its waiters' streams wait for the events of the future's completion, as with CUDA.
    """

    def __init__(self, *, devices: Any = None) -> None:
        super().__init__()
        self._devices = [torch.device(device) for device in devices or ()]
        self._events: list[Event] = []

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def _record(self) -> None:
        self._events = [current_stream(device).record_event() for device in self._devices]

    def set_result(self, result: Any) -> None:
        self._record()
        super().set_result(result)

    def _await(self) -> None:
        for event in self._events:
            event.wait()

    def wait(self) -> Any:
        result = super().wait()
        self._await()
        return result

    def add_done_callback(self, callback: Any) -> None:
        if not self._devices:
            super().add_done_callback(callback)
            return

        def run(_: Any) -> None:
            with stream(Stream(self._devices[0])):
                self._await()
                callback(self)

        super().add_done_callback(run)

    def then(self, callback: Any) -> Any:
        if not self._devices:
            return super().then(callback)
        made = Future(devices=self._devices)

        def run(_: Any) -> None:
            with stream(Stream(self._devices[0])):
                self._await()
                try:
                    made.set_result(callback(self))
                except Exception as error:
                    made.set_exception(error)

        super().then(run)
        return made


def _device_memory(nbytes: int, device: int) -> Any:
    memory = simulated_arrays.Memory(nbytes, device)
    buffer = (ctypes.c_char * max(nbytes, 1)).from_address(memory.address.value)
    buffer.memory = memory
    return buffer


class DeviceTensor(torch.Tensor):
    """A tensor whose elements are in memory of the simulated device; see above."""

    index = 0  # The number of the device, of all of a process.

    @staticmethod
    def __new__(cls, inner: torch.Tensor, requires_grad: bool = False) -> "DeviceTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            inner.stride(),
            inner.storage_offset(),
            dtype=inner.dtype,
            device="cpu",
            requires_grad=requires_grad,
        )
        made.inner = inner
        return made

    device = property(lambda self: torch.device("cuda", DeviceTensor.index))
    is_cpu = property(lambda self: False)
    is_cuda = property(lambda self: True)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "_c10d_functional":  # Calls the process group on its tensors.
            return _functional(func, *args)
        current_stream(cls.index).finish()
        wrappers: dict[int, DeviceTensor] = {}

        def unwrap(value: Any) -> Any:
            if isinstance(value, DeviceTensor):
                wrappers[id(value.inner)] = value
                return value.inner
            if isinstance(value, torch.device) and value.type == "cuda":
                return torch.device("cpu")
            return value

        def wrap(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return wrappers.get(id(value)) if id(value) in wrappers else DeviceTensor(placed(value))

        result = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            global host_waits
            host_waits += 1
        return tree_map(wrap, result)

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"DeviceTensor({self.inner})"

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def record_stream(self, stream: Stream) -> None:
        pass  # Memory is not used again while a stream has work on it: cuMemFree waits.

    def cpu(self) -> torch.Tensor:
        global host_waits
        host_waits += 1
        current_stream(self.index).finish()
        return self.inner.detach().clone()

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return _to(self, *args, **kwargs)

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, self.index)

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        inner = self.inner
        shape = (ctypes.c_int64 * inner.dim())(*inner.shape)
        strides = (ctypes.c_int64 * inner.dim())(*inner.stride())
        code = _CODES.get(inner.dtype)
        if code is None:
            code = 5 if inner.is_complex() else 2 if inner.is_floating_point() else 0
            code = 1 if inner.dtype == torch.uint8 else code
        device = (ctypes.c_int32 * 2)(CUDA, self.index)
        bits = 8 * inner.element_size()
        described = DLTensor(inner.data_ptr(), device, inner.dim(), code, bits, 1, shape, strides)
        managed = Unversioned(described, None, simulated_arrays._give_back)
        simulated_arrays.lent[ctypes.addressof(managed)] = (managed, shape, strides, inner)
        return capsule(managed, b"dltensor")


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Tensor.to."""
    with torch._C.DisableTorchFunction():
        places = [a for a in (*args, *kwargs.values()) if isinstance(a, (str, torch.device))]
        rest = [a for a in args if not isinstance(a, (str, torch.device))]
        kwargs.pop("device", None)
        if rest or kwargs:
            tensor = torch.Tensor.to(tensor, *rest, **kwargs)
        if not places:
            return tensor
        if torch.device(places[0]).type == "cpu":
            return tensor.cpu()
        return tensor if isinstance(tensor, DeviceTensor) else on_cuda(tensor)


def placed(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a copy in memory of the device if it is not there."""
    if _is_on_device(tensor):
        return tensor
    extent = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    count = 0 if tensor.numel() == 0 else extent
    buffer = _device_memory(count * tensor.element_size(), DeviceTensor.index)
    if count == 0:
        flat = torch.empty(0, dtype=tensor.dtype)
    else:
        flat = torch.frombuffer(buffer, dtype=tensor.dtype, count=count)
    made = flat.as_strided(tensor.shape, tensor.stride())
    made.copy_(tensor.detach())
    return made


def _is_on_device(tensor: torch.Tensor) -> bool:
    address = tensor.untyped_storage().data_ptr()
    if address == 0:
        return tensor.numel() == 0
    kind = ctypes.c_uint32()
    function = simulated_arrays.driver.cuPointerGetAttribute
    with on_device(DeviceTensor.index):
        known = function(ctypes.byref(kind), 2, ctypes.c_uint64(address)) == 0  # MEMORY_TYPE
    return known and kind.value == 2  # DEVICE


def _functional(func: Any, *args: Any) -> Any:
    """A functional collective; those that make a tensor would make one on the CPU."""
    name = func._schema.name.split("::")[1]
    if name not in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args)
    group = torch.distributed.distributed_c10d._resolve_process_group(args[-1])
    given, rest = args[0], tuple(args[0].shape[1:])
    if name == "all_gather_into_tensor":
        made = given.new_empty((given.shape[0] * group.size(), *rest))
        work = group._allgather_base(made, given)
    else:
        made = given.new_empty((given.shape[0] // group.size(), *rest))
        opts = torch.distributed.ReduceScatterOptions()
        opts.reduceOp = {
            "sum": torch.distributed.ReduceOp.SUM,
            "avg": torch.distributed.ReduceOp.AVG,
        }[args[1]]
        work = group._reduce_scatter_base(made, given, opts)
    torch._C._distributed_c10d._register_work(made, work)
    return made


def on_cuda(tensor: torch.Tensor) -> DeviceTensor:
    """A copy of `tensor` on the device."""
    inner = placed(tensor.detach().clone())
    made = DeviceTensor(inner)
    return made.requires_grad_(tensor.requires_grad) if tensor.is_leaf else made


def move(module: torch.nn.Module) -> torch.nn.Module:
    """`module` with its parameters and buffers on the device."""
    for layer in module.modules():
        for name, parameter in list(layer._parameters.items()):
            if parameter is not None:
                wanted = parameter.requires_grad
                layer._parameters[name] = torch.nn.Parameter(on_cuda(parameter.detach()), wanted)
        for name, buffer in list(layer._buffers.items()):
            if buffer is not None:
                layer._buffers[name] = on_cuda(buffer)
    return module


def from_dlpack(array: Any) -> torch.Tensor:
    """torch.from_dlpack."""
    if array.__dlpack_device__()[0] != CUDA:
        return _of_torch["from_dlpack"](array)
    number = current_stream(DeviceTensor.index).cuda_stream or 1
    given = array.__dlpack__(stream=number)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = ctypes.cast(pointer(given, b"dltensor"), ctypes.POINTER(DLTensor)).contents
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    dtype = _dtype_of(tensor.code, tensor.bits)
    count = int(numpy.prod(shape)) if shape else 1
    if count == 0:
        return DeviceTensor(torch.empty(shape, dtype=dtype))
    address = tensor.data + tensor.byte_offset
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    buffer.owner = given
    strides = (
        [tensor.strides[i] for i in range(tensor.ndim)]
        if tensor.strides
        else torch.empty(shape, device="meta").stride()
    )
    flat = torch.frombuffer(buffer, dtype=dtype, count=count)
    return DeviceTensor(flat.as_strided(shape, strides))


def _dtype_of(code: int, bits: int) -> torch.dtype:
    if code == 4:
        return torch.bfloat16
    if code == 6:
        return torch.bool
    kind = {0: "int", 1: "uint", 2: "float", 5: "complex"}[code]
    return getattr(torch, f"{kind}{bits}")


class _OnDevice(TorchFunctionMode):
    """Makes tensors on the device where PyTorch's functions are told to, and moves them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.to and isinstance(args[0], torch.Tensor):
            return _to(*args, **kwargs)
        device = kwargs.get("device")
        if device is None or not str(device).startswith("cuda"):
            return func(*args, **kwargs)
        kwargs["device"] = "cpu"
        made = func(*args, **kwargs)
        return made if isinstance(made, DeviceTensor) else on_cuda(made)


def install(device: int) -> None:
    """Puts the stand-ins in their places, for good; `device` is this process's."""
    DeviceTensor.index = device
    _of_torch["from_dlpack"] = torch.utils.dlpack.from_dlpack
    torch.utils.dlpack.from_dlpack = torch.from_dlpack = from_dlpack
    torch.futures.Future = Future  # type: ignore[misc]
    torch.cuda.Stream, torch.cuda.Event = Stream, Event  # type: ignore[misc,assignment]
    torch.cuda.current_stream, torch.cuda.stream = current_stream, stream  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    _OnDevice().__enter__()


if "RANK" in os.environ:
    install(int(os.environ["RANK"]))
