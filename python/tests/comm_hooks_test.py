"""Communication hooks, through a Reducer: those that come with Syncline, and one's own."""

import concurrent.futures
import gc
import threading
import weakref

import numpy
import pytest
import ranks
import syncline as dist
from syncline import comm_hooks

SHAPES = [(20, 30), (7,), (1001,)]


def gradients(rank, step):
    """Of rank 1, so that PowerSGD is exact; the others in a range that 8 bits serve well."""
    generator = numpy.random.default_rng([rank, step])
    matrix = numpy.outer(numpy.linspace(1, 2, 20), generator.uniform(1, 2, 30))
    rest = [generator.uniform(-1, 1, shape) for shape in SHAPES[1:]]
    return [g.astype(numpy.float32) for g in (matrix, *rest)]


def make_reducer(group, cap=26214400):
    """With a cap of 1, a bucket for each parameter."""
    parameters = [numpy.zeros(shape, numpy.float32) for shape in SHAPES]
    return dist.Reducer.create(group, parameters, bucket_cap_bytes=cap, first_bucket_cap_bytes=cap)


def run_step(reducer, values):
    for index in reversed(range(len(SHAPES))):
        reducer.copy_ready(index, values[index])
    reducer.finish()
    return [numpy.asarray(reducer.gradient(index)).copy() for index in range(len(SHAPES))]


def one_step(world, hook):
    reducer = make_reducer(world.group)
    reducer.set_hook(hook)
    return run_step(reducer, gradients(world.rank, 0))


def check(size, make_hook, tolerance, backend="local", steps=3):
    def train(world):
        reducer = make_reducer(world.group, cap=1)
        hook = make_hook(world)
        reducer.set_hook(hook)
        results = []
        for step in range(steps):
            results.append(run_step(reducer, gradients(world.rank, step)))
            assert reducer.stats().hook == hook.name
        return results

    of_ranks = ranks.in_threads(size, train, backend)
    for step in range(steps):
        for index in range(len(SHAPES)):
            expected = (
                sum(gradients(rank, step)[index].astype(float) for rank in range(size)) / size
            )
            numpy.testing.assert_allclose(of_ranks[0][step][index], expected, atol=tolerance)
            for results in of_ranks:
                assert results[step][index].tobytes() == of_ranks[0][step][index].tobytes()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("backend", ["local", "gloo"])
@pytest.mark.parametrize(
    "name, options, tolerance",
    [
        ("all_reduce", {}, 1e-6),
        ("float16_compress", {}, 4e-3),
        ("bfloat16_compress", {}, 3e-2),
        ("power_sgd", {"start_step": 0, "rank": 2}, 1e-4),
        ("power_sgd", {}, 1e-6),
        ("batched_power_sgd", {"start_step": 100}, 1e-6),
        ("quantize_per_tensor", {}, 4 / 255),
        ("quantize_per_channel", {"block_size": 100}, 4 / 255),
        ("top_k", {"fraction": 1.0}, 1e-6),
        ("post_local_sgd", {"start_step": 1}, 1e-6),
    ],
)
def test_every_hook_averages(name, options, tolerance, size, backend):
    check(size, lambda world: getattr(dist.CommHook, name)(**options), tolerance, backend)


def test_top_k_sends_what_it_left_out_later():
    def run(world):
        reducer = make_reducer(world.group)
        reducer.set_hook(dist.CommHook.top_k(0.25))
        zeros = [numpy.zeros(shape, numpy.float32) for shape in SHAPES]
        steps = [run_step(reducer, gradients(world.rank, 0))]
        steps += [run_step(reducer, zeros) for _ in range(4)]
        return [sum(step[index] for step in steps) for index in range(len(SHAPES))]

    for sums in ranks.in_threads(2, run):
        for index in range(len(SHAPES)):
            expected = (gradients(0, 0)[index] + gradients(1, 0)[index]) / 2
            numpy.testing.assert_allclose(sums[index], expected, atol=1e-6)


def test_post_local_sgd_averages_within_the_subgroup():
    def run(world):
        pair, alone = world.new_group([0, 1]), world.new_group([2])
        hook = dist.CommHook.post_local_sgd(0, pair if world.rank < 2 else alone)
        return one_step(world, hook)[1]

    results = ranks.in_threads(3, run)
    pair = (gradients(0, 0)[1] + gradients(1, 0)[1]) / 2
    numpy.testing.assert_allclose(results[0], pair, atol=1e-6)
    assert results[1].tobytes() == results[0].tobytes()
    numpy.testing.assert_array_equal(results[2], gradients(2, 0)[1])


def test_options_without_meaning_are_refused():
    with pytest.raises(ValueError, match="fraction must be more than 0"):
        dist.CommHook.top_k(0.0)
    with pytest.raises(ValueError, match="rank must be positive"):
        dist.CommHook.power_sgd(rank=0)


def test_ranks_with_different_hooks_all_learn_of_it():
    def run(world):
        reducer = make_reducer(world.group)
        with pytest.raises(dist.DistMismatchError, match="top_k.*float16_compress|differ"):
            hook = dist.CommHook.top_k() if world.rank else dist.CommHook.float16_compress()
            reducer.set_hook(hook)
        with pytest.raises(dist.DistMismatchError, match=r"top_k\(0.5\)"):
            reducer.set_hook(dist.CommHook.top_k(0.5 if world.rank else 0.25))
        # The reducer goes on as before.
        return run_step(reducer, gradients(world.rank, 0))[1].tolist()

    first, second = ranks.in_threads(2, run)
    assert first == second


# ---- Functions ----


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_function_averages_buckets_one_after_another(size):
    def make(world):
        def average(bucket, group):
            assert group.size() == size and group.rank() == world.rank
            seen.append((bucket.index, bucket.count, bucket.step, bucket.divisor, bucket.is_last))
            (index,) = bucket.parameters
            assert bucket.gradients[0].shape == SHAPES[index]
            assert threading.current_thread() is not threading.main_thread()
            values = numpy.asarray(bucket.buffer)
            group.all_reduce(values)
            values /= bucket.divisor

        seen = seen_by[world.rank]
        hook = comm_hooks.from_function(average)
        assert hook.name == "average"
        return hook

    seen_by = [[] for _ in range(size)]
    check(size, make, 1e-6)
    for seen in seen_by:
        assert seen == [(b, 3, step, size, b == 2) for step in range(3) for b in range(3)]


def test_what_a_function_raises_is_the_error_on_all_ranks():
    def run(world):
        def fail(bucket, group):
            if world.rank == 1:
                raise KeyError("ink")
            group.all_reduce(bucket.buffer)

        with pytest.raises(dist.DistError, match="'fail'.*KeyError: 'ink'") as error:
            one_step(world, comm_hooks.from_function(fail))
        return str(error.value)

    assert "rank 1: its function: KeyError" in ranks.in_threads(3, run)[1]


def test_the_kind_of_an_exception_stays():
    def late(bucket, group):
        raise dist.DistTimeoutError("too late")

    def run(world):
        with pytest.raises(dist.DistTimeoutError, match="too late"):
            one_step(world, comm_hooks.from_function(late))

    ranks.in_threads(1, run)


def test_a_reducer_that_is_dropped_in_a_step_does_not_wait_for_the_others():
    def run(world):
        begun = threading.Event()

        def wait_for_all(bucket, group):
            begun.set()
            group.all_reduce(bucket.buffer)

        reducer = make_reducer(world.group)
        reducer.set_hook(comm_hooks.from_function(wait_for_all))
        if world.rank == 0:
            for index in range(len(SHAPES)):
                reducer.mark_ready(index)
            assert begun.wait(60)
            del reducer
            world.store.set("dropped", b"")
        world.store.wait(["dropped"])

    ranks.in_threads(2, run)


def test_hooks_go_with_their_reducer():
    def run(world):
        def average(bucket, group):
            group.all_reduce(bucket.buffer, dist.ReduceOp.AVG)

        alive = weakref.ref(average)
        one_step(world, comm_hooks.from_function(average))
        del average
        gc.collect()
        assert alive() is None

    ranks.in_threads(2, run)


# ---- Starters ----


def by_work(group):
    return lambda bucket: group.all_reduce_async(bucket.buffer, dist.ReduceOp.AVG)


def by_future(group):
    def start(bucket):
        work = group.all_reduce_async(bucket.buffer)

        def divide(_):
            values = numpy.asarray(bucket.buffer)
            values /= bucket.divisor

        return work.get_future().then(divide)

    return start


def by_thread(group):
    def start(bucket):
        future = concurrent.futures.Future()
        work = group.all_reduce_async(bucket.buffer, dist.ReduceOp.AVG)

        def finish():
            work.wait()
            future.set_result("ignored")

        threading.Thread(target=finish).start()
        return future

    return start


class LikeTorch:
    """A future with the methods that torch.futures.Future has: no result()."""

    def __init__(self, work):
        self.work = work

    def value(self):
        if self.work.exception():
            raise self.work.exception()

    def add_done_callback(self, callback):
        self.work._on_complete(lambda: callback(self))


def by_torch(group):
    return lambda bucket: LikeTorch(group.all_reduce_async(bucket.buffer, dist.ReduceOp.AVG))


@pytest.mark.parametrize("starter", [by_work, by_future, by_thread, by_torch])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_starter_averages_whatever_it_returns(starter, size):
    def make(world):
        return comm_hooks.from_starter(starter(world.group.split([list(range(size))])), "own")

    check(size, make, 1e-6)


def failed_future(_):
    future = concurrent.futures.Future()
    future.set_exception(dist.DistTimeoutError("no reply"))
    return future


def raises(_):
    raise ZeroDivisionError("by what?")


@pytest.mark.parametrize(
    "function, kind, words",
    [
        (raises, dist.DistBackendError, "'raises'.*ZeroDivisionError: by what"),
        (failed_future, dist.DistTimeoutError, "'failed_future'.*no reply"),
        (lambda _: 7, dist.DistBackendError, "must return a Work or a future.*not int"),
        (
            lambda _: concurrent.futures.Future(),
            dist.DistBackendError,
            "its future was dropped",
        ),
    ],
)
def test_what_a_starter_does_wrong_is_the_error_and_the_others_do_not_wait(function, kind, words):
    def run(world):
        fails = world.rank == 1
        own = function if fails else by_work(world.group)
        hook = comm_hooks.from_starter(own, function.__name__)
        with pytest.raises(kind if fails else dist.DistError, match=words if fails else "rank 1"):
            one_step(world, hook)

    ranks.in_threads(2, run)


def test_what_cannot_be_called_is_refused():
    for make in (comm_hooks.from_function, comm_hooks.from_starter):
        with pytest.raises(TypeError, match="function must be callable, not int"):
            make(7)
    with pytest.raises(TypeError, match="hook must be a CommHook, not function"):
        ranks.in_threads(1, lambda world: make_reducer(world.group).set_hook(raises))


# ---- Parameters ----


def test_parameters_are_averaged_in_every_period():
    def run(world):
        averager = dist.ParameterAverager.create(world.group, 2, warmup_steps=1)
        done = []
        for _ in range(5):
            parameters = [numpy.full(3, world.rank, numpy.float32), numpy.full(2, world.rank * 1.0)]
            done.append(averager.average(parameters))
            expected = 0.5 if done[-1] else world.rank
            assert [p.tolist() for p in parameters] == [[expected] * 3, [expected] * 2]
        return done

    assert ranks.in_threads(2, run) == [[False, True, False, True, False]] * 2
    with pytest.raises(ValueError, match="period must be positive"):
        ranks.in_threads(1, lambda world: dist.ParameterAverager.create(world.group, 0))
