"""syncline.jax: collectives over trees, outside and inside jit, on ranks that are processes."""

import gc
import os

import numpy
import pypi_jax_status
import pytest
import ranks
import syncline as dist

if pypi_jax_status.AVAILABLE:
    import jax
    import jax.numpy as jnp
    import syncline.jax as sjax
    from syncline.jax import flat


@pytest.fixture(autouse=True)
def available():
    if not pypi_jax_status.AVAILABLE:
        pytest.skip(pypi_jax_status.REASON)


def tree_of(rank):
    """Leaves of several types and shapes: empty, odd, large, numbers; and None, which is none."""
    return {
        "weight": jnp.arange(15, dtype=jnp.float32).reshape(3, 5) * (rank + 1),
        "layers": [jnp.full(7, rank, jnp.bfloat16), jnp.zeros((0, 3)), None],
        "large": jnp.full((300, 1001), rank, jnp.float32),
        "counts": (numpy.full(3, 10 * rank, numpy.int32), 2.0 * rank),
    }


def expect_tree(tree, scale, mean):
    """That `tree` is tree_of(0) with weights times `scale` and values `mean`."""
    assert jax.tree.structure(tree) == jax.tree.structure(tree_of(0))
    for leaf, like in zip(jax.tree.leaves(tree), jax.tree.leaves(tree_of(0)), strict=True):
        assert isinstance(leaf, jax.Array) and leaf.shape == numpy.shape(like)
        assert leaf.dtype == jnp.asarray(like).dtype
    numpy.testing.assert_allclose(tree["weight"], numpy.arange(15).reshape(3, 5) * scale, 1e-6)
    assert tree["layers"][0].tolist() == [float(jnp.bfloat16(mean))] * 7
    assert (numpy.asarray(tree["large"]) == numpy.float32(mean)).all()
    assert tree["counts"][0].tolist() == [int(10 * mean)] * 3
    assert tree["counts"][1] == 2 * mean


# ---- Outside jit ----


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_outside_jit_every_leaf_becomes_the_average(size):
    mean = (size - 1) / 2

    def run(world):
        for _ in range(3):  # The second time on from used memory.
            average = sjax.average_gradients(tree_of(world.rank), world.group)
            expect_tree(average, mean + 1, mean)
        return numpy.asarray(average["large"]).tobytes()

    assert len(set(ranks.in_threads(size, run))) == 1


@pytest.mark.parametrize("size", [2, 3])
def test_outside_jit_the_tree_of_one_rank_is_everybodys(size):
    def run(world):
        expect_tree(sjax.broadcast_tree(tree_of(world.rank), 1, world.group), 2, 1)

    ranks.in_threads(size, run)


def test_reductions_other_than_the_average():
    def run(world):
        x = {"a": jnp.asarray([world.rank, 5 - world.rank])}
        assert sjax.all_reduce(x, group=world.group)["a"].tolist() == [3, 12]
        assert sjax.all_reduce(x, dist.ReduceOp.MAX, world.group)["a"].tolist() == [2, 5]
        halves = sjax.all_reduce(jnp.ones(2), dist.PremulSum(0.5), world.group)
        assert halves.tolist() == [1.5, 1.5]

    ranks.in_threads(3, run)


def test_a_tree_without_leaves_needs_nobody():
    assert sjax.average_gradients({"a": [], "b": None}) == {"a": [], "b": None}
    assert sjax.broadcast_tree(()) == ()


def test_results_lie_where_the_collective_left_them_and_keep_that_memory():
    def run(world):
        size = 1 << 18
        kept = sjax.all_reduce([jnp.ones(size), jnp.ones(5)], group=world.group)
        places = {leaf.unsafe_buffer_pointer() for leaf in kept}
        again = sjax.all_reduce([jnp.zeros(size), jnp.zeros(5)], group=world.group)
        assert places.isdisjoint(leaf.unsafe_buffer_pointer() for leaf in again)
        assert (kept[0] == 1).all()
        jax.block_until_ready(again)
        del kept, again
        gc.collect()
        reused = sjax.all_reduce([jnp.zeros(size), jnp.zeros(5)], group=world.group)
        assert reused[0].unsafe_buffer_pointer() in [m.ctypes.data for m in seen]

    taken = flat._pool.take
    seen = []

    def take(size):
        memory = taken(size)
        seen.append(memory)
        return memory

    flat._pool.take = take
    try:
        ranks.in_threads(1, run)
    finally:
        del flat._pool.take
    places = [memory.ctypes.data for memory in seen]
    assert len(places) == 3 and len(set(places)) == 2, "freed memory is used again"


def test_results_may_be_donated_and_inputs_may_have_been():
    def run(world):
        x = sjax.all_reduce(jnp.ones(1 << 19), group=world.group)
        increase = jax.jit(lambda v: v + 1, donate_argnums=0)
        y = increase(x)
        other = sjax.all_reduce(jnp.zeros(1 << 19), group=world.group)
        assert (y == 2).all() and (other == 0).all()
        given_away = jnp.ones(4)
        jax.block_until_ready(increase(given_away))
        with pytest.raises(RuntimeError, match="deleted"):
            sjax.all_reduce(given_away, group=world.group)

    ranks.in_threads(1, run)


@pytest.mark.parametrize(
    ("rank1", "theirs"),
    [
        ({"a": (2,), "b": (4,)}, r"\['b'\] float32\[4\]"),
        ({"a": (2,), "c": (3,)}, r"\['c'\] float32\[3\]"),
        ({"a": (2,)}, "nothing more"),
        ({"a": (3,), "b": (2,)}, r"\['a'\] float32\[3\]"),  # As many elements.
    ],
)
def test_ranks_with_different_trees_all_learn_where_they_differ(rank1, theirs):
    def run(world):
        shapes = rank1 if world.rank == 1 else {"a": (2,), "b": (3,)}
        tree = {name: jnp.zeros(shape) for name, shape in shapes.items()}
        with pytest.raises(dist.DistMismatchError, match=rf"rank 0 has .*rank 1 has {theirs}"):
            sjax.average_gradients(tree, world.group)
        assert sjax.all_reduce(jnp.ones(1), group=world.group) == 2, "the group goes on"

    ranks.in_threads(2, run)


@pytest.mark.parametrize("size", [2, 3])
def test_trees_that_all_ranks_know_are_told_apart_in_every_call(size):
    known = {"w": (3,)}
    # In 64 bytes as the first; as many elements, of another shape, name and type.
    others = [{"v": (5,)}, {"w": (3, 1)}, {"v": (3,)}, {"w": (3,), "x": (0,)}]

    def make(shapes, dtype=jnp.float32):
        return {name: jnp.ones(shape, dtype) for name, shape in shapes.items()}

    def run(world):
        group, mine = world.group, world.rank == size - 1
        pairs = [(make(known), make(other)) for other in others]
        for first, second in [*pairs, (make(known), make(known, jnp.int32))]:
            for call in (sjax.all_reduce, sjax.broadcast_tree):
                call(first, group=group)
                call(second, group=group)
                where = rf"rank 0 has .*, rank {size - 1} has "
                with pytest.raises(dist.DistMismatchError, match=where):
                    call(second if mine else first, group=group)
        assert sjax.all_reduce(jnp.ones(1), group=group) == size, "the group goes on"

    ranks.in_threads(size, run)


@pytest.mark.parametrize("size", [2, 3])
def test_a_tree_that_is_new_to_some_ranks_only_is_told_apart_as_well(size):
    ranks.in_processes(size, __file__, "trees_new_to_some")  # Each with a memory of its own.


def trees_new_to_some():
    rank, size = dist.get_rank(), dist.get_world_size()
    known, new = {"w": jnp.ones(3)}, {"v": jnp.ones(5)}
    for call in (sjax.all_reduce, jax.jit(sjax.all_reduce)):
        call(known)["w"].block_until_ready()
        errors = (dist.DistMismatchError, jax.errors.JaxRuntimeError)
        with pytest.raises(errors, match=rf"rank 0 has .*, rank {size - 1} has "):
            jax.block_until_ready(call(new if rank == size - 1 else known))
    assert sjax.all_reduce(jnp.float32(1)) == size


def test_leaves_of_64_bits_that_are_not_of_jax_come_back_with_32():
    def run(world):
        assert sjax.all_reduce(numpy.ones(2), group=world.group).dtype == jnp.float32
        assert sjax.all_reduce(numpy.ones(2, int), group=world.group).dtype == jnp.int32

    ranks.in_threads(1, run)


def test_what_is_no_array_and_what_is_no_group_are_refused():
    with pytest.raises(ValueError, match="not in the group"):
        sjax.all_reduce(jnp.ones(1), group=dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(dist.DistError, match="call init_process_group first"):
        sjax.all_reduce(jnp.ones(1))

    def run(world):
        with pytest.raises(TypeError, match="not a valid JAX array"):
            sjax.broadcast_tree({"a": "text"}, 0, world.group)
        with pytest.raises(TypeError, match="key_data"):
            sjax.broadcast_tree(jax.random.key(0), 0, world.group)
        with pytest.raises(TypeError):
            sjax.broadcast_tree(jnp.zeros(3, jnp.int4), 0, world.group)

    ranks.in_threads(1, run)


# ---- Inside jit, in processes: functions whose names are called by in_processes ----


@pytest.mark.parametrize("size", [1, 2, 3])
def test_inside_jit_trees_are_averaged_summed_and_copied(size):
    ranks.in_processes(size, __file__, "collectives_inside_jit")


def collectives_inside_jit():
    rank, size = dist.get_rank(), dist.get_world_size()
    mean = (size - 1) / 2
    average = jax.jit(sjax.average_gradients)
    for _ in range(3):
        expect_tree(average(tree_of(rank)), mean + 1, mean)
    expect_tree(jax.jit(lambda t: sjax.broadcast_tree(t, size - 1))(tree_of(rank)), size, size - 1)
    assert jax.jit(lambda t: sjax.all_reduce(t))({"n": jnp.int32(rank + 1)})["n"] == sum(
        range(1, size + 1)
    )

    # Programs that run in the background, and then a call from outside, in the program's order.
    x = jnp.ones(1000)
    for _ in range(20):
        x = average(x) + 0
    assert sjax.all_reduce(jnp.float32(1)) == size
    assert (x == 1).all()


@pytest.mark.parametrize("size", [2])
def test_inside_jit_transformations_give_what_they_should(size):
    ranks.in_processes(size, __file__, "transformations")


def transformations():
    """With two ranks, whose losses differ by a factor."""
    rank = dist.get_rank()
    ones = jnp.ones(2)

    def loss(x):
        summed, unused = sjax.all_reduce((x, jnp.arange(3)))
        return (summed**2).sum() * (rank + 1) + unused.sum()

    for grad in (jax.grad(loss), jax.jit(jax.grad(loss))):
        assert grad(ones).tolist() == [12, 12]  # d/dx of (1 + 2) * (2 x)**2 at 1: 3 * 2 * 2.
    average = jax.grad(lambda x: sjax.average_gradients(x).sum() * (rank + 1))
    assert average(ones).tolist() == [1.5, 1.5]

    rows = jnp.arange(6.0).reshape(3, 2)
    for mapped in (jax.vmap(sjax.all_reduce), jax.jit(jax.vmap(sjax.all_reduce))):
        assert (mapped(rows) == 2 * rows).all()
    assert (jax.vmap(jax.grad(loss))(rows) == 12 * rows).all()

    def repeat(carry, row):
        return sjax.all_reduce(carry) + row, carry

    scanned, _ = jax.jit(lambda x: jax.lax.scan(repeat, x, rows))(ones)
    assert scanned.tolist() == [16, 23]
    looped = jax.jit(lambda x: jax.lax.while_loop(lambda v: v.sum() < 50, sjax.all_reduce, x))
    assert looped(ones).tolist() == [32, 32]
    chosen = jax.jit(lambda x: jax.lax.cond(x.sum() > 0, sjax.all_reduce, lambda v: v, x))
    assert chosen(ones).tolist() == [2, 2]

    with pytest.raises(NotImplementedError, match="MAX has no gradient"):
        jax.grad(lambda x: sjax.all_reduce(x, dist.ReduceOp.MAX).sum())(ones)
    with pytest.raises(NotImplementedError, match="broadcast_tree has no gradient"):
        jax.grad(lambda x: sjax.broadcast_tree(x).sum())(ones)
    with pytest.raises(TypeError, match="jvp"):
        jax.jvp(sjax.all_reduce, (ones,), (ones,))


def test_inside_jit_an_error_is_quoted_on_all_ranks_and_the_program_goes_on():
    ranks.in_processes(2, __file__, "errors_inside_jit")


def errors_inside_jit():
    rank = dist.get_rank()
    with pytest.raises(jax.errors.JaxRuntimeError, match="rank 1 has the tree float32.3."):
        jax.block_until_ready(jax.jit(sjax.all_reduce)(jnp.ones(2 + rank)))
    large = jnp.ones((1 << 20) + rank)  # Runs in the background.
    with pytest.raises(jax.errors.JaxRuntimeError, match="rank 1 has the tree float32.1048577."):
        jax.block_until_ready(jax.jit(sjax.all_reduce)(large))
    assert sjax.all_reduce(jnp.float32(1)) == 2


@pytest.mark.parametrize("size", [2])
def test_arrays_on_several_devices_of_a_process_are_reduced_but_not_by_each_device(size):
    # Read when JAX starts, in the processes.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
        ranks.in_processes(size, __file__, "several_devices")


def several_devices():
    devices = jax.devices()
    assert len(devices) == 2
    mesh = jax.sharding.Mesh(numpy.array(devices), ("x",))
    by_rows = jax.sharding.PartitionSpec("x")
    sharded = jax.device_put(
        jnp.arange(8.0).reshape(4, 2), jax.sharding.NamedSharding(mesh, by_rows)
    )
    second = jax.device_put(jnp.ones(3), devices[1])
    results = sjax.all_reduce([sharded, second, jnp.ones(2)])
    assert [r.sharding for r in results[:2]] == [sharded.sharding, second.sharding]
    assert (results[0] == 2 * sharded).all() and (results[1] == 2).all()
    gathered = numpy.asarray(jax.jit(sjax.all_reduce)(sharded))
    assert (gathered == 2 * numpy.asarray(sharded)).all()

    mapped = jax.shard_map(sjax.all_reduce, mesh=mesh, in_specs=by_rows, out_specs=by_rows)
    for call in (mapped, jax.jit(mapped), jax.pmap(sjax.all_reduce)):
        with pytest.raises(NotImplementedError, match="one device only"):
            call(jnp.ones((2, 2)))
    alone = jax.sharding.Mesh(numpy.array(devices[:1]), ("x",))
    one = jax.shard_map(sjax.all_reduce, mesh=alone, in_specs=by_rows, out_specs=by_rows)
    assert (one(jnp.ones((2, 2))) == 2).all()


def test_inside_jit_the_death_of_a_rank_is_an_error_of_the_others():
    ranks.in_processes(3, __file__, "death_inside_jit")


def death_inside_jit():
    assert jax.jit(sjax.all_reduce)(jnp.float32(1)) == 3
    ranks.meet_in_store("past the first")
    if dist.get_rank() == 1:
        os._exit(0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="rank 1"):
        jax.block_until_ready(jax.jit(sjax.all_reduce)(jnp.ones(2)))


def test_inside_jit_the_group_is_the_one_there_is_when_the_program_runs():
    ranks.in_processes(2, __file__, "groups_inside_jit")


def groups_inside_jit():
    everybody = jax.jit(sjax.all_reduce)
    assert everybody(jnp.float32(1)) == 2
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    assert jax.jit(lambda x: sjax.all_reduce(x, group=alone))(jnp.float32(1)) == 1
    dist.destroy_process_group()
    ranks.join("again")
    assert everybody(jnp.float32(1)) == 2


if __name__ == "__main__":
    ranks.main(globals())
