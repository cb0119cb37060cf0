"""What scripts written for torch.distributed say besides its functions: names, words, types."""

import sys
import types
import warnings
from datetime import timedelta

import numpy
import pytest
import ranks
import syncline as dist
from syncline import distributed_c10d

SOON = timedelta(milliseconds=100)


@pytest.fixture
def joined():
    """A job of one rank."""
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


# ---- Words and types of errors ----


def test_before_joining_errors_have_torchs_words_and_types():
    words = (
        "^Default process group has not been initialized, please make sure to call "
        r"init_process_group\."
    )
    calls = [
        dist.get_rank,
        dist.barrier,
        dist._get_default_group,
        dist.get_default_group,
        dist._get_default_store,
        distributed_c10d._check_default_pg,
        lambda: dist.all_reduce(numpy.ones(1)),
        lambda: dist.P2POp(dist.isend, numpy.ones(1), 0),
    ]
    for call in calls:
        for kind in (ValueError, RuntimeError, dist.DistError):  # As torch 2, 1, and ours.
            with pytest.raises(kind, match=words):
                call()


@pytest.mark.usefixtures("joined")
def test_joining_twice_is_said_in_torchs_words():
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match="^trying to initialize the default process group twice!"):
            dist.init_process_group("local")


@pytest.mark.usefixtures("joined")
def test_bad_arguments_are_errors_of_torch_1_too():
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match="Invalid process group specified"):
            dist.get_backend(dist.GroupMember.NON_GROUP_MEMBER)
        with pytest.raises(kind):
            dist.broadcast(numpy.ones(1), src=5)
        with pytest.raises(kind):
            dist.all_gather([numpy.ones(1)] * 2, numpy.ones(1))
    for kind in (TypeError, RuntimeError):
        with pytest.raises(kind):
            dist.all_reduce("no tensor")


def test_timeouts_say_so_in_torchs_words():
    def run(world):
        if world.rank == 0:
            with pytest.raises(dist.DistTimeoutError, match="^Timed out: "):
                world.group.recv(numpy.ones(1), 1, timeout=SOON)
            return
        with pytest.raises(dist.DistError):
            world.group.barrier()

    ranks.in_threads(2, run)
    with pytest.raises(dist.DistStoreError, match="^Wait timeout: store"):
        dist.HashStore().get("absent", SOON)


@pytest.mark.parametrize(
    ("waits_for_all", "missing", "words"),
    [
        (False, (1, 2), "^Rank 1 failed to pass monitoredBarrier in 100 ms: .*ranks 1, 2 of 3"),
        (True, (1, 2), "^Ranks 1, 2 failed to pass monitoredBarrier in 100 ms: .*ranks 1, 2 of 3"),
        (True, (1,), "^Ranks 1 failed to pass monitoredBarrier in 100 ms: .*rank 1 of 2"),
    ],
)
def test_a_monitored_barrier_names_ranks_in_torchs_words(waits_for_all, missing, words):
    def run(world):
        if world.rank == 0:
            with pytest.raises(RuntimeError, match=words) as error:
                dist.monitored_barrier(world.group, SOON, waits_for_all)
            assert error.value.ranks == missing

    ranks.in_threads(1 + len(missing), run)


def test_a_parameter_that_is_ready_twice_is_said_in_torchs_words():
    def run(world):
        reducer = dist.Reducer.create(world.group, [numpy.zeros(2), numpy.zeros(2)])
        reducer.copy_ready(0, numpy.ones(2))
        for kind in (ValueError, RuntimeError):
            with pytest.raises(kind, match="^Expected to mark a variable ready only once: "):
                reducer.copy_ready(0, numpy.ones(2))

    ranks.in_threads(1, run)


# ---- Groups ----


def all_of_them(group=dist.group.WORLD):  # None now; see below.
    return dist.get_world_size(group)


def test_the_world_of_a_former_job_stands_for_that_of_this_one():
    kept = []
    for _ in range(2):
        dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
        kept.append(dist.group.WORLD)
        other = dist.new_group()
        dist.all_reduce(numpy.ones(1), group=kept[0])
        assert all_of_them(kept[0]) == all_of_them() == 1
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="has not been initialized"):
        dist.barrier(kept[0])
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(ValueError, match="was destroyed"):
        dist.barrier(other)
    dist.destroy_process_group(kept[0])
    assert not dist.is_initialized()


@pytest.mark.usefixtures("joined")
def test_what_torch_tells_of_groups():
    world = dist.group.WORLD
    made = dist.new_group([0], group_desc="mine", device_id=None)
    assert (world.group_desc, made.group_desc) == ("default_pg", "mine")
    assert (world.group_name, made.group_name) == (world.name(), made.name())
    world.get_group_store().set("key", "of the world")
    assert world.get_group_store().get("key") == b"of the world"
    assert not made.get_group_store().check(["key"])
    assert world._get_backend("cpu") is world
    assert distributed_c10d._get_default_group() is world
    assert distributed_c10d._default_pg is world is distributed_c10d._world.default_pg
    assert set(distributed_c10d._pg_map) == {world, made}
    assert distributed_c10d._pg_names[made] == made.name()
    assert distributed_c10d._pg_group_ranks[made] == {0: 0}
    assert distributed_c10d._backend == "local" == dist.get_backend()
    assert isinstance(dist.get_backend(), dist.Backend)
    assert distributed_c10d._get_pg_config(made)["pg_desc"] == "mine"
    assert dist.GroupMember.NON_GROUP_MEMBER == -100
    assert distributed_c10d._rank_not_in_group(dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        distributed_c10d.nothing  # noqa: B018
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7), made)
    assert (made.timeout, world.timeout) == (timedelta(seconds=7), timedelta(minutes=30))
    with pytest.raises(ValueError, match="timeout must be positive"):
        made.set_timeout(timedelta())
    half = dist.split_group(made, [[0]], group_desc="part", backend="local")
    assert half.timeout == timedelta(seconds=7) and half.group_desc == "part"
    with pytest.raises(NotImplementedError, match="keeps the backend of its parent, local"):
        dist.split_group(made, [[0]], backend="gloo")


def test_a_timeout_that_was_set_holds_for_calls_that_are_given_none():
    def run(world):
        if world.rank == 1:
            world.store.wait(["done"])
            return
        world.group.set_timeout(SOON)
        with pytest.raises(dist.DistTimeoutError, match="100ms"):
            world.group.recv(numpy.ones(1), 1)
        world.store.set("done", b"")

    ranks.in_threads(2, run)


@pytest.mark.usefixtures("joined")
def test_aborting_all_groups_leaves_the_job():
    made = dist.new_group()
    distributed_c10d._abort_process_group()
    assert not dist.is_initialized()
    with pytest.raises(dist.DistError, match="aborted"):
        made.barrier()


def test_groups_of_one_backend_are_made_by_torchs_classes():
    store = dist.HashStore()
    group = dist.ProcessGroupGloo(store, 0, 1, timedelta(seconds=30))
    assert isinstance(group, dist.ProcessGroupGloo) and isinstance(group, dist.ProcessGroup)
    assert not isinstance(group, dist.ProcessGroupNCCL)
    assert group.allreduce([numpy.ones(1)]).wait()
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, 7.5)
    assert group.timeout == timedelta(seconds=7.5)
    for timeout in (5, "5", True):
        with pytest.raises(TypeError, match="timeout must be a datetime.timedelta"):
            dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout)


@pytest.mark.parametrize(
    ("backend", "is_gloo"), [("cpu:gloo", True), ("cpu:gloo,cuda:nccl", True), ("mygloo", False)]
)
def test_whether_a_group_is_one_of_torchs_classes_is_in_its_backends(backend, is_gloo):
    class Named(dist.ProcessGroup):
        pass

    Named.backend = backend
    group = Named.__new__(Named)
    assert isinstance(group, dist.ProcessGroupGloo) == is_gloo
    assert isinstance(group, dist.ProcessGroupNCCL) == ("nccl" in backend)


def options_that_do_not_fit(world):
    group, x = world.group, numpy.ones(2)
    for call in (
        lambda: group.allreduce([x], dist.BroadcastOptions()),
        lambda: group.allreduce([x], opts=dist.ReduceOptions()),
        lambda: group.broadcast([x], dist.AllreduceOptions()),
        lambda: group.barrier(dist.AllreduceOptions()),
        lambda: group.reduce_scatter_single(x[:1], x, dist.AllreduceOptions()),
    ):
        with pytest.raises(TypeError, match="options must be .*Options, not .*Options"):
            call()
    options = dist.AllreduceOptions()
    with pytest.raises(AttributeError, match="reduceop"):
        options.reduceop = dist.ReduceOp.MAX
    for seconds in (0, -1):
        options.timeout = timedelta(seconds=seconds)
        assert group.allreduce([x], options).wait()
    assert x.tolist() == [4, 4]


def test_options_of_another_operation_and_misspelt_ones_are_refused():
    ranks.in_threads(2, options_that_do_not_fit)


# ---- Operations by torch's names and forms ----


def forms(world):
    """Two ranks with [1, 2] and [11, 12]."""
    group, rank = world.group, world.rank

    def mine():
        return numpy.array([1.0, 2.0]) + 10 * rank

    most = dist.AllreduceOptions()
    most.reduceOp = dist.ReduceOp.MAX
    most.asyncOp = False
    for arguments in [([None], most), ([None], dist.ReduceOp.MAX), (None, dist.ReduceOp.MAX)]:
        x = mine()
        first = [x] if isinstance(arguments[0], list) else x
        work = group.allreduce(first, arguments[1])
        assert work.wait() and x.tolist() == [11, 12]
    x = mine()
    group.allreduce(tensors=[x], opts=most)
    assert x.tolist() == [11, 12]
    group.allreduce([x], dist.ReduceOp.PREMUL_SUM(0.5)).wait()
    assert x.tolist() == [11, 12]

    root = dist.BroadcastOptions(rootRank=1)
    for call in (
        lambda x: group.broadcast([x], root),
        lambda x: group.broadcast(x, 1),
        lambda x: group.broadcast(x, root=1, timeout=timedelta(seconds=30)),
        lambda x: group.broadcast(tensors=[x], opts=root),
    ):
        x = mine()
        assert call(x).wait() and x.tolist() == [11, 12]
    to_one = dist.ReduceOptions(rootRank=1)
    for call in (lambda x: group.reduce([x], to_one), lambda x: group.reduce(x, 1)):
        x = mine()
        assert call(x).wait() and x.tolist() == ([12, 14] if rank == 1 else [1, 2])

    outputs = list(numpy.zeros((2, 2)))
    lists = [outputs] if rank == 1 else []
    group.gather(lists, [mine()], dist.GatherOptions(rootRank=1)).wait()
    assert [o.tolist() for o in outputs] == ([[1, 2], [11, 12]] if rank == 1 else [[0, 0]] * 2)
    output = numpy.zeros(2)
    inputs = [[mine(), mine() + 1]] if rank == 1 else []
    group.scatter([output], inputs, dist.ScatterOptions(rootRank=1)).wait()
    assert output.tolist() == [11 + rank, 12 + rank]
    total = dist.ReduceScatterOptions()
    group.reduce_scatter([output], [[mine(), mine() * 2]], total).wait()
    assert output.tolist() == [[12, 14], [24, 28]][rank]

    whole = numpy.zeros(4)
    for gather in (group.all_gather_single, group._allgather_base):
        whole[:] = 0
        assert gather(whole, mine(), dist.AllgatherOptions()).wait()
        assert whole.tolist() == [1, 2, 11, 12]
    part = numpy.zeros(1)
    for scatter in (group.reduce_scatter_single, group._reduce_scatter_base):
        part[:] = 0
        assert scatter(part, mine(), total).wait()
        assert part[0] == [12, 14][rank]
    pair = numpy.zeros(2)
    assert group.all_to_all_single(pair, mine(), [1, 1], [1, 1], dist.AllToAllOptions()).wait()
    assert pair.tolist() == [1 + rank, 11 + rank]
    for opts in ((), (dist.BarrierOptions(),), (timedelta(seconds=30),)):
        assert group.barrier(*opts).wait()
    if rank == 0:
        group.send([mine()], 1, 5).wait()
    else:
        x = numpy.zeros(2)
        work = group.recv([x], 0, 5)
        assert work.wait() and work.source_rank() == 0 and x.tolist() == [1, 2]
    several = [numpy.ones(1), numpy.ones(1)]
    group.allreduce(several).wait()
    assert [x[0] for x in several] == [4, 4]
    with pytest.raises(ValueError, match="a list with one tensor is needed, not with 2"):
        group.recv([mine(), mine()], 0, 5)


def test_groups_have_torchs_forms_of_operations():
    ranks.in_threads(2, forms)


@pytest.mark.usefixtures("joined")
def test_functions_return_nothing_where_torchs_do():
    x = numpy.ones(1)
    for result in (
        dist.broadcast(x, 0),
        dist.all_reduce(x),
        dist.barrier(timeout=timedelta(seconds=9)),
        dist.gather(x, [x.copy()]),
        dist._all_gather_base(x.copy(), x),
        dist._reduce_scatter_base(x.copy(), x),
    ):
        assert result is None
    work = dist.all_reduce(x, async_op=True)
    assert work.wait() is True and work.wait(timedelta(seconds=9)) is True
    assert work._get_sequence_number() > 0 and work._source_rank() == -1


@pytest.mark.usefixtures("joined")
def test_a_message_of_a_batch_knows_both_ranks_of_its_peer():
    operation = dist.P2POp(dist.isend, numpy.ones(1), 0)
    assert (operation.peer, operation.group_peer, operation.tag) == (0, 0, 0)
    assert operation.group is dist.group.WORLD


def test_old_reductions_are_listed_and_warned_of():
    assert list(dist.reduce_op.__members__) == list(dist.ReduceOp.__members__)
    with warnings.catch_warnings(record=True) as caught:
        assert dist.reduce_op.MIN is dist.ReduceOp.MIN is dist.ReduceOp.RedOpType.MIN
    assert caught[0].category is FutureWarning  # Shown by default.


# ---- Init methods of one's own ----


def test_a_scheme_of_ones_own():
    seen = []

    def meet(url, timeout):
        seen.append((url, timeout))
        yield dist.HashStore(), 0, 1

    dist.register_rendezvous_handler("zeus", meet)
    with pytest.raises(RuntimeError, match="Rendezvous handler for zeus:// already registered"):
        dist.register_rendezvous_handler("zeus", meet)
    with pytest.raises(RuntimeError, match="Rendezvous handler for tcp:// already registered"):
        dist.register_rendezvous_handler("tcp", meet)
    dist.init_process_group("local", "zeus://olympus?a=b", timedelta(seconds=5), 1, 0)
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    dist.destroy_process_group()
    assert seen == [("zeus://olympus?a=b&rank=0&world_size=1", timedelta(seconds=5))]
    with pytest.raises(RuntimeError, match="No rendezvous handler for hera://"):
        dist.rendezvous("hera://olympus")


def test_urls_lead_to_stores(tmp_path, monkeypatch):
    store, rank, size = next(dist.rendezvous(f"file://{tmp_path}/store", 1, 2))
    assert (type(store), rank, size) == (dist.FileStore, 1, 2)
    store, rank, size = next(dist.rendezvous("tcp://127.0.0.1:0?rank=0&world_size=3"))
    assert (store.host, rank, size) == ("127.0.0.1", 0, 3)
    for name, value in [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1")]:
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(ValueError, match="environment variable MASTER_PORT expected, but not set"):
        next(dist.rendezvous("env://"))
    monkeypatch.setenv("MASTER_PORT", "0")
    assert next(dist.rendezvous("env://"))[1:] == (0, 1)
    for url in ("tcp://127.0.0.1:1?world_size=1", f"file://{tmp_path}/x?world_size=1"):
        with pytest.raises(ValueError, match="rank parameter missing"):
            next(dist.rendezvous(url))


# ---- The rest ----


def test_debug_levels_are_read_and_set(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    dist.set_debug_level_from_env()
    assert dist.get_debug_level() is dist.DebugLevel.DETAIL
    dist.set_debug_level(dist.DebugLevel.OFF)
    assert dist.get_debug_level() is dist.DebugLevel.OFF
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "loud")
    with pytest.raises(RuntimeError, match="must be one of OFF, INFO, DETAIL, not 'LOUD'"):
        dist.set_debug_level_from_env()


def test_buckets_are_assigned_by_size():
    assign = dist._compute_bucket_assignment_by_size
    tensors = [
        numpy.zeros(n, t) for n, t in ((1, "f4"), (2, "f8"), (1, "f4"), (1, "f8"), (9, "f4"))
    ]
    assert assign(tensors, [8]) == ([[0, 2], [1], [3], [4]], [8, 8, 8, 8])
    assert assign(tensors, [4, 100]) == ([[0], [1], [2, 4], [3]], [4, 4, 100, 100])
    assert assign(tensors[:2], [100], [True, False]) == ([[0], [1]], [0, 100])
    assert assign(tensors[:2], [100], [], [7, 3]) == ([[7], [3]], [100, 100])


def test_parts_of_torchs_distributed_data_parallel():
    def run(world):
        tensors = [numpy.full(n, float(world.rank)) for n in (1, 5, 2)]
        dist._broadcast_coalesced(world.group, tensors, 20, 1)
        assert [x.tolist() for x in tensors] == [[1.0], [1.0] * 5, [1.0] * 2]
        verify = dist._verify_params_across_processes
        verify(world.group, tensors)
        with pytest.raises(RuntimeError, match="same model across all ranks, but Rank 1 has 2"):
            verify(world.group, tensors[world.rank :])
        with pytest.raises(RuntimeError, match=r"params\[0\] in rank 1, .* not to match the same"):
            verify(world.group, [numpy.zeros(2 + world.rank)])

    ranks.in_threads(2, run)


def test_torchs_module_names_are_there():
    assert isinstance(sys.modules["syncline.distributed_c10d"], types.ModuleType)
    from syncline.constants import default_pg_nccl_timeout, default_pg_timeout
    from syncline.rendezvous import register_rendezvous_handler

    assert default_pg_timeout > default_pg_nccl_timeout
    assert register_rendezvous_handler is dist.register_rendezvous_handler
    with dist.record_comm("a name"):
        pass
