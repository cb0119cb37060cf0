"""One rank of the group of three languages: every collective, its results printed.

every_collective.py INIT_METHOD RANK. The programs of the other languages, every_collective.cc and
EveryCollective.java, make the same calls in the same order and print the same kind of lines.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

from syncline import ProcessGroup, ReduceOp, World

COUNT = 4


def floats(*values: float) -> array[float]:
    return array("f", values)


def own(rank: int, offset: float = 0) -> array[float]:
    return floats(*(10 * rank + i + offset for i in range(COUNT)))


def zeros(count: int = COUNT) -> array[float]:
    return floats(*[0] * count)


def show(name: str, *arrays: Any) -> None:
    print(f"{name}:", *(f"{value:g}" for values in arrays for value in values), flush=True)


def reductions(group: ProcessGroup, rank: int) -> None:
    for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
        x = own(rank, 1)
        group.all_reduce(x, op)
        show(f"all_reduce {op.name}", x)
    for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        bits = array("q", [rank + 4, rank * 3])
        group.all_reduce(bits, op)
        show(f"all_reduce {op.name}", bits)
    x = own(rank)
    group.all_reduce(x, ReduceOp.PREMUL_SUM, factor=0.5 * (rank + 1))
    show("all_reduce PREMUL_SUM", x)
    x = own(rank)
    group.reduce(x, 2)
    show("reduce", x)
    x = own(rank)
    group.scan(x)
    show("scan", x)
    x = own(rank)
    group.exscan(x)
    show("exscan", x)
    a, b = own(rank), own(rank, 100)
    group.all_reduce_coalesced([a, b])
    show("all_reduce_coalesced", a, b)
    a, b = own(rank), own(rank, 100)
    group.all_reduce_multi([a, b])
    show("all_reduce_multi", a, b)


def movements(group: ProcessGroup, rank: int, size: int) -> None:
    x = own(rank)
    group.broadcast(x, 1)
    show("broadcast", x)
    outputs = [zeros(r + 1) for r in range(size)]
    group.all_gather(outputs, own(rank)[: rank + 1])
    show("all_gather", *outputs)
    y = zeros(COUNT * size)
    group.all_gather_single(y, own(rank))
    show("all_gather_single", y)
    outputs = [zeros() for _ in range(size)] if rank == 0 else []
    group.gather(outputs, own(rank), 0)
    show("gather", *outputs)
    x = zeros()
    group.scatter(x, [own(r) for r in range(size)] if rank == 1 else [], 1)
    show("scatter", x)
    x = zeros()
    group.reduce_scatter(x, [own(rank, r) for r in range(size)])
    show("reduce_scatter", x)
    x = zeros(1)
    group.reduce_scatter_single(x, own(rank)[:size])
    show("reduce_scatter_single", x)
    outputs = [zeros() for _ in range(size)]
    group.all_to_all(outputs, [own(rank, 100 * r) for r in range(size)])
    show("all_to_all", *outputs)
    y = zeros((rank + 1) * size)
    group.all_to_all_single(
        y, floats(*(10 * rank + i for i in range(6))), [rank + 1] * size, [1, 2, 3]
    )
    show("all_to_all_single", y)


def messages(group: ProcessGroup, rank: int, size: int) -> None:
    following, preceding = (rank + 1) % size, (rank - 1) % size
    sent = group.send_async(own(rank), following, 7)
    x = zeros()
    source = group.recv(x, preceding, 7)
    sent.wait()
    show("recv", x, [source])
    if rank == 0:
        sources = [group.recv(x, -1), group.recv(x, -1)]
        show("recv from any", sorted(sources))
    else:
        group.send(own(rank), 0)
        show("recv from any")


def byte_strings(group: ProcessGroup, rank: int, size: int) -> None:
    text = b"x" * (rank + 1)
    show("all_gather_bytes", [len(value) for value in group.all_gather_bytes(text)])
    show("broadcast_bytes", group.broadcast_bytes(text, 2))
    show("gather_bytes", [len(value) for value in group.gather_bytes(text, 1)])
    values = [b"y" * (r + 2) for r in range(size)] if rank == 0 else []
    show("scatter_bytes", group.scatter_bytes(values, 0))
    if rank == 0:
        message = group.recv_bytes(-1, 3)
        show("recv_bytes", message.value, [message.source_rank])
    else:
        if rank == 2:
            group.send_bytes(b"abc", 0, 3)
        show("recv_bytes")


def groups(world: World, rank: int) -> None:
    x = own(rank)
    half = world.group.split([[2, 0], [1]])
    assert half is not None
    half.all_reduce(x)
    show("split", x, [half.rank(), half.size()], half.ranks)
    x = own(rank)
    work = world.group.all_reduce_async(x)
    world.group.barrier()
    work.wait()
    show("all_reduce_async", x)
    world.group.monitored_barrier()
    show("monitored_barrier")


def main() -> None:
    backend, init_method, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    world = World.init(backend, init_method, rank=rank, world_size=3)
    reductions(world.group, rank)
    movements(world.group, rank, world.size)
    messages(world.group, rank, world.size)
    byte_strings(world.group, rank, world.size)
    groups(world, rank)
    world.close()


if __name__ == "__main__":
    main()
