"""The smallest job in Python.

./bazelw run //launch:run -- --standalone --nproc-per-node=3 examples/hello.py
"""

import numpy as np
import syncline as dist

dist.init_process_group()
x = np.full(4, dist.get_rank(), np.float32)
dist.all_reduce(x)  # in place, the sum over all ranks
work = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
work.wait()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x}")
dist.destroy_process_group()
