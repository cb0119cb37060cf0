"""`with coalescing(...)`: many calls, one operation, the same results."""

import numpy
import pytest
import ranks
import syncline as dist

SIZE = 3


def in_ranks(function, backend="local"):
    return ranks.in_threads(SIZE, lambda world: function(world.rank, world.group), backend)


@pytest.mark.parametrize("backend", ["local", "gloo"])
def test_calls_of_a_kind_become_one_operation(backend):
    def run(rank, group):
        tensors = [numpy.full(i, rank, numpy.float32) for i in range(5)]
        with dist.coalescing(group) as cm:
            for tensor in tensors:
                assert dist.all_reduce(tensor, group=group) is None
            assert all((tensor == rank).all() for tensor in tensors)  # Not yet.
        assert [t.tolist() for t in tensors] == [[3] * i for i in range(5)]
        assert len(cm.works) == 1 and cm.works[0].is_success()

        outputs = [numpy.zeros(SIZE * (i + 1)) for i in range(3)]
        with dist.coalescing(group) as cm:
            for i, output in enumerate(outputs):
                dist.all_gather_single(output, numpy.full(i + 1, float(rank)), group)
        assert len(cm.works) == 1
        expected = [[r for r in range(SIZE) for _ in range(i + 1)] for i in range(3)]
        assert [o.tolist() for o in outputs] == expected

        outputs = [numpy.zeros(i) for i in range(3)]
        with dist.coalescing(group) as cm:
            for i, output in enumerate(outputs):
                dist.reduce_scatter_single(output, numpy.repeat(numpy.arange(3.0), i), group=group)
        assert [o.tolist() for o in outputs] == [[3.0 * rank] * i for i in range(3)]
        assert len(cm.works) == 1

        tensors = [numpy.full(2, rank, dtype) for dtype in ("int8", "float64")]
        with dist.coalescing(group) as cm:
            for tensor in tensors:
                dist.broadcast(tensor, group=group, group_src=1)
        assert [t.tolist() for t in tensors] == [[1, 1]] * 2
        assert len(cm.works) == 1

    in_ranks(run, backend)


def test_kinds_types_and_other_operations_keep_their_order():
    def run(rank, group):
        a, b = numpy.ones(2), numpy.ones(2, numpy.int32)
        c, d = numpy.full(2, rank + 1.0), numpy.full(1, rank)
        with dist.coalescing(group) as cm:
            dist.all_reduce(a, group=group)
            dist.all_reduce(b, group=group)  # Of another type: an operation of its own.
            dist.all_reduce(c, dist.ReduceOp.MAX, group=group)  # Of another kind.
            assert len(cm.works) == 2
            dist.reduce(d, group=group, group_dst=0)  # Is not collected, nor waits.
            assert len(cm.works) == 3
            assert d[0] == (3 if rank == 0 else rank)
            dist.all_reduce(a, group=group)
        assert (a.tolist(), b.tolist(), c.tolist()) == ([9, 9], [3, 3], [3, 3])
        assert [w.description.split("#")[0].strip() for w in cm.works] == [
            "all_reduce_coalesced"
        ] * 4

    in_ranks(run)


def test_the_end_need_not_wait():
    def run(rank, group):
        tensor = numpy.ones(2)
        with dist.coalescing(group, async_ops=True) as cm:
            dist.all_reduce(tensor, group=group)
        cm.wait()
        assert tensor.tolist() == [3, 3]
        with dist._coalescing_manager(group, None, async_ops=True) as cm:
            dist.all_reduce(tensor, dist.ReduceOp.PREMUL_SUM(0.5), group=group)
        cm.wait()
        assert tensor.tolist() == [4.5, 4.5]

    in_ranks(run)


def test_an_exception_issues_nothing_more():
    def run(rank, group):
        tensor = numpy.ones(2)
        with pytest.raises(ZeroDivisionError):
            with dist.coalescing(group):
                dist.all_reduce(tensor, group=group)
                raise ZeroDivisionError
        assert tensor.tolist() == [1, 1]
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [3, 3]

    in_ranks(run)


def test_a_context_is_that_of_its_group_and_thread():
    def run(rank, group):
        other = dist.split_group(group, [[0, 1, 2]])
        a, b = numpy.ones(1), numpy.ones(1)
        with dist.coalescing(group):
            dist.all_reduce(a, group=group)
            dist.all_reduce(b, group=other)
            assert (a[0], b[0]) == (1, 3)
            with pytest.raises(ValueError, match="is coalescing in this thread already"):
                with dist.coalescing(group):
                    pass
        assert a[0] == 3
        with dist.coalescing(dist.GroupMember.NON_GROUP_MEMBER) as cm:
            pass
        cm.wait()

    in_ranks(run)


def test_errors_come_at_the_end_and_leave_the_group_usable():
    def run(rank, group):
        with pytest.raises(ValueError, match="cannot be divided into 3 equal parts"):
            with dist.coalescing(group):
                dist.all_gather_single(numpy.zeros(4), numpy.zeros(1), group)
        dist.barrier(group)

    in_ranks(run)
