"""Calls on arrays of a CUDA device: behind which streams they begin, and who waits for them."""

import asyncio
import gc
import threading
import weakref
from datetime import timedelta

import numpy
import pytest
import ranks
import simulated_arrays
import syncline as dist
from simulated_arrays import CudaArray, DLPackArray, ExchangeArray, Gate, Stream

LONG = timedelta(seconds=simulated_arrays.LONG)
SHORT = timedelta(milliseconds=30)


@pytest.fixture
def joined():
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    ExchangeArray.current.clear()
    # The thread that watches streams lets go of them.
    simulated_arrays.await_that(lambda: not simulated_arrays.lent, "arrays are given back")


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("kind", [DLPackArray, ExchangeArray])
def test_slow_devices_change_nothing(kind, blocks):
    stream = Stream()
    ExchangeArray.current = {0: stream.cuda_stream}
    source, target, seen = kind(numpy.zeros(99)), kind(numpy.zeros(99)), []
    number = stream.cuda_stream if kind is ExchangeArray else 0
    with simulated_arrays.slow(20_000):
        for i in range(5):
            simulated_arrays.enqueue(number, write(source, i + 1))
            work = dist.all_gather([target], source, async_op=not blocks)
            if work is not None:
                work.wait()
            simulated_arrays.enqueue(number, lambda: seen.append(target.peek().min()))
            simulated_arrays.enqueue(number, write(target, 0))
        simulated_arrays.synchronize()
    assert seen == [1, 2, 3, 4, 5]


def write(array, values):
    """What a kernel that computes `array` does."""

    def action():
        array.peek()[...] = values

    return action


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("kind", [DLPackArray, CudaArray, ExchangeArray])
def test_a_call_begins_behind_the_current_stream_and_what_comes_behind_it_sees_the_result(kind):
    stream, seen = Stream(), []
    source, target = kind(numpy.zeros(1000)), kind(numpy.zeros(1000))
    gate = Gate(stream.cuda_stream)
    stream.enqueue(write(source, 7))
    with dist.stream(stream):
        work = dist.all_gather([target], source, async_op=True)
        opener = threading.Timer(0.05, gate.open)
        opener.start()
        work.wait()
        stream.enqueue(lambda: seen.append(target.peek().min()))
    stream.synchronize()
    opener.join()
    assert seen == [7]


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("kind", [DLPackArray, CudaArray, ExchangeArray])
def test_without_one_that_is_set_a_librarys_current_stream_is_taken(kind, device):
    streams = [Stream(0), Stream(1)]
    ExchangeArray.current = {i: stream.cuda_stream for i, stream in enumerate(streams)}
    number = streams[device].cuda_stream if kind is ExchangeArray else 0  # The default stream.
    source, target, seen = kind(numpy.zeros(9), device), kind(numpy.zeros(9), device), []
    gate = Gate(number, device)
    simulated_arrays.enqueue(number, write(source, 7), device)
    work = dist.all_gather([target], source, async_op=True)
    gate.open()
    work.wait()
    simulated_arrays.enqueue(number, lambda: seen.append(target.peek().min()), device)
    simulated_arrays.synchronize(device)
    assert seen == [7]


@pytest.mark.usefixtures("joined")
def test_the_host_waits_where_it_is_asked_to():
    stream = Stream()
    source, target = DLPackArray(numpy.zeros(9)), DLPackArray(numpy.zeros(9))
    gate = Gate(stream.cuda_stream)
    stream.enqueue(write(source, 7))
    with dist.stream(stream):
        work = dist.all_gather([target], source, async_op=True)
    future = work.get_future()
    assert not work.is_completed() and not work.is_success() and work.exception() is None
    assert not future.done()
    with pytest.raises(dist.DistTimeoutError, match="goes on until its own deadline"):
        work.wait(SHORT)
    with pytest.raises(dist.DistTimeoutError, match="goes on until its own deadline"):
        work.synchronize(SHORT)
    gate.open()
    work.synchronize(LONG)
    assert (target.peek() == 7).all()
    assert work.is_completed() and work.is_success()
    assert work.result()[0] is target and future.result(simulated_arrays.LONG)[0] is target


@pytest.mark.usefixtures("joined")
def test_asyncio_awaits_the_device():
    stream = Stream()
    source, target = DLPackArray(numpy.zeros(9)), DLPackArray(numpy.zeros(9))
    gate = Gate(stream.cuda_stream)
    stream.enqueue(write(source, 7))

    async def run():
        with dist.stream(stream):
            work = dist.all_gather([target], source, async_op=True)
        asyncio.get_running_loop().call_soon(gate.open)  # It is not blocked.
        result = await work
        return (result[0].peek() == 7).all()

    assert asyncio.run(asyncio.wait_for(run(), simulated_arrays.LONG))


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("kind", [DLPackArray, CudaArray, ExchangeArray])
def test_arrays_are_kept_until_the_device_is_done_with_them(kind):
    stream = Stream()
    source, target = kind(numpy.zeros(9)), kind(numpy.zeros(9))
    kept = [weakref.ref(source), weakref.ref(target)]
    gate = Gate(stream.cuda_stream)
    with dist.stream(stream):
        work = dist.all_gather([target], source, async_op=True)
    done = threading.Event()
    work._on_complete(done.set)
    del work, source, target
    gc.collect()
    assert all(array() is not None for array in kept)
    gate.open()
    assert done.wait(simulated_arrays.LONG)
    simulated_arrays.await_that(lambda: all(array() is None for array in kept), "arrays are let go")


@pytest.mark.usefixtures("joined")
def test_arrays_of_libraries_with_different_streams_go_together():
    first, second = Stream(), Stream()
    ExchangeArray.current = {0: first.cuda_stream}
    a, b = ExchangeArray(numpy.zeros(9)), CudaArray(numpy.zeros(9), stream=second.cuda_stream)
    target, seen = ExchangeArray(numpy.zeros(9)), []
    gate = Gate(second.cuda_stream)
    second.enqueue(write(b, 7))
    opener = threading.Timer(0.05, gate.open)
    opener.start()
    dist.all_gather([target], b)
    first.enqueue(lambda: seen.append(target.peek().min()))
    first.synchronize()
    dist.all_reduce_coalesced([a, b])
    second.enqueue(lambda: seen.append(b.peek().min()))
    second.synchronize()
    opener.join()
    assert seen == [7, 7]


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_reduce_arrays_of_several_devices(size):
    def run(world):
        array = DLPackArray(numpy.full(5000, world.rank + 1.0), world.rank % 2)
        world.group.all_reduce(array)
        work = world.group.all_reduce_async(array)
        work.synchronize(LONG)
        return array.peek().tolist()

    total = size * (size + 1) / 2
    assert ranks.in_threads(size, run) == [[total * size] * 5000] * size


def test_a_rank_that_does_not_come_is_named():
    def run(world):
        if world.rank == 1:
            world.store.get("failed", LONG)
            return
        array = DLPackArray(numpy.zeros(9))
        work = world.group.all_reduce_async(array, timeout=timedelta(milliseconds=200))
        with pytest.raises(dist.DistTimeoutError) as raised:
            work.synchronize(LONG)
        assert raised.value.ranks == [1] or "rank 1" in str(raised.value)
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), dist.DistTimeoutError)
        with pytest.raises(dist.DistError):
            work.wait()
        world.store.set("failed", b"")

    ranks.in_threads(2, run)


@pytest.mark.usefixtures("joined")
def test_arrays_of_two_devices_do_not_go_together():
    arrays = [DLPackArray(numpy.zeros(9), device) for device in range(2)]
    with pytest.raises(ValueError, match="one device is needed"):
        dist.all_gather(arrays[:1], arrays[1])
