"""GradientReducer: the average of what the ranks wrote, in their own memory."""

import threading
from datetime import timedelta

import numpy
import pytest
import ranks
import syncline as dist
from syncline import _syncline

SHAPES = [(3, 4), (4,), (4, 2), (2,), (1000,)]


def parameters(dtype=numpy.float32):
    return [numpy.zeros(shape, dtype) for shape in SHAPES]


def gradient(rank, step, index):
    generator = numpy.random.default_rng([rank, step, index])
    return generator.standard_normal(SHAPES[index]).astype(numpy.float32)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("backend", ["local", "gloo"])
@pytest.mark.parametrize("bucket_cap_mb", [25, 0.0001])
def test_the_averages_are_those_of_numpy_on_every_rank(size, backend, bucket_cap_mb):
    def train(world):
        reducer = dist.GradientReducer(
            parameters(), bucket_cap_mb=bucket_cap_mb, first_bucket_mb=0.0001, group=world.group
        )
        for step in range(3):
            for index in reversed(range(len(SHAPES))):
                if index % 2:
                    reducer.ready(index, gradient(world.rank, step, index))
                else:
                    reducer.gradients[index][...] = gradient(world.rank, step, index)
                    reducer.mark_ready(index)
            averages = [average.copy() for average in reducer.finish()]
            for index, average in enumerate(averages):
                expected = sum(gradient(r, step, index) for r in range(size)) / size
                numpy.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-6)
        return averages

    bits = [[a.tobytes() for a in averages] for averages in ranks.in_threads(size, train, backend)]
    assert all(of_rank == bits[0] for of_rank in bits)


def test_finish_returns_the_views_themselves():
    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group)
        for index in range(len(SHAPES)):
            reducer.mark_ready(index)
        assert all(a is b for a, b in zip(reducer.finish(), reducer.gradients, strict=True))
        assert [view.shape for view in reducer.gradients] == SHAPES

    ranks.in_threads(1, run)


def mark_all(reducer, rank, indices=range(5)):
    for index in sorted(indices, reverse=True):
        reducer.ready(index, numpy.full(SHAPES[index], rank, numpy.float32))


def take_step(reducer, rank, indices=range(5)):
    """A step with gradients that are all `rank`, last one first."""
    mark_all(reducer, rank, indices)
    return reducer.finish()


def test_the_views_follow_the_buckets_which_follow_rank_0():
    caps = {"bucket_cap_mb": 0.00001, "first_bucket_mb": 0.00001}

    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group, **caps)
        first, generation = reducer.gradients, reducer.generation
        order = [2, 0, 4, 1, 3] if world.rank == 0 else [4, 3, 2, 1, 0]
        for index in order:
            reducer.ready(index, numpy.full(SHAPES[index], index + world.rank, numpy.float32))
        averages = reducer.finish()
        assert reducer.generation == generation + 1
        assert sum(reducer.buckets, []) == [2, 0, 4, 1, 3]
        assert all(new is not old for new, old in zip(averages, first, strict=True))
        for index, average in enumerate(averages):
            assert (average == index + 0.5).all()
        again = take_step(reducer, world.rank)
        assert all(new is old for new, old in zip(again, averages, strict=True))
        assert all((average == 0.5).all() for average in again)

    ranks.in_threads(2, run)


def test_the_buckets_stay_if_they_shall():
    def run(world):
        reducer = dist.GradientReducer(parameters(), rebuild_buckets=False, group=world.group)
        before = reducer.buckets
        for index in range(len(SHAPES)):
            reducer.mark_ready(index)
        reducer.finish()
        assert reducer.buckets == before

    ranks.in_threads(2, run)


def test_each_bucket_may_have_a_cap_of_its_own():
    def run(world):
        caps = [4 * size / 2**20 for size in (1000, 2, 12)]
        return dist.GradientReducer(parameters(), bucket_caps_mb=caps, group=world.group).buckets

    assert ranks.in_threads(1, run)[0] == [[4], [3], [2, 1], [0]]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_parameters_may_be_unused_if_that_is_to_be_found(size):
    def run(world):
        reducer = dist.GradientReducer(parameters(), find_unused_parameters=True, group=world.group)
        for step in range(3):
            unused = {1} if world.rank else {1, 3}
            if step == 2:
                reducer.begin_step(unused=sorted(unused))
            averages = take_step(reducer, world.rank, set(range(5)) - unused)
            assert not averages[1].any() and not reducer.is_used(1)
            assert reducer.is_used(3) == (size > 1)
            assert (averages[0] == numpy.float32(size - 1) / 2).all()
            numpy.testing.assert_allclose(averages[3], (size - 1) / 2, 1e-6)

    ranks.in_threads(size, run)


def test_a_static_graph_is_that_of_the_first_step():
    def run(world):
        reducer = dist.GradientReducer(
            parameters(),
            names=["w1", "b1", "w2", "b2", "big"],
            static_graph=True,
            group=world.group,
        )
        for _ in range(3):
            averages = take_step(reducer, world.rank, [0, 1, 2, 4])
            assert not averages[3].any() and (averages[4] == 0.5).all()
        with pytest.raises(ValueError, match="b2"):
            take_step(reducer, world.rank)

    ranks.in_threads(2, run)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_steps_without_synchronisation_are_part_of_the_next_one_with_it(size):
    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group)
        for _ in range(2):
            with reducer.no_sync():
                own = take_step(reducer, world.rank + 1)
                assert (own[4] == world.rank + 1).all()
                for index in range(len(SHAPES)):  # In place: added by hand.
                    reducer.gradients[index] += 10
                    reducer.mark_ready(index)
                assert (reducer.finish()[4] == world.rank + 11).all()
            averages = take_step(reducer, world.rank)
            for average in averages:
                numpy.testing.assert_allclose(average, 11 + (size - 1), 1e-6)
        assert (take_step(reducer, 1)[0] == 1).all(), "later steps begin from nothing"

    ranks.in_threads(size, run)


@pytest.mark.parametrize("by_active", [False, True])
def test_ranks_may_have_different_numbers_of_steps(by_active):
    counts = [0, 2, 5]

    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group)
        averages = []
        for _ in range(2):  # It may be used again.
            with reducer.join(divide_by_initial_world_size=not by_active):
                averages = [
                    float(take_step(reducer, 1)[0][0, 0]) for _ in range(counts[world.rank])
                ]
        assert (take_step(reducer, world.rank)[2] == 1).all(), "afterwards all is as before"
        return averages

    expected = [1, 1, 1, 1, 1] if by_active else [2 / 3, 2 / 3, 1 / 3, 1 / 3, 1 / 3]
    results = ranks.in_threads(3, run)
    for averages, count in zip(results, counts, strict=True):
        assert averages == pytest.approx(expected[:count])


def test_steps_that_accumulate_do_not_count_for_those_that_have_joined():
    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group)
        with reducer.join(divide_by_initial_world_size=False):
            for _ in range(1 + world.rank):
                with reducer.no_sync():
                    take_step(reducer, 1)
                average = float(take_step(reducer, 1)[1][0])
        return average

    assert ranks.in_threads(2, run) == [2, 2]


def test_an_early_end_is_an_error_on_all_ranks_if_it_shall_be():
    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group)
        with pytest.raises(dist.DistError, match=r"ranks \[0, 2\] have no more input"):
            with reducer.join(throw_on_early_termination=True):
                for _ in range([1, 3, 1][world.rank]):
                    take_step(reducer, 1)
        world.group.barrier()
        with reducer.join(throw_on_early_termination=True):
            for _ in range(2):
                take_step(reducer, 1)

    ranks.in_threads(3, run)


def test_join_does_not_nest_and_lets_errors_through():
    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group)
        with reducer.join():
            with pytest.raises(ValueError, match="inside join"):
                with reducer.join():
                    pass
        with pytest.raises(KeyError):
            with reducer.join():
                raise KeyError

    ranks.in_threads(1, run)


@pytest.mark.parametrize(
    ("options", "unused", "words"),
    [
        ({}, [1], "find_unused_parameters"),
        ({"find_unused_parameters": True}, [5], "no parameter 5"),
        ({"find_unused_parameters": True}, [-1], "no parameter -1"),
    ],
)
def test_in_join_what_makes_no_sense_is_said_before_the_others_are_waited_for(
    options, unused, words
):
    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group, **options)
        with reducer.join():
            if world.rank == 0:
                with pytest.raises(ValueError, match=words):
                    reducer.begin_step(unused)
                world.store.set("refused", b"")
            world.store.wait(["refused"])  # Before any other rank has begun its step.
            assert (take_step(reducer, world.rank)[0] == 0.5).all()

    ranks.in_threads(2, run)


def test_a_step_that_another_thread_kept_from_its_end_can_be_finished_later():
    world = dist.World.init(
        "local",
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=0.3),
    )
    is_starting, go_on = threading.Event(), threading.Event()

    def start(bucket):
        is_starting.set()
        assert go_on.wait(60)
        return world.group.all_reduce_async(bucket.buffer)

    reducer = dist.GradientReducer(parameters(), group=world.group)
    take_step(reducer, 7)
    reducer.set_hook(dist.comm_hooks.from_starter(start))
    marking = threading.Thread(target=mark_all, args=(reducer, 1))
    marking.start()
    assert is_starting.wait(60)
    with pytest.raises(dist.DistTimeoutError, match="in another thread"):
        reducer.finish()
    go_on.set()
    marking.join(60)
    assert all((average == 1).all() for average in reducer.finish())
    with reducer.no_sync():
        assert all((own == 2).all() for own in take_step(reducer, 2))
    assert all((average == 5).all() for average in take_step(reducer, 3))


def test_after_a_step_without_all_gradients_the_next_one_is_begun_as_it_should():
    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group)
        with pytest.raises(ValueError, match="gradient"):
            take_step(reducer, 1, range(1 + world.rank, 5))
        with reducer.no_sync():
            own = take_step(reducer, world.rank)
            assert all((gradient == world.rank).all() for gradient in own)
        assert all((average == 0.5 + 1).all() for average in take_step(reducer, 1))

    ranks.in_threads(2, run)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sparse_gradients_are_all_ranks_rows(size):
    def run(world):
        own = [numpy.zeros((10, 3), numpy.float32), numpy.zeros(4, numpy.float32)]
        reducer = dist.GradientReducer(own, sparse=[0], group=world.group)
        assert reducer.gradients[0].size == 0
        for _ in range(2):
            count = world.rank  # The first rank has none.
            values = numpy.full((count, 3), size, numpy.float32)
            reducer.ready(1, numpy.full(4, world.rank, numpy.float32))
            reducer.ready_rows(0, numpy.arange(count), values)
            averages = reducer.finish()
            numpy.testing.assert_allclose(averages[1], (size - 1) / 2, 1e-6)
            indices, values = reducer.rows(0)
            assert indices.tolist() == [i for rank in range(size) for i in range(rank)]
            assert values.shape == (len(indices), 3) and (values == 1).all()

    ranks.in_threads(size, run)


def test_after_a_failure_training_goes_on_in_another_group():
    def run(world):
        first = world.new_group([0, 1])
        reducer = dist.GradientReducer(parameters(), group=first)
        take_step(reducer, world.rank)
        reducer.ready(4, numpy.ones(1000, numpy.float32))
        first.abort("as if a rank had died")
        with pytest.raises(dist.DistError):
            take_step(reducer, world.rank, range(4))
        reducer.replace_group(world.group)
        averages = take_step(reducer, world.rank)
        assert all((average == 0.5).all() for average in averages)

    ranks.in_threads(2, run)


def test_statistics_tell_of_every_bucket():
    def run(world):
        reducer = dist.GradientReducer(
            parameters(), bucket_cap_mb=0.00001, first_bucket_mb=0.00001, group=world.group
        )
        for _ in range(3):
            take_step(reducer, world.rank)
        stats = reducer.stats()
        count = len(reducer.buckets)
        assert stats.steps == 3 and stats.hook == "all_reduce"
        assert stats.bucket_parameters == [len(bucket) for bucket in reducer.buckets]
        assert sum(stats.bucket_bytes) >= 4 * sum(numpy.prod(shape) for shape in SHAPES)
        for before, after in zip(stats.ready, stats.start, strict=True):
            assert 0 <= before <= after
        assert len(stats.end) == count and 0 <= stats.overlap_share <= 1
        assert stats.backward_end <= stats.step_end
        assert len(stats.table.splitlines()) > count
        assert str(stats) == stats.table

    ranks.in_threads(2, run)


@pytest.mark.parametrize("at_construction", [True, False])
def test_a_hook_averages_in_its_own_way(at_construction):
    def run(world):
        hook = _syncline.CommHook.float16_compress()
        reducer = dist.GradientReducer(
            parameters(), hook=hook if at_construction else None, group=world.group
        )
        if not at_construction:
            reducer.set_hook(hook)
        averages = take_step(reducer, 1e-9 * (1 + world.rank))
        assert all((average == 0).all() for average in averages), "too small for float16"
        assert reducer.stats().hook == "float16_compress"
        reducer.set_hook(None)
        assert (take_step(reducer, 1e-9)[0] == numpy.float32(1e-9)).all()

    ranks.in_threads(2, run)


def test_buckets_run_from_the_last_parameter_to_the_first():
    def run(world):
        return dist.GradientReducer(
            parameters(), bucket_cap_mb=0.00003, first_bucket_mb=0.00001, group=world.group
        ).buckets

    buckets = ranks.in_threads(1, run)[0]
    assert sum(buckets, []) == [4, 3, 2, 1, 0]
    assert len(buckets) > 1


def test_gradients_become_ready_in_any_order_on_each_rank():
    def run(world):
        reducer = dist.GradientReducer(
            parameters(), bucket_cap_mb=0.00001, first_bucket_mb=0.00001, group=world.group
        )
        order = list(range(len(SHAPES)))
        for index in order if world.rank else reversed(order):
            reducer.ready(index, numpy.full(SHAPES[index], world.rank, numpy.float32))
        return [float(average.max()) for average in reducer.finish()]

    assert ranks.in_threads(2, run) == [[0.5] * len(SHAPES)] * 2


def test_a_gradient_that_is_copied_may_be_strided():
    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group)
        reducer.ready(0, numpy.arange(12, dtype=numpy.float32).reshape(4, 3).T)
        for index in range(1, len(SHAPES)):
            reducer.mark_ready(index)
        assert reducer.finish()[0][0].tolist() == [0, 3, 6, 9]

    ranks.in_threads(1, run)


def test_all_ranks_learn_who_lacks_which_gradient_and_the_next_step_is_as_good_as_ever():
    names = ["w1", "b1", "w2", "b2", "big"]

    def run(world):
        reducer = dist.GradientReducer(parameters(), names=names, group=world.group)
        for index in (0, 2, 4) if world.rank == 1 else range(5):
            reducer.mark_ready(index)
        with pytest.raises(ValueError, match="rank 1 .*b1.*b2") as error:
            reducer.finish()
        assert "w1" not in str(error.value) and "big" not in str(error.value)
        averages = take_step(reducer, world.rank)
        assert all((average == 0.5).all() for average in averages)

    ranks.in_threads(2, run)


def test_ranks_with_different_parameters_all_learn_which_one():
    def run(world):
        own = parameters()
        if world.rank == 1:
            own[2] = numpy.zeros((4, 3), numpy.float32)
        with pytest.raises(dist.DistMismatchError, match="w2"):
            dist.GradientReducer(own, names=["w1", "b1", "w2", "b2", "big"], group=world.group)

    ranks.in_threads(2, run)


def test_a_bad_argument_names_itself():
    def run(world):
        reducer = dist.GradientReducer(parameters(), group=world.group)
        with pytest.raises(ValueError, match="no parameter 5"):
            reducer.mark_ready(5)
        with pytest.raises(
            ValueError, match="must be contiguous float32.3, 4. on cpu, not float64"
        ):
            reducer.ready(0, numpy.zeros((3, 4)))
        with pytest.raises(ValueError, match="not float32.5."):
            reducer.ready(0, numpy.zeros(5, numpy.float32))

    ranks.in_threads(1, run)
    with pytest.raises(TypeError, match="group must be a ProcessGroup, not NonGroupMember"):
        dist.GradientReducer(parameters(), group=dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(dist.DistError, match="call init_process_group first"):
        dist.GradientReducer(parameters())
