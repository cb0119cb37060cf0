"""The functions of torch.distributed over the backend, in processes, by unchanged user code."""

import gc
import os
import select
from datetime import timedelta

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import syncline
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as with_gradients
import torch_ranks
from syncline.torch.backend import joining
from syncline.torch.ddp.groups import syncline_group
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

ADDRESS_VARIABLES = ("SYNCLINE_HOST_ADDRESS", "SYNCLINE_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def groups():
    """Names, ranks, new groups, subgroups, what destroying leaves; a second job after the first."""
    for _ in range(2):
        torch_ranks.join()
        rank, size = dist.get_rank(), dist.get_world_size()
        assert dist.get_backend() == "syncline" and dist.group.WORLD.name() == "syncline"
        assert dist.group.WORLD.group_name == "0"
        assert dist.group.WORLD.group_desc == "default_pg"
        assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        outer = dist.new_group([size - 1, 0], timeout=timedelta(seconds=30), group_desc="outer")
        if rank in (0, size - 1):
            assert outer.group_desc == "outer"
            assert dist.get_process_group_ranks(outer) == [0, size - 1]
            dist.all_reduce(tensor := torch.ones(2), group=outer)
            assert tensor.tolist() == [2, 2]
            dist.broadcast(tensor := torch.full((2,), float(rank)), src=size - 1, group=outer)
            assert tensor.tolist() == [size - 1] * 2
        alone, _ = dist.new_subgroups(group_size=1)
        dist.all_reduce(tensor := torch.ones(2), group=alone)
        assert tensor.tolist() == [1, 1]
        local = dist.new_group([0, size - 1], use_local_synchronization=True)
        if rank in (0, size - 1):
            dist.barrier(local)
            dist.destroy_process_group(local)
        over_gloo = dist.new_group(backend="gloo")
        dist.all_reduce(tensor := torch.ones(2), group=over_gloo)
        torch_ranks.leave()
        assert not dist.is_initialized()


def objects():
    """Collectives of objects."""
    torch_ranks.join()
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 1000 * rank})
    assert [value["rank"] for value in gathered] == list(range(size))
    values = [rank, "one"]
    dist.broadcast_object_list(values, src=1)
    assert values == [1, "one"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered == (list(range(size)) if rank == 0 else None)
    received = [None]
    dist.scatter_object_list(received, list(range(size)) if rank == 1 else None, src=1)
    assert received == [rank]
    if rank == 0:
        dist.send_object_list(["hello"], dst=1)
    if rank == 1:
        dist.recv_object_list(received, src=0)
        assert received == ["hello"]


def point_to_point():
    """send and recv, their batches, a ring, any source."""
    torch_ranks.join()
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(70_000)
    operations = [
        dist.P2POp(dist.isend, torch.full((70_000,), float(rank)), after),
        dist.P2POp(dist.irecv, received, before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received[-1] == before
    sent = dist.isend(torch.full((3,), rank + 1j), after, tag=7)
    assert dist.recv(tensor := torch.zeros(3, dtype=torch.complex64), before, tag=7) == before
    sent.wait()
    assert tensor.tolist() == [before + 1j] * 3
    if rank == 0:
        for count in (1, 0):  # Gloo receives no empty tensor from any rank.
            senders = {dist.recv(torch.zeros(count)) for _ in range(size - 1)}
            assert senders == set(range(1, size))
            dist.barrier()
    else:
        for count in (1, 0):
            dist.send(torch.zeros(count), dst=0)
            dist.barrier()


def conjugated_or_negated_when_read():
    """Of tensors that torch has only marked so: its functions refuse some, the methods take all."""
    torch_ranks.join()
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    plain = torch.full((2,), 1 + 2j + rank, dtype=torch.complex128)
    conjugated, negated = plain.conj(), plain.conj().imag
    assert conjugated.is_conj() and negated.is_neg()

    outputs = [torch.zeros_like(plain).conj() for _ in range(size)]
    group.allgather([outputs], [conjugated]).wait()
    assert [output.tolist() for output in outputs] == [[1 - 2j + r] * 2 for r in range(size)]
    outputs = [torch.zeros(2, dtype=torch.float64) for _ in range(size)]
    group.allgather([outputs], [negated]).wait()
    assert [output.tolist() for output in outputs] == [[-2] * 2] * size

    total = torch.zeros_like(plain)
    group.reduce_scatter([total], [[conjugated, plain.conj_physical(), conjugated][:size]]).wait()
    assert total.tolist() == [sum(1 - 2j + r for r in range(size))] * 2
    total = torch.zeros(2, dtype=torch.float64)
    group.reduce_scatter([total], [[negated] * size]).wait()
    assert total.tolist() == [-2 * size] * 2


def coalesced():
    """Both kinds of torch's coalescing manager."""
    torch_ranks.join()
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((n,), float(rank)) for n in (1, 5)]
    outputs = [torch.zeros(size * n) for n in (1, 5)]
    with dist._coalescing_manager():
        for tensor, output in zip(tensors, outputs, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    assert outputs[0].tolist() == list(range(size))
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert tensors[1][0] == size * (size - 1) / 2
    with dist._coalescing_manager():
        for tensor, output in zip(tensors, outputs, strict=True):
            dist.reduce_scatter_tensor(tensor, output)
    assert tensors[0].tolist() == [size * rank]
    received = torch.zeros(70_000)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.send(torch.full((70_000,), float(rank)), (rank + 1) % size)
        dist.recv(received, (rank - 1) % size)
        dist.broadcast(tensors[1], src=0)
    manager.wait()
    assert received[-1] == (rank - 1) % size and tensors[1].tolist() == [0.0] * 5
    dist.all_reduce(tensor := torch.ones(1))  # What follows is on its own again.
    assert tensor.item() == size


def coalesced_until_an_exception():
    """What follows is each on its own again, whichever kind of manager was left."""
    torch_ranks.join()
    size = dist.get_world_size()
    for device in (None, torch.device("cpu")):
        with pytest.raises(ZeroDivisionError):
            with dist._coalescing_manager(device=device, async_ops=True):
                dist.all_reduce(torch.ones(1))
                dist.broadcast(torch.ones(1), src=0)
                raise ZeroDivisionError
        for _ in range(3):
            dist.all_reduce(tensor := torch.ones(70_000))
            assert tensor[-1].item() == size
        with dist._coalescing_manager():
            dist.all_reduce(tensor)
        assert tensor[-1].item() == size * size
    with pytest.raises(ValueError, match="non-empty op list"):
        with dist._coalescing_manager():
            dist.all_reduce(tensor)
            with dist._coalescing_manager():
                pass


def profiled():
    """torch's profiler sees the same records as of gloo."""
    seen = {}
    for backend in ("gloo", "syncline"):
        torch_ranks.join(backend)
        rank, size = dist.get_rank(), dist.get_world_size()
        one, whole = torch.ones(2), torch.ones(2 * size)
        parts = list(torch.ones(size, 2).unbind())
        dist.barrier()
        with torch.profiler.profile(record_shapes=True) as profile:
            for in_background in (False, True):
                works = [
                    dist.all_reduce(one, async_op=in_background),
                    dist.broadcast(one, 0, async_op=in_background),
                    dist.reduce(one, 0, async_op=in_background),
                    dist.all_gather(parts, one, async_op=in_background),
                    dist.gather(one, parts if rank == 0 else None, async_op=in_background),
                    dist.scatter(one, parts if rank == 0 else None, async_op=in_background),
                    dist.all_to_all_single(whole, whole.clone(), async_op=in_background),
                    dist.barrier(async_op=in_background),
                ]
                for work in filter(None, works):
                    work.wait()
            if rank == 0:
                dist.send(one, 1)
            else:
                dist.recv(one, 0)
            dist.barrier()
        records = [event for event in profile.events() if event.name.startswith(f"{backend}:")]
        counts = {}
        for event in records:
            name = event.name.partition(":")[2]
            counts[name] = counts.get(name, 0) + 1
        seen[backend] = counts
        shapes = {tuple(map(tuple, e.input_shapes)) for e in records if "all_reduce" in e.name}
        assert shapes == {((2,),)}, shapes
        torch_ranks.leave()
    assert seen["syncline"] == seen["gloo"], seen
    assert len(seen["gloo"]) == 9


def without_rank_0():
    """Those that remain make groups, once rank 0's process has ended."""
    torch_ranks.join()
    store = dist.distributed_c10d._get_default_store()  # Of the test's own process.
    rank = dist.get_rank()
    if rank == 0:
        store.set("process of rank 0", str(os.getpid()))
    process = os.pidfd_open(int(store.get("process of rank 0")))
    dist.barrier()
    if rank == 0:
        dist.destroy_process_group()
        return
    assert select.select([process], [], [], torch_ranks.TIMEOUT.total_seconds())[0]
    group = dist.new_group([1, 2], use_local_synchronization=True)
    dist.all_reduce(tensor := torch.ones(1), group=group)
    assert tensor.item() == 2
    dist.destroy_process_group(group)


def barriers():
    """barrier and monitored_barrier, as functions of torch."""
    torch_ranks.join()
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True)
    dist.distributed_c10d.monitored_barrier(dist.group.WORLD)
    over_gloo = dist.new_group(backend="gloo")
    dist.monitored_barrier(over_gloo, timedelta(seconds=30))
    dist.monitored_barrier(None, 30.0)
    with pytest.raises(TypeError, match="seconds"):
        dist.monitored_barrier(timeout="soon")
    for nothing in (timedelta(0), 0.0):
        with pytest.raises(ValueError, match="timeout must be positive"):
            dist.monitored_barrier(timeout=nothing)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        with pytest.raises(syncline.DistTimeoutError, match="rank 1"):
            dist.monitored_barrier(timeout=timedelta(milliseconds=300))
        store.set("late", "yes")
    else:
        store.wait(["late"])
    dist.destroy_process_group()


def functional_collectives():
    """Functional collectives, which torch's C++ code issues; with and without gradients."""

    def results():
        rank, size = dist.get_rank(), dist.get_world_size()
        group = dist.group.WORLD
        x = (torch.arange(4.0 * size) + rank).requires_grad_()
        reduced = functional.all_reduce(x.detach(), "avg", group) + 0
        out = torch.empty(size * x.numel())
        torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_gather_into_tensor_out(
                x.detach(), size, group.group_name, out=out
            )
        )
        gathered = functional.all_gather_tensor(x.detach(), 0, group) + 0
        scattered = functional.reduce_scatter_tensor(x.detach(), "sum", 0, group) + 0
        swapped = functional.all_to_all_single(x.detach(), None, None, group) + 0
        sent = functional.broadcast(x.detach(), 1, group) + 0
        lists = functional.all_reduce_coalesced([x.detach(), x.detach()], "sum", group)
        loss = (functional.all_gather_tensor_autograd(x, 0, group) ** 2).sum()
        loss = loss + (functional.reduce_scatter_tensor_autograd(x, "sum", 0, group) ** 2).sum()
        loss = loss + (functional.all_to_all_single_autograd(x, None, None, group) ** 3).sum()
        loss = loss + (with_gradients.all_reduce(x) * (rank + 1)).sum()
        loss = loss + (torch.stack(with_gradients.all_gather(x)) ** 2).sum()
        loss.backward()
        return [
            reduced,
            gathered,
            scattered,
            swapped,
            sent,
            lists[0] + 0,
            lists[1] + 0,
            out,
            x.grad,
        ]

    torch_ranks.assert_equal_to_gloo("functional collectives", results)


def tensors_of_a_mesh():
    """DTensor over a mesh of one and of two dimensions."""

    def results():
        size = dist.get_world_size()
        found = []
        for shape, names in (((size,), ("x",)), ((1, size), ("y", "x"))):
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)["x"]
            whole = torch.arange(8.0 * size * size).reshape(4 * size, 2 * size)
            rows = distribute_tensor(whole, mesh, [Shard(0)])
            columns = rows.redistribute(placements=[Shard(1)])
            found += [columns.to_local(), rows.redistribute(placements=[Replicate()]).to_local()]
            partial = columns @ distribute_tensor(whole.T.contiguous(), mesh, [Shard(0)])
            assert partial.placements == (Partial(),)
            found += [partial.full_tensor(), rows.sum().full_tensor()]
            found += [partial.redistribute(placements=[Shard(0)]).to_local()]
        return found

    torch_ranks.assert_equal_to_gloo("mesh", results)


def checkpoints():
    """torch.distributed.checkpoint saves and loads sharded and whole tensors."""
    torch_ranks.join()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(24.0).reshape(6, 4)
    state = {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "plain": whole + 1, "step": 7}
    folder = torch_ranks.shared_folder() / "checkpoint"
    checkpoint.save(state, checkpoint_id=folder)
    loaded = {
        "sharded": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(1)]),
        "plain": torch.zeros(6, 4),
        "step": 0,
    }
    own = dist.new_group()  # Its operations run in the background.
    place = folder.with_name("later")
    later = checkpoint.async_save(state, checkpoint_id=place, process_group=own)
    for saved in (folder, place):
        if saved != folder:
            later.result(torch_ranks.TIMEOUT.total_seconds())
            dist.barrier()
        loaded["plain"].zero_()
        checkpoint.load(loaded, checkpoint_id=saved)
        assert torch.equal(loaded["sharded"].full_tensor(), whole)
        assert torch.equal(loaded["plain"], whole + 1) and loaded["step"] == 7


def backends_by_device():
    """ "cpu:syncline,..." serves the CPU, and torch's own backends the others."""
    torch_ranks.join("cpu:syncline,cuda:gloo")
    dist.all_reduce(tensor := torch.ones(2))
    assert tensor.tolist() == [dist.get_world_size()] * 2
    theirs = dist.group.WORLD._get_backend(torch.device("cuda", 0))
    assert isinstance(theirs, dist.ProcessGroupGloo)
    theirs.allreduce([tensor], dist.AllreduceOptions()).wait()
    assert tensor.tolist() == [dist.get_world_size() ** 2] * 2


def everything_with_details():
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    torch_ranks.join()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    for _ in range(3):
        model(torch.randn(2, 3)).sum().backward()
    dist.barrier(group=dist.new_group([0, 1]))
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, "x")


def in_backward():
    """Operations of a backward pass run in the background where they are asked to."""
    torch_ranks.join()
    groups = [dist.new_group([0, 1]) for _ in range(2)]

    class Swaps(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            tensors = [gradient.clone(), gradient.clone()]
            pairs = list(zip(tensors, groups, strict=True))
            if dist.get_rank() == 1:
                pairs.reverse()
            works = [dist.all_reduce(each, group=group, async_op=True) for each, group in pairs]
            for work in works:
                work.wait()
            return tensors[0] + tensors[1]

    x = torch.ones(4, requires_grad=True)
    Swaps.apply(x).sum().backward()
    assert x.grad.tolist() == [4.0] * 4


def beside_another_backend():
    """A group of Syncline's beside one of torch's has its timeout, and ends with it."""
    torch_ranks.join("gloo", timeout=timedelta(seconds=41))
    beside = syncline_group(dist.group.WORLD)
    assert beside.timeout == timedelta(seconds=41)
    beside.all_reduce(tensor := torch.ones(1))
    assert tensor.item() == 2
    torch_ranks.leave()
    gc.collect()
    with pytest.raises(syncline.DistError):
        beside.barrier()


def from_the_environment():
    """init_process_group("env://") as under a launcher."""
    dist.init_process_group("syncline")
    dist.all_reduce(tensor := torch.ones(2))
    assert tensor.tolist() == [1, 1]
    dist.destroy_process_group()


def run_all():
    torch_ranks.run_each(
        [
            groups,
            objects,
            point_to_point,
            conjugated_or_negated_when_read,
            coalesced,
            coalesced_until_an_exception,
            functional_collectives,
            tensors_of_a_mesh,
        ]
    )


def run_all_of_two_ranks():
    torch_ranks.run_each(
        [profiled, barriers, checkpoints, backends_by_device, in_backward, beside_another_backend]
    )


@pytest.mark.parametrize("size", [2, 3])
def test_the_functions_of_torch_work(size):
    torch_ranks.in_processes(size, __file__, "run_all")


def test_barriers_checkpoints_and_backends_by_device_work():
    torch_ranks.in_processes(2, __file__, "run_all_of_two_ranks")


def test_torchs_debug_level_of_details_breaks_nothing():
    torch_ranks.in_processes(
        2, __file__, "everything_with_details", TORCH_DISTRIBUTED_DEBUG="DETAIL"
    )


def test_groups_are_made_after_the_process_of_rank_0_has_ended():
    torch_ranks.in_processes(3, __file__, "without_rank_0")


def test_a_job_of_one_joins_by_the_environment():
    torch_ranks.in_processes(
        1, __file__, "from_the_environment", MASTER_ADDR="127.0.0.1", MASTER_PORT="0"
    )


def test_the_backend_is_registered_for_the_cpu_and_cuda():
    assert dist.Backend.SYNCLINE == "syncline"
    assert dist.Backend.backend_capability["syncline"] == ["cpu", "cuda"]
    assert dist.Backend.default_device_backend_map["cuda"] == "nccl"


if __name__ == "__main__":
    torch_ranks.main(globals())


def test_the_interface_that_is_chosen_leads_to_rank_0(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    for name in ADDRESS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert joining._own_address(dist.PrefixStore("group", store)) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no_such_interface")
    assert joining._own_address(store) == "127.0.0.1"  # All ranks are where torch's store is.
    monkeypatch.setattr(joining, "_is_loopback", lambda address: False)  # As on another host.
    with pytest.raises(syncline.DistNetworkError, match="GLOO_SOCKET_IFNAME is 'no_such_interf"):
        joining._own_address(store)
    monkeypatch.setenv("SYNCLINE_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(joining, "_address_towards", lambda host, port: "10.0.0.1")
    assert joining._own_address(store) in ("127.0.0.1", "::1")
    for name in ADDRESS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert joining._own_address(store) == "10.0.0.1"
