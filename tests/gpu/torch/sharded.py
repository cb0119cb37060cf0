"""FSDP2 and DTensor over backend "syncline" on CUDA."""

import gpu_ranks
import models
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

STEPS = 4
SHAPE = (4, 32, 128)


def train(shards: bool, **options: object) -> list[float]:
    torch.manual_seed(5)
    module = models.transformer(128, 2).to(gpu_ranks.device())
    if shards:
        for block in module:
            fully_shard(block, **options)
        fully_shard(module, **options)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    torch.manual_seed(9)  # All ranks have the same input: so has one that does not shard.
    seen = []
    for _ in range(STEPS):
        loss = module(torch.randn(SHAPE, device=gpu_ranks.device())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().float())
    return torch.stack(seen).tolist()


def fully_sharded() -> None:
    expected = train(shards=False)
    for name, options, tolerance in (
        ("plain", {}, 1e-4),
        ("not resharded", {"reshard_after_forward": False}, 1e-4),
        ("bfloat16", {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}, 0.1),
    ):
        got = train(shards=True, **options)
        for a, b in zip(got, expected, strict=True):
            assert abs(a - b) <= tolerance * max(1.0, abs(b)), f"{name}: {got} {expected}"


def redistributed() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cuda", (size,))
    whole = torch.arange(size * size * 12.0, device=gpu_ranks.device()).view(size * 3, size * 4)
    for first in (Replicate(), Shard(0), Shard(1)):
        for second in (Replicate(), Shard(0), Shard(1)):
            tensor = distribute_tensor(whole, mesh, [first]).redistribute(mesh, [second])
            assert torch.equal(tensor.full_tensor(), whole), (first, second)
    a, b = (
        distribute_tensor(whole, mesh, [Shard(1)]),
        distribute_tensor(whole.t(), mesh, [Shard(0)]),
    )
    product = (a @ b).full_tensor()  # Sums of parts.
    assert torch.allclose(product, whole @ whole.t())


if __name__ == "__main__":
    gpu_ranks.main(fully_sharded, redistributed)
