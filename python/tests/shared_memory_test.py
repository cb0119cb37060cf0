"""Arrays in memory that peers can map: NumPy's and PyTorch's, made, sliced, freed and reduced."""

import gc
import os
import pathlib
import subprocess
import sys

import numpy
import pypi_torch_status
import pytest

if pypi_torch_status.AVAILABLE:
    import torch

import ranks
import syncline as dist
import syncline.multiprocessing as mp

DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64"
    " complex128"
).split()
LARGE = 300_007  # Elements: enough to be read in place.


def memories(kind: str) -> int:
    """How many of this process's mappings are of shared arrays: "rw-s" its own, "r--s" peers'."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return sum(f" {kind} " in line and "memfd:syncline" in line for line in lines)


def with_shm(body, *arguments, size=2):
    ranks.in_threads(size, lambda world: body(world, *arguments), backend="shm")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_shared_array_is_zero_writable_and_aligned(dtype):
    for given in (dtype, numpy.dtype(dtype), numpy.dtype(dtype).type):
        array = dist.empty_shared((3, 5), given)
        assert (array.shape, array.dtype) == ((3, 5), numpy.dtype(dtype))
        assert array.ctypes.data % 64 == 0
        assert not array.any()
        array[2, 4] = 1
        assert array.flags.c_contiguous


@pytest.mark.parametrize(
    ("shape", "expected"),
    [(7, (7,)), ((), ()), ([2, 0, 3], (2, 0, 3)), (numpy.zeros((4, 5)).shape, (4, 5))],
)
def test_any_shape_serves(shape, expected):
    array = dist.empty_shared(shape)
    assert (array.shape, array.dtype) == (expected, numpy.float32)


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "words"),
    [
        (-1, "float32", ValueError, "negative"),
        (3, "float128", TypeError, "float128"),
        (3, "datetime64[s]", TypeError, "datetime64"),
        (1 << 40, "float64", dist.DistBackendError, "8589934592 KiB"),
    ],
)
def test_what_cannot_be_is_an_error(shape, dtype, error, words):
    with pytest.raises(error, match=words):
        dist.empty_shared(shape, dtype)


def test_the_memory_lives_as_long_as_the_last_array_over_it():
    gc.collect()
    before, files = memories("rw-s"), len(os.listdir("/proc/self/fd"))
    array = dist.empty_shared(LARGE)
    view = array.reshape(-1, 1)[5:7]
    del array
    gc.collect()
    assert memories("rw-s") == before + 1
    assert view.tolist() == [[0], [0]]
    del view
    gc.collect()
    assert memories("rw-s") == before
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize("piece", [slice(None), slice(3, None), slice(1, LARGE - 2)])
def test_arrays_and_slices_are_reduced_in_place_with_the_same_result(piece):
    def run(world):
        whole = dist.empty_shared(LARGE, "float32")
        array = whole[piece]
        array[:] = numpy.random.default_rng(world.rank).random(array.size, numpy.float32)
        plain = array.copy()
        world.group.all_reduce(plain)
        world.group.all_reduce(array)
        assert (array == plain).all()
        assert memories("r--s") == 2, "each rank maps the other's"
        world.group.barrier()

    with_shm(run)


def test_ranks_in_processes_reduce_and_gather_shared_arrays():
    ranks.in_processes(3, __file__, "reduce_and_gather")


def reduce_and_gather():
    group = dist.new_group(backend="shm")
    for _ in range(20):  # Each time in new memory.
        array = dist.empty_shared(LARGE, "int64")
        array[:] = dist.get_rank() + 1
        dist.all_reduce(array, group=group)
        assert (array == 6).all()
        array[:] = dist.get_rank()
        gathered = numpy.zeros(3 * LARGE, numpy.int64)
        dist.all_gather_into_tensor(gathered, array, group=group)
        assert (gathered.reshape(3, -1).T == numpy.arange(3)).all()
    dist.barrier(group=group)


@pytest.mark.skipif(not pypi_torch_status.AVAILABLE, reason=pypi_torch_status.REASON)
class TestTorch:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
    def test_a_type_of_torch_gives_a_tensor_of_torch(self, dtype):
        tensor = dist.empty_shared((2, 3), getattr(torch, dtype))
        assert isinstance(tensor, torch.Tensor)
        assert (tuple(tensor.shape), tensor.dtype) == ((2, 3), getattr(torch, dtype))
        assert not tensor.any()
        tensor[1, 2] = 1

    def test_from_numpy_shares_the_memory(self):
        array = dist.empty_shared(LARGE)
        tensor = torch.from_numpy(array)
        tensor[4] = 7
        assert array[4] == 7

    def test_tensors_and_their_views_are_reduced_in_place(self):
        def run(world):
            memory = dist.empty_shared(2 * LARGE, torch.bfloat16)
            tensor = memory[:LARGE]
            tensor.fill_(world.rank + 1)
            world.group.all_reduce(tensor)
            assert torch.all(tensor == 3)
            assert memories("r--s") == 2
            world.group.barrier()

        with_shm(run)


if __name__ == "__main__":
    ranks.main(globals())


class Owner:
    """A process that runs `script`, whose output is a handle; it ends when it is told."""

    def __init__(self, script):
        self._process = subprocess.Popen(
            [sys.executable, "-c", script + "\nprint(handle, flush=True)\ninput()"],
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.handle = self._process.stdout.readline().strip()

    def end(self):
        self._process.communicate("\n", timeout=100)


SHARED = """
import numpy, syncline as dist
x = dist.empty_shared((4, 6), "int32")
x[...] = numpy.arange(24).reshape(4, 6)
handle = dist.shared_handle(x[1:3])
"""


def test_a_handle_opens_the_memory_of_another_process():
    owner = Owner(SHARED)
    try:
        x = dist.open_shared(owner.handle)
        y = dist.open_shared(owner.handle)
        assert (x.shape, x.dtype, x.tolist()) == (
            (2, 6),
            numpy.int32,
            numpy.arange(6, 18).reshape(2, 6).tolist(),
        )
        assert x.flags.writeable
        assert mp.is_shared(x)
        x[0, 0] = 100
        assert y[0, 0] == 100
        assert x.ctypes.data == y.ctypes.data
        again = dist.open_shared(dist.shared_handle(x))
    finally:
        owner.end()
    with pytest.raises(dist.DistBackendError, match=f"process {owner.pid}, .* has ended"):
        dist.open_shared(owner.handle)
    assert again[0, 0] == 100


def test_memory_that_was_opened_is_freed_with_its_arrays():
    owner = Owner(SHARED)
    try:
        before = len(os.listdir("/proc/self/fd")), memories("rw-s")
        x = dist.open_shared(owner.handle)
        assert (len(os.listdir("/proc/self/fd")), memories("rw-s")) == (
            before[0] + 1,
            before[1] + 1,
        )
        del x
        gc.collect()
        assert (len(os.listdir("/proc/self/fd")), memories("rw-s")) == before
    finally:
        owner.end()


MAKER = """
import random, sys, syncline as dist
random.seed(int(sys.argv[1]))
kept = []
number = 0
while True:
    number += 1
    x = dist.empty_shared(random.randrange(1, 5000), "int64")
    x[...] = number
    print(dist.shared_handle(x), number, flush=True)
    kept.append(x)
    while len(kept) > random.randrange(4):
        kept.pop(random.randrange(len(kept)))
"""


def test_a_maker_that_frees_and_is_killed_leaves_what_it_had_or_an_error():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    errors = set()
    for seed in range(3):
        maker = subprocess.Popen(
            [sys.executable, "-c", MAKER, str(seed)],
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for i, line in enumerate(maker.stdout):
            handle, number = line.split()
            if i == 100 * (seed + 1):
                maker.kill()
            try:
                x = dist.open_shared(handle)
            except dist.DistBackendError as error:
                errors.add(str(error).replace(str(maker.pid), "PID"))
            else:
                assert (x == int(number)).all()
        maker.wait(100)
        maker.stdout.close()
        with pytest.raises(dist.DistBackendError, match=f"process {maker.pid}, .* has ended"):
            dist.open_shared(handle)
        x = None
    assert errors <= {
        "process PID, which made the handle, has freed the memory",
        "process PID, which made the handle, has ended",
    }
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_share_memory_has_moved_has_a_handle():
    x = mp.share_memory_(numpy.arange(5))
    y = mp.open_shared(mp.shared_handle(x))
    y[0] = 7
    assert x[0] == 7


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: numpy.zeros(3), "its memory is not shared"),
        (lambda: dist.empty_shared(0), "it has no elements"),
        (lambda: dist.empty_shared((4, 4)).T, "contiguous"),
        (lambda: dist.empty_shared(4)[::2], "contiguous"),
        (lambda: numpy.broadcast_to(dist.empty_shared(()), (1,)), "it is read-only"),
    ],
)
def test_what_is_not_shared_has_no_handle(make, words):
    with pytest.raises(ValueError, match=words):
        dist.shared_handle(make())


def test_what_is_no_handle_is_a_value_error():
    for handle in ("", "nonsense", "syncline-tensor-1,", "\0"):
        with pytest.raises(ValueError, match="is not the handle of a shared tensor"):
            dist.open_shared(handle)
    with pytest.raises(ValueError, match="library"):
        dist.open_shared(dist.shared_handle(dist.empty_shared(3)), "cupy")


@pytest.mark.skipif(not pypi_torch_status.AVAILABLE, reason=pypi_torch_status.REASON)
def test_tensors_of_torch_have_handles():
    x = mp.share_memory_(torch.arange(6.0).reshape(2, 3).requires_grad_())
    y = dist.open_shared(dist.shared_handle(x), "torch")
    y[1, 2] = 9
    assert isinstance(y, torch.Tensor)
    assert x[1, 2] == 9
    z = dist.empty_shared(3, torch.bfloat16)
    assert dist.open_shared(dist.shared_handle(z), "torch").dtype == torch.bfloat16
