"""JAX arrays on the CPU: they arrive as jax.Array, over shared memory."""

import pypi_jax_status
import pytest

if not pypi_jax_status.AVAILABLE:
    pytest.skip(pypi_jax_status.REASON, allow_module_level=True)

import jax
import jax.numpy as jnp
import jax_children
import numpy
import syncline.multiprocessing as mp


def through(value):
    """What arrives of `value`."""
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        writer.send(value)
        return reader.recv()


@pytest.mark.parametrize(
    "dtype", "bool int8 uint16 int32 float16 bfloat16 float8_e5m2 float32 complex64".split()
)
@pytest.mark.parametrize("count", [1, 100, 100_000])
def test_each_element_type_arrives(dtype, count):
    array = (jnp.arange(count) % 2).astype(dtype)
    got = through(array)
    assert isinstance(got, jax.Array)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert (got == array).all()


def test_a_large_array_is_not_copied_where_it_arrives():
    array = jnp.arange(100_000.0).reshape(100, 1000)
    got = through(array)
    assert mp.is_shared(got)
    assert not mp.is_shared(array)
    view = numpy.asarray(got)
    assert not view.flags.writeable
    assert view.ctypes.data % 64 == 0
    again = through(got)
    assert numpy.asarray(again).ctypes.data == view.ctypes.data  # The same memory.
    assert (jax.jit(lambda x: x * 2)(again) == array * 2).all()


def test_trees_and_small_arrays_arrive():
    tree = {"w": jnp.ones((300, 300)), "b": [jnp.zeros(3), 1.5, jnp.float32(2)]}
    got = through(tree)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: bool((a == b).all()) if hasattr(a, "all") else a == b, tree, got)
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])  # JAX does not bear fork.
def test_processes_exchange_arrays(method):
    context = mp.get_context(method)
    inbox, outbox = context.Queue(), context.SimpleQueue()
    child = context.Process(target=jax_children.add_one, args=(inbox, outbox))
    child.start()
    for count in (5, 100_000):
        inbox.put(jnp.arange(count))
        got = outbox.get()
        assert isinstance(got, jax.Array)
        assert (got == jnp.arange(count) + 1).all()
    inbox.put(None)
    child.join(60)
    assert child.exitcode == 0
