"""What torch's tutorials on FSDP do: fully_shard, a transformer, clipping, state dicts; and FSDP1.

Usage: fsdp_tutorial.py BACKEND FOLDER.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.output = nn.Linear(16, 32)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def train(model, optimizer, steps=3):
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        tokens = torch.randint(0, 32, (4, 6), generator=generator)
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def sharded(mesh):
    torch.manual_seed(5)
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    backend, folder = sys.argv[1:]
    dist.init_process_group(backend)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = sharded(mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer)

    # In the background, while the next steps run, and again from it.
    states = get_state_dict(model, optimizer)
    future = dcp.async_save(
        {"model": states[0], "optimizer": states[1]},
        checkpoint_id=folder,
        process_group=dist.new_group(),
    )
    future.result(120)
    dist.barrier()
    again = sharded(mesh)
    others = torch.optim.Adam(again.parameters(), lr=0.01)
    states = get_state_dict(again, others)
    state = {"model": states[0], "optimizer": states[1]}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        again, others, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    train(again, others)

    whole = get_model_state_dict(
        again, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole if dist.get_rank() == 0 else {}, options=options)
    train(model, optimizer, 1)

    torch.manual_seed(6)
    first = FullyShardedDataParallel(Transformer(), device_id=torch.device("cpu"))
    train(first, torch.optim.SGD(first.parameters(), lr=0.1))
    total = torch.zeros(1, dtype=torch.float64)
    for parameter in [*model.parameters(), *first.parameters()]:
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        total += local.detach().double().sum()
    dist.all_reduce(total)
    print(f"result {total.item():.4f}")
    dist.destroy_process_group()


main()
