"""Arrays of CUDA devices between processes, over the stand-ins for CUDA's driver and for NCCL."""

import ctypes
import os
import pathlib
import signal
import time
import types

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


def uses_memory_that_is_registered():
    library = ctypes.CDLL(os.environ["SYNCLINE_NCCL_LIBRARY"])
    rank = dist.get_rank()
    registered = dist.empty(3, numpy.float32, device=f"cuda:{rank}", registered=True)
    assert registered.shape == (3,) and registered.dtype == "float32"
    assert registered.__dlpack_device__() == (2, rank)
    group = dist.new_group(backend="nccl")
    parts = [ours([1.0, 2.0, 3.0]), ours([10.0, 20.0, 30.0])] if rank == 0 else None
    dist.scatter(registered, parts, 0, group=group)
    dist.all_reduce(registered, group=group)
    gathered = [ours([0.0] * 3), ours([0.0] * 3)]
    dist.all_gather(gathered, registered, group=group)
    assert [peek(part) for part in gathered] == [[11.0, 22.0, 33.0]] * 2
    assert library.fake_nccl_live_registrations() == 1
    assert library.fake_nccl_live_allocations() == 1
    # The group's last call on it ends by another thread.
    del registered
    simulated_arrays.await_that(
        lambda: not library.fake_nccl_live_allocations(), "the memory is freed"
    )
    assert library.fake_nccl_live_registrations() == 0
    plain = dist.empty((2, 2), "int16", device=rank)
    assert plain.shape == (2, 2)
    assert library.fake_nccl_live_allocations() == 0
    dist.destroy_process_group(group)


@pytest.mark.parametrize(
    ("error", "text", "shape", "dtype", "device"),
    [
        (ValueError, "cuda:9", 3, "float32", 9),
        (ValueError, "-1", -1, "float32", 0),
        (TypeError, "dtype must be one of", 3, "datetime64", 0),
        (TypeError, "device must be a CUDA device", 3, "float32", "cpu"),
        (TypeError, "device must be a CUDA device", 3, "float32", "cuda:x"),
        (TypeError, "device must be a CUDA device", 3, "float32", None),
        (TypeError, "device must be a CUDA device", 3, "float32", True),
    ],
)
@pytest.mark.parametrize("registered", [False, True])
def test_memory_that_cannot_be_had_is_refused(error, text, shape, dtype, device, registered):
    with pytest.raises(error, match=text):
        dist.empty(shape, dtype, device=device, registered=registered)


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
    ranks.meet_in_store("past the first")
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(array, group=group, async_op=True)
    with pytest.raises(dist.DistNetworkError, match=r"rank 1 .* has died") as error:
        work.synchronize()
    assert error.value.ranks == (1,)
    os._exit(0)  # The world is not whole any more.


def hears_of_a_death_while_it_keeps_the_interpreter():
    rank = dist.get_rank()
    store = dist.TCPStore("127.0.0.1", int(os.environ["TEST_PORT"]))
    group = dist.new_group(backend="nccl")
    message = ours([0.0] * (1 << 21))  # More than is on the way.
    dist.all_reduce(ours([1.0]), group=group)  # Ranks connect.
    if rank == 0:
        dist.send(message, 1, group=group)
    else:
        dist.recv(message, 0, group=group)
    peek(message)
    if rank == 1:
        store.wait(["the interpreter is kept"], ranks.TIMEOUT)
        dist.all_reduce(ours([1.0]), group=group, async_op=True).synchronize()
        os.kill(os.getpid(), signal.SIGKILL)
    called_back = []
    first = dist.all_reduce(ours([1.0]), group=group, async_op=True)
    first.get_future().add_done_callback(lambda _: called_back.append(True))
    del first  # Its end takes the interpreter, too: the array is let go.
    second = dist.isend(message, 1, group=group)
    driver = ctypes.PyDLL(os.environ["SYNCLINE_CUDA_LIBRARY"])  # Whose calls keep it.
    with simulated_arrays.on_device(rank):
        store.set("the interpreter is kept", b"")
        assert driver.cuCtxSynchronize() == 0
    with pytest.raises(dist.DistNetworkError, match=r"rank 1 .* has died"):
        second.synchronize()
    simulated_arrays.await_that(lambda: bool(called_back), "the future is done")
    os._exit(0)  # The world is not whole any more.


def rejoin(device_id, backend="nccl"):
    dist.destroy_process_group()
    dist.init_process_group(
        backend,
        store=dist.TCPStore("127.0.0.1", int(os.environ["TEST_PORT"])),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=ranks.TIMEOUT,
        device_id=device_id,
        group_name="again",
    )


def nccl_calls(function):
    return ctypes.CDLL(os.environ["SYNCLINE_NCCL_LIBRARY"]).fake_nccl_calls(function.encode())


def makes_communicators_at_once():
    rank = dist.get_rank()
    kinds = [rank, f"cuda:{rank}", types.SimpleNamespace(type="cuda", index=rank)]
    for made, device_id in enumerate(kinds, 1):
        rejoin(device_id, "auto" if made == 1 else "nccl")
        assert nccl_calls("ncclCommInitRankConfig") == made
        array = ours([rank + 1.0])
        dist.all_reduce(array)
        assert peek(array) == [3.0]
        group = dist.new_group([1, 0], sort_ranks=False)
        array = ours([rank + 1.0])
        dist.broadcast(array, 1, group=group)
        assert peek(array) == [2.0]
        part = dist.split_group(split_ranks=[[0], [1]])
        dist.all_reduce(array, group=part)
        assert peek(array) == [2.0]
        assert nccl_calls("ncclCommInitRankConfig") == made
        assert nccl_calls("ncclCommSplit") == 2 * made


def gives_groups_devices():
    rank = dist.get_rank()
    # Of a world without a device.
    with pytest.raises(dist.DistMismatchError, match="rank 0 was given a device_id"):
        dist.new_group(backend="nccl", device_id=rank if rank == 0 else None)
    made = nccl_calls("ncclCommInitRankConfig")
    for device_id in (rank, f"cuda:{rank}"):
        group = dist.new_group(backend="nccl", device_id=device_id)
        made += 1
        assert nccl_calls("ncclCommInitRankConfig") == made
        array = ours([rank + 1.0])
        dist.all_reduce(array, group=group)
        assert peek(array) == [3.0]
        assert nccl_calls("ncclCommInitRankConfig") == made
    for wrong, error in [("cpu", ValueError), (1.5, TypeError)]:
        with pytest.raises(error, match="device"):
            dist.new_group(backend="nccl", device_id=wrong)
    # Of one with another device, or the same.
    rejoin(rank)
    made, split = nccl_calls("ncclCommInitRankConfig"), nccl_calls("ncclCommSplit")
    same = dist.new_group(device_id=rank)
    assert nccl_calls("ncclCommSplit") == split + 1
    assert nccl_calls("ncclCommInitRankConfig") == made
    other = dist.new_group(device_id=1 - rank)
    assert nccl_calls("ncclCommInitRankConfig") == made + 1
    for group, device in ((same, rank), (other, 1 - rank)):
        array = CudaArray(numpy.asarray([rank + 1.0], numpy.float32), device=device)
        dist.all_reduce(array, group=group)
        simulated_arrays.synchronize(device)
        assert array.peek().tolist() == [3.0]
    assert nccl_calls("ncclCommInitRankConfig") == made + 1


def refuses_what_is_no_device():
    rejoin(None)
    dist.destroy_process_group()
    for wrong, error, text in [
        ("cpu", ValueError, "device_id must be a CUDA device with its number"),
        ("cuda", ValueError, "device_id must be a CUDA device with its number"),
        (types.SimpleNamespace(type="cuda", index=None), ValueError, "must have a number"),
        (types.SimpleNamespace(type="cpu", index=0), ValueError, "must be a CUDA device"),
        (-1, ValueError, "device_id must be a CUDA device with its number"),
        (True, TypeError, "bool"),
        (1.5, TypeError, "1.5"),
    ]:
        with pytest.raises(error, match=text):
            dist.init_process_group("nccl", device_id=wrong)
    ranks.join("last")


def leaves_beside(fate):
    """Rank 0 leaves while the process of rank 1 has met its fate, by that signal, in no call."""
    rejoin(dist.get_rank())
    array = ours([1.0])
    dist.all_reduce(array)
    assert peek(array) == [2.0]
    ranks.meet_in_store("past the first")
    store = dist.TCPStore("127.0.0.1", int(os.environ["TEST_PORT"]))
    if dist.get_rank() == 1:
        store.set("process", str(os.getpid()).encode())
        os.kill(os.getpid(), fate)
    process = int(store.get("process"))
    state = pathlib.Path(f"/proc/{process}/stat")
    while state.read_text().rpartition(")")[2].split()[0] not in "TZ":
        time.sleep(0.01)
    begin = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - begin < 30
    os.kill(process, signal.SIGKILL)
    os._exit(0)  # There is nobody to leave the first job with.


def leaves_beside_the_stopped():
    leaves_beside(signal.SIGSTOP)


def leaves_beside_the_dead():
    leaves_beside(signal.SIGKILL)


def goes_on_without_the_dead():
    rejoin(dist.get_rank())
    array = ours([1.0])
    dist.all_reduce(array)
    assert peek(array) == [3.0]
    ranks.meet_in_store("past the first")
    if dist.get_rank() == 2:
        dist.all_reduce(array, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistError, match=r"rank 2 .* has died"):
        while True:
            dist.all_reduce(array, async_op=True).synchronize()
    dist.shrink_group([2])
    array = ours([dist.get_rank() + 1.0])
    dist.all_reduce(array)
    assert peek(array) == [3.0]
    # The new group has a communicator of its own, as the old one's was aborted.
    assert nccl_calls("ncclCommInitRankConfig") == 2
    dist.destroy_process_group()
    os._exit(0)  # The third has gone.


@pytest.mark.parametrize(
    "function",
    [
        moves_and_reduces,
        uses_memory_that_is_registered,
        quotes_calls_that_differ,
        makes_communicators_at_once,
        gives_groups_devices,
        refuses_what_is_no_device,
    ],
)
def test_two_processes(function):
    ranks.in_processes(2, __file__, function.__name__)


@pytest.mark.parametrize(
    "function", [names_the_dead, hears_of_a_death_while_it_keeps_the_interpreter]
)
def test_a_rank_that_dies(function):
    with pytest.raises(AssertionError) as failed:
        ranks.in_processes(2, __file__, function.__name__)
    assert "rank 0 failed" not in str(failed.value)  # Rank 1 was killed.


@pytest.mark.parametrize("function", [leaves_beside_the_stopped, leaves_beside_the_dead])
def test_leaving_beside_a_peer_that_does_nothing(function):
    with pytest.raises(AssertionError) as failed:
        ranks.in_processes(2, __file__, function.__name__)
    assert "rank 0 failed" not in str(failed.value)  # Rank 1 was killed.


def test_survivors_go_on(monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "3")
    with pytest.raises(AssertionError) as failed:
        ranks.in_processes(3, __file__, goes_on_without_the_dead.__name__)
    for rank in (0, 1):
        assert f"rank {rank} failed" not in str(failed.value)


if __name__ == "__main__":
    ranks.main(globals())
