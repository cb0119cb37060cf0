"""GradientReducer with arrays of CUDA devices, over the stand-ins for CUDA and for NCCL."""

import os
import pathlib
import signal

import numpy
import pytest
import ranks
import syncline as dist
from simulated_arrays import DLPackArray, Gate, Stream
from syncline import comm_hooks

_LIBRARY = "syncline/backends/nccl/testing/fake_nccl/libfake_nccl.so"
os.environ.setdefault(
    "SYNCLINE_NCCL_LIBRARY", str(pathlib.Path(os.environ["TEST_SRCDIR"]) / _LIBRARY)
)

SHAPES = [(4, 3), (5,), (2,)]


def array(shape, value=0.0):
    return DLPackArray(numpy.full(shape, value, numpy.float32), device=dist.get_rank())


def parameters():
    return [array(shape) for shape in SHAPES]


def found(gradients):
    """The value of each gradient, all of whose elements are equal, once the device is done."""
    values = []
    for gradient, shape in zip(gradients, SHAPES, strict=True):
        copy = array(shape)
        dist.all_gather([copy], gradient, group=alone())
        values.append(numpy.unique(copy.read()).tolist())
    return values


_alone = []


def alone():
    """A group of this rank alone, which copies on the device."""
    if not _alone:
        for rank in range(dist.get_world_size()):
            group = dist.new_group([rank], backend="nccl")
            if rank == dist.get_rank():
                _alone.append(group)
    return _alone[0]


def step(reducer, value):
    for i in reversed(range(len(SHAPES))):
        reducer.ready(i, array(SHAPES[i], value + i))
    return reducer.finish()


def averages_on_devices():
    alone()
    rank = dist.get_rank()
    for backend in ("auto", "nccl", "shm"):
        group = dist.new_group(backend=backend)
        for find in (False, True):
            reducer = dist.GradientReducer(parameters(), find_unused_parameters=find, group=group)
            for _ in range(3):
                assert found(step(reducer, 2.0 * rank)) == [[1.0], [2.0], [3.0]]
            with reducer.no_sync():
                step(reducer, rank)
            assert found(step(reducer, rank)) == [[1.0], [3.0], [5.0]]
        dist.destroy_process_group(group)


def hooks_average_on_devices():
    alone()
    rank = dist.get_rank()
    for backend in ("auto", "nccl", "shm"):
        group = dist.new_group(backend=backend)

        def summed(bucket, group):
            dist.all_reduce(bucket.buffer, dist.ReduceOp.SUM, group=group)

        def started(bucket, group=group):
            return dist.all_reduce(bucket.buffer, dist.ReduceOp.SUM, group=group, async_op=True)

        hooks = [
            (dist.CommHook.bfloat16_compress(), 1),
            (comm_hooks.from_function(summed), 2),
            (comm_hooks.from_starter(started), 2),
        ]
        for hook, factor in hooks:
            reducer = dist.GradientReducer(parameters(), hook=hook, group=group)
            for _ in range(3):
                expected = [[factor * (1.0 + i)] for i in range(3)]
                assert found(step(reducer, 2.0 * rank)) == expected
        reducer = dist.GradientReducer(parameters(), group=group)
        with pytest.raises(NotImplementedError, match=r"top_k.*float16_compress"):
            reducer.set_hook(dist.CommHook.top_k())
        assert found(step(reducer, 2.0 * rank)) == [[1.0], [2.0], [3.0]]


def waits_for_the_current_streams_alone():
    alone()
    rank = dist.get_rank()
    for backend in ("auto", "nccl"):
        reducer = dist.GradientReducer(parameters(), group=dist.new_group(backend=backend))
        for _ in range(2):
            step(reducer, 2.0 * rank)
        stream = Stream(rank)
        values = [array(shape) for shape in SHAPES]
        gate = Gate(stream.cuda_stream, rank)
        with dist.stream(stream, device=rank):
            for value in values:
                stream.enqueue(lambda value=value: value.peek().fill(2.0 * rank))
            for i, value in enumerate(values):
                reducer.ready(i, value)
            del values, value
            gradients = reducer.finish()  # The stream stands still.
            dist.barrier()
            gate.open()
            copy = array(SHAPES[0])
            dist.all_gather([copy], gradients[0], group=alone())
        assert numpy.unique(copy.read()).tolist() == [1.0]


def a_rank_is_killed():
    reducer = dist.GradientReducer(parameters(), group=dist.new_group(backend="nccl"))
    step(reducer, 0.0)
    reducer.ready(2, array(SHAPES[2]))
    dist.barrier()
    ranks.meet_in_store("past the barrier")
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistError, match="rank 1"):
        for i in (1, 0):
            reducer.ready(i, array(SHAPES[i]))
        reducer.finish()
        while True:
            step(reducer, 0.0)
    os._exit(0)  # The world is not whole any more.


@pytest.mark.parametrize(
    "function",
    [averages_on_devices, hooks_average_on_devices, waits_for_the_current_streams_alone],
)
def test_two_processes(function):
    ranks.in_processes(2, __file__, function.__name__)


def test_a_rank_that_is_killed_in_mid_step():
    with pytest.raises(AssertionError) as failed:
        ranks.in_processes(2, __file__, a_rank_is_killed.__name__)
    assert "rank 0 failed" not in str(failed.value)  # Rank 1 was killed.


if __name__ == "__main__":
    ranks.main(globals())
