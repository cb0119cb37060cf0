"""Backend "syncline" on tensors of simulated CUDA devices: one for each process."""

import ctypes
import os
import threading
import warnings
from datetime import timedelta

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import simulated_arrays
import simulated_torch
import torch
import torch.distributed as dist
import torch_ranks
from simulated_torch import on_cuda
from syncline.torch import Options
from torch.distributed import _functional_collectives as functional

warnings.simplefilter("ignore", FutureWarning)  # Names that PyTorch has changed.

SLOW = 20_000  # Microseconds by which streams are late.


def join(backend="syncline", **arguments):
    """A job over the backend of Syncline that the test names."""
    torch_ranks.join(backend, pg_options=Options(os.environ["TEST_BACKEND"]), **arguments)


def values(tensor):
    return tensor.cpu().flatten().tolist()


def filled(value, *shape):
    return on_cuda(torch.full(shape, float(value)))


def operations():
    join()
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    x = filled(rank + 1, 5)
    dist.all_reduce(x)
    assert values(x) == [3] * 5
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert values(x) == [3] * 5
    gathered = torch.empty(10, device=x.device)
    dist.all_gather_into_tensor(gathered, filled(rank, 5))
    assert values(gathered) == [0] * 5 + [1] * 5
    parts = [filled(9, 5), filled(9, 5)]
    dist.all_gather(parts, filled(rank, 5))
    assert values(torch.cat(parts)) == values(gathered)
    scattered = filled(0, 5)
    dist.reduce_scatter_tensor(scattered, gathered)
    assert values(scattered) == [2 * rank] * 5
    dist.reduce_scatter(scattered, parts)
    assert values(scattered) == [2 * rank] * 5
    exchanged = torch.empty(10, device=x.device)
    dist.all_to_all_single(exchanged, gathered)
    assert values(exchanged) == [rank] * 10
    dist.all_to_all(parts, [filled(rank, 5), filled(rank, 5)])
    assert values(torch.cat(parts)) == [0] * 5 + [1] * 5
    dist.broadcast(x, 1)
    dist.reduce(x, 0)
    dist.gather(x, parts if rank == 0 else None, 0)
    dist.scatter(scattered, parts if rank == 0 else None, 0)
    received = filled(0, 5)
    if rank == 0:
        dist.send(filled(7, 5), 1)
    else:
        dist.recv(received, 0)
        assert values(received) == [7] * 5
    pair = [
        dist.P2POp(dist.isend, filled(rank, 5), other),
        dist.P2POp(dist.irecv, received, other),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    assert values(received) == [other] * 5
    dist.barrier()
    dist.barrier(device_ids=[rank])
    everyones = [None, None]
    dist.all_gather_object(everyones, rank)
    assert everyones == [0, 1]
    torch_ranks.leave()


def strided():
    join()
    rank = dist.get_rank()
    with simulated_arrays.slow(SLOW):
        for in_background in (False, True):
            x = filled(rank + 1, 3, 4).t()
            work = dist.all_reduce(x, async_op=in_background)
            if work is not None:
                work.wait()
            assert values(x * 1) == [3] * 12
            work = dist.broadcast(x.mul_(rank), 1, async_op=in_background)
            if work is not None:
                assert work.wait(timedelta(seconds=60)) and work.is_completed()
            assert values(x) == [3] * 12
            target = filled(0, 4, 6)[:, ::2]
            work = dist.all_gather_into_tensor(target, x[:2], async_op=in_background)
            if work is not None:
                work.get_future().wait()
            assert values(target) == [3] * 12
    torch_ranks.leave()


def streams():
    """Streams wait; the host does not, except where a test asks for it."""
    join()
    rank = dist.get_rank()
    x = filled(0, 1000)
    dist.all_reduce(x)
    side = torch.cuda.Stream()
    opened = threading.Event()
    before = simulated_torch.host_waits
    if os.environ["TEST_BACKEND"] == "nccl":
        simulated_arrays.enqueue(0, lambda: opened.wait(60) and None, rank)
    else:
        opened.set()
    with torch.cuda.stream(side):
        y = filled(rank + 1, 1000)
    x = filled_behind(x, rank + 1)
    work = dist.all_reduce(x, async_op=True)
    chained = work.get_future().then(lambda future: future.value()[0])
    assert opened.is_set() or not work.is_completed()
    assert work.exception() is None and not (work.is_success() and not opened.is_set())
    with torch.cuda.stream(side):
        beside = dist.all_reduce(y, async_op=True)
        beside.synchronize()
        beside.block_current_stream()
        work.wait()
    assert simulated_torch.host_waits == before
    opened.set()
    with torch.cuda.stream(side):
        assert values(x) == [3] * 1000 and values(y) == [3] * 1000
    assert values(chained.wait()) == [3] * 1000
    assert work.is_completed() and work.is_success() and work.result()[0] is x
    torch_ranks.leave()


def filled_behind(x, value):
    """`x`, which the current stream fills without the host's waiting for it."""

    def fill():
        x.inner.fill_(value)

    simulated_arrays.enqueue(torch.cuda.current_stream(x.device).cuda_stream, fill, x.index)
    return x


def coalesced():
    join()
    rank = dist.get_rank()
    x, y = filled(rank + 1, 5), filled(rank + 1, 2, 3).t()
    group = dist.group.WORLD
    with dist.distributed_c10d._coalescing_manager(group, x.device, async_ops=True) as manager:
        dist.all_reduce(x)
        dist.all_reduce(y)
    manager.wait()
    assert values(x) == [3] * 5 and values(y) == [3] * 6
    outputs = [torch.empty(4, device=x.device), torch.empty(2, 3, device=x.device)]
    inputs = [filled(rank, 2), filled(rank + 5, 3)]
    group.allgather_into_tensor_coalesced(outputs, inputs).get_future().wait()
    group.reduce_scatter_tensor_coalesced(inputs, outputs).get_future().wait()
    assert values(inputs[0]) == [2 * rank] * 2 and values(inputs[1]) == [10 + 2 * rank] * 3
    group.allreduce_coalesced(inputs).wait()
    assert values(inputs[0]) == [2, 2]
    torch_ranks.leave()


def functionals():
    join()
    rank, group = dist.get_rank(), dist.group.WORLD
    x = filled(rank + 1, 4)
    assert values(functional.wait_tensor(functional.all_reduce(x, "sum", group))) == [3] * 4
    gathered = functional.all_gather_tensor(x, 0, group)
    assert values(functional.wait_tensor(gathered)) == [1] * 4 + [2] * 4
    scattered = functional.reduce_scatter_tensor(x, "avg", 0, group)
    assert values(functional.wait_tensor(scattered)) == [1.5, 1.5]
    torch_ranks.leave()


def groups():
    """Sub-groups, and groups of one kind of device."""
    join("cuda:syncline")
    sub = dist.new_group([0, 1])
    x = filled(dist.get_rank() + 1, 4)
    dist.all_reduce(x, group=sub)
    torch_ranks.leave()
    join()
    world = dist.group.WORLD
    assert world._get_backend(torch.device("cuda")) is world and not world.supports_splitting
    world.bound_device_id = x.device
    assert world.supports_splitting
    split = world.split_group([0, 1], opts=world.options)
    assert world.comm_split_count() == 1
    split.allreduce([x]).wait()
    assert values(x) == [6] * 4
    torch_ranks.leave()
    torch_ranks.join("cpu:syncline,cuda:nccl")
    with pytest.raises(NotImplementedError, match="is on device 'cuda:"):
        dist.all_reduce(x)  # PyTorch's NCCL, which this PyTorch lacks.
    torch_ranks.leave()


def eager():
    """With a device_id, communicators are there before the first operation, or split off."""
    if os.environ["TEST_BACKEND"] != "nccl":
        return
    library = ctypes.CDLL(os.environ["SYNCLINE_NCCL_LIBRARY"])
    functions = b"ncclCommInitRankConfig", b"ncclCommSplit"
    before = [library.fake_nccl_calls(function) for function in functions]

    def made_and_split():
        now = [library.fake_nccl_calls(function) for function in functions]
        return now[0] - before[0], now[1] - before[1]

    # This torch knows no accelerator.
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *_: torch.device("cuda")
    torch.accelerator.device_count = lambda: 2
    rank = int(os.environ["RANK"])
    x = filled(rank + 1, 4)
    join(device_id=x.device)
    assert made_and_split() == (1, 0)
    dist.all_reduce(x)
    assert values(x) == [3] * 4
    both = dist.new_group([0, 1])
    assert made_and_split() == (1, 1)
    dist.all_reduce(x, group=both)
    first = dist.new_group([0])  # Rank 1 is outside, and takes part.
    assert made_and_split() == (1, 2)
    if rank == 0:
        dist.all_reduce(x, group=first)
    part = dist.split_group(split_ranks=[[0], [1]])
    assert made_and_split() == (1, 3)
    dist.all_reduce(x, group=part)
    assert values(x) == [6] * 4
    alone = dist.new_group([rank], use_local_synchronization=True)
    assert made_and_split() == (2, 3)
    dist.all_reduce(x, group=alone)
    members = dist.group.WORLD.split_group([rank])  # The method: its members call it.
    members.allreduce([x]).wait()
    assert values(x) == [6] * 4
    assert made_and_split() == (3, 3)
    row = dist.device_mesh.split_group(split_ranks=[[1, 0]])  # As a DeviceMesh calls it.
    assert made_and_split() == (3, 4)
    dist.all_reduce(x, group=row)
    assert values(x) == [12] * 4
    torch_ranks.leave()


def failures():
    join()
    x = filled(1, 3 + dist.get_rank())
    work = dist.all_reduce(x, async_op=True)
    with pytest.raises(dist.DistBackendError, match=r"3 elements.*4 elements"):
        work.wait(timedelta(seconds=60))
    assert work.is_completed() and not work.is_success()
    assert isinstance(work.exception(), dist.DistBackendError)
    with pytest.raises(RuntimeError):
        work.get_future().wait()
    os._exit(0)  # The group is broken.


def all_of_them():
    torch_ranks.run_each(
        [operations, strided, streams, coalesced, functionals, groups, failures, eager]
    )


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_two_processes(backend):
    torch_ranks.in_processes(2, __file__, all_of_them.__name__, TEST_BACKEND=backend)


if __name__ == "__main__":
    torch_ranks.main(globals())
