"""Names of backends, and backends written in Python."""

import threading
import warnings
from datetime import timedelta

import numpy
import operations
import pytest
import ranks
import syncline as dist
from store_backend import StoreBackend

dist.Backend.register_backend("through_store", StoreBackend, devices="cpu")


# ---- Names ----


def test_names_are_read_in_any_case():
    assert dist.Backend("GLOO") == dist.Backend("gloo") == dist.Backend.GLOO == "gloo"
    assert dist.Backend("CPU:Gloo, cuda:NCCL") == "cpu:gloo,cuda:nccl"
    assert dist.Backend("TCP") == dist.Backend.TCP == "tcp"
    assert isinstance(dist.Backend("gloo"), str)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("smoke", "unknown backend 'smoke'; choose one of: .*gloo"),
        ("undefined", "unknown backend"),
        ("", "unknown backend ''"),
        ("cpu:gloo,cuda:smoke", "unknown backend"),
        (7, "backend must be a str, not int"),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_reason(name, reason):
    with pytest.raises(ValueError, match=reason):
        dist.Backend(name)


def test_backends_of_each_device():
    config = dist.BackendConfig("cpu:local,cuda:nccl")
    assert config.get_device_backend_map() == {"cpu": "local", "cuda": "nccl"}
    assert repr(config) == "cpu:local,cuda:nccl"
    assert repr(dist.BackendConfig("local")).startswith("cpu:local")
    with pytest.raises(ValueError, match="cpu is named twice"):
        dist.BackendConfig("cpu:gloo,cpu:local")
    assert dist.get_default_backend_for_device("cpu") == "auto"
    assert dist.get_default_backend_for_device("cuda:3") == "nccl"
    with pytest.raises(ValueError, match="no backend is known for device 'abacus'"):
        dist.get_default_backend_for_device("abacus")


def test_what_is_available():
    assert dist.is_available() and dist.is_gloo_available()
    assert dist.is_backend_available("LOCAL") and not dist.is_backend_available("smoke")
    if not dist.is_mpi_available():
        with pytest.raises(dist.DistError, match="MPI"):
            dist.Info.check_backend("mpi")
    if dist.is_nccl_available():
        dist.Info.check_backend("nccl")
    else:
        with pytest.raises(
            (dist.DistError, NotImplementedError, ValueError), match="(?i)nccl|cuda"
        ):
            dist.Info.check_backend("nccl")
    for query in ("ucc", "xccl"):
        is_available = getattr(dist, f"is_{query}_available")()
        assert is_available == (query in dist.Info.backends())


def test_a_backend_that_this_build_lacks_is_refused_with_those_it_has():
    if dist.is_ucc_available():
        pytest.skip("this build has all")
    with pytest.raises(ValueError, match="backend 'ucc' is not in this build; choose one of"):
        dist.init_process_group("ucc", store=dist.HashStore(), rank=0, world_size=1)


def test_one_backend_for_each_device():
    dist.init_process_group("cpu:local", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.get_backend() == "cpu:local"
    assert dist.get_backend_config() == "cpu:local"
    dist.destroy_process_group()


# ---- Written in Python ----


@pytest.mark.parametrize("size", [2, 3])
def test_every_operation_runs_over_a_backend_written_in_python(size):
    def run(world):
        operations.check_all(world.group, any_source=False)
        world.close()

    ranks.in_threads(size, run, "through_store")


def test_the_operations_check_what_they_say():
    """The same over a backend of C++: what is tested above is not the test."""
    ranks.in_threads(3, lambda world: operations.check_all(world.group), "local")


def test_it_is_a_backend_like_any_other():
    assert dist.Backend.THROUGH_STORE == "through_store"
    assert dist.is_backend_available("Through_Store")
    assert "broadcast" in dist.Info.operations("through_store")
    assert "through_store" in dist.Info.capability_table()
    dist.init_process_group("through_store", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.get_backend() == "through_store"
    group = dist.new_group([0])
    dist.all_reduce(x := numpy.ones(3), group=group)
    assert x.tolist() == [1, 1, 1]
    dist.destroy_process_group()


def test_what_it_lacks_is_refused_before_anything_happens():
    class BarrierOnly:
        def __init__(self, *_):
            pass

        def barrier(self, timeout):
            pass

    dist.Backend.register_backend("barrier_only", BarrierOnly, devices=["cpu"])
    assert dist.Info.operations("barrier_only") == ["barrier"]
    world = dist.World.init("barrier_only", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(NotImplementedError, match="backend barrier_only does not serve all_reduce"):
        world.group.all_reduce(numpy.ones(1))
    world.group.barrier()


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (TimeoutError("it was late"), dist.DistTimeoutError),
        (dist.DistTimeoutError("it was late"), dist.DistTimeoutError),
        (ConnectionResetError("it was late"), dist.DistNetworkError),
        (dist.DistMismatchError("it was late"), dist.DistMismatchError),
        (dist.DistStoreError("it was late"), dist.DistStoreError),
        (dist.DistBackendError("it was late"), dist.DistBackendError),
        (ValueError("it was late"), dist.DistBackendError),
        (ZeroDivisionError("it was late"), dist.DistBackendError),
    ],
)
def test_what_it_raises_is_an_error_that_names_it_and_breaks_the_group(raised, error):
    name = f"fails_{type(raised).__name__.lower()}"

    class Fails:
        def barrier(self, timeout):
            raise raised

    if not dist.is_backend_available(name):
        dist.Backend.register_backend(name, lambda *_: Fails(), devices=["cpu"])
    world = dist.World.init(name, store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(error, match=f"backend '{name}': .*it was late"):
        world.group.barrier()
    with pytest.raises(error, match="can no longer be used"):
        world.group.barrier()


def test_what_it_raises_may_be_unreadable():
    class Unreadable(Exception):
        def __str__(self):
            raise ValueError

    class Fails:
        def barrier(self, timeout):
            raise Unreadable

        def recv(self, tensor, src, tag, timeout):
            return "from somewhere"

        def all_reduce(self, tensor, op, timeout):
            raise RuntimeError("\ud800")

    dist.Backend.register_backend("unreadable", lambda *_: Fails(), devices=["cpu"])

    calls = {
        "Unreadable: .what it says": lambda group: group.barrier(),
        "what it returns must be an int, not str": lambda group: group.recv(numpy.ones(1), -1),
        "RuntimeError: .what it says": lambda group: group.all_reduce(numpy.ones(1)),
    }
    for message, call in calls.items():

        def run(world, message=message, call=call):
            with pytest.raises(dist.DistBackendError, match=message):
                call(world.group)

        ranks.in_threads(2, run, "unreadable")


def test_the_ranks_of_an_error_that_it_raises_are_those_of_the_groups():
    class Late:
        def barrier(self, timeout):
            error = dist.DistTimeoutError("rank 0 is late")
            error.ranks = (0,)
            raise error

    dist.Backend.register_backend("late", lambda *_: Late(), devices=["cpu"])
    world = dist.World.init("late", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(dist.DistTimeoutError) as error:
        world.group.barrier()
    assert (error.value.ranks, error.value.operation, error.value.sequence) == ((0,), "barrier", 0)


def test_it_gets_a_deadline_and_the_reason_of_an_abort():
    seen = []

    class Waits:
        def __init__(self, *_):
            self.aborted = threading.Event()

        def barrier(self, timeout):
            seen.append(timeout)
            assert self.aborted.wait(60)
            raise RuntimeError("aborted")

        def abort(self, reason):
            seen.append(reason)
            self.aborted.set()

    dist.Backend.register_backend("waits", Waits, devices=["cpu"])
    world = dist.World.init("waits", store=dist.HashStore(), rank=0, world_size=1)
    work = world.group.barrier_async(timedelta(seconds=50))
    world.group.abort("enough")
    with pytest.raises(dist.DistBackendError, match="aborted"):
        work.wait()
    assert timedelta(0) < [s for s in seen if isinstance(s, timedelta)][0] <= timedelta(seconds=50)
    assert any("enough" in s for s in seen if isinstance(s, str))


def test_ctrl_c_in_it_is_ctrl_c():
    class Interrupted:
        def __init__(self, *_):
            pass

        def barrier(self, timeout):
            raise KeyboardInterrupt

        def abort(self, reason):
            seen.append(reason)

    seen = []
    dist.Backend.register_backend("interrupted", Interrupted, devices=["cpu"])
    world = dist.World.init("interrupted", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(KeyboardInterrupt):
        world.group.barrier()
    assert "interrupted" in seen[0]
    with pytest.raises(dist.DistBackendError, match="can no longer be used"):
        world.group.barrier()


def test_its_function_may_fail():
    def fail(*_):
        raise RuntimeError("no such device")

    dist.Backend.register_backend("absent", fail, devices=["cpu"])
    with pytest.raises(dist.DistBackendError, match="backend 'absent': RuntimeError: no such dev"):
        dist.World.init("absent", store=dist.HashStore(), rank=0, world_size=1)
    dist.Backend.register_backend("nothing", lambda *_: None, devices=["cpu"])
    with pytest.raises(dist.DistBackendError, match="its factory returned None"):
        dist.World.init("nothing", store=dist.HashStore(), rank=0, world_size=1)


def test_the_extended_function_gets_options():
    seen = []

    def make(options, backend_options):
        seen.append((options.group_rank, options.group_size, backend_options))
        return StoreBackend(options.store, options.group_rank, options.group_size, options.timeout)

    dist.Backend.register_backend("extended", make, extended_api=True, devices=["cpu"])
    dist.init_process_group(
        "extended", store=dist.HashStore(), rank=0, world_size=1, pg_options={"fast": True}
    )
    dist.destroy_process_group()
    assert seen == [(0, 1, {"fast": True})]


def test_floats_of_eight_bits_are_moved_by_it_and_never_reduced():
    dist.Backend.register_backend("mover", StoreBackend, devices=["cpu"])
    assert "float8_e5m2" in dist.Info.dtypes("mover", "broadcast")
    assert "float8_e5m2" not in dist.Info.dtypes("mover", "all_reduce")
    assert "float32" in dist.Info.dtypes("mover", "all_reduce")


def test_a_wrong_registration_is_refused():
    register = dist.Backend.register_backend
    with pytest.raises(ValueError, match="a backend 'gloo' is registered already"):
        register("gloo", StoreBackend, devices=["cpu"])
    with pytest.raises(ValueError, match="cannot be the name of a backend"):
        register("through store", StoreBackend, devices=["cpu"])
    with pytest.raises(ValueError, match="unknown device 'abacus'"):
        register("other", StoreBackend, devices=["abacus"])
    with pytest.raises(ValueError, match="unknown operation 'teleport'"):
        register("other", StoreBackend, devices=["cpu"], operations=["teleport"])
    with pytest.raises(ValueError, match="float8"):
        register("other", StoreBackend, devices=["cpu"], dtypes=["float8"])
    with pytest.raises(TypeError, match="func must be callable"):
        register("other", 5, devices=["cpu"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        register("undecided", StoreBackend)
    assert "registered for cpu only" in str(caught[0].message)
