"""Arrays come in and go out without a copy: what one writes, the other sees."""

import array
import ctypes
import gc

import numpy
import pytest
import ranks
import syncline as dist
from syncline import _syncline

DTYPES = [
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64",
    "float16 float32 float64 complex64 complex128",
]


@pytest.fixture
def joined():
    """A job of one rank, whose all_gather copies the input to the one output."""
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype", " ".join(DTYPES).split())
def test_numpy_arrays_of_every_type_are_written_in_place(joined, dtype):
    source = numpy.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    target = numpy.zeros((2, 3), dtype)
    dist.all_gather([target], source)
    assert (target == source).all()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (2, 3, 4), (100_003,)])
def test_arrays_of_any_shape_come_in(joined, shape):
    source = numpy.random.default_rng(0).random(shape)
    target = numpy.zeros(shape)
    dist.all_gather([target], source)
    assert (target == source).all()


@pytest.mark.parametrize(
    ("target", "source"),
    [
        (array.array("d", [0, 0]), array.array("d", [1, 2])),
        (array.array("l", [0, 0]), array.array("l", [1, -2])),
        (bytearray(2), b"\1\2"),
        (memoryview(bytearray(8)).cast("i"), memoryview(array.array("i", [5, 6]))),
        ((ctypes.c_float * 2)(), (ctypes.c_float * 2)(1, 2)),
        ((ctypes.c_long * 2)(), (ctypes.c_long * 2)(1, 2)),
        ((ctypes.c_uint16 * 2)(), numpy.array([1, 2], numpy.uint16)),
    ],
)
def test_whatever_has_the_buffer_protocol_is_written_in_place(joined, target, source):
    dist.all_gather([target], source)
    assert list(target) == list(source)


def test_rows_of_an_array_serve_as_outputs(joined):
    target = numpy.zeros((1, 3))
    dist.all_gather(target, numpy.arange(3.0))
    assert target.tolist() == [[0, 1, 2]]


def test_an_array_stays_alive_while_an_operation_uses_it_and_no_longer():
    def run(world):
        if world.rank == 1:
            world.group.broadcast(bytearray(3), root=0)
            world.group.barrier()
            return
        buffer = bytearray(b"abc")
        work = world.group.broadcast_async(buffer, root=0)
        # The barrier is behind the broadcast in the queue: once it is over, nobody has the buffer.
        world.group.barrier()
        buffer.append(0)  # A bytearray refuses that while its memory is in use.
        work.wait()

    ranks.in_threads(2, run)

    def hold(world):
        if world.rank == 1:
            world.store.get("held")
            world.group.broadcast(bytearray(3), root=0)
            return
        buffer = bytearray(b"abc")
        receiving = world.group.recv_async(buffer, src=1)
        with pytest.raises(BufferError):
            buffer.append(0)
        world.store.set("held", b"")
        world.group.broadcast(b"abc", root=0)
        world.group.abort("the test is over")
        with pytest.raises(dist.DistBackendError):
            receiving.wait()

    ranks.in_threads(2, hold)


class Reducing:
    """A reducer of one rank, whose gradients are arrays that Syncline owns."""

    def __init__(self, dtype, shape):
        self.reducer = _syncline.Reducer.create(dist.group.WORLD, [numpy.zeros(shape, dtype)])
        self.view = self.reducer.gradient(0)


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", "float64"])
def test_a_tensor_goes_out_by_the_buffer_protocol(joined, dtype):
    view = Reducing(dtype, (2, 3)).view
    numpy.asarray(view)[1, 2] = 7
    assert numpy.asarray(view).dtype == dtype
    assert numpy.asarray(view).tolist() == [[0, 0, 0], [0, 0, 7]]
    memory = memoryview(view)
    assert (memory.shape, memory.readonly, memory.nbytes) == ((2, 3), False, view_bytes(view))
    assert (view.shape, view.dtype) == ((2, 3), dtype)
    assert repr(view) == f"TensorView({dtype}[2, 3] on cpu)"


def view_bytes(view):
    return 6 * numpy.dtype(view.dtype).itemsize


def test_a_tensor_goes_out_by_dlpack(joined):
    view = Reducing("float32", (4,)).view
    seen = numpy.from_dlpack(view)
    numpy.asarray(view)[:] = [1, 2, 3, 4]
    assert seen.tolist() == [1, 2, 3, 4]
    assert view.__dlpack_device__() == (1, 0)
    capsule = view.__dlpack__(stream=None, max_version=(1, 0), dl_device=(1, 0), copy=False)
    assert '"dltensor"' in repr(capsule)
    with pytest.raises(BufferError, match="neither copies nor moves"):
        view.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="neither copies nor moves"):
        view.__dlpack__(dl_device=(2, 0))


def test_an_array_over_a_tensor_outlives_what_made_it(joined):
    reducing = Reducing("float32", (1000,))
    arrays = [numpy.asarray(reducing.view), numpy.from_dlpack(reducing.view)]
    arrays[0][:] = 5
    del reducing
    gc.collect()
    assert [seen.sum() for seen in arrays] == [5000, 5000]


def test_a_tensor_that_went_out_comes_in_again(joined):
    reducing = Reducing("float32", (3,))
    dist.all_gather([reducing.view], numpy.arange(3, dtype=numpy.float32))
    assert numpy.asarray(reducing.view).tolist() == [0, 1, 2]


class Exporter:
    """Speaks DLPack only."""

    requires_grad = False

    def __init__(self, array, device=(1, 0)):
        self.array, self.device, self.exports = array, device, 0

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self):
        self.exports += 1
        return self.array.__dlpack__()


def test_an_array_comes_in_by_dlpack(joined):
    memory = numpy.zeros(3)
    dist.all_gather([Exporter(memory)], numpy.arange(3.0))
    assert memory.tolist() == [0, 1, 2]


def test_the_device_is_asked_before_the_memory(joined):
    exporter = Exporter(numpy.zeros(3), device=(8, 0))
    with pytest.raises(TypeError, match="device that Syncline does not know .DLPack's type 8"):
        dist.all_reduce(exporter)
    assert exporter.exports == 0


def test_an_exporters_own_refusal_is_quoted(joined):
    class Refusing(Exporter):
        def __dlpack__(self):
            raise BufferError("it is sparse")

    with pytest.raises(TypeError, match="tensor cannot be shared: it is sparse"):
        dist.all_reduce(Refusing(numpy.zeros(1)))


def test_a_view_of_nothing_cannot_be_made():
    class View(_syncline.TensorView):
        pass

    for kind in (_syncline.TensorView, View):
        with pytest.raises(TypeError):
            kind()
        with pytest.raises(TypeError):
            kind.__new__(kind)
        with pytest.raises(TypeError):
            object.__new__(kind)
