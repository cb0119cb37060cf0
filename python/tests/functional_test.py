"""syncline.functional: from array to array, of NumPy, JAX, PyTorch and the standard library."""

import array

import numpy
import pypi_jax_status
import pytest
import ranks
import syncline as dist
from syncline import codec, functional

if pypi_jax_status.AVAILABLE:
    import jax
    import jax.numpy

SIZE = 3


def frozen(values):
    result = numpy.array(values, numpy.float32)
    result.flags.writeable = False
    return result


MAKERS = {"numpy": frozen}
if pypi_jax_status.AVAILABLE:
    MAKERS["jax"] = lambda values: jax.numpy.array(values, "float32")


def in_ranks(function):
    return ranks.in_threads(SIZE, lambda world: function(world.rank, world.group))


def check(result, like, expected):
    """Of the library, the element type and the device of `like`, which keeps its elements."""
    assert type(result) is type(like)
    assert result.dtype == like.dtype
    if hasattr(like, "sharding"):
        assert result.sharding == like.sharding
    assert numpy.asarray(result).tolist() == expected


@pytest.mark.parametrize("library", MAKERS)
def test_every_operation_returns_a_new_array(library):
    def run(rank, group):
        make = MAKERS[library]
        x = make([rank, 1])
        check(functional.all_reduce(x, group=group), x, [3, 3])
        check(functional.all_reduce(x, dist.ReduceOp.MAX, group), x, [2, 1])
        check(functional.all_reduce(x, dist.ReduceOp.PREMUL_SUM(2), group), x, [6, 6])
        check(functional.reduce(x, 1, group=group), x, [3, 3] if rank == 1 else [rank, 1])
        check(functional.broadcast(x, 2, group), x, [2, 1])
        check(functional.all_gather(x, group), x, [[0, 1], [1, 1], [2, 1]])
        gathered = functional.gather(x, 1, group)
        if rank == 1:
            check(gathered, x, [[0, 1], [1, 1], [2, 1]])
        else:
            assert gathered is None
        rows = make([[rank, r] for r in range(SIZE)])
        check(functional.scatter(rows if rank == 0 else x, 0, group), x, [0, rank])
        check(functional.reduce_scatter(rows, group=group), x, [3, 3 * rank])
        check(functional.all_to_all(rows, group), x, [[r, rank] for r in range(SIZE)])
        if rank == 0:
            functional.send(x, 1, group, tag=4)
        if rank == 1:
            check(functional.recv((2,), "float32", 0, group, 4, like=x), x, [0, 1])
        check(x, x, [rank, 1])
        check(rows, rows, [[rank, r] for r in range(SIZE)])

    in_ranks(run)


def test_arrays_of_the_standard_library():
    def run(rank, group):
        x = array.array("d", [rank, 1, 2])
        assert functional.all_reduce(x, group=group) == array.array("d", [3, 3, 6])
        gathered = functional.all_gather(x, group)
        assert gathered == array.array("d", [0, 1, 2, 1, 1, 2, 2, 1, 2])
        assert functional.reduce_scatter(x, group=group) == array.array("d", [[3], [3], [6]][rank])
        assert x == array.array("d", [rank, 1, 2])

    in_ranks(run)


def test_a_message_can_be_received_without_an_example():
    def run(rank, group):
        if rank == 0:
            functional.send(numpy.ones((2, 2), numpy.int16), 1, group)
        if rank == 1:
            result = functional.recv((2, 2), numpy.int16, group=group)
            assert result.dtype == numpy.int16 and result.tolist() == [[1, 1], [1, 1]]

    in_ranks(run)


def test_strides_are_no_matter():
    def run(rank, group):
        x = numpy.arange(12.0).reshape(3, 4).T[::2]
        result = functional.all_reduce(x, group=group)
        assert (result == 3 * x).all() and result.flags.c_contiguous

    in_ranks(run)


@pytest.mark.skipif(not pypi_jax_status.AVAILABLE, reason=pypi_jax_status.REASON)
def test_jax_computes_with_results_in_bfloat16():
    def run(rank, group):
        x = jax.numpy.full(4, rank + 1, "bfloat16")
        mean = functional.all_reduce(x, dist.ReduceOp.AVG, group)
        return float((mean * 2).sum())

    assert in_ranks(run) == [16.0] * SIZE


@pytest.mark.skipif(not pypi_jax_status.AVAILABLE, reason=pypi_jax_status.REASON)
def test_arrays_of_bfloat16_are_carried_as_objects():
    value = numpy.asarray(jax.numpy.arange(3, dtype="bfloat16"))
    carried = codec.decode(codec.encode(value))
    assert carried.dtype == value.dtype and (carried == value).all()


@pytest.mark.skipif(not pypi_jax_status.AVAILABLE, reason=pypi_jax_status.REASON)
def test_inside_jit_there_are_no_elements():
    world = dist.World.init("local", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(TypeError):
        jax.jit(lambda x: functional.all_reduce(x, group=world.group))(jax.numpy.ones(2))


def test_wrong_arguments_are_refused():
    world = dist.World.init("local", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(TypeError, match="an array of NumPy, PyTorch, JAX, CuPy .* not list"):
        functional.all_reduce([1.0], group=world.group)
    with pytest.raises(ValueError, match=r"x must have one row for each of the 1 ranks.*\(2, 3\)"):
        functional.all_to_all(numpy.zeros((2, 3)), world.group)
    with pytest.raises(ValueError, match="this process is not in the group"):
        functional.all_reduce(numpy.zeros(1), group=dist.GroupMember.NON_GROUP_MEMBER)
