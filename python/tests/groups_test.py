"""Groups made from groups, ranks as numbers in them, and what can be asked."""

import os
import warnings
from datetime import timedelta

import numpy
import pytest
import ranks
import syncline as dist

SIZE = 4


def total(group=None):
    """What all_reduce makes of the world's ranks of the group."""
    tensor = numpy.full(2, float(dist.get_rank()))
    dist.all_reduce(tensor, group=group)
    return tensor[0]


# ---- What each of SIZE processes does ----


def subgroups():
    rank = dist.get_rank()
    own, every = dist.new_subgroups(2)
    assert len(every) == 2 and every[rank // 2] is own
    assert every[1 - rank // 2] is dist.GroupMember.NON_GROUP_MEMBER
    assert dist.get_process_group_ranks(own) == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert total(own) == sum(dist.get_process_group_ranks(own))
    for wrong, message in [(0, "positive"), (3, "must divide"), (5, "at most the 4 ranks")]:
        with pytest.raises(ValueError, match=message):
            dist.new_subgroups(wrong)

    own, every = dist.new_subgroups_by_enumeration([[3, 0], [1]])
    assert len(every) == 2
    if rank == 2:
        assert own is dist.GroupMember.NON_GROUP_MEMBER
    else:
        assert total(own) == (1 if rank == 1 else 3)
    with pytest.raises(ValueError, match="rank 1 is in list 0 and in list 1"):
        dist.new_subgroups_by_enumeration([[0, 1], [1]])
    with pytest.raises(ValueError, match="must have a list of ranks"):
        dist.new_subgroups_by_enumeration([])

    os.environ["LOCAL_WORLD_SIZE"] = "4"
    own, every = dist.new_subgroups()
    assert every == [own] and own.size() == 4
    halves, _ = dist.new_subgroups(2, group=own)
    assert halves.size() == 2
    dist.barrier()


def numbers():
    rank = dist.get_rank()
    group = dist.new_group([3, 1], sort_ranks=False)
    if rank in (1, 3):
        assert dist.get_rank(group) == (0 if rank == 3 else 1)
        assert dist.get_process_group_ranks(group) == [3, 1]
        assert [dist.get_global_rank(group, r) for r in range(2)] == [3, 1]
        assert [dist.get_group_rank(group, r) for r in (3, 1)] == [0, 1]
        with pytest.raises(ValueError, match="one of 3, 1, not 0"):
            dist.get_group_rank(group, 0)
        with pytest.raises(ValueError, match="group_rank must be .* 0 to 1, not 2"):
            dist.get_global_rank(group, 2)
        tensor = numpy.full(1, rank)
        dist.broadcast(tensor, group=group, group_src=0)
        assert tensor[0] == 3
        if rank == 3:
            dist.send(tensor, group=group, group_dst=1)
        else:
            assert dist.recv(tensor, group=group) == 3
    else:
        for query in (dist.get_group_rank, dist.get_global_rank):
            with pytest.raises(ValueError, match="this process is not in the group"):
                query(group, 0)
    assert dist.get_process_group_ranks(None) == [0, 1, 2, 3]

    only_members = [rank // 2 * 2, rank // 2 * 2 + 1]
    pair = dist.new_group(only_members, use_local_synchronization=True)
    assert total(pair) == sum(only_members)
    assert dist.get_pg_count() == 2 + (rank in (1, 3))


def splitting():
    rank = dist.get_rank()
    made = dist.split_group(split_ranks=[[3, 1], [0]], timeout=timedelta(seconds=30))
    if rank == 2:
        assert made is None
    else:
        assert dist.get_process_group_ranks(made) == ([0] if rank == 0 else [1, 3])
        assert total(made) == (0 if rank == 0 else 4)
        assert dist.split_group(dist.GroupMember.NON_GROUP_MEMBER, [[0]]) is None
    if rank in (1, 3):  # Ranks of a part of a part are still counted in the world.
        single = dist.split_group(made, [[0], [1]])
        assert dist.get_process_group_ranks(single) == [rank]
    for wrong in (None, [], [[]]):
        with pytest.raises(ValueError, match="must have a list of ranks, not empty"):
            dist.split_group(split_ranks=wrong)


def shrinking():
    rank = dist.get_rank()
    pair = dist.new_group([0, 3])
    with pytest.raises(ValueError, match="must not be empty"):
        dist.shrink_group([])
    dist.barrier()
    ranks.meet_in_store("past the barrier")
    if rank == 1:
        os._exit(0)
    with pytest.raises(dist.DistError, match="rank 1"):
        total()
    made = dist.shrink_group([1])
    assert made is dist.group.WORLD
    rank = [0, None, 1, 2][rank]  # Renumbered.
    assert (dist.get_rank(), dist.get_world_size()) == (rank, 3)
    assert dist.get_process_group_ranks(None) == [0, 1, 2]
    assert total() == 3
    dist.broadcast(tensor := numpy.full(1, rank), src=2)
    assert tensor[0] == 2
    if isinstance(pair, dist.ProcessGroup):
        with pytest.raises(ValueError, match="was destroyed"):
            dist.barrier(pair)
    pair = dist.new_group([2, 1])
    if rank == 0:
        assert pair is dist.GroupMember.NON_GROUP_MEMBER
    else:
        assert dist.get_process_group_ranks(pair) == [1, 2]
        assert total(pair) == 3
    assert dist.get_pg_count() == 1 + (rank > 0)


def shrinking_part():
    rank = dist.get_rank()
    part = dist.new_group([1, 2, 3])
    if rank in (1, 3):
        smaller = dist.shrink_group([1], part)  # Rank 2 of the world.
        assert dist.get_process_group_ranks(smaller) == [1, 3]
        assert total(smaller) == 4
        with pytest.raises(ValueError, match="was destroyed"):
            dist.barrier(part)
    dist.barrier()


def leaving():
    rank = dist.get_rank()
    groups = [dist.new_group() for _ in range(3)]
    dist.destroy_process_group(groups[1])
    assert dist.get_pg_count() == 3
    assert total(groups[2]) == 6
    dist.destroy_process_group()
    for group in groups:
        with pytest.raises(dist.DistError):
            group.barrier()
    ranks.join("again")
    assert dist.get_rank() == rank and dist.get_pg_count() == 1
    assert total(dist.new_group()) == 6


@pytest.mark.parametrize(
    "function",
    ["subgroups", "numbers", "splitting", "shrinking", "shrinking_part", "leaving"],
)
def test_processes(function):
    ranks.in_processes(SIZE, __file__, function)


# ---- Of one process ----


@pytest.fixture
def joined():
    """A job of one rank."""
    dist.init_process_group("local", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_world_of_one_needs_no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SYNCLINE_STORE"):
        monkeypatch.delenv(name, raising=False)
    dist.init_process_group()
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    tensor = numpy.ones(3)
    dist.all_reduce(tensor)
    dist.barrier()
    assert tensor.tolist() == [1, 1, 1]
    dist.destroy_process_group()


@pytest.mark.usefixtures("joined")
def test_a_rank_is_given_in_one_way():
    x = numpy.zeros(1)
    calls = {
        "src": [dist.broadcast, dist.scatter, dist.recv, dist.irecv],
        "dst": [dist.reduce, dist.gather, dist.send, dist.isend],
    }
    for name, functions in calls.items():
        for function in functions:
            with pytest.raises(ValueError, match=f"give either {name} or group_{name}, not both"):
                function(x, **{name: 0, f"group_{name}": 0})
    for function in (dist.broadcast, dist.reduce, dist.send, dist.isend):
        with pytest.raises(ValueError, match="(src|dst) or group_(src|dst) is needed"):
            function(x)
    with pytest.raises(ValueError, match="group_src must be a rank in group 'default', 0 to 0"):
        dist.broadcast(x, group_src=1)


@pytest.mark.usefixtures("joined")
def test_lists_are_for_the_root():
    x = numpy.zeros(1)
    with pytest.raises(ValueError, match="gather_list is needed on the root"):
        dist.gather(x)
    with pytest.raises(ValueError, match="output_tensor must be given on the root"):
        dist.gather_single(None, x)
    with pytest.raises(ValueError, match="scatter_list is needed on the root"):
        dist.scatter(x)


def test_lists_are_for_the_root_only():
    def run(world):
        if world.rank == 1:
            for function in (dist.gather, dist.scatter):
                with pytest.raises(ValueError, match="_list must be given on the root only"):
                    function(numpy.zeros(1), [numpy.zeros(1)], group=world.group, **{
                        "group_dst" if function is dist.gather else "group_src": 0
                    })  # fmt: skip

    ranks.in_threads(2, run)


@pytest.mark.usefixtures("joined")
def test_messages_are_checked():
    x = numpy.zeros(1)
    with pytest.raises(ValueError, match="op must be syncline.isend or syncline.irecv"):
        dist.P2POp(dist.send, x, 0)
    with pytest.raises(ValueError, match="give either peer or group_peer"):
        dist.P2POp(dist.isend, x)
    for wrong in ([], [x]):
        with pytest.raises(ValueError, match="must be a list of P2POp"):
            dist.batch_isend_irecv(wrong)
    two = [dist.P2POp(dist.isend, x, 0), dist.P2POp(dist.isend, x, 0, group=dist.new_group())]
    with pytest.raises(ValueError, match="must be of one group"):
        dist.batch_isend_irecv(two)
    with pytest.raises(TypeError, match="device_ids must be a list"):
        dist.barrier(device_ids=0)


@pytest.mark.usefixtures("joined")
def test_every_rank_that_is_missing_is_named_by_monitored_barrier():
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=5), wait_all_ranks=True)

    def run(world):
        if world.rank == 0:
            with pytest.raises(dist.DistTimeoutError, match="1, 2"):
                dist.monitored_barrier(world.group, timedelta(milliseconds=100))

    ranks.in_threads(3, run)


def test_outside_a_group_nothing_happens_but_a_warning():
    outside = dist.GroupMember.NON_GROUP_MEMBER
    x = numpy.zeros(1)
    calls = [
        lambda: dist.reduce(x, 0, group=outside),
        lambda: dist.gather(x, None, 0, group=outside),
        lambda: dist.gather_single(None, x, group=outside),
        lambda: dist.scatter(x, None, 0, group=outside),
        lambda: dist.reduce_scatter(x, [x], group=outside),
        lambda: dist.all_gather_single(x, x, group=outside),
        lambda: dist.reduce_scatter_single(x, x, group=outside),
        lambda: dist.all_to_all([x], [x], group=outside),
        lambda: dist.all_to_all_single(x, x, group=outside),
        lambda: dist.monitored_barrier(outside),
        lambda: dist.isend(x, 0, group=outside),
        lambda: dist.irecv(x, 0, group=outside),
        lambda: dist.broadcast_coalesced([x], 0, group=outside),
        lambda: dist.all_reduce_coalesced([x], group=outside),
        lambda: dist.all_gather_coalesced([[x]], [x], group=outside),
        lambda: dist.reduce_scatter_coalesced([x], [[x]], group=outside),
        lambda: dist.broadcast_multigpu([x], 0, group=outside),
        lambda: dist.all_reduce_multigpu([x], group=outside),
        lambda: dist.reduce_multigpu([x], 0, group=outside),
        lambda: dist.all_gather_multigpu([[x]], [x], group=outside),
        lambda: dist.reduce_scatter_multigpu([x], [[x]], group=outside),
        lambda: dist.all_gather_object([None], 1, group=outside),
        lambda: dist.broadcast_object_list([None], 0, group=outside),
        lambda: dist.gather_object(1, [None], 0, group=outside),
        lambda: dist.scatter_object_list([None], [1], 0, group=outside),
        lambda: dist.send_object_list([1], 0, group=outside),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert call() is None
        assert "does nothing here: this process is not in the group" in str(caught[0].message)
        assert caught[0].filename == __file__


def test_reductions_have_more_than_one_name():
    with pytest.warns(FutureWarning, match="use ReduceOp instead"):
        assert dist.reduce_op.SUM is dist.ReduceOp.SUM
    with pytest.raises(AttributeError, match="there is no reduction 'sum'"):
        dist.reduce_op.sum  # noqa: B018
    assert dist._make_nccl_premul_sum(2.5) == dist.ReduceOp.PREMUL_SUM(numpy.float32(2.5))
    assert repr(dist.ReduceOp.PREMUL_SUM(2)) == "ReduceOp.PREMUL_SUM(2.0)"
    with pytest.raises(TypeError, match="SUM takes no factor"):
        dist.ReduceOp.SUM(2)
    complex_ones = [op for op in dist.ReduceOp if dist.supports_complex(op)]
    assert complex_ones == [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM]


def test_the_environment_is_asked(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert dist.get_node_local_rank(fallback_rank=3) == 3
    with pytest.raises(RuntimeError, match="LOCAL_RANK is not set"):
        dist.get_node_local_rank()
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert dist.get_node_local_rank() == 5
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not dist.is_torchelastic_launched()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert dist.is_torchelastic_launched()
    assert dist.default_pg_timeout == timedelta(minutes=30)


if __name__ == "__main__":
    ranks.main(globals())
