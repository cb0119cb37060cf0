"""What torch trains by, over the backend: equal to the same over gloo."""

import functools

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import syncline.torch
import torch
import torch.distributed as dist
import torch_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel


def small_model():
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.BatchNorm1d(24), nn.Linear(24, 12))


def batch(step, shape=(6, 12)):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(shape, generator=generator)


def train(model, optimizer, steps=4, inputs=batch):
    for step in range(steps):
        optimizer.zero_grad()
        model(inputs(step)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def data_parallel(**options):
    model = DistributedDataParallel(small_model(), bucket_cap_mb=0.001, **options)
    return train(model, sgd(model)) + list(model.buffers())


class PartlyUsed(nn.Module):
    """Rank 0 does not use one of the two layers."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x):
        x = self.always(x)
        return self.sometimes(x) if dist.get_rank() != 0 else x


def data_parallel_with_unused_parameters():
    model = DistributedDataParallel(PartlyUsed(), find_unused_parameters=True)
    return train(model, sgd(model))


def data_parallel_with_accumulation():
    model = DistributedDataParallel(small_model())
    with model.no_sync():
        model(batch(10)).square().mean().backward()
    model(batch(11)).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


class TwoOutputs(nn.Module):
    """Each of which depends on a layer of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x):
        return self.first(x), self.second(x)


def data_parallel_with_a_backward_pass_for_each_output(wrapper=DistributedDataParallel):
    model = wrapper(TwoOutputs(), bucket_cap_mb=0.0001)
    optimizer = sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        for output in model(batch(step)):
            output.square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def data_parallel_compiled(**options):
    """torch.compile of the whole, with buffers, and what it makes of the backward pass."""
    model = DistributedDataParallel(small_model(), **options)
    compiled = torch.compile(model, backend="aot_eager")
    return train(compiled, sgd(model)) + list(model.buffers())


def data_parallel_with_sparse_gradients():
    model = DistributedDataParallel(
        nn.Sequential(nn.EmbeddingBag(20, 8, mode="sum", sparse=True), nn.Linear(8, 2))
    )

    def inputs(step):
        return torch.tensor([[step, dist.get_rank(), 3], [0, 5, 5]])

    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), inputs=inputs)


def data_parallel_with_a_hook(hook):
    model = DistributedDataParallel(small_model(), bucket_cap_mb=0.001)
    model.register_comm_hook(None, hook)
    return train(model, sgd(model))


def data_parallel_with_a_built_in_hook(kind):
    model = DistributedDataParallel(small_model(), bucket_cap_mb=0.001)
    model._register_builtin_comm_hook(kind)
    return train(model, sgd(model))


def data_parallel_that_divides_by_active_ranks():
    model = DistributedDataParallel(nn.Linear(12, 12), bucket_cap_mb=0.0001)
    optimizer = sgd(model)
    with model.join(divide_by_initial_world_size=False):
        train(model, optimizer, steps=2 + 2 * dist.get_rank())
    return list(model.parameters())


def data_parallel_with_uneven_inputs():
    model = DistributedDataParallel(nn.Linear(12, 12))
    optimizer = sgd(model)
    with Join([model]):
        train(model, optimizer, steps=2 + 2 * dist.get_rank())
    return list(model.parameters())


def data_parallel_of_half_precision():
    model = DistributedDataParallel(nn.Linear(12, 12).to(torch.bfloat16))
    train(model, sgd(model), inputs=lambda step: batch(step).to(torch.bfloat16))
    return [parameter.float() for parameter in model.parameters()]


def fully_sharded(policy):
    model = nn.Sequential(nn.Linear(12, 25), nn.ReLU(), nn.Linear(25, 12))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mp_policy=policy)
    parameters = train(model, torch.optim.Adam(model.parameters(), lr=0.01))
    return [parameter.full_tensor().float() for parameter in parameters]


def tensor_parallel():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(model, mesh, plan)
    same = functools.partial(torch.full, (6, 12))
    parameters = train(model, sgd(model), inputs=lambda step: same(0.1 * step + 0.1))
    return [parameter.full_tensor() for parameter in parameters]


def sharded_optimizer():
    model = DistributedDataParallel(small_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    return train(model, optimizer)


def pipeline():
    """Activations go from rank to rank, their gradients back."""
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = nn.Linear(12, 12)
    optimizer = sgd(stage)
    for step in range(4):
        optimizer.zero_grad()
        x = torch.full((6, 12), 0.1 * step + 0.1)
        if rank > 0:
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = stage(x)
        if rank < size - 1:
            dist.send(y.detach(), rank + 1)
            gradient = torch.zeros_like(y)
            dist.recv(gradient, rank + 1)
            y.backward(gradient)
        else:
            y.square().mean().backward()
        if rank > 0:
            dist.send(x.grad, rank - 1)
        optimizer.step()
    return list(stage.parameters())


BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
CASES = {
    "ddp": data_parallel,
    "ddp_static_graph": functools.partial(data_parallel, static_graph=True),
    "ddp_views": functools.partial(data_parallel, gradient_as_bucket_view=True),
    "ddp_two_outputs": data_parallel_with_a_backward_pass_for_each_output,
    "ddp_compiled": data_parallel_compiled,
    "ddp_compiled_static_graph": functools.partial(data_parallel_compiled, static_graph=True),
    "ddp_unused": data_parallel_with_unused_parameters,
    "ddp_no_sync": data_parallel_with_accumulation,
    "ddp_sparse": data_parallel_with_sparse_gradients,
    "ddp_join": data_parallel_with_uneven_inputs,
    "ddp_join_active": data_parallel_that_divides_by_active_ranks,
    "ddp_built_in_allreduce": functools.partial(
        data_parallel_with_a_built_in_hook, dist.BuiltinCommHookType.ALLREDUCE
    ),
    "ddp_built_in_fp16": functools.partial(
        data_parallel_with_a_built_in_hook, dist.BuiltinCommHookType.FP16_COMPRESS
    ),
    "ddp_bfloat16": data_parallel_of_half_precision,
    "ddp_allreduce_hook": functools.partial(
        data_parallel_with_a_hook, default_hooks.allreduce_hook
    ),
    "ddp_fp16_hook": functools.partial(data_parallel_with_a_hook, default_hooks.fp16_compress_hook),
    "fsdp2": functools.partial(fully_sharded, MixedPrecisionPolicy()),
    "fsdp2_mixed": functools.partial(fully_sharded, BFLOAT16),
    "tensor_parallel": tensor_parallel,
    "zero": sharded_optimizer,
    "pipeline": pipeline,
}


# Gloo adds half precision up in half precision, in an order of its own.
TOLERANCE = {"ddp_bfloat16": 1e-2, "ddp_fp16_hook": 1e-3, "ddp_built_in_fp16": 1e-3}


def run_all():
    for name, case in CASES.items():
        print(name, flush=True)  # Whatever fails, it is seen where.
        torch_ranks.assert_equal_to_gloo(name, case, TOLERANCE.get(name, 1e-6))


def power_sgd():
    """Its futures call further operations. (Over gloo they cannot.)"""
    torch_ranks.join()
    for wrapper in (DistributedDataParallel, syncline.torch.DistributedDataParallel):
        power_sgd_trains(wrapper)


def power_sgd_trains(wrapper):
    torch.manual_seed(3)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(40, 40), nn.Tanh())))
    model = wrapper(model, bucket_cap_mb=0.005)
    state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(40):
        optimizer.zero_grad()
        loss = (model(batch(step % 2, (8, 40))) - 0.3).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses
    assert_equal_on_all_ranks(list(model.parameters()))


def wrappers_are_equal():
    """Syncline's DistributedDataParallel trains as torch's does, where they work in other ways."""
    cases = {
        "two outputs": data_parallel_with_a_backward_pass_for_each_output,
        "compiled": compiled_by,
    }
    for name, case in cases.items():
        results = []
        for wrapper in (DistributedDataParallel, syncline.torch.DistributedDataParallel):
            torch_ranks.join()
            torch.manual_seed(7)
            results.append([parameter.detach().clone() for parameter in case(wrapper)])
            torch_ranks.leave()
        for ours, theirs in zip(*results, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6), name


def compiled_by(wrapper):
    model = wrapper(small_model(), static_graph=True)
    return train(torch.compile(model, backend="aot_eager"), sgd(model))


def assert_equal_on_all_ranks(tensors):
    for tensor in tensors:
        first = tensor.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, tensor)


@pytest.mark.parametrize("size", [2, 3])
def test_training_is_equal_to_that_over_gloo(size):
    torch_ranks.in_processes(size, __file__, "run_all")


def test_both_wrappers_train_alike():
    torch_ranks.in_processes(2, __file__, "wrappers_are_equal")


def test_torchs_power_sgd_hook_trains():
    torch_ranks.in_processes(2, __file__, "power_sgd")


if __name__ == "__main__":
    torch_ranks.main(globals())
