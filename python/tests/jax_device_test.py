"""Arrays of JAX on CUDA devices, over the stand-ins for CUDA's driver and for NCCL.

JAX itself has no CUDA here: a class of this file stands for its arrays. They are ready on streams
of their own, as those of XLA are, so that a wait that is missing gives wrong elements.
"""

import contextlib
import ctypes
import os
import pathlib
import threading

import jax
import numpy
import pytest
import ranks
import simulated_arrays
import syncline as dist
from dlpack_structs import CODES, Unversioned
from simulated_arrays import DLPackArray, Stream

_LIBRARY = "syncline/backends/nccl/testing/fake_nccl/libfake_nccl.so"
os.environ.setdefault(
    "SYNCLINE_NCCL_LIBRARY", str(pathlib.Path(os.environ["TEST_SRCDIR"]) / _LIBRARY)
)

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"  # Capsules do not keep them.


class JaxArray(DLPackArray):
    """An array whose elements are written by a stream of its own, after it has been made."""

    is_fully_addressable = True
    committed = False

    def __init__(self, values):
        super().__init__(numpy.zeros_like(values), device=dist.get_rank())
        self.stream = Stream(self.device)
        written = [self]  # What is enqueued is kept for good, and must not keep the array.
        self.stream.enqueue(lambda: written.pop().peek().__setitem__(..., values))

    @property
    def size(self):
        return int(numpy.prod(self.shape))

    def __dlpack__(self, *, stream=None):
        ready = ctypes.c_void_p()
        with simulated_arrays.on_device(self.device):
            simulated_arrays.call("cuEventCreate", ctypes.byref(ready), 0)
            simulated_arrays.call("cuEventRecord", ready, ctypes.c_void_p(self.stream.cuda_stream))
            # 1 is the default stream.
            asked = None if stream == 1 else ctypes.c_void_p(stream)
            simulated_arrays.call("cuStreamWaitEvent", asked, ready, 0)
        return super().__dlpack__(stream=stream)


JaxArray.__module__ = "jaxlib._jax"


class Imported:
    """What JAX makes of memory that it is given: it is read on a stream of XLA's."""

    def __init__(self, producer):
        self.device = producer.__dlpack_device__()[1]
        self.stream = Stream(self.device)
        capsule = producer.__dlpack__(stream=self.stream.cuda_stream)
        self._managed = Unversioned.from_address(_pointer_of(capsule, _NAME))
        _rename(capsule, _USED_NAME)
        tensor = self._managed.tensor
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        kind = next(kind for kind, code in CODES.items() if code == tensor.code)
        dtype = numpy.dtype(f"{kind}{tensor.bits // 8}")
        count = int(numpy.prod(self.shape))
        elements = (ctypes.c_char * max(1, count * dtype.itemsize)).from_address(tensor.data or 0)
        memory = numpy.frombuffer(elements, dtype, count).reshape(self.shape)
        self._seen = seen = []
        self._done = done = threading.Event()

        def read():
            seen.append(memory.copy())
            done.set()

        self.stream.enqueue(read)

    def elements(self):
        assert self._done.wait(simulated_arrays.LONG)
        return self._seen[0]

    def __del__(self):
        self._done.wait(simulated_arrays.LONG)
        self._managed.deleter(ctypes.addressof(self._managed))


@contextlib.contextmanager
def simulated_jax():
    with pytest.MonkeyPatch.context() as patch, simulated_arrays.slow(3000):
        patch.setattr(jax, "Array", JaxArray)
        patch.setattr(jax.dlpack, "from_dlpack", Imported)
        yield


def everything_is_freed(before):
    simulated_arrays.await_that(
        lambda: simulated_arrays.counts().device_allocations <= before, "memory is given back"
    )
    assert not simulated_arrays.lent


def calls_functions():
    rank = dist.get_rank()
    before = simulated_arrays.counts().device_allocations
    for backend in ("auto", "nccl", "gloo"):
        group = dist.new_group(backend=backend)
        with simulated_jax():
            x = numpy.float32([[1, 2, 3], [4, 5, 6]]) + 10 * rank
            functions = dist.functional
            done = [
                functions.all_reduce(JaxArray(x), group=group),
                functions.broadcast(JaxArray(x), 1, group=group),
                functions.all_gather(JaxArray(x[0]), group=group),
                functions.reduce_scatter(JaxArray(x), group=group),
                functions.all_to_all(JaxArray(x), group=group),
                functions.scatter(JaxArray(x) if rank == 0 else JaxArray(x[0]), 0, group=group),
            ]
            zero, one = x - 10 * rank, x - 10 * rank + 10
            wanted = [
                zero + one,
                one,
                numpy.stack([zero[0], one[0]]),
                (zero + one)[rank],
                numpy.stack([zero[rank], one[rank]]),
                zero[rank],
            ]
            for got, expected in zip(done, wanted, strict=True):
                assert got.shape == expected.shape
                numpy.testing.assert_array_equal(got.elements(), expected)
            if backend != "nccl":
                assert isinstance(functions.all_reduce(x, group=group), numpy.ndarray)
            del done, got
        dist.destroy_process_group(group)
        everything_is_freed(before + 8)  # What groups have kept for later calls.


def averages_trees():
    import syncline.jax as sjax

    rank = dist.get_rank()
    tree = {"a": numpy.float32([1, 2, 3]) + rank, "b": numpy.int32([[7]]), "c": numpy.float32(rank)}
    with simulated_jax():
        arrays = {name: JaxArray(values) for name, values in tree.items()}
        sums = sjax.all_reduce(arrays)
        ours = sjax.broadcast_tree(arrays, 1)
        numpy.testing.assert_array_equal(sums["a"].elements(), [3, 5, 7])
        numpy.testing.assert_array_equal(sums["b"].elements(), [[14]])
        assert sums["c"].shape == () and sums["c"].elements() == 1
        numpy.testing.assert_array_equal(ours["a"].elements(), [2, 3, 4])
        with pytest.raises(dist.DistMismatchError, match="trees of group"):
            sjax.all_reduce({"a": JaxArray(numpy.zeros(2 + rank, numpy.float32))})


@pytest.mark.parametrize("function", [calls_functions, averages_trees])
def test_two_processes(function):
    ranks.in_processes(2, __file__, function.__name__)


if __name__ == "__main__":
    ranks.main(globals())
