"""A tour of process groups in Python: reductions, sub-groups, work in the background, errors.

./bazelw run //launch:run -- --standalone --nproc-per-node=3 examples/tour.py

The same in C++ is tour.cc, in Java Tour.java.
"""

import numpy as np
import syncline as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()

# Every rank contributes its number; all get the sum, in place.
x = np.full(4, rank, np.float32)
dist.all_reduce(x)
print(f"rank {rank}: the sum is {x[0]:g}")

# Memory that the other ranks of this host read where it is, for large buffers.
z = dist.empty_shared(1 << 20)
z[:] = rank
dist.all_reduce(z)
print(f"rank {rank}: the shared sum is {z[-1]:g}")

# In the background: the inputs of all ranks are on their way while this one goes on.
gathered = np.empty((size, 2), np.float32)
work = dist.all_gather_single(gathered, np.full(2, rank, np.float32), async_op=True)
half = dist.split_group(split_ranks=[list(range(0, size, 2)), list(range(1, size, 2))])
work.wait()
print(f"rank {rank}: gathered {' '.join(f'{value:g}' for value in gathered[:, 0])}")

# In the half of the ranks that this one belongs to.
y = np.full(1, rank, np.int64)
dist.all_reduce(y, dist.ReduceOp.MAX, group=half)
print(f"rank {rank}: the largest of my half is {y[0]}")

# A bad argument is refused before anything happens, and the group goes on.
try:
    dist.broadcast(x, src=size)
except ValueError as error:
    print(f"rank {rank}: refused: {error}")

# Ranks that disagree all get an error that says who called what. Their group is then broken.
all_ranks = dist.new_group()
try:
    dist.all_reduce(np.zeros(2 if rank == 0 else 3, np.float32), group=all_ranks)
except dist.DistMismatchError as error:
    print(f"rank {rank}: mismatch: {error}")

dist.barrier()  # Other groups are not affected.
dist.destroy_process_group()
