"""The collectives over several tensors of each process."""

import importlib
import sys

import syncline as dist

xp = importlib.import_module(sys.argv[1])

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
n = 2  # Tensors of each process.


def place(r, i):
    return r * n + i


def mine():
    return [xp.ones(2) * place(rank, i) for i in range(n)]


def check(tensor, value):
    assert tensor.tolist() == [float(value)] * 2, (rank, tensor, value)


total = sum(range(size * n))
for async_op in (False, True):
    tensors = mine()
    work = dist.broadcast_multigpu(tensors, 1, dist.group.WORLD, async_op, 1)
    work and work.wait()
    for tensor in tensors:
        check(tensor, place(1, 1))
    tensors = mine()
    work = dist.broadcast_multigpu(tensors, src=0, async_op=async_op, src_tensor=1)
    work and work.wait()
    for tensor in tensors:
        check(tensor, place(0, 1))

    tensors = mine()
    work = dist.all_reduce_multigpu(tensors, dist.ReduceOp.SUM, async_op=async_op)
    work and work.wait()
    for tensor in tensors:
        check(tensor, total)

    tensors = mine()
    work = dist.reduce_multigpu(tensors, dst=0, async_op=async_op, dst_tensor=1)
    work and work.wait()
    if rank == 0:
        check(tensors[1], total)
    else:
        check(tensors[1], place(rank, 1))

    outputs = [[xp.zeros(2) for _ in range(size * n)] for _ in range(n)]
    work = dist.all_gather_multigpu(outputs, mine(), async_op=async_op)
    work and work.wait()
    for output in outputs:
        for p in range(size * n):
            check(output[p], p)

    outputs = [xp.zeros(2) for _ in range(n)]
    inputs = [[xp.ones(2) * p for p in range(size * n)] for _ in range(n)]
    work = dist.reduce_scatter_multigpu(outputs, inputs, async_op=async_op)
    work and work.wait()
    for i in range(n):
        check(outputs[i], place(rank, i) * size * n)

dist.destroy_process_group()
