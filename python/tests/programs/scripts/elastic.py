"""As torchrun's tutorial on fault tolerance: snapshots, and a worker that fails once.

Usage: elastic.py BACKEND FOLDER.
"""

import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 4


def main():
    backend, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    dist.init_process_group(backend)
    rank = dist.get_rank()
    torch.manual_seed(5)
    inputs = torch.randn(64, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=3))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    snapshot = folder / "snapshot.pt"
    first = 0
    if snapshot.exists():
        saved = torch.load(snapshot)
        model.module.load_state_dict(saved["model"])
        first = saved["epoch"] + 1
        print(f"rank {rank} goes on with epoch {first}", flush=True)
    for epoch in range(first, EPOCHS):
        if epoch == 2 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise RuntimeError("this worker fails, once")
        loader.sampler.set_epoch(epoch)
        for batch, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch), targets).backward()
            optimizer.step()
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, snapshot)
    dist.barrier()
    print(f"result {sum(p.double().sum().item() for p in model.parameters()):.6f}")
    dist.destroy_process_group()


main()
