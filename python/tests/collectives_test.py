"""Every operation, synchronous and not, between processes and between threads."""

import threading
import warnings
from datetime import timedelta

import numpy
import pytest
import ranks
import syncline as dist

SIZE = 3


def rank_tensor(rank=None):
    rank = dist.get_rank() if rank is None else rank
    return numpy.arange(5, dtype=numpy.float32) + 10 * rank


def done(work, async_op):
    """Waits for what an operation returned."""
    if not async_op:
        assert work is None
        return
    work.wait(timedelta(seconds=60))
    assert work.is_completed()


# ---- What each of SIZE processes does ----


def every_operation():
    rank = dist.get_rank()
    assert dist.get_world_size() == SIZE
    for async_op in (False, True):
        tensor = rank_tensor()
        done(dist.broadcast(tensor, src=2, async_op=async_op), async_op)
        assert (tensor == rank_tensor(2)).all()

        tensor = rank_tensor()
        done(dist.all_reduce(tensor, async_op=async_op), async_op)
        assert (tensor == sum(rank_tensor(r) for r in range(SIZE))).all()

        tensor = rank_tensor()
        done(dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=async_op), async_op)
        assert (tensor == rank_tensor(SIZE - 1)).all()

        gathered = [numpy.empty(5, numpy.float32) for _ in range(SIZE)]
        done(dist.all_gather(gathered, rank_tensor(), async_op=async_op), async_op)
        assert all((gathered[r] == rank_tensor(r)).all() for r in range(SIZE))

        done(dist.barrier(async_op=async_op), async_op)

    if rank == 0:
        sending = dist.isend(rank_tensor(), dst=1)
        dist.send(rank_tensor() + 1, dst=1, tag=7)  # Received first: tags are apart.
        sending.wait()
    if rank == 1:
        second, first = numpy.zeros(5, numpy.float32), numpy.zeros(5, numpy.float32)
        assert dist.recv(second, src=0, tag=7) == 0
        assert dist.recv(first, src=0) == 0
        assert (first == rank_tensor(0)).all()
        assert (second == rank_tensor(0) + 1).all()
    received = numpy.zeros(5, numpy.float32)
    receiving = dist.irecv(received, src=(rank - 1) % SIZE)
    dist.isend(rank_tensor(), dst=(rank + 1) % SIZE).wait()
    receiving.wait()
    assert (received == rank_tensor((rank - 1) % SIZE)).all()


def operations_in_the_background():
    tensors = [numpy.full(1000, i, numpy.int64) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert all((tensor == SIZE * i).all() for i, tensor in enumerate(tensors))
    assert works[3].description == "all_reduce #3 (int64[1000] on cpu, sum)"


def groups():
    rank = dist.get_rank()
    pair = dist.new_group([2, 0])
    everyone = dist.new_group(backend="GLOO", timeout=timedelta(seconds=30))
    assert dist.get_world_size(everyone) == SIZE
    assert dist.get_backend(everyone) == "gloo"
    assert everyone.timeout == timedelta(seconds=30)
    if rank == 1:
        outside(pair)
    else:
        assert (dist.get_rank(pair), dist.get_world_size(pair)) == (rank // 2, 2)
        tensor = rank_tensor()
        dist.all_reduce(tensor, group=pair)
        assert (tensor == rank_tensor(0) + rank_tensor(2)).all()
        dist.broadcast(tensor := rank_tensor(), src=2, group=pair)
        assert (tensor == rank_tensor(2)).all()
        with pytest.raises(ValueError, match="src must be a rank of group .*one of 0, 2, not 1"):
            dist.broadcast(tensor, src=1, group=pair)
        if rank == 0:
            dist.send(rank_tensor(), dst=2, group=pair)
        else:
            assert dist.recv(tensor, src=0, group=pair) == 0
            assert (tensor == rank_tensor(0)).all()
    dist.barrier(everyone)
    dist.destroy_process_group(pair)
    dist.barrier()


def outside(pair):
    assert pair is dist.GroupMember.NON_GROUP_MEMBER
    assert dist.get_rank(pair) == dist.get_world_size(pair) == -1
    tensor = rank_tensor()
    calls = {
        "broadcast": lambda: dist.broadcast(tensor, src=0, group=pair),
        "all_reduce": lambda: dist.all_reduce(tensor, group=pair, async_op=True),
        "all_gather": lambda: dist.all_gather([], tensor, group=pair),
        "barrier": lambda: dist.barrier(pair),
        "send": lambda: dist.send(tensor, dst=0, group=pair),
        "recv": lambda: dist.recv(tensor, src=0, group=pair),
    }
    for name, call in calls.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert call() in (None, -1)
        assert f"{name} does nothing here" in str(caught[0].message)
        assert caught[0].filename == __file__
    assert (tensor == rank_tensor()).all()


def joining_again():
    dist.barrier()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    ranks.join("again")
    tensor = rank_tensor()
    dist.all_reduce(tensor)
    assert (tensor == sum(rank_tensor(r) for r in range(SIZE))).all()


# ---- The tests ----


@pytest.mark.parametrize(
    "function",
    ["every_operation", "operations_in_the_background", "groups", "joining_again"],
)
def test_processes(function):
    ranks.in_processes(SIZE, __file__, function)


def test_processes_meet_through_a_file(tmp_path):
    ranks.in_processes(SIZE, __file__, "every_operation", init_method=f"file://{tmp_path}/store")


@pytest.mark.parametrize("backend", ["local", "gloo"])
def test_threads_are_ranks_too(backend):
    def run(world):
        tensor = rank_tensor(world.rank)
        world.group.all_reduce(tensor, dist.ReduceOp.SUM)
        group = world.new_group([2, 1])
        if world.rank == 0:
            assert group is None
        else:
            assert (group.rank(), group.size()) == (2 - world.rank, 2)
            group.broadcast(tensor, root=0)
        world.group.barrier()
        world.close()
        return tensor.tolist()

    assert ranks.in_threads(SIZE, run, backend) == [[30, 33, 36, 39, 42]] * SIZE


def test_an_operation_that_waits_lets_other_threads_run():
    # If a wait kept the GIL, the peer, a thread of this process, could not do its part.
    started = threading.Barrier(2)

    def run(world):
        tensor = numpy.zeros(3)
        if world.rank == 0:
            started.wait()
            world.group.recv(tensor, src=1)
            world.group.all_reduce(tensor)
        else:
            started.wait()
            world.group.send(numpy.ones(3), dst=0)
            world.group.all_reduce(tensor)
        return tensor.tolist()

    assert ranks.in_threads(2, run) == [[1, 1, 1]] * 2


def test_a_wait_for_work_has_its_own_timeout():
    def run(world):
        if world.rank == 1:
            world.store.get("waited")
            world.group.barrier()
            return
        work = world.group.barrier_async()
        with pytest.raises(dist.DistTimeoutError, match="barrier #0 has not finished .* 10ms"):
            work.wait(timedelta(milliseconds=10))
        assert not work.is_completed()
        world.store.set("waited", b"")
        work.wait()

    ranks.in_threads(2, run)


def test_a_group_describes_itself():
    def run(world):
        group = world.group
        assert (group.rank(), group.size(), group.name()) == (world.rank, world.size, "default")
        assert (group.backend, group.timeout) == ("local", ranks.TIMEOUT)
        assert world.group is group

    ranks.in_threads(2, run)


if __name__ == "__main__":
    ranks.main(globals())
