"""A training loop of accelerate. Usage: accelerate_loop.py BACKEND."""

import sys

import torch

torch.distributed.init_process_group(sys.argv[1])  # The one line more.

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import set_seed  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == 2
    set_seed(5)
    inputs = torch.randn(60, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(3):
        for batch, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(batch), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    losses = accelerator.gather(loss.detach().reshape(1))
    everyone = accelerator.gather_for_metrics(torch.tensor([accelerator.process_index]))
    assert everyone.tolist() == [0, 1] and len(losses) == 2
    accelerator.wait_for_everyone()
    print(f"result {accelerator.reduce(losses.sum()).item():.6f}")
    accelerator.end_training()


main()
