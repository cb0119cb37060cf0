"""Work in Python: futures, asyncio, results, errors."""

import asyncio
import concurrent.futures
import gc
import queue
import sys
import threading
import weakref
from datetime import timedelta

import numpy
import pytest
import ranks
import syncline as dist


def pair(function):
    """Calls function(rank, group) on two ranks."""
    return ranks.in_threads(2, lambda world: function(world.rank, world.group))


def test_await_gives_the_result_and_the_loop_goes_on_meanwhile():
    def run(rank, group):
        tensor = numpy.full(3, rank + 1.0)
        if rank == 1:
            assert loop_went_on.wait(60)
            group.all_reduce(tensor)
            return tensor.tolist()

        async def reduce():
            result = await dist.all_reduce(tensor, group=group, async_op=True)
            assert result[0] is tensor

        async def go_on():
            loop_went_on.set()  # Only now the peer does its part.

        async def both():
            await asyncio.gather(reduce(), go_on())

        asyncio.run(both())
        return tensor.tolist()

    loop_went_on = threading.Event()
    assert pair(run) == [[3, 3, 3]] * 2


def test_many_operations_are_awaited_at_once():
    def run(rank, group):
        async def all_of_them():
            tensors = [numpy.full(2, i) for i in range(20)]
            works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
            await asyncio.gather(*(wait(work) for work in reversed(works)))
            return [t[0] for t in tensors]

        async def wait(work):
            return await work

        return asyncio.run(all_of_them())

    assert pair(run) == [[2 * i for i in range(20)]] * 2


def test_await_raises_the_error():
    def run(rank, group):
        async def fail():
            await group.all_reduce_async(numpy.zeros(rank + 1))

        with pytest.raises(dist.DistMismatchError):
            asyncio.run(fail())

    pair(run)


def test_a_task_that_is_cancelled_leaves_the_operation_alone():
    def run(rank, group):
        tensor = numpy.ones(2)

        async def give_up():
            work = group.all_reduce_async(tensor)
            if rank == 0:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(_awaited(work), 0.05)
                tried.set()
            return work

        if rank == 1:
            assert tried.wait(60)
        asyncio.run(give_up()).wait()
        return tensor.tolist()

    tried = threading.Event()
    assert pair(run) == [[2, 2]] * 2


async def _awaited(work):
    return await work


def test_a_future_is_done_when_the_operation_is():
    def run(rank, group):
        tensor = numpy.ones(2)
        future = group.all_reduce_async(tensor).get_future()
        assert isinstance(future, dist.Future)
        assert isinstance(future, concurrent.futures.Future)
        assert future.wait() == [tensor] and future.value()[0] is tensor
        assert future.done() and future.exception() is None
        following = future.then(lambda f: f.value()[0].sum()).then(lambda f: f.value() + 1)
        assert following.wait() == 5
        assert asyncio.run(_awaited(following)) == 5
        seen = []
        future.add_done_callback(seen.append)
        assert seen == [future]

    pair(run)


def test_a_future_that_is_not_done_has_no_value_and_is_not_cancelled():
    def run(rank, group):
        if rank == 0:
            future = group.barrier_async().get_future()
            assert not future.done()
            with pytest.raises(RuntimeError, match="not done"):
                future.value()
            assert not future.cancel()
            tried.set()
            assert future.wait() == []
        else:
            assert tried.wait(60)
            group.barrier()

    tried = threading.Event()
    pair(run)


def test_futures_pass_errors_on():
    def run(rank, group):
        future = group.all_reduce_async(numpy.zeros(rank + 1)).get_future()
        following = future.then(lambda f: f.value())
        for each in (future, following):
            with pytest.raises(dist.DistMismatchError):
                each.wait()

    pair(run)


def test_work_tells_its_outcome():
    def run(rank, group):
        if rank == 0:
            work = group.recv_async(tensor := numpy.zeros(2), -1)
            assert not work.is_completed() and not work.is_success()
            assert work.exception() is None and work.source_rank() == -1
            asked.set()
            work.wait()
            assert work.is_completed() and work.is_success()
            assert work.source_rank() == 1
            assert work.result()[0] is tensor
        else:
            assert asked.wait(60)
            group.send(numpy.ones(2), 0)
        work = group.all_reduce_async(numpy.zeros(rank + 1))
        with pytest.raises(dist.DistMismatchError):
            work.wait()
        assert isinstance(work.exception(), dist.DistMismatchError)
        assert work.is_completed() and not work.is_success()

    asked = threading.Event()
    pair(run)


def test_results_are_the_arrays_that_were_given():
    def run(rank, group):
        outputs = [numpy.zeros(2) for _ in range(2)]
        work = group.all_gather_async(outputs, numpy.ones(2))
        work.wait()
        assert all(a is b for a, b in zip(work.result(), outputs, strict=True))
        work = group.all_reduce_async(op=dist.ReduceOp.MAX, tensor=outputs[0])
        work.wait()
        assert work.result()[0] is outputs[0]
        work = group.send_async(outputs[0], 1) if rank == 0 else group.recv_async(outputs[0], 0)
        work.wait()
        assert len(work.result()) == rank

    pair(run)


def test_a_callback_is_called_once_and_its_errors_do_no_harm(monkeypatch):
    unraisable = queue.SimpleQueue()
    monkeypatch.setattr(sys, "unraisablehook", lambda error: unraisable.put(error.exc_type))

    def run(rank, group):
        calls = []

        def register(name):
            """A callback that notes its name; an event that is set once it has been called."""
            called = threading.Event()

            def callback():
                calls.append(name)
                called.set()

            work._on_complete(callback)
            return called

        work = group.barrier_async()
        early = register("early")
        work._on_complete(lambda: 1 / 0)
        # Of two callbacks either may be called first, if the work ends between: the second one by
        # this thread.
        assert register("second").wait(60) and early.wait(60)
        assert register("late").is_set()
        return calls

    for calls in pair(run):
        assert sorted(calls[:2]) == ["early", "second"]
        assert calls[2:] == ["late"]
    assert [unraisable.get(timeout=60) for _ in range(2)] == [ZeroDivisionError] * 2


def test_nothing_is_kept_alive_when_the_work_is_gone():
    class Array(numpy.ndarray):
        pass

    def run(rank, group):
        tensor = numpy.ones(2).view(Array)
        alive = weakref.ref(tensor)
        future = group.all_reduce_async(tensor).get_future()
        future.wait()
        group.barrier()
        del tensor, future
        gc.collect()
        return alive() is None

    assert pair(run) == [True, True]


def test_an_abandoned_loop_does_no_harm():
    """The operation ends after the loop that waited for it has been closed."""

    def run(rank, group):
        if rank == 1:
            assert closed.wait(60)
            group.barrier(timedelta(seconds=60))
            return
        work = group.barrier_async()
        loop = asyncio.new_event_loop()
        task = loop.create_task(_awaited(work))
        loop.call_soon(loop.stop)
        loop.run_forever()
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
        closed.set()
        work.wait()

    closed = threading.Event()
    pair(run)
