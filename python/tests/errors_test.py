"""What goes wrong raises the right type, and the message says what to do."""

import array
import pickle
import re
import socket
import threading
from datetime import timedelta

import numpy
import pytest
import ranks
import syncline as dist


@pytest.fixture
def joined():
    """A job of one rank."""
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def raises(kind, message):
    return pytest.raises(kind, match=re.escape(message))


# ---- The types ----


@pytest.mark.parametrize(
    ("kind", "standard"),
    [
        (dist.DistTimeoutError, TimeoutError),
        (dist.DistNetworkError, ConnectionError),
        (dist.DistStoreError, RuntimeError),
        (dist.DistBackendError, RuntimeError),
        (dist.DistMismatchError, RuntimeError),
    ],
)
def test_every_error_is_a_dist_error_and_a_standard_one(kind, standard):
    assert issubclass(kind, dist.DistError)
    assert issubclass(kind, standard)
    assert str(kind("what happened")) == "what happened"


def test_a_message_does_not_begin_with_a_status_code():
    with pytest.raises(dist.DistTimeoutError) as error:
        dist.HashStore().get("k", timedelta(milliseconds=1))
    assert str(error.value).startswith("Wait timeout: store hash://: key 'k' not set after 1ms; ")


def test_ranks_that_disagree_get_a_mismatch_error():
    def differ(world):
        tensor = numpy.zeros(4, [numpy.float32, numpy.float64][world.rank])
        with pytest.raises(dist.DistMismatchError, match="float32.*float64|float64.*float32"):
            world.group.all_reduce(tensor)
        with raises(dist.DistMismatchError, "can no longer be used"):
            world.group.barrier()

    ranks.in_threads(2, differ)


def origin(error):
    return error.value.ranks, error.value.operation, error.value.sequence


def test_an_error_that_is_of_no_group_has_no_origin():
    with pytest.raises(dist.DistTimeoutError) as error:
        dist.HashStore().get("k", timedelta(milliseconds=1))
    assert origin(error) == ((), None, None)
    assert dist.DistBackendError("made here").ranks == ()


def test_a_mismatch_tells_the_ranks_that_disagree_and_the_own_operation():
    def differ(world):
        group = world.group
        group.barrier()
        calls = [group.all_reduce, lambda tensor: group.broadcast(tensor, 0)]
        with pytest.raises(dist.DistMismatchError) as error:
            calls[world.rank](numpy.zeros(4))
        assert origin(error) == ((0, 1), ["all_reduce", "broadcast"][world.rank], 1)
        with raises(dist.DistMismatchError, "can no longer be used") as refused:
            group.barrier()
        assert origin(refused) == origin(error)
        assert origin(refused) != ((), None, None)
        copy = pickle.loads(pickle.dumps(error.value))
        assert (copy.ranks, copy.operation, copy.sequence) == origin(error)

    ranks.in_threads(2, differ)


def test_a_timeout_tells_the_ranks_that_are_late():
    timed_out = threading.Event()

    def wait(world):
        if world.rank == 2:
            assert timed_out.wait(60)
            return
        if world.rank == 1:
            with pytest.raises(dist.DistError):
                world.group.barrier()
            return
        with pytest.raises(dist.DistTimeoutError) as error:
            world.group.barrier_async(timedelta(seconds=1)).wait()
        timed_out.set()
        assert 2 in error.value.ranks
        assert 0 not in error.value.ranks
        assert (error.value.operation, error.value.sequence) == ("barrier", 0)

    ranks.in_threads(3, wait)


def test_a_monitored_barrier_tells_the_ranks_that_are_late():
    def wait(world):
        if world.rank > 0:
            return
        with pytest.raises(dist.DistTimeoutError) as error:
            world.group.monitored_barrier(timedelta(milliseconds=200))
        assert origin(error) == ((1, 2), "monitored_barrier", 0)

    ranks.in_threads(3, wait)


# ---- Tensors ----


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        (numpy.array([None, 1]), "object"),
        (numpy.array(["a", "b"]), "<U1"),
        (numpy.array([b"a", b"b"]), "|S1"),
        (numpy.array(["2020-01-01"], "datetime64[D]"), "datetime64[D]"),
        (numpy.zeros(2, [("x", "f4"), ("y", "i4")]), "[('x', '<f4'), ('y', '<i4')]"),
        (numpy.zeros(2, ">f4"), ">f4"),
        (numpy.zeros(2, numpy.longdouble), "float128"),
        (array.array("u", "text"), "'w' (buffer format)"),
    ],
)
@pytest.mark.usefixtures("joined")
def test_an_unknown_element_type_is_named_with_the_known_ones(tensor, dtype):
    with raises(TypeError, f"tensor has elements of type {dtype}, which") as error:
        dist.all_reduce(tensor)
    assert "convert it" in str(error.value)
    assert "bfloat16, float32, float64" in str(error.value)


@pytest.mark.parametrize("value", [[1.0, 2.0], (1,), 3, 2.5, "text", None, numpy.float32(1)])
@pytest.mark.usefixtures("joined")
def test_what_is_no_array_is_refused_with_advice(value):
    with raises(TypeError, "tensor must be an array that shares its memory, not ") as error:
        dist.all_reduce(value)
    assert "numpy.asarray(x)" in str(error.value)


@pytest.mark.usefixtures("joined")
def test_a_strided_tensor_is_refused_with_advice():
    with raises(ValueError, "not contiguous (float64[3] on cpu): pass a contiguous copy"):
        dist.all_reduce(numpy.zeros(6)[::2])
    with raises(ValueError, "not contiguous (float64[3, 2] on cpu)"):
        dist.all_reduce(numpy.zeros((2, 3)).T)
    with raises(ValueError, "elements that do not lie at multiples of their size"):
        dist.all_reduce(numpy.zeros(3, [("x", "f4"), ("y", "i1")])["x"])


@pytest.mark.usefixtures("joined")
def test_read_only_memory_can_be_sent_but_not_written():
    frozen = numpy.arange(3)
    frozen.flags.writeable = False
    with raises(TypeError, "read-only (int64[3] on cpu) but would be written: pass a writable"):
        dist.all_reduce(frozen)
    with raises(TypeError, "read-only (uint8[2] on cpu)"):
        dist.all_reduce(b"ab")
    gathered = [numpy.zeros(3, numpy.int64)]
    dist.all_gather(gathered, frozen)
    assert gathered[0].tolist() == [0, 1, 2]


@pytest.mark.usefixtures("joined")
def test_outputs_must_fit_the_input():
    with raises(ValueError, "outputs must have one tensor for each of the 1 ranks, not 2"):
        dist.all_gather([numpy.zeros(1), numpy.zeros(1)], numpy.zeros(1))
    with raises(TypeError, "all tensors must have one type"):
        dist.all_gather([numpy.zeros(1)], numpy.zeros(1, numpy.int8))
    with raises(TypeError, "outputs[0] must be an array that shares its memory, not float"):
        dist.all_gather([1.5], numpy.zeros(1))


@pytest.mark.usefixtures("joined")
def test_a_reduction_must_be_one_and_fit_the_elements():
    with raises(TypeError, "op must be a ReduceOp, not str: one of ReduceOp.SUM, ReduceOp.AVG"):
        dist.all_reduce(numpy.zeros(1), "sum")
    with raises(ValueError, "float64"):
        dist.all_reduce(numpy.zeros(1), dist.ReduceOp.BXOR)


# ---- Ranks, groups, joining ----


@pytest.mark.usefixtures("joined")
def test_a_rank_out_of_range_is_refused_with_the_ranks_there_are():
    with raises(ValueError, "src must be a rank of group 'default', one of 0, not 1"):
        dist.broadcast(numpy.zeros(1), src=1)
    with raises(ValueError, "dst must be a rank of group 'default', one of 0, not -1"):
        dist.send(numpy.zeros(1), dst=-1)
    with raises(ValueError, "cannot send to itself"):
        dist.send(numpy.zeros(1), dst=0)
    with raises(ValueError, "rank 7 is not in the world of 1: ranks go from 0 to 0"):
        dist.new_group([0, 7])
    with raises(ValueError, "rank 0 is listed twice"):
        dist.new_group([0, 0])


def test_before_joining_every_call_says_to_join():
    for call in (dist.get_rank, dist.get_world_size, dist.barrier, dist.destroy_process_group):
        with raises(dist.DistError, "call init_process_group first"):
            call()
    assert dist.group.WORLD is None


@pytest.mark.usefixtures("joined")
def test_joining_twice_is_refused():
    with raises(dist.DistError, "already initialized as rank 0 of 1: call destroy_process_group"):
        dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)


def test_joining_again_after_leaving_works():
    for _ in range(2):
        dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
    assert not dist.is_initialized()


def test_a_store_and_an_init_method_exclude_each_other():
    with raises(ValueError, "either store or init_method, not both"):
        dist.init_process_group(store=dist.HashStore(), init_method="env://", rank=0, world_size=1)
    assert not dist.is_initialized()


def test_an_unknown_backend_is_refused_with_those_there_are():
    with raises(
        ValueError, "unknown backend 'Smoke'; choose one of: auto, gloo, local, mpi, nccl, shm"
    ):
        dist.init_process_group("Smoke", store=dist.HashStore(), rank=0, world_size=1)
    with raises(TypeError, "backend must be a str, not int"):
        dist.init_process_group(5, store=dist.HashStore(), rank=0, world_size=1)


def test_a_missing_environment_variable_is_named(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with raises(ValueError, "RANK is not set"):
        dist.init_process_group(init_method="env://")
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with raises(ValueError, "RANK"):
        dist.init_process_group()


def test_a_store_needs_rank_and_world_size():
    with raises(ValueError, "rank and world_size are needed"):
        dist.init_process_group(store=dist.HashStore())
    with raises(ValueError, "got rank 2, world_size 2"):
        dist.init_process_group(store=dist.HashStore(), rank=2, world_size=2)


@pytest.mark.parametrize("timeout", [5, 5.0, "5s"])
def test_a_timeout_that_is_no_timedelta_is_refused_with_advice(timeout):
    with raises(TypeError, "timeout must be a datetime.timedelta, not ") as error:
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
    assert "pass datetime.timedelta(seconds=" in str(error.value)
    with raises(TypeError, "timeout must be a datetime.timedelta"):
        dist.HashStore().get("k", timeout)


def test_a_timeout_must_be_positive():
    with raises(ValueError, "timeout must be positive, not 0"):
        dist.HashStore(timedelta(0))
    with raises(ValueError, "timeout must be positive, not -1s"):
        dist.init_process_group(
            store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=-1)
        )


def test_ranks_that_do_not_join_are_named():
    with raises(dist.DistTimeoutError, "rank 1, 2 of 3 did not join within 200ms") as error:
        dist.init_process_group(
            store=dist.HashStore(), rank=0, world_size=3, timeout=timedelta(milliseconds=200)
        )
    assert origin(error) == ((1, 2), None, None)


@pytest.mark.usefixtures("joined")
def test_a_destroyed_group_is_refused():
    group = dist.new_group([0])
    dist.destroy_process_group(group)
    with raises(ValueError, "was destroyed"):
        dist.barrier(group)
    with raises(dist.DistBackendError, "is closed"):
        group.barrier()
    dist.barrier()


@pytest.mark.usefixtures("joined")
def test_what_is_no_group_is_refused():
    with raises(TypeError, "group must be None or what new_group returned, not str"):
        dist.barrier("default")


# ---- Stores ----


def test_a_port_in_use_is_a_network_error_that_names_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with raises(dist.DistNetworkError, str(port)) as error:
            dist.TCPStore("127.0.0.1", port, is_master=True, timeout=timedelta(seconds=5))
    assert "in use" in str(error.value)


def test_a_server_that_is_not_there_is_named():
    with socket.socket() as reserved:  # Bound, so that nobody else listens there.
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(dist.DistError, match=str(port)):
            dist.TCPStore("127.0.0.1", port, timeout=timedelta(milliseconds=300))


def test_a_port_that_is_none_is_refused():
    with raises(ValueError, "port must be in 1 to 65535, not 70000"):
        dist.TCPStore("127.0.0.1", 70000)
    with raises(ValueError, "only the master can let the system choose"):
        dist.TCPStore("127.0.0.1", 0)
    with raises(TypeError, "port must be an int, not str"):
        dist.TCPStore("127.0.0.1", "29500")


def test_a_file_store_in_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(dist.DistError, match="nowhere"):
        dist.FileStore(tmp_path / "nowhere" / "store")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.set("k", 5), "value must be bytes, not int"),
        (lambda s: s.set(1, b""), "key must be a str, not int"),
        (lambda s: s.add("k", 1.5), "amount must be an int, not float"),
        (lambda s: s.wait("k"), "keys must be a list, not str"),
        (lambda s: s.check(["k", 2]), "keys[1] must be a str, not int"),
        (lambda s: dist.PrefixStore("p", "s"), "store must be a Store, not str"),
    ],
)
def test_arguments_of_stores_are_named_when_their_type_is_wrong(call, message):
    with raises(TypeError, message):
        call(dist.HashStore())


def test_a_number_beyond_64_bits_is_refused():
    with raises(ValueError, "amount must fit in 64 bits"):
        dist.HashStore().add("k", 1 << 63)


def test_a_rank_beyond_32_bits_is_refused_by_its_name_and_the_group_goes_on():
    beyond = 1 << 32  # Cut to 32 bits it would be rank 0.
    world = dist.World.init("local", store=dist.HashStore(), rank=0, world_size=1)
    ones = numpy.ones(1)
    for call, name in [
        (lambda: world.group.broadcast(ones, beyond), "root"),
        (lambda: world.group.send_async(ones, beyond), "dst"),
        (lambda: world.group.recv_bytes(beyond), "src"),
        (lambda: world.group.split([[0, beyond]]), "groups[0][1]"),
        (lambda: world.new_group([beyond]), "ranks[0]"),
        (lambda: dist.World.init("local", store=dist.HashStore(), rank=beyond), "rank"),
    ]:
        with raises(ValueError, f"{name} must fit in 32 bits, not 4294967296"):
            call()
    world.group.all_reduce(ones)
    world.close()


def test_an_error_in_one_thread_leaves_others_alone():
    store = dist.HashStore()
    errors = []

    def wait():
        try:
            store.get("never", timedelta(milliseconds=100))
        except dist.DistTimeoutError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    store.set("k", b"v")
    assert store.get("k") == b"v"
    for thread in threads:
        thread.join()
    assert len(errors) == 4
