"""Arrays of any library come in by DLPack's C exchange API, where their type has it."""

import ctypes
import gc
import os
import weakref

import numpy
import pytest
import ranks
import syncline as dist
from dlpack_structs import (
    COPIED,
    CPU,
    CUDA,
    FLOAT,
    READ_ONLY,
    VULKAN,
    Deleter,
    Export,
    Managed,
    Table,
    Tensor,
    Version,
    capsule,
)


class Array:
    """A library's array over a one-dimensional one of NumPy. By default it has no __dlpack__."""

    def __init__(self, memory, device=CPU, flags=0, version=(1, 3), refuses=False):
        self.memory, self.device, self.flags = memory, device, flags
        self.version, self.refuses = version, refuses


os.environ["SYNCLINE_CUDA_LIBRARY"] = "/none/libcuda.so.1"  # For no test touches a real device.

exported: dict[int, tuple] = {}  # What is lent, by the address of its Managed.


@Deleter
def give_back(address):
    del exported[address]


@Export
def export(array, out):
    if array.refuses:
        return -1
    extent = (ctypes.c_int64 * 1)(array.memory.size)
    stride = (ctypes.c_int64 * 1)(1)
    bits = 8 * array.memory.itemsize
    data = array.memory.ctypes.data - array.memory.itemsize  # Together with the offset.
    device = (ctypes.c_int32 * 2)(array.device, 0)
    tensor = Tensor(data, device, 1, FLOAT, bits, 1, extent, stride, array.memory.itemsize)
    managed = Managed(Version(*array.version), None, give_back, array.flags, tensor)
    exported[ctypes.addressof(managed)] = (managed, array.memory, extent, stride)
    out[0] = ctypes.addressof(managed)
    return 0


TABLE = Table(Version(1, 3), None, None, export)
NEWER = Table(Version(2, 0), ctypes.addressof(TABLE), None)
UNKNOWN = Table(Version(2, 0), None, None)
Array.__dlpack_c_exchange_api__ = capsule(TABLE)


@pytest.fixture(autouse=True)
def joined():
    """A job of one rank, whose all_gather copies the input to the one output."""
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    assert not exported


class Asked(Array):
    """Speaks DLPack's first form, too, and notes that it was asked to."""

    asked = 0

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self):
        Asked.asked += 1
        return self.memory.__dlpack__()


# Its own, so that __dlpack__ is no change to what a base class does.
Asked.__dlpack_c_exchange_api__ = capsule(TABLE)


def gathers(array):
    """Whether `array` is written in place."""
    dist.all_gather([array], numpy.arange(3.0))
    return array.memory.tolist() == [0, 1, 2]


def test_an_array_is_written_in_place_and_given_back():
    assert gathers(Array(numpy.zeros(3)))
    assert not exported


def test_a_table_of_a_newer_version_leads_to_one_that_is_known():
    class Newer(Array):
        __dlpack_c_exchange_api__ = capsule(NEWER)

    assert gathers(Newer(numpy.zeros(3)))


def test_without_a_known_version_the_array_is_asked_by_dlpack():
    class Unknown(Asked):
        __dlpack_c_exchange_api__ = capsule(UNKNOWN)

    before = Asked.asked
    assert gathers(Unknown(numpy.zeros(3)))
    assert gathers(Asked(numpy.zeros(3), version=(2, 0)))
    assert Asked.asked == before + 2


def test_an_attribute_that_is_no_table_is_passed_over():
    class Odd(Asked):
        __dlpack_c_exchange_api__ = 7

    before = Asked.asked
    assert gathers(Odd(numpy.zeros(3)))
    assert Asked.asked == before + 1


def test_with_a_known_version_the_array_is_not_asked_by_dlpack():
    before = Asked.asked
    assert gathers(Asked(numpy.zeros(3)))
    assert Asked.asked == before


def test_if_the_table_refuses_dlpack_says_why():
    class Refusing(Asked):
        def __dlpack__(self):
            raise BufferError("it is on the moon")

    Refusing.__dlpack_c_exchange_api__ = capsule(TABLE)
    with pytest.raises(TypeError, match="tensor cannot be shared: it is on the moon"):
        dist.all_reduce(Refusing(numpy.zeros(3), refuses=True))
    with pytest.raises(
        TypeError, match="tensor must be an array that shares its memory, not Array"
    ):
        dist.all_reduce(Array(numpy.zeros(3), refuses=True))


def test_a_subclass_with_its_own_dlpack_is_asked_by_it():
    class Own(Array):
        def __dlpack_device__(self):
            return (CPU, 0)

        def __dlpack__(self):
            return other.__dlpack__()

    other = numpy.zeros(3)
    dist.all_gather([Own(numpy.zeros(3))], numpy.arange(3.0))
    assert other.tolist() == [0, 1, 2]


@pytest.mark.parametrize("flags", [READ_ONLY, COPIED])
def test_memory_that_would_be_written_in_vain_is_only_read(flags):
    target = numpy.zeros(3)
    dist.all_gather([target], Array(numpy.arange(3.0), flags=flags))
    assert target.tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="read-only"):
        dist.all_reduce(Array(numpy.zeros(3), flags=flags))


def test_memory_of_another_device_is_not_touched():
    with pytest.raises(NotImplementedError, match="no CUDA driver: .*SYNCLINE_CUDA_LIBRARY"):
        dist.all_reduce(Array(numpy.zeros(3), device=CUDA))
    with pytest.raises(TypeError, match="device that Syncline does not know .DLPack's type 7"):
        dist.all_reduce(Asked(numpy.zeros(3), device=VULKAN))


def test_an_array_without_memory_is_refused():
    class Empty:
        ctypes = type("", (), {"data": 8})
        size, itemsize = 1, 8

    with pytest.raises(TypeError, match=r"tensor \(float64\[1\] on cpu\) has no memory"):
        dist.all_reduce(Array(Empty()))


def test_memory_is_lent_until_the_operation_in_the_background_is_over():
    def run(world):
        if world.rank == 1:
            world.store.get("seen")
            world.group.broadcast(numpy.zeros(3), root=0)
            world.group.barrier()
            return
        work = world.group.broadcast_async(Array(numpy.arange(3.0)), root=0)
        assert len(exported) == 1
        world.store.set("seen", b"")
        world.group.barrier()  # Behind the broadcast in the queue.
        assert not exported
        work.wait()

    ranks.in_threads(2, run)


def test_types_that_come_and_go_are_neither_kept_nor_mistaken():
    def use(base):
        class Local(base):
            pass

        before = Asked.asked
        assert gathers(Local(numpy.zeros(3)))
        assert Asked.asked - before == (base is Python)
        return weakref.ref(Local)

    class Python(Asked):
        __dlpack_c_exchange_api__ = None

    for i in range(100):  # Some get the address of one that is gone.
        gone = use((Array, Python)[i % 2])
        gc.collect()
        assert gone() is None
