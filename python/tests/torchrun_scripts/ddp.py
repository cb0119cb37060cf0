"""DistributedDataParallel of a small model. Writes its losses and weights."""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # DDP takes rank 0's weights.
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(7)
x = torch.randn(64, 8, generator=generator)
y = x.sum(dim=1, keepdim=True)
losses = []
for _ in range(20):
    loss = torch.nn.functional.mse_loss(model(x[rank::world]), y[rank::world])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
weights = [p.flatten().tolist() for p in model.module.parameters()]
dist.destroy_process_group()
report = {"losses": losses, "weights": weights}
(pathlib.Path(sys.argv[1]) / f"rank{rank}").write_text(json.dumps(report))
os._exit(0)  # Gloo's threads at times abort an interpreter that ends in order.
