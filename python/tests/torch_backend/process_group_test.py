"""The methods of the process group, as torch's functions and its C++ code call them."""

import threading
import time
from datetime import timedelta

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import syncline
import torch
import torch.distributed as dist
import torch_ranks
from syncline.torch.backend.registration import Options, create_group
from syncline.torch.backend.work import AllWork
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import AllgatherOptions

SIZES = [1, 2, 3, 7]
TYPES = "uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64"
MOVED = f"{TYPES} bool complex64 complex128 complex32 float8_e4m3fn float8_e5m2 float8_e5m2fnuz"


def options(kind, **fields):
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("in_background", [False, True])
def test_all_reduce_adds_up_and_its_future_has_the_tensors(size, in_background):
    def run(group):
        for count in (0, 1, 1000, 300_001):
            tensor = torch.full((count,), float(group.rank()))
            opts = options(dist.AllreduceOptions, asyncOp=in_background)
            work = group.allreduce([tensor], opts)
            future = work.get_future()
            assert work.wait()
            assert future.wait()[0] is tensor
            assert work.is_completed() and work.is_success() and work.exception() is None
            assert work.result()[0] is tensor
            assert torch.equal(tensor, torch.full((count,), size * (size - 1) / 2))

    torch_ranks.in_threads(size, run)


REDUCED = {
    ReduceOp.SUM: 6.0,
    ReduceOp.AVG: 2.0,
    ReduceOp.PRODUCT: 6.0,
    ReduceOp.MIN: 1.0,
    ReduceOp.MAX: 3.0,
    ReduceOp.BAND: 0.0,
    ReduceOp.BOR: 3.0,
    ReduceOp.BXOR: 0.0,
}


@pytest.mark.parametrize("op", list(REDUCED), ids=lambda op: op.name)
def test_every_reduction_is_served(op):
    bitwise = op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)

    def run(group):
        tensor = torch.full((5,), group.rank() + 1, dtype=torch.int32 if bitwise else torch.float32)
        group.allreduce(tensor, op).wait()
        return tensor[4].item()

    assert torch_ranks.in_threads(3, run) == [REDUCED[op]] * 3


def test_a_premultiplied_sum_takes_each_ranks_factor():
    def run(group):
        tensor = torch.ones(5)
        opts = options(
            dist.AllreduceOptions, reduceOp=dist._make_nccl_premul_sum(group.rank() + 0.5)
        )
        group.allreduce([tensor], opts).wait()
        return tensor[0].item()

    assert torch_ranks.in_threads(2, run) == [2.0, 2.0]


@pytest.mark.parametrize("dtype", TYPES.split())
def test_every_type_of_numbers_is_added_up(dtype):
    def run(group):
        tensor = torch.ones(7, dtype=getattr(torch, dtype))
        group.allreduce([tensor]).wait()
        return tensor.to(torch.float32).tolist()

    assert torch_ranks.in_threads(3, run) == [[3.0] * 7] * 3


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", MOVED.split())
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5)])
def test_tensors_of_every_type_and_shape_are_moved(dtype, shape):
    def run(group):
        rank, size = group.rank(), group.size()
        numbers = torch.arange(torch.Size(shape).numel()).reshape(shape) % 2 == rank % 2
        mine = numbers.to(torch.float32).to(getattr(torch, dtype))
        outputs = [torch.zeros_like(mine) for _ in range(size)]
        group.allgather([outputs], [mine]).wait()
        group.broadcast([mine], options(dist.BroadcastOptions, rootRank=1)).wait()
        assert same(mine, outputs[1])
        together = torch.zeros((size, *shape), dtype=mine.dtype)
        group.all_gather_single(together, outputs[rank]).wait()
        assert same(together[0], outputs[0]) and same(together[1], outputs[1])
        swapped = torch.zeros_like(together)
        group.all_to_all_single(swapped, together, [], []).wait()
        assert same(swapped[0], outputs[rank]) and same(swapped[1], outputs[rank])

    torch_ranks.in_threads(2, run)


def same(left, right):
    return (
        left.reshape(-1).view(torch.uint8).tolist() == right.reshape(-1).view(torch.uint8).tolist()
    )


@pytest.mark.parametrize("size", SIZES)
def test_collectives_with_a_root_serve_lists(size):
    root = size - 1

    def run(group):
        rank = group.rank()
        tensor = torch.full((3,), float(rank + 1))
        group.reduce([tensor], options(dist.ReduceOptions, rootRank=root)).wait()
        expected = size * (size + 1) / 2 if rank == root else rank + 1
        assert tensor.tolist() == [expected] * 3  # Elsewhere, elements are kept.
        outputs = [torch.zeros(2) for _ in range(size)] if rank == root else []
        lists = [outputs] if outputs else []
        opts = options(dist.GatherOptions, rootRank=root)
        group.gather(lists, [torch.full((2,), float(rank))], opts).wait()
        assert [tensor.tolist() for tensor in outputs] == [[r, r] for r in range(len(outputs))]
        received = torch.zeros(2)
        opts = options(dist.ScatterOptions, rootRank=root)
        group.scatter([received], lists, opts).wait()
        assert received.tolist() == [rank, rank]

    torch_ranks.in_threads(size, run)


@pytest.mark.parametrize("size", SIZES)
def test_parts_may_differ_in_size_between_ranks(size):
    def run(group):
        rank = group.rank()
        outputs = [torch.zeros(r) for r in range(size)]
        group.allgather([outputs], [torch.full((rank,), float(rank))]).wait()
        assert all(outputs[r].tolist() == [r] * r for r in range(size))
        inputs = [torch.full((r + 1,), float(rank)) for r in range(size)]
        reduced = torch.zeros(rank + 1)
        group.reduce_scatter([reduced], [inputs]).wait()
        assert reduced.tolist() == [size * (size - 1) / 2] * (rank + 1)
        received = [torch.zeros(rank + 1) for _ in range(size)]
        group.alltoall(received, inputs).wait()
        assert [tensor.tolist() for tensor in received] == [[r] * (rank + 1) for r in range(size)]
        rows = torch.zeros(size * (rank + 1), 2)
        sent = torch.cat(inputs).unsqueeze(1).repeat(1, 2)
        splits = [rank + 1] * size, [r + 1 for r in range(size)]
        group.alltoall_base(rows, sent, *splits).wait()
        assert torch.equal(rows[:, 0], torch.cat(received))

    torch_ranks.in_threads(size, run)


def test_several_tensors_go_in_one_operation():
    def run(group):
        rank, size = group.rank(), group.size()
        inputs = [torch.full((n,), float(rank)) for n in (1, 4)]
        reduced = [tensor.clone() for tensor in inputs]
        group.allreduce_coalesced(reduced).wait()
        assert [tensor[0].item() for tensor in reduced] == [3.0, 3.0]
        outputs = [torch.zeros(size * n) for n in (1, 4)]
        group.allgather_into_tensor_coalesced(outputs, inputs).wait()
        assert (
            outputs[0].tolist() == [0, 1, 2] and outputs[1].tolist() == [0] * 4 + [1] * 4 + [2] * 4
        )
        lists = [[torch.zeros(n) for n in (1, 4)] for _ in range(size)]
        group.allgather_coalesced(lists, inputs).wait()
        assert [tensors[1][3].item() for tensors in lists] == [0, 1, 2]
        scattered = [torch.zeros(1), torch.zeros(4)]
        group.reduce_scatter_tensor_coalesced(scattered, outputs).wait()
        assert [tensor.tolist() for tensor in scattered] == [[3.0 * rank], [3.0 * rank] * 4]
        mixed = [torch.zeros(1), torch.zeros(4, dtype=torch.int64)]
        inputs = [outputs[0], outputs[1].long()]
        group.reduce_scatter_single_coalesced(mixed, inputs).wait()
        assert [tensor.tolist() for tensor in mixed] == [[3.0 * rank], [3 * rank] * 4]
        assert group.allreduce_coalesced([]).wait()

    torch_ranks.in_threads(3, run)


def test_one_tensor_twice_is_reduced_once():
    """As by gloo; as in `all_reduce_coalesced([t, t])`, and of two parameters that are one."""

    def run(group):
        tensor, other = torch.full((3,), 1.0 + group.rank()), torch.ones(2)
        group.allreduce_coalesced([tensor, other, tensor, tensor.view(3)]).wait()
        assert tensor.tolist() == [3.0] * 3 and other.tolist() == [2.0] * 2
        with pytest.raises(ValueError, match="share memory"):
            group.allreduce_coalesced([tensor, tensor[:2]])
        dist._broadcast_coalesced(group, [tensor, other, tensor], 100, 1)

    torch_ranks.in_threads(2, run)


def test_lists_of_several_tensors_are_treated_as_by_gloo():
    """As if each were a rank's own."""

    def run(group):
        rank, size = group.rank(), group.size()
        own = [torch.full((2,), float(2 * rank + i)) for i in range(2)]
        reduced = [tensor.clone() for tensor in own]
        group.allreduce(reduced, options(dist.AllreduceOptions, reduceOp=ReduceOp.MAX)).wait()
        assert [tensor[1].item() for tensor in reduced] == [2.0 * size - 1] * 2
        whole = [[torch.zeros(2) for _ in range(2 * size)] for _ in range(2)]
        group.allgather(whole, own).wait()
        for outputs in whole:
            assert [output[0].item() for output in outputs] == list(range(2 * size))
        sent = options(dist.BroadcastOptions, rootRank=1, rootTensor=1)
        group.broadcast(own, sent).wait()
        assert [tensor[0].item() for tensor in own] == [3.0, 3.0]
        one = options(dist.ReduceOptions, rootRank=0, rootTensor=1)
        group.reduce(own, one).wait()
        assert own[1][0].item() == (6.0 * size if rank == 0 else 3.0)

    torch_ranks.in_threads(2, run)


def test_methods_take_what_torchs_other_overloads_take():
    def run(group):
        rank, size = group.rank(), group.size()
        tensor = torch.full((2,), float(rank))
        group.allreduce(tensor, op=ReduceOp.MAX, timeout=timedelta(seconds=20)).wait()
        group.broadcast(tensor, root=0).wait()
        group.reduce(tensor, 0, ReduceOp.SUM).wait()
        outputs = [torch.zeros(2) for _ in range(size)]
        group.allgather(outputs, torch.full((2,), float(rank))).wait()
        assert [output[0].item() for output in outputs] == [0, 1]
        group.gather(outputs if rank == 1 else [], tensor, 1).wait()
        group.scatter(tensor, outputs if rank == 1 else [], 1).wait()
        group.reduce_scatter(tensor, outputs, ReduceOp.SUM).wait()
        group.alltoall(outputs, [torch.full((2,), float(rank))] * size).wait()
        assert [output[0].item() for output in outputs] == [0, 1]
        group.barrier(timeout=timedelta(seconds=20)).wait()

    torch_ranks.in_threads(2, run)


def test_a_receive_from_any_rank_says_which():
    def run(group):
        if group.rank() != 0:
            group.send([torch.full((2,), float(group.rank()))], 0, 5).wait()
            return
        tensor, seen = torch.zeros(2), set()
        for _ in range(2):
            work = group.recv_anysource([tensor], 5)
            work.wait()
            assert tensor[0].item() == work._source_rank() == work.source_rank()
            seen.add(work.source_rank())
        assert seen == {1, 2}

    torch_ranks.in_threads(3, run)


def test_messages_of_different_tags_do_not_mix():
    def run(group):
        if group.rank() == 0:
            works = [group.send([torch.full((1,), float(tag))], 1, tag) for tag in (3, 4)]
        else:
            first, second = torch.zeros(1), torch.zeros(1)
            works = [group.recv([second], 0, 4), group.recv([first], 0, 3)]
        for work in works:
            work.wait()
        if group.rank() == 1:
            assert (first.item(), second.item()) == (3, 4)

    torch_ranks.in_threads(2, run)


@pytest.mark.parametrize("size", SIZES)
def test_sparse_tensors_are_added_up_whatever_each_rank_has_stored(size):
    def run(group):
        rank = group.rank()
        dense = torch.zeros(size + 1, 3)
        dense[:rank] = 1.0  # Nothing on rank 0.
        tensor = dense.to_sparse(1)
        group.allreduce([tensor]).wait()
        result = tensor.to_dense()
        assert result[:, 0].tolist() == [max(0, size - 1 - row) for row in range(size + 1)]
        doubled = torch.sparse_coo_tensor([[0, 0]], [1.0, 1.0], (2,), check_invariants=False)
        group.allreduce(doubled, ReduceOp.AVG).wait()
        assert doubled.to_dense().tolist() == [2.0, 0.0]

    torch_ranks.in_threads(size, run)


def test_sparse_tensors_of_different_shapes_are_refused_on_all_ranks():
    def run(group):
        with pytest.raises(ValueError, match=r"rank 0 \[4\] .*rank 1 \[5\]"):
            group.allreduce([torch.ones(4 + group.rank()).to_sparse()])
        with pytest.raises(ValueError, match="SUM or AVG, not MAX"):
            group.allreduce(torch.ones(4).to_sparse(), ReduceOp.MAX)
        group.barrier().wait()  # The group goes on.

    torch_ranks.in_threads(2, run)


@pytest.mark.parametrize("in_background", [False, True])
def test_tensors_that_are_not_contiguous_are_served(in_background):
    def run(group):
        rank = group.rank()
        mine = torch.arange(6.0).reshape(2, 3).T * (rank + 1)
        opts = options(dist.AllreduceOptions, asyncOp=in_background)
        group.allreduce([reduced := mine * 1], opts).wait()
        assert not reduced.is_contiguous()
        assert torch.equal(reduced, torch.arange(6.0).reshape(2, 3).T * 3)
        outputs = [torch.zeros(2, 3).T, torch.zeros(3, 2)]  # One of each.
        opts = options(AllgatherOptions, asyncOp=in_background)
        group.allgather([outputs], [mine], opts).wait()
        assert torch.equal(outputs[0] * 2, outputs[1])
        assert torch.equal(outputs[rank], mine)
        group.allgather_into_tensor_coalesced([whole := torch.zeros(2, 6).T], [mine], opts).wait()
        assert torch.equal(whole, torch.cat(outputs))
        opts = options(dist.ReduceScatterOptions, asyncOp=in_background)
        parts = [torch.zeros(2, 3).T]
        group.reduce_scatter_tensor_coalesced(parts, [whole], opts).wait()
        assert torch.equal(parts[0], 2 * outputs[rank])
        image = torch.full((1, 2, 2, 2), float(rank)).to(memory_format=torch.channels_last)
        group.broadcast([image], options(dist.BroadcastOptions, rootRank=1)).wait()
        assert image.eq(1).all()
        if rank == 0:
            group.send([torch.ones(1).expand(3)], 1, 0).wait()
        else:
            group.recv([column := torch.zeros(3, 2)[:, 1]], 0, 0).wait()
            assert column.tolist() == [1, 1, 1]

    torch_ranks.in_threads(2, run)


def test_the_copy_of_a_strided_tensor_is_made_before_its_future_is_told():
    def run(group):
        tensor = torch.ones(2, 3).T
        future = group.allreduce([tensor]).get_future()
        assert future.then(lambda done: done.value()[0].sum().item()).wait() == 12
        work = group.allreduce([tensor])
        group.barrier().wait()  # Nobody waits for the work itself.
        assert work.is_completed() and tensor.sum() == 24

    torch_ranks.in_threads(2, run)


def test_several_operations_as_one_have_one_deadline():
    class Part:
        def __init__(self):
            self.given = []

        def wait(self, timeout):
            self.given.append(timeout)
            stop = time.monotonic() + 0.05
            while time.monotonic() < stop:
                pass

    parts = [Part(), Part(), Part()]
    AllWork(parts).wait(timedelta(milliseconds=80))
    first, second, third = (part.given[0] for part in parts)
    assert second <= first - timedelta(milliseconds=50)
    assert third == timedelta(milliseconds=1)
    AllWork(parts).wait()
    assert parts[2].given[1] is None


def test_a_second_group_over_the_same_store_meets_anew():
    store, done = dist.HashStore(), threading.Barrier(2)
    results = []

    def run(rank):
        for _ in range(3):
            group = create_group(store, rank, 2, timedelta(seconds=20))
            group.allreduce([tensor := torch.ones(1)]).wait()
            done.wait(60)
            group.shutdown()
            results.append(tensor.item())

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    assert results == [2.0] * 6


BAD_CALLS = {
    "expanded": (
        ValueError,
        "share their memory: pass tensor.contiguous",
        lambda group: group.allreduce([torch.zeros(1).expand(3)]),
    ),
    "meta": (
        NotImplementedError,
        "device 'meta'.*cpu:syncline,meta:",
        lambda group: group.allreduce([torch.zeros(2, device="meta")]),
    ),
    "two tensors": (
        ValueError,
        "one element for this process, not 2",
        lambda group: group.gather([], [torch.zeros(2), torch.zeros(2)], dist.GatherOptions()),
    ),
    "root": (
        ValueError,
        "root",
        lambda group: group.broadcast([torch.zeros(2)], options(dist.BroadcastOptions, rootRank=9)),
    ),
    "parts": (
        ValueError,
        "5 elements cannot be divided into 2 equal parts",
        lambda group: group.allgather_into_tensor_coalesced([torch.zeros(5)], [torch.zeros(2)]),
    ),
    "float8 reduced": (
        NotImplementedError,
        "float8_e5m2",
        lambda group: group.allreduce([torch.zeros(2).to(torch.float8_e5m2)]),
    ),
    "float8 of other libraries reduced": (
        TypeError,
        "float8_e5m2fnuz",
        lambda group: group.allreduce([torch.zeros(2).to(torch.float8_e5m2fnuz)]),
    ),
}


@pytest.mark.parametrize("call", list(BAD_CALLS))
def test_bad_arguments_are_refused_and_the_group_goes_on(call):
    kind, message, function = BAD_CALLS[call]

    def run(group):
        with pytest.raises(kind, match=message):
            function(group)
        group.barrier().wait()

    torch_ranks.in_threads(2, run)


def test_a_callback_gets_the_tensors_and_must_not_call_the_group():
    def run(group):
        refused = threading.Event()

        def callback(future):
            with pytest.raises(RuntimeError, match="wait for the future, and call it then"):
                group.barrier()
            refused.set()
            return future.wait()[0] * 10

        if group.rank() == 1:
            group._store.wait(["started"])
        work = group.allreduce([torch.ones(2)])
        chained = work.get_future().then(callback)
        if group.rank() == 0:
            group._store.set("started", "yes")  # The other rank has not come: it is in flight.
            assert chained.wait().tolist() == [20, 20]
            assert refused.wait(60)
        else:
            work.wait()

    store_is_shared_by_prefix = torch_ranks.in_threads(2, run)
    assert store_is_shared_by_prefix == [None, None]


def test_an_error_in_the_background_is_that_of_work_and_future():
    def run(group):
        if group.rank() == 0:
            work = group.allreduce([torch.ones(2)])
        else:
            work = group.allreduce([torch.ones(3)])
        for error in (syncline.DistMismatchError, dist.DistBackendError, RuntimeError):
            with pytest.raises(error, match="rank [01]"):
                work.wait()
        with pytest.raises(RuntimeError, match="rank [01]"):
            work.get_future().wait()
        assert isinstance(work.exception(), syncline.DistMismatchError)
        assert work.is_completed() and not work.is_success()

    torch_ranks.in_threads(2, run)


def test_a_missing_rank_is_named_after_the_timeout():
    def run(group):
        if group.rank() == 0:
            opts = options(dist.AllreduceOptions, timeout=timedelta(milliseconds=300))
            with pytest.raises(syncline.DistTimeoutError, match="rank 1") as error:
                group.allreduce([torch.ones(2)], opts).wait()
            assert error.value.ranks == (1,)
            assert (error.value.operation, error.value.sequence) == ("all_reduce", 0)
            group._store.set("failed", "yes")
        else:
            group._store.wait(["failed"])

    torch_ranks.in_threads(2, run)


def test_set_timeout_is_heeded():
    def run(group):
        group.set_timeout(timedelta(milliseconds=300))
        if group.rank() == 0:
            with pytest.raises(dist.DistBackendError, match="rank 1"):
                group.allreduce([torch.ones(2)]).wait()
            group._store.set("failed", "yes")
        else:
            group._store.wait(["failed"])

    torch_ranks.in_threads(2, run)


def test_a_monitored_barrier_names_all_missing_ranks():
    def run(group):
        group.monitored_barrier()
        if group.rank() == 0:
            with pytest.raises(syncline.DistTimeoutError, match="(?s)1.*2"):
                group.monitored_barrier(timedelta(milliseconds=300), wait_all_ranks=True)
            group._store.set("failed", "yes")
        else:
            group._store.wait(["failed"])

    torch_ranks.in_threads(3, run)


def test_an_aborted_group_tells_the_peers():
    def run(group):
        if group.rank() == 1:
            group.abort("out of memory")
        with pytest.raises(dist.DistBackendError, match="out of memory"):
            group.allreduce([torch.ones(2)]).wait()

    torch_ranks.in_threads(2, run)


def test_a_group_can_be_split_by_its_members():
    def run(group):
        rank = group.rank()
        group._set_group_name("all")
        part = group.split_group([2, 0] if rank != 1 else [1], group_desc="part")
        assert part is not None and part.group_desc == "part"
        tensor = torch.full((2,), float(rank))
        part.allreduce([tensor]).wait()
        assert group.split_group([(rank + 1) % 3]) is None
        assert group.split_group([0, 1, 2], opts=Options("gloo"))._group.backend == "gloo"
        return part.rank(), part.size(), tensor[0].item()

    assert torch_ranks.in_threads(3, run) == [(1, 2, 2.0), (0, 1, 1.0), (0, 2, 2.0)]


@pytest.mark.parametrize("backend", ["gloo", "shm", "local"])
def test_the_backend_below_can_be_chosen(backend):
    def run(group):
        tensor = torch.ones(3)
        group.allreduce([tensor]).wait()
        return group._group.backend, tensor[0].item()

    assert torch_ranks.in_threads(2, run, Options(backend=backend)) == [(backend, 2.0)] * 2


def test_a_rank_zero_that_never_comes_is_named():
    with pytest.raises(
        syncline.DistTimeoutError, match="rank 0 has not made the group within"
    ) as error:
        create_group(dist.HashStore(), 1, 2, timedelta(milliseconds=200))
    assert error.value.ranks == (0,)
