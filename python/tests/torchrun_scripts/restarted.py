"""Rank 1 fails the first time; the second time all agree that it is the second."""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank = dist.get_rank()
attempts = torch.tensor([attempt])
dist.all_reduce(attempts)
assert int(attempts) == attempt * dist.get_world_size()
if attempt == 0 and rank == 1:
    os._exit(3)  # Gloo's threads at times abort an interpreter that ends in order.
try:
    dist.barrier()
except RuntimeError:
    time.sleep(60)  # Until the launcher ends it: rank 1 is the first that fails.
    raise
dist.destroy_process_group()
(pathlib.Path(sys.argv[1]) / f"rank{rank}").write_text(str(attempt))
os._exit(0)
