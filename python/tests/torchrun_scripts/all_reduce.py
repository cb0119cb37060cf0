"""torch.distributed by its defaults: env://, gloo, one collective. Writes what it saw."""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.arange(5.0) + rank
dist.all_reduce(tensor)
parts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
dist.all_gather(parts, torch.tensor([rank]))
dist.barrier()
saw = {
    "sum": tensor.tolist(),
    "ranks": [int(part) for part in parts],
    "elastic": dist.is_torchelastic_launched(),
    "local": dist.get_node_local_rank(),
    "facts": {
        name: os.environ[name]
        for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE")
        + ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "OMP_NUM_THREADS")
        + ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
    },
    "variables": sorted(os.environ),
}
dist.destroy_process_group()
(pathlib.Path(sys.argv[1]) / f"rank{rank}").write_text(json.dumps(saw))
os._exit(0)  # Gloo's threads at times abort an interpreter that ends in order.
