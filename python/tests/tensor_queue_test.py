"""TensorQueue: what comes out is what went in, for each start method, whoever is killed."""

import array
import collections
import gc
import multiprocessing
import os
import queue
import signal
import threading
import time

import numpy
import pypi_torch_status
import pytest

if pypi_torch_status.AVAILABLE:
    import torch

import syncline.multiprocessing as mp
from syncline import EndOfQueue, TensorMessage, TensorQueue
from syncline.errors import DistBackendError, DistNetworkError
from tensor_queue_children import (
    LONG,
    check,
    echo,
    get_for_ever,
    open_and_put,
    produce,
    put_a_queue_and_exit,
    put_for_ever,
    put_torch,
)

METHODS = ["fork", "spawn", "forkserver"]
DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64"
    " complex128 >i4 S5 U3 datetime64[ns] longdouble"
).split()

needs_torch = pytest.mark.skipif(not pypi_torch_status.AVAILABLE, reason=pypi_torch_status.REASON)

Pair = collections.namedtuple("Pair", "left right")


def passed(obj, capacity=1 << 20):
    """`obj` after its way through a queue."""
    tensors = TensorQueue(capacity)
    tensors.put(obj)
    return tensors.get(timeout=LONG)


def assert_same(a, b):
    assert type(a) is type(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert numpy.array_equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2, 0, 3)])
def test_numpy_arrays_keep_type_shape_and_values(dtype, shape):
    numbers = numpy.asarray(numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape) % 2)
    for x in (numbers.astype(dtype), numbers.astype(dtype, order="F")):
        y = passed(x)
        assert_same(x, y)
        assert y.flags.writeable
        assert y.flags.f_contiguous == x.flags.f_contiguous


def test_views_arrive_contiguous_and_read_only_arrays_writable():
    x = numpy.arange(60.0).reshape(6, 10)
    for view in (x[::2], x[:, 3:5], x[::-1], x.T, x[1]):
        assert_same(passed(view), view.copy())
    x.flags.writeable = False
    y = passed(x)
    y[0] = 7
    assert x[0, 0] == 0


def test_structured_and_object_arrays():
    x = numpy.zeros(3, [("a", "i4"), ("b", "f8", (2,))])
    x["a"] = [1, 2, 3]
    assert_same(passed(x), x)
    assert_same(passed(x[1:2].reshape(())), x[1:2].reshape(()))
    y = passed(numpy.array([None, "text", {}], object))
    assert y.tolist() == [None, "text", {}]
    assert isinstance(passed(numpy.ma.masked_array([1, 2], [0, 1])), numpy.ma.MaskedArray)


def test_containers_and_what_is_beside_the_arrays():
    x, y = numpy.arange(5), numpy.ones((2, 2), numpy.float32)
    for obj in ((x, y), [x, y], (x,), [], (), (x, 3, "text"), Pair(x, y)):
        z = passed(obj)
        assert type(z) is type(obj)
        assert len(z) == len(obj)
        for a, b in zip(obj, z, strict=True):
            assert numpy.array_equal(a, b)
    z = passed({"x": x, "more": [y, {"n": None, "label": "cat"}], 3: b"bytes"})
    assert_same(z["x"], x)
    assert_same(z["more"][0], y)
    assert (z["more"][1], z[3]) == ({"n": None, "label": "cat"}, b"bytes")
    assert passed(None) is None
    assert passed(array.array("i", [1, 2])) == array.array("i", [1, 2])


def test_an_array_that_occurs_twice_goes_once():
    x = numpy.arange(50_000)
    z = passed({"a": x, "b": x}, capacity=500_000)
    assert z["a"] is z["b"]
    assert_same(z["a"], x)


def test_an_array_that_has_only_dlpack_arrives_as_numpys():
    class Wrapped:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    x = numpy.arange(3.0)
    assert_same(passed([Wrapped(x), 1])[0], x)


def test_put_copies_before_it_returns():
    tensors = TensorQueue(1 << 20)
    x = numpy.arange(1000)
    tensors.put(x)
    x[:] = -1
    assert_same(tensors.get(), numpy.arange(1000))


def test_what_is_larger_than_the_capacity_is_an_error_that_names_both():
    tensors = TensorQueue(1 << 16)
    with pytest.raises(ValueError, match=r"message of 800064 bytes .* capacity is 65536 bytes"):
        tensors.put(numpy.zeros(100_000))
    assert tensors.empty()


def test_waits_end_in_time():
    tensors = TensorQueue(1 << 16, max_messages=2, timeout=0.01)
    for get in (tensors.get, tensors.get_nowait, lambda: tensors.get(timeout=0.01)):
        with pytest.raises(queue.Empty):
            get()
    tensors.put(1)
    assert not tensors.full()
    tensors.put(2)
    assert (tensors.qsize(), tensors.full(), tensors.nbytes() > 0) == (2, True, True)
    for put in (tensors.put, tensors.put_nowait, lambda x: tensors.put(x, timeout=0.01)):
        with pytest.raises(queue.Full, match="of 2 messages"):
            put(3)
    assert [tensors.get(), tensors.get()] == [1, 2]
    assert tensors.stats() == {"messages": 0, "bytes": 0, "lost_puts": 0, "lost_gets": 0}


def test_a_closed_queue_gives_what_it_has_then_ends():
    tensors = TensorQueue(1 << 16)
    for i in range(3):
        tensors.put(i)
    tensors.close()
    assert tensors.closed
    with pytest.raises(ValueError, match="closed"):
        tensors.put(3)
    assert list(tensors) == [0, 1, 2]
    with pytest.raises(EndOfQueue):
        tensors.get()
    with pytest.raises(EndOfQueue):
        tensors.get_nowait()


def test_impossible_options_and_a_foreign_descriptor_are_errors():
    for options in ({"capacity": 0}, {"capacity": -1}, {"max_messages": -1}):
        with pytest.raises(ValueError, match="capacity|max_messages"):
            TensorQueue(**options)
    with pytest.raises(DistBackendError, match="KiB"):
        TensorQueue(1 << 45)
    file = os.memfd_create("test")
    from syncline import _syncline

    with pytest.raises(DistBackendError, match="TensorQueue"):
        _syncline._TensorQueue.open(file)


def test_get_into_writes_where_it_is_told():
    tensors = TensorQueue(1 << 20)
    into = numpy.zeros((2, 3), numpy.float32), numpy.zeros(4, numpy.int64)
    tensors.put((numpy.ones((2, 3), numpy.float32), numpy.arange(4)))
    with pytest.raises(ValueError, match="stays in the queue"):
        tensors.get_into(into[0])
    result = tensors.get_into(into)
    assert type(result) is tuple
    assert result[0] is into[0]
    assert (into[0] == 1).all()
    assert into[1].tolist() == [0, 1, 2, 3]
    tensors.put(numpy.full(4, 9))
    assert tensors.get_into(into[1]) is into[1]
    assert into[1].tolist() == [9] * 4
    with pytest.raises(queue.Empty):
        tensors.get_into(into[1], block=False)


@pytest.mark.skipif(not pypi_torch_status.AVAILABLE, reason=pypi_torch_status.REASON)
class TestTorch:
    @pytest.mark.parametrize(
        "dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool", "complex64"]
    )
    @pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4)])
    def test_tensors_keep_type_shape_and_values(self, dtype, shape):
        x = torch.ones(shape).cumsum(-1 if shape else 0).to(getattr(torch, dtype))
        y = passed(x)
        assert (type(y), y.dtype, y.shape) == (torch.Tensor, x.dtype, x.shape)
        assert torch.equal(x.double(), y.double())
        y.zero_()

    def test_strided_tensors_and_those_that_require_gradients(self):
        x = torch.arange(12.0).reshape(3, 4)
        assert torch.equal(passed(x.T), x.T)
        y = passed({"x": x.clone().requires_grad_(), "y": x})
        assert y["x"].requires_grad
        assert y["x"].is_leaf
        assert not y["y"].requires_grad
        with pytest.raises(ValueError, match="detach"):
            passed(x.clone().requires_grad_() * 2)

    def test_parameters_and_sparse_tensors_are_pickled_as_torch_does(self):
        x = torch.nn.Parameter(torch.arange(3.0))
        y = passed([x])[0]
        assert type(y) is torch.nn.Parameter
        assert torch.equal(x, y)
        assert passed([torch.eye(2).to_sparse()])[0].is_sparse

    def test_a_batch_of_both_libraries(self):
        images, labels = passed((torch.ones(2, 3), numpy.arange(2)))
        assert isinstance(images, torch.Tensor)
        assert isinstance(labels, numpy.ndarray)


@pytest.mark.parametrize("method", METHODS)
def test_processes_put_and_get(method):
    context = mp.get_context(method)
    there, back = TensorQueue(1 << 18), TensorQueue(1 << 17)
    processes = [context.Process(target=produce, args=(there, i * 50, 50)) for i in range(2)]
    processes.append(context.Process(target=echo, args=(there, back)))
    for process in processes:
        process.start()
    got = [check(back.get(timeout=LONG)) for _ in range(100)]
    there.close()
    with pytest.raises(EndOfQueue):
        back.get(timeout=LONG)
    assert sorted(got) == list(range(100))
    for i in range(2):
        own = [number for number in got if number // 50 == i]
        assert own == sorted(own)
    for process in processes:
        process.join(LONG)
        assert process.exitcode == 0


@pytest.mark.parametrize("method", METHODS)
def test_processes_of_the_standard_module_put_and_get(method):
    context = multiprocessing.get_context(method)
    tensors = TensorQueue(1 << 18)
    process = context.Process(target=produce, args=(tensors, 0, 20))
    process.start()
    assert [check(tensors.get(timeout=LONG)) for _ in range(20)] == list(range(20))
    process.join(LONG)
    assert process.exitcode == 0


def test_it_is_a_name_of_the_package_and_of_its_contexts():
    assert mp.TensorQueue is TensorQueue
    for method in METHODS:
        tensors = mp.get_context(method).TensorQueue(8192, max_messages=3)
        assert (tensors.capacity, tensors.max_messages) == (8192, 3)


@pytest.mark.parametrize("method", METHODS)
def test_a_queue_in_a_queue_outlives_its_maker(method):
    context = mp.get_context(method)
    queues = context.Queue()
    process = context.Process(target=put_a_queue_and_exit, args=(queues,))
    process.start()
    process.join(LONG)
    tensors = queues.get(timeout=LONG)
    assert tensors.get_nowait().tolist() == [0, 1, 2, 3]


def test_a_message_with_a_note_is_that_of_other_languages():
    tensors = TensorQueue(1 << 16)
    x = numpy.arange(12.0).reshape(3, 4)
    tensors.put(TensorMessage([x, x.T], b"epoch 1"))
    tensors.put(TensorMessage((), b""))
    message = tensors.get()
    assert type(message) is TensorMessage
    assert message.note == b"epoch 1"
    assert_same(message.arrays[0], x)
    assert_same(message.arrays[1], x.T.copy())
    assert tensors.get() == TensorMessage([], b"")
    with pytest.raises(ValueError, match="0xFF"):
        tensors.put(TensorMessage([], b"\xffn"))
    # Inside of other objects it is one like all others.
    assert passed({"m": TensorMessage([x], b"n")})["m"].note == b"n"


def test_a_handle_opens_the_queue():
    tensors = TensorQueue(1 << 16)
    again = TensorQueue.open(tensors.handle, timeout=0.01)
    tensors.put(numpy.arange(3))
    assert again.get().tolist() == [0, 1, 2]
    with pytest.raises(queue.Empty):
        again.get()
    with pytest.raises(ValueError, match="'nonsense' is not the handle of a queue"):
        TensorQueue.open("nonsense")


@needs_torch
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tensors_of_torch_cross_processes(method):
    tensors = TensorQueue(1 << 20)
    process = mp.get_context(method).Process(target=put_torch, args=(tensors,))
    process.start()
    x, y = tensors.get(timeout=LONG)
    assert torch.equal(x, torch.arange(1000))
    assert torch.equal(y, torch.ones(3, dtype=torch.bfloat16))
    process.join(LONG)
    assert process.exitcode == 0


@pytest.mark.parametrize("module", [mp, multiprocessing], ids=["ours", "standard"])
def test_a_queue_goes_through_a_pipe(module):
    context = module.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=open_and_put, args=(there,))
    process.start()
    tensors = TensorQueue(1 << 16)
    here.send(tensors)
    assert tensors.get(timeout=LONG).tolist() == list(range(9))
    process.join(LONG)


@pytest.mark.parametrize("method", METHODS)
def test_killed_producers_hang_nobody(method):
    context = mp.get_context(method)
    tensors = TensorQueue(40 << 20)
    for round in range(3 if method == "fork" else 1):
        process = context.Process(target=put_for_ever, args=(tensors, 9_000_000 + round))
        process.start()
        for _ in range(3 + round):
            assert (tensors.get(timeout=LONG) == 7).all()
        os.kill(process.pid, signal.SIGKILL)
        process.join(LONG)
        lost = 0
        while not tensors.empty():
            try:
                x = tensors.get(timeout=LONG)
            except DistNetworkError as error:
                assert f"pid {process.pid} died" in str(error)
                lost += 1
            else:
                assert len(x) == 9_000_000 + round
                assert (x == 7).all()
        assert lost <= 1
    assert tensors.stats()["lost_puts"] <= 3
    tensors.put(numpy.zeros((40 << 20) - 4096, numpy.uint8), timeout=LONG)  # All of it is free.


def test_killed_consumers_hang_nobody():
    context = mp.get_context("fork")
    tensors = TensorQueue(20 << 20)
    x = numpy.full(9_000_000, 7, numpy.uint8)
    for round in range(3):
        process = context.Process(target=get_for_ever, args=(tensors,))
        process.start()
        for _ in range(4 + round):
            tensors.put(x, timeout=LONG)
        os.kill(process.pid, signal.SIGKILL)
        process.join(LONG)
        left = tensors.qsize()
        for _ in range(left):
            assert (tensors.get(timeout=LONG) == 7).all()
        assert tensors.empty()
    assert tensors.stats()["lost_gets"] <= 3
    tensors.put(numpy.zeros((20 << 20) - 4096, numpy.uint8), timeout=LONG)  # All of it is free.


def test_a_signal_handler_that_raises_ends_a_wait():
    class Alarm(Exception):
        pass

    def raise_alarm(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, raise_alarm)
    tensors = TensorQueue(1 << 16, max_messages=1)
    try:
        with pytest.raises(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            tensors.get(timeout=LONG)
        tensors.put(1)
        with pytest.raises(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            tensors.put(2, timeout=LONG)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert tensors.get() == 1
    tensors.put_nowait(3)


def test_threads_share_a_queue():
    tensors = TensorQueue(1 << 16)
    threads = [threading.Thread(target=produce, args=(tensors, i * 100, 100)) for i in range(3)]
    for thread in threads:
        thread.start()
    assert sorted(check(tensors.get(timeout=LONG)) for _ in range(300)) == list(range(300))
    for thread in threads:
        thread.join(LONG)


def test_memory_and_descriptors_are_freed_with_the_queue():
    def resources():
        gc.collect()
        with open("/proc/self/maps") as maps:
            segments = sum("memfd:syncline" in line for line in maps)
        return segments, len(os.listdir("/proc/self/fd"))

    before = resources()
    tensors = TensorQueue(1 << 20)
    tensors.put(numpy.arange(10))
    x = tensors.get()
    assert resources() == (before[0] + 1, before[1] + 1)
    del tensors
    assert resources() == before
    assert x.tolist() == list(range(10))


def test_idle_waits_take_no_core():
    tensors = TensorQueue(1 << 16)
    begin = time.process_time()
    with pytest.raises(queue.Empty):
        tensors.get(timeout=0.5)
    assert time.process_time() - begin < 0.1
