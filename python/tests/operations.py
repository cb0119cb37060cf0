"""Every function of the package that is an operation of a group, called and checked: for tests."""

import numpy
import syncline as dist


def number(array):
    return numpy.asarray(array).tolist()


def check_all(group, any_source=True):
    """Calls each, blocking and not, on one rank of `group`; all ranks must do so."""
    for async_op in (False, True):
        for check in CHECKS:
            check(group, Caller(group, async_op))
    check_messages(group, any_source)
    check_objects(group, any_source)


class Caller:
    """Calls functions with `group` and `async_op`, and waits."""

    def __init__(self, group, async_op):
        self.group, self.async_op = group, async_op

    def __call__(self, function, *args, **kwargs):
        work = function(*args, group=self.group, async_op=self.async_op, **kwargs)
        assert isinstance(work, dist.Work) == self.async_op
        if work is not None:
            work.wait()


def values(rank):
    return numpy.arange(4.0) + 10 * rank


def check_broadcast_and_reduce(group, call):
    rank, size = group.rank(), group.size()
    total = sum(values(r) for r in range(size))
    for root in range(size):
        call(dist.broadcast, x := values(rank), group_src=root)
        assert (x == values(root)).all()
        call(dist.reduce, x := values(rank), group_dst=root)
        assert (x == (total if rank == root else values(rank))).all()
    call(dist.all_reduce, x := values(rank))
    assert (x == total).all()
    call(dist.all_reduce, x := values(rank), dist.ReduceOp.AVG)
    assert (x == total / size).all()
    call(dist.all_reduce, x := values(rank), dist.ReduceOp.PREMUL_SUM(0.5))
    assert (x == total / 2).all()
    call(dist.barrier)


def check_gather_and_scatter(group, call):
    rank, size = group.rank(), group.size()
    call(dist.all_gather, outputs := numpy.zeros((size, 4)), values(rank))
    assert all((outputs[r] == values(r)).all() for r in range(size))
    uneven = [numpy.zeros(r + 1, numpy.int16) for r in range(size)]
    call(dist.all_gather, uneven, numpy.full(rank + 1, rank, numpy.int16))
    assert [u.tolist() for u in uneven] == [[r] * (r + 1) for r in range(size)]
    call(dist.all_gather_single, output := numpy.zeros(4 * size), values(rank))
    assert (output.reshape(size, 4) == outputs).all()
    for root in range(size):
        gathered = [numpy.zeros(4) for _ in range(size)] if rank == root else None
        call(dist.gather, values(rank), gathered, group_dst=root)
        assert rank != root or (numpy.array(gathered) == outputs).all()
        gathered = numpy.zeros(4 * size) if rank == root else None
        call(dist.gather_single, gathered, values(rank), group_dst=root)
        assert rank != root or (gathered == outputs.reshape(-1)).all()
        output = numpy.zeros(4)
        call(dist.scatter, output, list(outputs) if rank == root else None, group_src=root)
        assert (output == values(rank)).all()


def check_scans(group, call):
    rank = group.rank()
    before = sum((values(r) for r in range(rank)), numpy.zeros(4))
    call(dist.scan, x := values(rank))
    assert (x == before + values(rank)).all()
    call(dist.exscan, x := values(rank))
    assert (x == (before if rank > 0 else values(0))).all()
    call(dist.scan, x := values(rank), dist.ReduceOp.MAX)
    assert (x == numpy.max([values(r) for r in range(rank + 1)], axis=0)).all()
    call(dist.scan, x := numpy.full(1000, 1.0), dist.PremulSum(2.0))
    assert (x == 2 * (rank + 1)).all()
    for operation in (dist.scan, dist.exscan):
        try:
            operation(values(rank), dist.ReduceOp.AVG, group)
        except ValueError as error:
            assert "takes no avg" in str(error)
        else:
            raise AssertionError("an average was not refused")


def check_reduce_scatter_and_all_to_all(group, call):
    rank, size = group.rank(), group.size()
    inputs = [values(rank) * (r + 1) for r in range(size)]
    expected = sum(values(r) for r in range(size)) * (rank + 1)
    call(dist.reduce_scatter, output := numpy.zeros(4), inputs)
    assert (output == expected).all()
    call(dist.reduce_scatter_single, output := numpy.zeros(4), numpy.concatenate(inputs))
    assert (output == expected).all()
    outputs = [numpy.zeros(4) for _ in range(size)]
    call(dist.all_to_all, outputs, inputs)
    assert all((outputs[r] == values(r) * (rank + 1)).all() for r in range(size))
    call(dist.all_to_all_single, output := numpy.zeros(4 * size), numpy.concatenate(inputs))
    assert (output == numpy.concatenate(outputs)).all()
    splits = list(range(size))
    output = numpy.zeros((rank * size, 2))
    input = numpy.full((sum(splits), 2), float(rank))
    call(dist.all_to_all_single, output, input, [rank] * size, splits)
    assert output[:, 0].tolist() == [r for r in range(size) for _ in range(rank)]


def check_several_tensors(group, call):
    rank, size = group.rank(), group.size()
    call(
        dist.broadcast_coalesced, tensors := [values(rank), numpy.array([rank])], group_src=size - 1
    )
    assert (tensors[0] == values(size - 1)).all() and tensors[1] == [size - 1]
    call(dist.all_reduce_coalesced, tensors := [values(rank), values(rank)[:1].copy()])
    assert (tensors[0] == sum(values(r) for r in range(size))).all()
    assert tensors[1][0] == sum(10 * r for r in range(size))
    outputs = [[numpy.zeros(4), numpy.zeros(1, numpy.int8)] for _ in range(size)]
    call(dist.all_gather_coalesced, outputs, [values(rank), numpy.array([rank], numpy.int8)])
    assert all((outputs[r][0] == values(r)).all() and outputs[r][1] == [r] for r in range(size))
    outputs = [numpy.zeros(4), numpy.zeros(1)]
    inputs = [[values(r), numpy.array([float(r)])] for r in range(size)]
    call(dist.reduce_scatter_coalesced, outputs, inputs)
    assert (outputs[0] == size * values(rank)).all() and outputs[1] == [size * rank]


def check_messages(group, any_source):
    rank, size = group.rank(), group.size()
    following, previous = (rank + 1) % size, (rank - 1) % size
    operations = [
        dist.P2POp(dist.isend, values(rank), group=group, group_peer=following),
        dist.P2POp(dist.irecv, x := numpy.zeros(4), group=group, group_peer=previous),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (x == values(previous)).all()
    if rank == 0:
        for r in range(1, size):
            x = numpy.zeros(4)
            source = dist.recv(x, group=group, tag=3, group_src=None if any_source else r)
            assert (x == values(group.ranks.index(source))).all()
    else:
        dist.send(values(rank), group=group, tag=3, group_dst=0)


def check_objects(group, any_source):
    rank, size = group.rank(), group.size()
    dist.all_gather_object(objects := [None] * size, {"rank": rank, 1: (values(rank),)}, group)
    assert [o["rank"] for o in objects] == list(range(size))
    assert (objects[-1][1][0] == values(size - 1)).all()
    dist.broadcast_object_list(objects := [rank, "x" * rank], group=group, group_src=size - 1)
    assert objects == [size - 1, "x" * (size - 1)]
    objects = [None] * size if rank == 0 else None
    dist.gather_object(b"b" * rank, objects, group=group, group_dst=0)
    assert objects == ([b"b" * r for r in range(size)] if rank == 0 else None)
    inputs = list("abcdefgh")[:size] if rank == 0 else None
    dist.scatter_object_list(output := [None], inputs, group=group, group_src=0)
    assert output == ["abcdefgh"[rank]]
    if rank == 0:
        dist.send_object_list([1, {2}], group=group, group_dst=1)
    if rank == 1:
        objects = [None, None]
        source = dist.recv_object_list(objects, group=group, group_src=None if any_source else 0)
        assert (source, objects) == (group.ranks[0], [1, {2}])


CHECKS = [
    check_broadcast_and_reduce,
    check_gather_and_scatter,
    check_scans,
    check_reduce_scatter_and_all_to_all,
    check_several_tensors,
]
