"""A user's script, which mypy --strict accepts and two ranks run: most of the API, with NumPy."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import numpy as np
import syncline as dist
from numpy.typing import NDArray
from syncline import elastic, preemption

Floats = NDArray[np.float32]


def collectives(rank: int, size: int) -> Floats:
    values: Floats = np.full(5, rank + 1, np.float32)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    dist.broadcast(values, src=size - 1)
    gathered: list[Floats] = [np.empty_like(values) for _ in range(size)]
    dist.all_gather(gathered, values)
    dist.barrier()
    assert all(np.array_equal(part, values) for part in gathered)
    return values


def rooted(rank: int, size: int) -> None:
    total: Floats = np.ones(3, np.float32)
    dist.reduce(total, dst=0, op=dist.ReduceOp.SUM)
    rows: list[Floats] | None = (
        [np.empty(3, np.float32) for _ in range(size)] if rank == 0 else None
    )
    dist.gather(np.full(3, rank, np.float32), rows, dst=0)
    dist.scatter(total, rows, group_src=0)
    assert total.tolist() == [rank] * 3


def exchanges(rank: int, size: int) -> None:
    table: Floats = np.empty((size, 2), np.float32)
    dist.all_gather_into_tensor(table, np.full(2, rank, np.float32))
    dist.all_gather_single(table, np.full(2, rank, np.float32))
    part: Floats = np.empty(2, np.float32)
    dist.reduce_scatter(part, list(table))
    dist.reduce_scatter_tensor(part, table, op=dist.ReduceOp.AVG)
    assert part.tolist() == [rank, rank]
    columns: list[Floats] = [np.empty(2, np.float32) for _ in range(size)]
    dist.all_to_all(columns, list(table))
    dist.all_to_all_single(np.empty(2 * size, np.float32), table.ravel(), [2] * size, [2] * size)
    dist.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=True)


def coalesced(size: int) -> None:
    tensors: list[Floats] = [np.ones(2, np.float32), np.ones(3, np.float32)]
    dist.all_reduce_coalesced(tensors, dist.ReduceOp.MAX)
    with dist.coalescing(async_ops=True) as together:
        for tensor in tensors:
            dist.all_reduce(tensor)
    together.wait()
    assert [tensor[0] for tensor in tensors] == [size, size]


def objects(rank: int, size: int) -> list[Any]:
    everything: list[Any] = [None] * size
    dist.all_gather_object(everything, {"rank": rank})
    one: list[Any] = [everything[0], 1.5] if rank == 0 else [None, None]
    dist.broadcast_object_list(one, src=0, codec="safe")
    assert one == [{"rank": 0}, 1.5]
    return everything


async def awaited(size: int) -> None:
    values: Floats = np.ones(4, np.float32)
    work = dist.all_reduce(values, async_op=True)
    assert work is not None
    arrays: list[Any] = await work
    assert float(arrays[0][0]) == size
    second = dist.all_reduce(values, op=dist.PremulSum(0.5), async_op=True)
    assert second is not None
    future: dist.Future = second.get_future()
    follower: dist.Future = future.then(lambda done: len(done.result()))
    count: int = await follower
    problem: BaseException | None = second.exception()
    assert (count, second.is_success(), problem) == (1, True, None)


def immutable(rank: int, size: int) -> None:
    x: Floats = np.full(2, rank, np.float32)
    y: Floats = dist.functional.all_reduce(x)
    stacked: Floats = dist.functional.all_gather(x)
    assert stacked.shape == (size, 2) and np.array_equal(stacked.sum(axis=0), y)


def asynchronous(values: Floats) -> None:
    work: dist.Work | None = dist.all_reduce(values, async_op=True)
    if work is not None:
        work.wait(timeout=timedelta(seconds=60))
        finished: bool = work.is_completed()
        what: str = work.description
        assert finished and "all_reduce" in what


def point_to_point(rank: int, size: int) -> int:
    mine = np.array([rank], np.int64)
    theirs = np.empty_like(mine)
    if rank % 2 == 0:
        dist.send(mine, dst=(rank + 1) % size, tag=3)
        sender: int = dist.recv(theirs, src=(rank - 1) % size, tag=3)
    else:
        sender = dist.recv(theirs, src=(rank - 1) % size, tag=3)
        dist.send(mine, dst=(rank + 1) % size, tag=3)
    assert theirs[0] == sender
    messages = [
        dist.P2POp(dist.isend, mine, (rank + 1) % size),
        dist.P2POp(dist.irecv, theirs, (rank - 1) % size),
    ]
    works: list[dist.Work] = dist.batch_isend_irecv(messages)
    for work in works:
        work.wait()
    return sender


def groups(rank: int, size: int) -> None:
    made = dist.new_group(list(range(size)), timeout=timedelta(minutes=1), backend="gloo")
    ones = np.ones(3, np.int32)
    dist.all_reduce(ones, group=made)
    number: int = dist.get_rank(made)
    assert (number, ones[0], dist.get_world_size(made)) == (rank, size, size)
    if isinstance(made, dist.ProcessGroup):
        name: str = made.backend
        assert name == dist.get_backend(made)
        made.broadcast(ones, root=0)
        ranks: list[int] = dist.get_process_group_ranks(made)
        assert dist.get_global_rank(made, number) == ranks[number]
        dist.destroy_process_group(made)
    mine, all_of_them = dist.new_subgroups(1)
    assert dist.get_world_size(mine) == 1 and len(all_of_them) == size


def stores() -> bytes:
    store: dist.Store = dist.PrefixStore("job", dist.HashStore(timedelta(seconds=5)))
    store.set("key", b"value")
    count: int = store.add("counter", 2)
    keys: list[str] = store.list_keys()
    assert count == 2 and keys == ["counter", "key"]
    return store.get("key", timedelta(seconds=1))


def training(rank: int) -> list[NDArray[np.float32]]:
    parameters = [np.zeros((2, 3), np.float32), np.zeros(3, np.float32)]
    reducer = dist.GradientReducer(parameters, bucket_cap_mb=1, find_unused_parameters=True)
    with reducer.join(divide_by_initial_world_size=False):
        for index in reversed(range(len(parameters))):
            reducer.gradients[index][...] = rank
            reducer.mark_ready(index)
        gradients = [average.copy() for average in reducer.finish()]
    assert reducer.is_used(0) and reducer.stats().table
    with reducer.no_sync():
        reducer.ready(0, parameters[0])
        reducer.finish()
    return gradients


def stopping() -> int:
    preemption.install(signals=(), timeout=timedelta(seconds=60))
    preemption.notify()
    step = elastic.round() + elastic.restart_count()
    while not preemption.reached(step):
        elastic.heartbeat()
        step += 1
    agreed: int | None = preemption.agreed_step()
    assert agreed == step and elastic.max_restarts() == 0
    preemption.uninstall()
    return step


def errors(values: Floats, size: int) -> str:
    try:
        dist.send(values, dst=size)
    except ValueError as error:
        return str(error)
    except dist.DistTimeoutError as error:
        timeout: TimeoutError = error
        return str(timeout)
    except dist.DistError as error:
        ranks: tuple[int, ...] = error.ranks
        operation: str | None = error.operation
        sequence: int | None = error.sequence
        return f"{operation} #{sequence}: {ranks}"
    return ""


@elastic.record
def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    values = collectives(rank, size)
    rooted(rank, size)
    exchanges(rank, size)
    coalesced(size)
    assert len(objects(rank, size)) == size
    asyncio.run(awaited(size))
    immutable(rank, size)
    asynchronous(values)
    point_to_point(rank, size)
    groups(rank, size)
    assert stores() == b"value"
    gradients = training(rank)
    assert float(gradients[0][0, 0]) == (size - 1) / 2
    assert "dst" in errors(values, size)
    assert stopping() >= 0
    dist.destroy_process_group()
    assert not dist.is_initialized()
    print("done")


if __name__ == "__main__":
    main()
