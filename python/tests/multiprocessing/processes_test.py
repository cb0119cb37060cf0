"""Arrays between processes: queues, pipes, arguments, pools, managers, deaths."""

import concurrent.futures
import os
import signal

import children
import leaks
import numpy
import pytest
import syncline
import syncline.multiprocessing as mp

METHODS = ("fork", "spawn", "forkserver")
pytestmark = [
    pytest.mark.parametrize("method", METHODS),
    pytest.mark.usefixtures("strategy"),
]


@pytest.fixture
def context(method):
    return mp.get_context(method)


def test_queues_and_pipes_hand_arrays_over(context):
    array = numpy.arange(100_000.0)
    shared = mp.empty_shared(1000)
    inbox, outbox = context.Queue(), context.SimpleQueue()
    child = context.Process(target=children.echo, args=(inbox, outbox))
    child.start()
    for value in (array, shared, {"a": array, "b": (shared, 1)}, "text"):
        inbox.put(value)
        got = outbox.get()
        if isinstance(value, numpy.ndarray):
            assert (got == value).all()
            assert mp.is_shared(got)
            assert numpy.shares_memory(got, value) == (value is shared)
    inbox.put(None)
    child.join(30)
    assert child.exitcode == 0
    here, there = context.Pipe()
    child = context.Process(target=children.echo_over, args=(there,))
    child.start()
    there.close()
    here.send([shared, array])
    assert numpy.shares_memory(here.recv()[0], shared)
    here.send(None)
    child.join(30)
    with pytest.raises((EOFError, ConnectionResetError)):
        here.recv()
    here.close()


def test_arguments_are_shared(context):
    arrays = [mp.empty_shared(100) for _ in range(300)]
    copied = numpy.zeros(100_000)
    child = context.Process(target=children.write, args=([*arrays, copied], 5))
    before = leaks.descriptors()
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert all((array == 5).all() for array in arrays)
    assert not copied.any()
    child.close()
    assert leaks.descriptors() <= before + 3  # What the start method keeps.


def test_a_queue_that_is_joined(context):
    queue = context.JoinableQueue()
    arrays = [mp.empty_shared(10) for _ in range(3)]
    child = context.Process(target=children.finish_tasks, args=(queue, 3))
    for array in arrays:
        queue.put(array)
    child.start()
    queue.join()
    child.join(30)
    assert all(array[0] == 1 for array in arrays)


@pytest.mark.parametrize("end", ["return", "exit", "kill"])
def test_what_was_put_arrives_after_its_producer_has_ended(context, end, strategy):
    queue = context.Queue()
    child = context.Process(target=children.produce_and_die, args=(queue, 40, end))
    child.start()
    child.join(60)
    assert child.exitcode == (-signal.SIGKILL if end == "kill" else 0)
    for i in range(40):
        try:
            pid, array = queue.get(timeout=30)
        except syncline.DistNetworkError as error:
            assert (strategy, end != "return") == ("file_system", True)
            assert f"process {child.pid} has sent" in str(error)
            continue
        assert pid == child.pid
        assert (array == i).all()
    assert queue.empty()


# Of file_system: file_system_test.py.
@pytest.mark.parametrize("strategy", ["file_descriptor"], indirect=True)
def test_a_producer_that_is_killed_at_any_time_blocks_nobody(context):
    queue = context.Queue()
    others = [
        context.Process(target=children.produce_for_ever, args=(queue, number), daemon=True)
        for number in range(3)
    ]
    for child in others:
        child.start()
    alive = set(range(3))
    last = dict.fromkeys(alive, -1)
    for victim in (2, 1):
        for _ in range(100):
            number, i, array = queue.get(timeout=60)
            assert i == last[number] + 1
            last[number] = i
            assert (array == i % 100 + number).all()
        others[victim].kill()
        others[victim].join()
    for _ in range(1500):  # More than the pipe holds: so some are those of the last producer.
        number, i, array = queue.get(timeout=60)
        assert i == last[number] + 1
        last[number] = i
        assert (array == i % 100 + number).all()
    assert number == 0
    others[0].kill()
    others[0].join()


def test_pools_managers_and_executors_share(method, context):
    array = numpy.ones(50_000)
    with context.Pool(2) as pool:
        for got, was_shared in pool.imap(children.double, [array, array]):
            assert was_shared
            assert mp.is_shared(got)
            assert got[0] == 2
    with concurrent.futures.ProcessPoolExecutor(1):
        pass  # The standard one is there as well.
    with mp.ProcessPoolExecutor(2, mp_context=context) as executor:
        got, was_shared = executor.submit(children.double, array).result()
        assert was_shared
        assert mp.is_shared(got)
        future = executor.submit(children.double, lambda: None)
        with pytest.raises((AttributeError, TypeError)):
            future.result(30)
        assert executor.submit(children.double, array).result()[1]
    with context.Manager() as manager:
        shared = mp.share_memory_(array)
        listed = manager.list([shared])
        assert numpy.shares_memory(listed[0], shared)
        queue = manager.Queue()
        queue.put(array)
        assert mp.is_shared(queue.get())


def test_a_process_of_ones_own_class_may_refer_to_itself(method, context):
    mp.set_start_method(method, force=True)
    try:
        outbox = context.SimpleQueue()
        array = mp.empty_shared(100_000)
        child = children.Summing(array, outbox)
        child.start()
        assert outbox.get() == (100_000.0, True)
        child.join(30)
        assert array[0] == 1
    finally:
        mp.set_start_method(None, force=True)


def test_a_context_has_its_own_classes(method, context):
    assert context.get_start_method() == method
    assert context.get_context("spawn").get_start_method() == "spawn"
    assert os.getpid() == context.current_process().pid
