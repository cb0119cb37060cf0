"""Every public method of the description of the API works in Python."""

import ast
import importlib.resources
import inspect
import threading
from datetime import timedelta

import numpy
import pytest
import ranks
import syncline as dist
from syncline import _syncline

LONG = timedelta(seconds=60)


def described():
    """ "Class.member" of all that is described, and of what Python has besides."""
    text = importlib.resources.files("syncline").joinpath("_syncline.pyi").read_text()
    members = {}
    for item in ast.parse(text).body:
        if (
            isinstance(item, ast.ClassDef)
            and not item.name.startswith("_")  # The package's own.
            and not any(ast.unparse(base) == "Enum" for base in item.bases)
        ):
            for member in item.body:
                if isinstance(member, ast.FunctionDef) and member.name != "__init__":
                    members[f"{item.name}.{member.name}"] = member
    return members


@pytest.fixture
def called(monkeypatch):
    """The names of `described` that are called while the test runs."""
    names = set()

    def record(name, function):
        def method(*args, **kwargs):
            names.add(name)
            return function(*args, **kwargs)

        return method

    for name in described():
        owner, member = name.split(".")
        handle = getattr(_syncline, owner)
        found = next(c.__dict__[member] for c in handle.__mro__ if member in c.__dict__)
        if inspect.isdatadescriptor(found):
            replacement = property(record(name, found.__get__))
        elif isinstance(found, staticmethod):
            replacement = staticmethod(record(name, found.__func__))
        else:
            replacement = record(name, found)
        monkeypatch.setattr(handle, member, replacement)
    return names


def test_every_member_is_called_and_does_what_it_says(called, tmp_path):
    stores(tmp_path)
    info()
    elastic()
    ranks.in_threads(2, group_and_work)
    missing = sorted(set(described()) - called)
    assert not missing, f"call these too: {', '.join(missing)}"


def test_the_classes_have_nothing_else():
    names = {name.split(".")[0] for name in described()}
    found = {
        f"{name}.{member}"
        for name in names
        for member in vars(getattr(_syncline, name))
        if not member.startswith("_")
    }
    assert "ProcessGroup.all_reduce" in found
    assert found <= set(described())


def test_every_enum_has_its_members():
    text = importlib.resources.files("syncline").joinpath("_syncline.pyi").read_text()
    enums = [
        item
        for item in ast.parse(text).body
        if isinstance(item, ast.ClassDef) and [ast.unparse(b) for b in item.bases] == ["Enum"]
    ]
    assert enums
    for item in enums:
        expected = [n.targets[0].id for n in item.body if isinstance(n, ast.Assign)]
        members = list(getattr(_syncline, item.name))
        assert [m.name for m in members] == expected
        assert [m.value for m in members] == list(range(len(members)))


# ---- The calls ----


def stores(folder):
    tcp = dist.TCPStore.create("127.0.0.1", 0, True, LONG)
    assert (tcp.host, tcp.port > 0, tcp.timeout) == ("127.0.0.1", True, LONG)
    file = dist.FileStore.create(str(folder / "store"))
    assert file.path == str(folder / "store")
    hash_store = dist.HashStore.create()
    prefix = dist.PrefixStore.create("p", hash_store)
    assert isinstance(prefix.underlying_store, dist.HashStore)
    for store in (tcp, file, hash_store, prefix):
        store.set("a", b"1")
        assert store.get("a", LONG) == b"1"
        assert store.add("n", 2) == 2
        assert store.compare_set("a", b"1", b"2") == b"2"
        store.wait(["a", "n"], LONG)
        assert store.check(["a"])
        store.append("a", b"3")
        store.multi_set(["b", "c"], [b"4", b"5"])
        assert store.multi_get(["a", "b"], LONG) == [b"23", b"4"]
        assert store.list_keys("") == ["a", "b", "c", "n"]
        assert store.num_keys() >= 4
        assert store.delete_key("a")
        store.barrier("here", 1, LONG)
        assert store.has_extended_api()
        store.set_timeout(LONG)
        assert store.clone().timeout == LONG
        if store is not file:
            store.queue_push("q", b"6")
            assert store.queue_len("q") == 1
            assert store.queue_pop("q", True, LONG) == b"6"
    assert tcp.libuvBackend is False


def info():
    assert _syncline.Info.version().count(".") == 2
    assert {"gloo", "local"} <= set(dist.Info.backends())
    assert {"file", "hash", "tcp"} <= set(dist.Info.stores())
    dist.Info.check_backend("local")
    assert dist.Info.describe_backend("local") == ""
    assert "all_reduce" in dist.Info.operations("local")
    assert "float32" in dist.Info.dtypes("local", "all_reduce")
    assert "all_reduce" in dist.Info.capability_table()


def elastic():
    preemption = _syncline.Preemption.create(dist.HashStore(), 0, 1, LONG)
    assert preemption.reached(5) is False
    assert preemption.agreed_step == -1
    preemption.give_notice()
    step = 6
    while not preemption.reached(step):
        step += 1
    assert preemption.agreed_step == step
    _syncline.Heartbeat.create().beat()


def group_and_work(world):
    group, rank = world.group, world.rank
    assert (world.size, group.rank(), group.size(), group.ranks) == (2, rank, 2, [0, 1])
    assert world.local_rank == rank  # All ranks are of this host.
    assert (group.name(), group.backend, group.timeout) == ("default", "local", ranks.TIMEOUT)
    for suffix in ("", "_async"):
        operations(group, rank, suffix)
    work(group, rank)
    torchs_names(group, rank)
    byte_strings(group, rank)
    reducer(group, rank)
    hooks(group)
    groups(world, rank)
    world.store.set(f"left{rank}", b"")
    world.store.wait(["left0", "left1"])
    world.close()


def operations(group, rank, suffix):
    """Two ranks with [1, 2] and [11, 12]."""

    def call(name, *args):
        result = getattr(group, name + suffix)(*args)
        if suffix:
            result.wait()
        return result

    def mine():
        return numpy.array([1.0, 2.0]) + 10 * rank

    both, total = [[1, 2], [11, 12]], [12, 14]
    op, root = dist.ReduceOp.SUM, 1
    for name in ("broadcast", "broadcast_coalesced", "broadcast_multi"):
        x = mine()
        call(name, x if name == "broadcast" else [x], root)
        assert x.tolist() == both[root]
    for name in ("all_reduce", "all_reduce_coalesced", "all_reduce_multi"):
        x = mine()
        call(name, x if name == "all_reduce" else [x], op, LONG)
        assert x.tolist() == total
    for name in ("scan", "exscan"):
        x = mine()
        call(name, x, op)
        assert x.tolist() == (total if name == "scan" and rank == 1 else both[0])
    for name in ("reduce", "reduce_multi"):
        x = mine()
        call(name, x if name == "reduce" else [x], root, op)
        assert x.tolist() == (total if rank == root else both[rank])
    for name in ("all_gather", "all_gather_coalesced", "all_gather_multi"):
        outputs = list(numpy.zeros((2, 2)))
        call(name, outputs, mine() if name == "all_gather" else [mine()])
        assert [o.tolist() for o in outputs] == both
    output = numpy.zeros(4)
    call("all_gather_single", output, mine())
    assert output.tolist() == [1, 2, 11, 12]
    outputs = list(numpy.zeros((2, 2))) if rank == root else []
    call("gather", outputs, mine(), root)
    assert [o.tolist() for o in outputs] == (both if rank == root else [])
    output = numpy.zeros(2)
    call("scatter", output, [mine(), mine() + 1] if rank == root else [], root)
    assert output.tolist() == [11 + rank, 12 + rank]
    for name in ("reduce_scatter", "reduce_scatter_coalesced", "reduce_scatter_multi"):
        output = numpy.zeros(2)
        call(name, output if name == "reduce_scatter" else [output], [mine(), mine() * 2], op)
        assert output.tolist() == [total, [24, 28]][rank]
    output = numpy.zeros(1)
    call("reduce_scatter_single", output, mine())
    assert output[0] == total[rank]
    outputs = list(numpy.zeros((2, 1)))
    call("all_to_all", outputs, [mine()[:1], mine()[1:]])
    assert [o[0] for o in outputs] == [1 + rank, 11 + rank]
    output = numpy.zeros(2)
    call("all_to_all_single", output, mine(), [1, 1], [1, 1])
    assert output.tolist() == [1 + rank, 11 + rank]
    call("barrier", LONG)
    if rank == 0:
        call("send", mine(), 1, 3, LONG)
    else:
        x = numpy.zeros(2)
        result = call("recv", x, -1, 3, LONG)
        assert (result.source_rank() if suffix else result) == 0
        assert x.tolist() == both[0]
    group.monitored_barrier(LONG)


def work(group, rank):
    started = group.barrier_async()
    called = threading.Event()
    started._on_complete(called.set)
    started.wait(LONG)
    started.synchronize()
    started.synchronize(LONG)
    assert called.wait(60)
    assert started.is_completed() and started.is_success()
    assert started.exception() is None
    assert started.source_rank() == -1
    assert started.result() == started.get_future().wait() == []
    assert list(started.__await__()) == []
    assert started.description.startswith("barrier #")


def torchs_names(group, rank):
    """The methods that torch's groups have; torch_names_test has more of them."""
    assert (group.group_name, group.group_desc) == ("default", "undefined")
    assert group.bound_device_id is None
    with pytest.raises(dist.DistUsageError):  # Threads have no default group.
        group.get_group_store()
    group.set_timeout(LONG)
    assert group.timeout == LONG
    x = numpy.full(2, rank + 1.0)
    assert group.allreduce([x]).wait() is True
    group.allreduce_coalesced([x]).block_current_stream()
    assert x.tolist() == [6, 6]
    outputs = list(numpy.zeros((2, 2)))
    group.allgather([outputs], [x + rank]).wait()
    group.allgather_coalesced([[outputs[0]], [outputs[1]]], [x + rank]).wait()
    assert [output[0] for output in outputs] == [6, 7]
    for method in (group.allgather_into_tensor_coalesced, group.all_gather_single_coalesced):
        output = numpy.zeros(4)
        method([output], [x + rank]).wait()
        assert output.tolist() == [6, 6, 7, 7]
    for method in (group.reduce_scatter_tensor_coalesced, group.reduce_scatter_single_coalesced):
        output = numpy.zeros(1)
        method([output], [x + rank]).wait()
        assert output[0] == 13
    group.alltoall(list(output := numpy.zeros((2, 1))), list(x.reshape(2, 1) + rank)).wait()
    assert output.ravel().tolist() == [6, 7]
    group.alltoall_base(output, x + rank, [1, 1], [1, 1]).wait()
    assert output.ravel().tolist() == [6, 7]
    if rank == 0:
        group.send(x, 1)
    else:
        started = group.recv_anysource([x])
        started.wait()
        assert started.source_rank() == 0


def byte_strings(group, rank):
    own = b"ab"[rank : rank + 1] * (rank + 1)
    assert group.all_gather_bytes(own) == [b"a", b"bb"]
    assert group.broadcast_bytes(own, 1) == b"bb"
    assert group.gather_bytes(own, 0) == ([b"a", b"bb"] if rank == 0 else [])
    assert group.scatter_bytes([b"x", b"yyy"] if rank == 0 else [], 0) == [b"x", b"yyy"][rank]
    if rank == 0:
        group.send_bytes(b"message", 1)
    else:
        message = group.recv_bytes(-1)
        assert (message.value, message.source_rank) == (b"message", 0)


def reducer(group, rank):
    made = dist.Reducer.create(group, [numpy.zeros(2), numpy.zeros(3)], ["a", "b"])
    assert sorted(sum(made.buckets, [])) == [0, 1]
    made.copy_ready(1, numpy.full(3, float(rank)))
    numpy.asarray(made.gradient(0))[:] = rank
    assert not made.await_bucket(0)
    made.mark_ready(0)
    assert made.await_bucket(0)
    assert numpy.asarray(made.gradient(0)).tolist() == [0.5] * 2
    made.finish()
    assert numpy.asarray(made.gradient(1)).tolist() == [0.5] * 3
    reducer_steps(group, rank)
    reducer_stats(made)


def reducer_steps(group, rank):
    made = dist.Reducer.create(
        group,
        [numpy.zeros(2), numpy.zeros((4, 2))],
        bucket_caps_bytes=[8],
        sparse=[1],
        find_unused_parameters=True,
        static_graph=False,
        rebuild_buckets=True,
    )
    made.begin_step(synchronize=False)
    made.copy_ready(0, numpy.full(2, 1.0))
    made.finish()
    assert made.count_active(True) == 2
    made.begin_step(unused=[], divisor=4)
    made.copy_ready(0, numpy.full(2, 2.0))
    made.mark_ready_sparse(1, numpy.array([rank]), numpy.full((1, 2), 4.0))
    made.finish()
    assert numpy.asarray(made.gradient(0)).tolist() == [1.5] * 2
    assert numpy.asarray(made.sparse_indices(1)).tolist() == [0, 1]
    assert numpy.asarray(made.sparse_values(1)).tolist() == [[1, 1], [1, 1]]
    assert made.is_used(0) and made.is_used(1)
    assert made.generation == 1
    if rank == 0:
        made.shadow_step(1)
    else:
        made.begin_step(True, [1], 1)
        made.copy_ready(0, numpy.full(2, 5.0))
        made.finish()
    assert numpy.asarray(made.gradient(0)).tolist() == [5] * 2
    assert not made.is_used(1)
    made.replace_group(group)


def reducer_stats(made):
    stats = made.stats()
    assert (stats.steps, stats.hook) == (1, "all_reduce")
    assert stats.bucket_bytes == [40]
    assert stats.bucket_parameters == [2]
    assert 0 <= stats.ready[0] <= stats.start[0] < stats.end[0] <= stats.step_end
    assert stats.backward_end <= stats.step_end
    assert 0 <= stats.hidden_time <= stats.communication_time
    assert 0 <= stats.overlap_share <= 1
    assert 0 <= stats.total_overlap_share <= 1
    assert 0 < stats.own_time < stats.step_end
    assert 0 < stats.copy_time < stats.step_end
    assert "backward ended at" in stats.table


def hooks(group):
    made = dist.Reducer.create(group, [numpy.zeros((2, 3))])
    for hook in (
        dist.CommHook.all_reduce(),
        dist.CommHook.float16_compress(),
        dist.CommHook.bfloat16_compress(),
        dist.CommHook.power_sgd(1, 0, 0.1, True, True, 0.0, 7),
        dist.CommHook.batched_power_sgd(3, 0, False, False, 1e-9, 7),
        dist.CommHook.quantize_per_tensor(),
        dist.CommHook.quantize_per_channel(4),
        dist.CommHook.top_k(1.0),
        dist.CommHook.post_local_sgd(0, group),
        dist.comm_hooks.from_function(check_bucket, "own"),
    ):
        made.set_hook(hook)
        made.copy_ready(0, numpy.full((2, 3), 3.0))
        made.finish()
        numpy.testing.assert_allclose(numpy.asarray(made.gradient(0)), 3.0, rtol=1e-6)
        assert hook.name == made.stats().hook
    assert hook.name == "own"
    averager = dist.ParameterAverager.create(group, 2, 1)
    assert averager.average([numpy.zeros(2)]) is False


def check_bucket(bucket, group):
    assert (bucket.index, bucket.count, bucket.step, bucket.divisor) == (0, 1, 9, 2)
    assert bucket.is_last
    assert bucket.parameters == [0]
    assert numpy.asarray(bucket.gradients[0]).shape == (2, 3)
    group.all_reduce(bucket.buffer, dist.ReduceOp.AVG)


def groups(world, rank):
    with pytest.raises((dist.DistError, ValueError)):
        dist.World.from_mpi("Abacus", 0, "auto")
    assert world.new_group([1, 0]).rank() == 1 - rank
    assert world.group.split([[1], [0]]).ranks == [rank]
    both = world.new_group([0, 1])
    if rank == 0:
        alone = both.shrink([1], LONG)
        assert (alone.size(), alone.ranks) == (1, [0])
        alone.abort("enough")
        with pytest.raises(dist.DistBackendError, match="enough"):
            alone.barrier()
        alone.shutdown()
        alone.close()
