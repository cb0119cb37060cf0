# ruff: noqa: B905 - as of that time, zip has no `strict`.
"""Every collective of torch.distributed 1.5, blocking and not, on all ranks and on a subset."""

import importlib
import sys
import warnings

import syncline as dist

xp = importlib.import_module(sys.argv[1])

dist.init_process_group(backend="gloo", init_method="env://")
rank = dist.get_rank()
size = dist.get_world_size()


def finish(work, async_op):
    if async_op:
        work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    else:
        assert work is None


def check(tensor, values):
    assert tensor.tolist() == values, (rank, tensor, values)


def test_broadcast(group, ranks, async_op):
    for src in ranks:
        tensor = xp.ones(3) * (rank + 1)
        finish(dist.broadcast(tensor, src, group, async_op), async_op)
        check(tensor, [src + 1.0] * 3)


def test_all_reduce(group, ranks, async_op):
    product = 1
    for r in ranks:
        product *= r + 2
    for op, expected in [
        (dist.ReduceOp.SUM, sum(r + 2 for r in ranks)),
        (dist.ReduceOp.PRODUCT, product),
        (dist.ReduceOp.MIN, min(ranks) + 2),
        (dist.ReduceOp.MAX, max(ranks) + 2),
    ]:
        tensor = xp.ones(5) * (rank + 2)
        finish(dist.all_reduce(tensor, op=op, group=group, async_op=async_op), async_op)
        check(tensor, [float(expected)] * 5)
    for op, combine in [
        (dist.ReduceOp.BAND, lambda a, b: a & b),
        (dist.ReduceOp.BOR, lambda a, b: a | b),
        (dist.ReduceOp.BXOR, lambda a, b: a ^ b),
    ]:
        expected = ranks[0] + 5
        for r in ranks[1:]:
            expected = combine(expected, r + 5)
        tensor = xp.full((4,), rank + 5)
        finish(dist.all_reduce(tensor, op, group, async_op), async_op)
        check(tensor, [expected] * 4)


def test_reduce(group, ranks, async_op):
    for dst in ranks:
        tensor = xp.ones(2) * (rank + 1)
        work = dist.reduce(tensor, dst=dst, op=dist.ReduceOp.SUM, group=group, async_op=async_op)
        finish(work, async_op)
        check(tensor, [float(sum(r + 1 for r in ranks)) if rank == dst else rank + 1.0] * 2)


def test_all_gather(group, ranks, async_op):
    tensors = [xp.zeros(3) for _ in ranks]
    finish(dist.all_gather(tensors, xp.ones(3) * rank, group, async_op), async_op)
    for r, tensor in zip(ranks, tensors):
        check(tensor, [float(r)] * 3)


def test_gather(group, ranks, async_op):
    for dst in ranks:
        tensors = [xp.zeros(3) for _ in ranks] if rank == dst else []
        work = dist.gather(xp.ones(3) * rank, tensors, dst=dst, group=group, async_op=async_op)
        finish(work, async_op)
        for r, tensor in zip(ranks, tensors):
            check(tensor, [float(r)] * 3)


def test_scatter(group, ranks, async_op):
    for src in ranks:
        tensor = xp.zeros(2)
        tensors = [xp.ones(2) * (10 * src + r) for r in ranks] if rank == src else None
        finish(dist.scatter(tensor, scatter_list=tensors, src=src, group=group, async_op=async_op), async_op)  # fmt: skip # noqa: E501
        check(tensor, [10.0 * src + rank] * 2)


def test_reduce_scatter(group, ranks, async_op):
    tensor = xp.zeros(2)
    tensors = [xp.ones(2) * r * (rank + 1) for r in ranks]
    finish(dist.reduce_scatter(tensor, tensors, dist.ReduceOp.SUM, group, async_op), async_op)
    check(tensor, [float(rank * sum(r + 1 for r in ranks))] * 2)


def test_all_to_all(group, ranks, async_op):
    outputs = [xp.zeros(1) for _ in ranks]
    inputs = [xp.ones(1) * (10 * rank + r) for r in ranks]
    finish(dist.all_to_all(outputs, inputs, group, async_op), async_op)
    for r, tensor in zip(ranks, outputs):
        check(tensor, [10.0 * r + rank])
    output = xp.zeros(len(ranks))
    inputs = xp.ones(len(ranks)) * rank
    finish(dist.all_to_all_single(output, inputs, group=group, async_op=async_op), async_op)
    check(output, [float(r) for r in ranks])
    mine = ranks.index(rank)  # Rank i sends j + 1 elements to the j-th rank.
    output = xp.zeros((mine + 1) * len(ranks))
    inputs = xp.ones(sum(range(len(ranks) + 1))) * rank
    finish(
        dist.all_to_all_single(
            output,
            inputs,
            output_split_sizes=[mine + 1] * len(ranks),
            input_split_sizes=[j + 1 for j in range(len(ranks))],
            group=group,
            async_op=async_op,
        ),
        async_op,
    )
    check(output, [float(r) for r in ranks for _ in range(mine + 1)])


def test_coalesced(group, ranks, async_op):
    tensors = [xp.ones(2) * (rank + 1), xp.ones((2, 2)) * rank, xp.ones(1)]
    finish(dist.all_reduce_coalesced(tensors, dist.ReduceOp.SUM, group, async_op), async_op)
    check(tensors[0], [float(sum(r + 1 for r in ranks))] * 2)
    check(tensors[1], [[float(sum(ranks))] * 2] * 2)
    check(tensors[2], [float(len(ranks))])
    outputs = [[xp.zeros(2), xp.zeros(1)] for _ in ranks]
    inputs = [xp.ones(2) * rank, xp.ones(1) * 7]
    finish(dist.all_gather_coalesced(outputs, inputs, group, async_op), async_op)
    for r, (first, second) in zip(ranks, outputs):
        check(first, [float(r)] * 2)
        check(second, [7.0])


def test_barrier(group, ranks, async_op):
    finish(dist.barrier(group, async_op), async_op)


def test_deprecated_reduce_op():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert dist.reduce_op.SUM == dist.ReduceOp.SUM
    assert "deprecated" in str(caught[0].message)
    tensor = xp.ones(1)
    dist.all_reduce(tensor, op=dist.reduce_op.MAX)
    check(tensor, [1.0])


everyone = list(range(size))
most = everyone[1:]
subset = dist.new_group(most)
tests = [f for name, f in sorted(globals().items()) if name.startswith("test_") and f.__code__.co_argcount == 3]  # fmt: skip # noqa: E501
assert len(tests) == 10
for test in tests:
    for async_op in (False, True):
        test(dist.group.WORLD, everyone, async_op)
        if rank in most:
            test(subset, most, async_op)
test_deprecated_reduce_op()
dist.destroy_process_group()
