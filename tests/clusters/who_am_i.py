"""Joins the job, and prints who this process is in it.

who_am_i.py [JOB [BACKEND]]; JOB names the job.
"""

import sys

import numpy as np
import syncline as dist

local_rank = dist.get_node_local_rank()
dist.init_process_group(*sys.argv[2:])
total = np.array([dist.get_rank()], np.int64)
dist.all_reduce(total)
ranks = np.empty(dist.get_world_size(), np.int64)
dist.all_gather_into_tensor(ranks, np.array([dist.get_rank()], np.int64))
assert ranks.tolist() == list(range(dist.get_world_size()))
names = ["python"]
if len(sys.argv) > 1:
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, sys.argv[1])
print(
    f"rank {dist.get_rank()} of {dist.get_world_size()}, local {local_rank}, sum {total[0]}, "
    f"job {' '.join(sorted(set(names)))}.",
    flush=True,
)
dist.barrier()  # The process that serves the store leaves last.
dist.destroy_process_group()
