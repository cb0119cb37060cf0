"""Arrays on a CUDA device come in by DLPack or __cuda_array_interface__, on the right stream."""

import asyncio
import contextlib
import sys
import threading
import types

import numpy
import pytest
import simulated_arrays
import syncline as dist
from dlpack_structs import CUDA
from simulated_arrays import CudaArray, DLPackArray, Stream
from syncline import functional


@pytest.fixture(autouse=True)
def joined():
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    # The thread that watches streams lets go of them.
    simulated_arrays.await_that(lambda: not simulated_arrays.lent, "arrays are given back")


def take(array):
    """Passes the array to an operation of one rank, which changes nothing."""
    before = array.read()
    dist.all_reduce(array)
    assert (array.read() == before).all()


class Handle:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Protocol:
    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


def test_an_array_is_asked_for_the_default_stream():
    array = DLPackArray(numpy.zeros(3))
    take(array)
    assert array.asked == [1]  # DLPack's number of the legacy default stream; 0 is forbidden.


@pytest.mark.parametrize(
    "stream_of",
    [
        lambda number: number,
        lambda number: Handle(cuda_stream=number),
        lambda number: Handle(ptr=number),
        lambda number: Protocol((0, number)),
    ],
    ids=["number", "torch", "cupy", "protocol"],
)
def test_an_array_is_asked_for_the_stream_that_is_set(stream_of):
    array, stream = DLPackArray(numpy.zeros(3)), Stream()
    with dist.stream(stream_of(stream.cuda_stream)):
        take(array)
    for default in (0, 1):
        with dist.stream(stream_of(default)):
            take(array)
    take(array)
    assert array.asked == [stream.cuda_stream, 1, 1, 1]


def test_a_stream_counts_for_its_device_and_the_innermost_one_does():
    arrays = [DLPackArray(numpy.zeros(3), device) for device in range(2)]
    first, second = Stream(0), Stream(0)
    third, fourth = Stream(1), Stream(1)
    with dist.stream(first), dist.stream(third, device=1), dist.stream(fourth, "cuda:1"):
        known = Handle(cuda_stream=second.cuda_stream, device=Handle(type="cuda", index=0))
        with dist.stream(known):
            for array in arrays:
                take(array)
        for array in arrays:
            take(array)
    assert arrays[0].asked == [second.cuda_stream, first.cuda_stream]
    assert arrays[1].asked == [fourth.cuda_stream, fourth.cuda_stream]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("7",), TypeError, "must be a torch.cuda.Stream, a cupy.cuda.Stream, an int .* not str"),
        ((True,), TypeError, "not bool"),
        ((None,), TypeError, "not NoneType"),
        ((Protocol((1, 4096)),), TypeError, "version 1 of __cuda_stream__ is not known"),
        ((Protocol(4096),), TypeError, "not Protocol"),
        ((-1,), ValueError, "must not be negative, not -1"),
        ((0, "cpu"), TypeError, "device must be the number of a CUDA device, not 'cpu'"),
        ((0, 1.5), TypeError, "not 1.5"),
        ((0, -2), ValueError, "must not be negative, not -2"),
    ],
)
def test_what_is_no_stream_is_refused(arguments, error, match):
    with pytest.raises(error, match=match), dist.stream(*arguments):
        pytest.fail("it was taken")


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_a_librarys_own_current_stream_is_asked_for(monkeypatch, name):
    class Tensor(DLPackArray):
        pass

    class Derived(Tensor):
        pass

    streams = [Stream(0), Stream(1)]
    library = types.ModuleType(name)
    if name == "torch":
        library.Tensor = Tensor
        library.cuda = Handle(current_stream=lambda device: streams[device])
    else:
        library.ndarray = Tensor
        library.cuda = Handle(
            get_current_stream=lambda device: Handle(ptr=streams[device].cuda_stream)
        )
    monkeypatch.setitem(sys.modules, name, library)
    arrays = [Derived(numpy.zeros(3), 0), Tensor(numpy.zeros(3), 1)]
    for array in arrays:
        take(array)
    other = DLPackArray(numpy.zeros(3))
    take(other)
    numbers = [stream.cuda_stream for stream in streams]
    assert [array.asked for array in arrays] == [[numbers[0]], [numbers[1]]]
    assert other.asked == [1]
    monkeypatch.undo()
    work = dist.all_reduce(other, async_op=True)
    work.wait()  # Also where a library that was seen is not there any more.
    work.synchronize()


def test_functions_make_cupys_arrays_on_the_device_of_the_given_one(monkeypatch):
    entered = [0]  # The current device, and those before it.

    class Device:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            entered.append(self.number)

        def __exit__(self, *_):
            entered.pop()

    class Ndarray(DLPackArray):
        __module__ = "cupy"

        def __init__(self, values, device):
            super().__init__(values, device)
            self.number, self.device = device, Device(device)

        def __dlpack_device__(self):
            return (CUDA, self.number)

        def __dlpack__(self, *, stream=None):
            self.device, device = self.number, self.device
            try:
                return super().__dlpack__(stream=stream)
            finally:
                self.device = device

    library = types.ModuleType("cupy")
    library.ndarray = Ndarray
    library.array = lambda x, order, copy: Ndarray(x.peek().copy(order), entered[-1])
    library.empty = lambda shape, dtype: Ndarray(numpy.empty(shape, dtype), entered[-1])
    library.cuda = Handle(get_current_stream=lambda device: Handle(ptr=0))
    monkeypatch.setitem(sys.modules, "cupy", library)
    given = Ndarray(numpy.arange(3.0), 1)
    for function, shape in ((functional.all_reduce, (3,)), (functional.all_gather, (1, 3))):
        result = function(given)
        assert type(result) is Ndarray and result is not given and result.number == 1
        simulated_arrays.synchronize(1)
        assert result.peek().shape == shape and (result.peek() == [0, 1, 2]).all()
    assert entered == [0]


def test_threads_and_tasks_have_streams_of_their_own():
    arrays = [DLPackArray(numpy.zeros(3)) for _ in range(3)]
    streams = [Stream() for _ in range(2)]

    async def task(array, stream, mine, other):
        with dist.stream(stream):
            mine.set()
            await other.wait()
            take(array)

    async def both():
        first, second = asyncio.Event(), asyncio.Event()
        tasks = asyncio.gather(
            task(arrays[0], streams[0], first, second), task(arrays[1], streams[1], second, first)
        )
        await asyncio.wait_for(tasks, simulated_arrays.LONG)

    asyncio.run(both())
    with dist.stream(streams[0]):
        thread = threading.Thread(target=take, args=(arrays[2],))
        thread.start()
        thread.join(simulated_arrays.LONG)
    numbers = [stream.cuda_stream for stream in streams]
    assert [array.asked for array in arrays] == [[numbers[0]], [numbers[1]], [1]]


def test_several_arrays_of_a_call_are_asked_for_one_stream():
    arrays = [DLPackArray(numpy.zeros(3)) for _ in range(3)]
    stream = Stream()
    dist.all_gather(arrays[:1], arrays[1])
    with dist.stream(stream):
        dist.all_reduce_coalesced(arrays)
    number = stream.cuda_stream
    assert [array.asked for array in arrays] == [[1, number], [1, number], [number]]


def test_the_reason_of_a_library_that_refuses_is_quoted():
    class Refusing(DLPackArray):
        def __dlpack__(self, *, stream=None):
            raise BufferError("it is on the moon")

    with pytest.raises(TypeError, match="tensor cannot be shared: it is on the moon"):
        dist.all_reduce(Refusing(numpy.zeros(3)))


# ---- __cuda_array_interface__ ----


@pytest.mark.parametrize("dtype", "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_an_interface_is_read_and_written(dtype, shape):
    source = numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    target = CudaArray(numpy.zeros_like(source), device=1)
    dist.all_gather([target], CudaArray(source, device=1))
    assert (target.read() == source).all()


def test_the_device_is_that_of_the_memory_and_shape_and_strides_are_kept():
    array = CudaArray(numpy.zeros((4, 3), numpy.float32), strides=(12, 4))
    take(array)
    array.changes["strides"] = (4, 16)
    with pytest.raises(ValueError, match=r"not contiguous .float32\[4, 3\] on cuda:0"):
        dist.all_reduce(array)
    array.changes["strides"] = (13, 4)
    with pytest.raises(ValueError, match="do not lie at multiples of their size"):
        dist.all_reduce(array)
    array.changes["strides"] = (4,)
    with pytest.raises(TypeError, match="2 dimensions and 1 strides"):
        dist.all_reduce(array)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"mask": object()}, TypeError, "tensor cannot be shared: it has a mask"),
        ({"stream": 0}, TypeError, "stream 0 of its __cuda_array_interface__ is ambiguous"),
        ({"typestr": ">f8"}, TypeError, "elements of type float64, which"),
        ({"typestr": "|V2"}, TypeError, "which cannot be communicated"),
        ({"typestr": "f8"}, TypeError, "which cannot be communicated"),
        ({"typestr": 8}, TypeError, "cannot be shared: its __cuda_array_interface__ is "),
        ({"data": 4096}, TypeError, "cannot be shared: its __cuda_array_interface__ is "),
        ({"shape": (-1,)}, ValueError, "negative dimension"),
        ({"shape": "three"}, TypeError, "cannot be shared: its __cuda_array_interface__ is "),
    ],
)
def test_an_interface_that_makes_no_sense_is_refused(changes, error, match):
    with pytest.raises(error, match=match):
        dist.all_reduce(CudaArray(numpy.zeros(3), **changes))


def test_an_interface_that_lacks_something_is_refused():
    class Lacking:
        __cuda_array_interface__ = {"shape": (3,), "version": 3}

    with pytest.raises(TypeError, match="tensor cannot be shared: 'typestr'"):
        dist.all_reduce(Lacking())


def test_memory_of_the_host_is_no_devices():
    memory = numpy.zeros(3)
    array = CudaArray(memory, data=(memory.ctypes.data, False))
    with pytest.raises(TypeError, match="memory of its __cuda_array_interface__ is the host's"):
        dist.all_reduce(array)


def test_read_only_memory_is_not_written():
    array = CudaArray(numpy.zeros(3))
    array.changes["data"] = (array.address, True)
    with pytest.raises((TypeError, ValueError), match="read-only|on cuda:0"):
        dist.all_reduce(array)


def test_the_interface_is_taken_where_dlpack_fails():
    class Both(CudaArray):
        def __dlpack_device__(self):
            return (CUDA, 0)

        def __dlpack__(self, *, stream=None):
            raise BufferError("not today")

    take(Both(numpy.zeros(3)))


def test_the_stream_of_an_interface_is_waited_for_and_waits_in_turn():
    def waits(array):
        before = simulated_arrays.calls("cuStreamWaitEvent")
        dist.all_reduce(array)
        return simulated_arrays.calls("cuStreamWaitEvent") - before

    stream = Stream()
    array = CudaArray(numpy.zeros(3), stream=stream.cuda_stream)
    known = waits(CudaArray(numpy.zeros(3)))
    assert waits(CudaArray(numpy.zeros(3), stream=1)) == known  # The default stream is the call's.
    assert waits(array) == known + 2
    with dist.stream(stream):
        assert waits(array) == known


def test_a_device_that_fails_is_reported():
    stream = Stream()
    array = CudaArray(numpy.zeros(3), stream=stream.cuda_stream)
    simulated_arrays.driver.fake_cuda_fail_next(b"cuStreamWaitEvent", 1, 700)
    with contextlib.ExitStack() as stack:
        stack.callback(simulated_arrays.driver.fake_cuda_fail_next, b"cuStreamWaitEvent", 0, 0)
        with pytest.raises(dist.DistBackendError, match="cuda:0"):
            dist.all_reduce(array)
    take(array)


def test_arrays_are_let_go_with_the_call():
    before = simulated_arrays.counts().device_allocations
    arrays = [DLPackArray(numpy.zeros(3)), CudaArray(numpy.zeros(3))]
    for array in arrays:
        take(array)
    arrays.clear()
    del array
    simulated_arrays.await_that(
        lambda: simulated_arrays.counts().device_allocations <= before, "arrays are let go"
    )


def test_what_syncline_shows_of_a_device_is_ready_on_the_consumers_stream():
    stream, waits = Stream(), []

    class Reading:
        def __init__(self, *_):
            pass

        def all_reduce(self, tensor, op, timeout):
            assert tensor.__dlpack_device__() == (CUDA, 1)
            for number in (None, -1, 1, stream.cuda_stream):
                before = simulated_arrays.calls("cuStreamWaitEvent")
                tensor.__dlpack__(stream=number)
                waits.append(simulated_arrays.calls("cuStreamWaitEvent") - before)
            with pytest.raises(BufferError, match="the elements are on cuda:1"):
                memoryview(tensor)

        def barrier(self, timeout):
            pass

    dist.Backend.register_backend("reading", Reading, devices=["cpu", "cuda"])
    world = dist.World.init("reading", store=dist.HashStore(), rank=0, world_size=1)
    world.group.all_reduce(DLPackArray(numpy.zeros(3), device=1))
    assert waits == [0, 0, 0, 1]
