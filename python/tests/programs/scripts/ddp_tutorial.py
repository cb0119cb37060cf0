"""What torch's tutorials on DDP do: a basic step, checkpoints, accumulation, join, a hook.

Usage: ddp_tutorial.py BACKEND FOLDER [own].
"""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

if "own" in sys.argv:
    from syncline.torch import DistributedDataParallel as DDP  # noqa: F811


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(torch.relu(self.net1(x)))


def data(step=0):
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(20, 10, generator=generator), torch.randn(20, 5, generator=generator)


def step(model, optimizer, number=0):
    inputs, labels = data(number)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), labels).backward()
    optimizer.step()


def main():
    backend, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    dist.init_process_group(backend)
    torch.manual_seed(5)
    model = DDP(ToyModel())
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    step(model, optimizer)

    if dist.get_rank() == 0:
        torch.save(model.state_dict(), folder / "model")
    dist.barrier()
    again = DDP(ToyModel())
    again.load_state_dict(torch.load(folder / "model", map_location="cpu"))
    optimizer = optim.SGD(again.parameters(), lr=0.01)
    with again.no_sync():
        inputs, labels = data(7)
        nn.functional.mse_loss(again(inputs), labels).backward()
    inputs, labels = data(8)
    nn.functional.mse_loss(again(inputs), labels).backward()
    optimizer.step()

    with again.join():
        for number in range(3 + dist.get_rank()):
            step(again, optimizer, number)

    hooked = DDP(again.module, static_graph=True)
    hooked.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for number in range(3):
        step(hooked, optimizer, number)
    print(f"result {sum(p.double().sum().item() for p in hooked.parameters()):.4f}")
    dist.destroy_process_group()


main()
