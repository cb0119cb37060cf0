"""Arrays of CUDA devices between processes, over the stand-ins for CUDA's driver and for NCCL."""

import os
import pathlib
import signal

import numpy
import pytest
import ranks
import simulated_arrays
import syncline as dist
from simulated_arrays import CudaArray

_LIBRARY = "syncline/backends/nccl/testing/fake_nccl/libfake_nccl.so"
os.environ.setdefault(
    "SYNCLINE_NCCL_LIBRARY", str(pathlib.Path(os.environ["TEST_SRCDIR"]) / _LIBRARY)
)


def ours(values):
    """An array on the device of this rank."""
    return CudaArray(numpy.asarray(values, numpy.float32), device=dist.get_rank())


def peek(array):
    simulated_arrays.synchronize(dist.get_rank())
    return array.peek().tolist()


def moves_and_reduces():
    assert dist.is_nccl_available()
    for backend in ("auto", "nccl", "cpu:gloo,cuda:nccl"):
        group = dist.new_group(backend=backend)
        array = ours([dist.get_rank() + 1.0] * 3)
        dist.all_reduce(array, group=group)
        assert peek(array) == [3.0] * 3
        work = dist.broadcast(array, 1, group=group, async_op=True)
        work.wait()
        work.synchronize()
        assert work.is_completed()
        gathered = [ours([0.0]), ours([0.0])]
        dist.all_gather(gathered, ours([dist.get_rank()]), group=group)
        assert [peek(part) for part in gathered] == [[0.0], [1.0]]
        if dist.get_rank() == 0:
            dist.send(ours([7.0]), 1, group=group)
        else:
            received = ours([0.0])
            assert dist.recv(received, 0, group=group) == 0
            assert peek(received) == [7.0]
        dist.barrier(group=group)
        with pytest.raises(NotImplementedError, match="tag"):
            dist.send(ours([7.0]), 1 - dist.get_rank(), group=group, tag=3)
        dist.destroy_process_group(group)


def quotes_calls_that_differ():
    group = dist.new_group(backend="nccl")
    work = dist.all_reduce(ours([0.0] * (3 + dist.get_rank())), group=group, async_op=True)
    with pytest.raises(dist.DistMismatchError, match=r"3 elements.*4 elements") as error:
        work.synchronize()
    assert "rank 0 called all_reduce #0" in str(error.value)
    with pytest.raises(dist.DistError, match="can no longer be used"):
        dist.all_reduce(ours([0.0]), group=group)


def names_the_dead():
    group = dist.new_group(backend="nccl")
    array = ours([1.0])
    dist.all_reduce(array, group=group)
    peek(array)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(array, group=group, async_op=True)
    with pytest.raises(dist.DistNetworkError, match=r"rank 1 .* has died") as error:
        work.synchronize()
    assert error.value.ranks == (1,)
    os._exit(0)  # The world is not whole any more.


@pytest.mark.parametrize("function", [moves_and_reduces, quotes_calls_that_differ])
def test_two_processes(function):
    ranks.in_processes(2, __file__, function.__name__)


def test_a_rank_that_dies():
    with pytest.raises(AssertionError) as failed:
        ranks.in_processes(2, __file__, names_the_dead.__name__)
    assert "rank 0 failed" not in str(failed.value)  # Rank 1 was killed.


if __name__ == "__main__":
    ranks.main(globals())
