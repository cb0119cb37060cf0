"""JAX's arrays come in without a copy, to be read; NumPy's bfloat16 comes in both ways."""

import numpy
import pypi_jax_status
import pytest
import ranks
import syncline as dist
from syncline import codec

if pypi_jax_status.AVAILABLE:
    import jax
    import jax.numpy
    import ml_dtypes


@pytest.fixture(autouse=True)
def available():
    if not pypi_jax_status.AVAILABLE:
        pytest.skip(pypi_jax_status.REASON)


FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
DTYPES = "bool uint8 int8 int16 int32 uint16 uint32 float16 bfloat16 float32 complex64"


@pytest.fixture
def joined():
    """A job of one rank, whose all_gather copies the input to the one output."""
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("dtype", DTYPES.split() + FLOAT8)
def test_an_array_of_every_type_is_read(dtype):
    source = jax.numpy.arange(6).reshape(2, 3).astype(dtype)
    target = numpy.zeros((2, 3), dtype)
    dist.all_gather([target], source)
    assert (target == numpy.asarray(source)).all()


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_array_is_not_written(dtype):
    array = jax.numpy.ones(3, dtype)
    with pytest.raises(TypeError, match="tensor.* is read-only .* but would be written: pass a wr"):
        dist.all_reduce(array)
    assert (array == 1).all()


@pytest.mark.usefixtures("joined")
def test_the_result_of_a_computation_is_waited_for():
    matrix = jax.numpy.ones((500, 500))
    target = numpy.zeros((500, 500), numpy.float32)
    dist.all_gather([target], jax.jit(lambda x: x @ x)(matrix))
    assert (target == 500).all()


@pytest.mark.usefixtures("joined")
def test_numpy_arrays_of_bfloat16_are_written_in_place():
    target = numpy.zeros((2, 3), ml_dtypes.bfloat16)
    dist.all_gather([target], numpy.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16))
    assert target.tolist() == [[0, 1, 2], [3, 4, 5]]
    frozen = target.copy()
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="read-only .bfloat16"):
        dist.all_reduce(frozen)
    with pytest.raises(ValueError, match="not contiguous .bfloat16"):
        dist.all_reduce(target[:, ::2])
    with pytest.raises(TypeError, match="elements of type float8_e4m3b11fnuz, which"):
        dist.all_reduce(numpy.zeros(3, ml_dtypes.float8_e4m3b11fnuz))


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("dtype", FLOAT8)
def test_floats_of_eight_bits_are_moved_bit_by_bit_and_not_reduced(dtype):
    source = numpy.arange(256, dtype=numpy.uint8).view(dtype)  # NaN of every kind among them.
    target = numpy.zeros(256, dtype)
    dist.all_gather([target], source)
    assert (target.view(numpy.uint8) == source.view(numpy.uint8)).all()
    shared = dist.empty_shared(256, dtype)
    assert shared.dtype == dtype
    dist.all_gather([shared], source)
    assert (shared.view(numpy.uint8) == source.view(numpy.uint8)).all()
    for reduce in (dist.all_reduce, lambda x: dist.reduce(x, 0), dist.scan):
        with pytest.raises(
            NotImplementedError, match=f"backend local does not serve .* of {dtype}$"
        ):
            reduce(target)
    assert (target.view(numpy.uint8) == source.view(numpy.uint8)).all()
    with pytest.raises(ValueError, match=f"is {dtype}, in which gradients are not added up"):
        dist.GradientReducer([numpy.zeros(3, dtype)])
    carried = codec.decode(codec.encode(source))
    assert (carried.dtype, carried.tobytes()) == (source.dtype, source.tobytes())


def test_gradients_of_bfloat16_are_numpys():
    def run(world):
        reducer = dist.GradientReducer([jax.numpy.zeros(3, "bfloat16")], group=world.group)
        assert reducer.gradients[0].dtype == ml_dtypes.bfloat16
        reducer.ready(0, numpy.full(3, world.rank, ml_dtypes.bfloat16))
        return reducer.finish()[0].tolist()

    assert ranks.in_threads(3, run) == [[1, 1, 1]] * 3


@pytest.mark.usefixtures("joined")
def test_arrays_of_syncline_become_arrays_of_jax():
    reducer = dist.GradientReducer([numpy.zeros(3, numpy.float32)])
    reducer.gradients[0][:] = [1, 2, 3]
    assert jax.numpy.from_dlpack(reducer._reducer.gradient(0)).tolist() == [1, 2, 3]
