"""Joining, leaving, groups, backends: the rest of distributed_c10d as of torch 1.5."""

import datetime
import importlib
import os
import sys

import syncline as dist
from syncline import Backend, GroupMember, ReduceOp

xp = importlib.import_module(sys.argv[1])


def fails(error, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except error as e:
        return str(e)
    raise AssertionError(f"{function.__name__} did not raise {error.__name__}")


def test_before_init():
    assert dist.is_available()
    assert not dist.is_initialized()
    for query in (dist.get_rank, dist.get_world_size, dist.get_backend, dist.barrier):
        fails(RuntimeError, query)
    fails(RuntimeError, dist.all_reduce, xp.ones(1))
    fails(RuntimeError, dist.destroy_process_group)


def test_backends():
    assert Backend("gloo") == Backend("GLOO") == Backend("Gloo") == Backend.GLOO == "gloo"
    assert Backend("mpi") == Backend.MPI
    assert Backend("nccl") == Backend.NCCL
    assert Backend("TCP") == Backend.TCP == "tcp"
    assert "carrier_pigeon" in fails(ValueError, Backend, "carrier_pigeon")
    fails(ValueError, Backend, 3)
    assert dist.is_gloo_available()
    assert dist.is_mpi_available() in (True, False)
    assert dist.is_nccl_available() in (True, False)


def test_init_arguments():
    store = dist.HashStore()
    fails(Exception, dist.init_process_group, "gloo", init_method="env://", store=store)
    fails(Exception, dist.init_process_group, "gloo", store=store)
    fails(TypeError, dist.init_process_group, "gloo", timeout=30)
    fails(ValueError, dist.init_process_group, "carrier_pigeon")
    fails(ValueError, dist.init_process_group, "gloo", "carrier_pigeon://here", rank=0, world_size=1)  # fmt: skip # noqa: E501
    assert not dist.is_initialized()


def test_init(name):
    dist.init_process_group(
        backend=Backend.GLOO,
        init_method="file://" + os.environ["INIT_FILE"],
        timeout=datetime.timedelta(minutes=1),
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=int(os.environ["RANK"]),
        group_name=name,
    )
    assert dist.is_initialized()
    assert dist.get_rank() == int(os.environ["RANK"])
    assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])
    assert dist.get_backend() == "gloo" == dist.get_backend(dist.group.WORLD)
    fails(RuntimeError, dist.init_process_group, "gloo")


def test_groups():
    rank, size = dist.get_rank(), dist.get_world_size()
    both = dist.new_group([1, 0], timeout=datetime.timedelta(seconds=60))  # Sorted.
    one = dist.new_group(ranks=[size - 1], backend="gloo")
    everyone = dist.new_group()
    assert dist.get_world_size(everyone) == size
    assert dist.get_rank(everyone) == rank
    if rank < 2:
        assert dist.get_rank(both) == rank
        assert dist.get_world_size(both) == 2
        assert dist.get_group_rank(both, rank) == rank
        tensor = xp.ones(2)
        dist.all_reduce(tensor, ReduceOp.SUM, both)
        assert tensor.tolist() == [2.0, 2.0]
    else:
        assert both == GroupMember.NON_GROUP_MEMBER
        assert dist.get_rank(both) == -1
        assert dist.get_world_size(both) == -1
        dist.all_reduce(xp.ones(1), group=both)  # Nothing happens but a warning.
    if rank == size - 1:
        assert dist.get_rank(one) == 0
        assert dist._get_group_rank(one, rank) == 0
        assert dist._get_global_rank(one, 0) == rank
        fails(Exception, dist._get_group_rank, one, size)
        tensor = xp.ones(1) * 3
        dist.broadcast(tensor, src=rank, group=one)
    for wrong in ([size], [-1], [0, 0], list(range(size + 1))):
        fails((ValueError, RuntimeError), dist.new_group, wrong)
    dist.barrier()
    dist.destroy_process_group(everyone)
    fails((ValueError, RuntimeError), dist.barrier, everyone)
    dist.barrier()


test_before_init()
test_backends()
test_init_arguments()
for _ in range(2):  # Names are free again after a job has been left.
    test_init(name="job")
    test_groups()
    dist.destroy_process_group()
    assert not dist.is_initialized()
test_before_init()
