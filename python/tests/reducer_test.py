"""GradientReducer: the average of what the ranks wrote, in their own memory."""

import numpy
import pytest
import ranks
import syncline as dist

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


def test_parameters_that_are_not_ready_are_named_and_the_step_goes_on():
    def run(world):
        names = ["w1", "b1", "w2", "b2", "big"]
        reducer = dist.GradientReducer(parameters(), names=names, group=world.group)
        for index in (0, 2, 4):
            reducer.mark_ready(index)
        with pytest.raises(ValueError, match="b1.*b2") as error:
            reducer.finish()
        assert "w1" not in str(error.value)
        with pytest.raises(ValueError, match="w1"):
            reducer.mark_ready(0)
        reducer.mark_ready(1)
        reducer.mark_ready(3)
        reducer.finish()

    ranks.in_threads(1, run)


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
