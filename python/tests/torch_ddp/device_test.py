"""DistributedDataParallel, Syncline's and torch's, on modules on simulated CUDA devices."""

import os
import sys

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import ranks
import simulated_arrays
import simulated_torch
import syncline as dist
import syncline.torch
import torch
import torch.distributed
from syncline.torch import DistributedDataParallel, MixedPrecision, SyncBatchNorm
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

STEPS = 4
group = None


def wrap(module, **options):
    return DistributedDataParallel(module, process_group=group, **options)


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 40), torch.nn.BatchNorm1d(40), torch.nn.Tanh(), torch.nn.Linear(40, 3)
    )


def batches(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(8, 6, generator=generator) for _ in range(STEPS)]


def train(module, on_device, steps=None, before_step=None):
    """The state after training, on the host."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for inputs in batches(dist.get_rank())[:steps]:
        optimizer.zero_grad()
        given = simulated_torch.on_cuda(inputs) if on_device else inputs
        loss = module(given).square().mean()
        loss.backward()
        if before_step is not None:
            before_step(module)
        optimizer.step()
    return {name: tensor.cpu() for name, tensor in module.state_dict().items()}


def assert_same(ours, theirs, tolerance=1e-5):
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], rtol=tolerance, atol=tolerance), name


def compare(change=lambda module: module, prepare=lambda module: None, tolerance=1e-5, **options):
    """Trains on devices, whose streams are late, and on the host: the same comes out."""
    expected = wrap(change(model()), **options)
    prepare(expected)
    expected = train(expected, False)
    module = simulated_torch.move(change(model()))
    wrapped = wrap(module, device_ids=[dist.get_rank()], **options)
    prepare(wrapped)
    with simulated_arrays.slow(3_000):
        assert_same(train(wrapped, True), expected, tolerance)


def plain():
    compare()
    compare(gradient_as_bucket_view=True, bucket_cap_mb=0.0005)
    compare(broadcast_buffers=False, static_graph=True)
    compare(find_unused_parameters=True)


def precision():
    lower = MixedPrecision(param_dtype=torch.bfloat16)
    compare(
        lambda module: torch.nn.Sequential(module[0], *module[2:]),
        mixed_precision=lower,
        tolerance=0.05,
    )


def normalisation():
    compare(lambda module: SyncBatchNorm.convert_sync_batchnorm(module, group))


def delayed():
    def options(module):
        named = dict(module.named_parameters())
        return {
            "delay_all_reduce_named_params": [("3.weight", named["3.weight"])],
            "param_to_hook_all_reduce": named["3.weight"],
        }

    host = model()
    expected = train(wrap(host, **options(host)), False)
    there = simulated_torch.move(model())
    assert_same(train(wrap(there, **options(there)), True), expected)


def uneven():
    def run(module, on_device):
        with module.join():
            train(module, on_device, STEPS - dist.get_rank())
        return {name: tensor.cpu() for name, tensor in module.state_dict().items()}

    expected = run(wrap(model()), False)
    assert_same(run(wrap(simulated_torch.move(model())), True), expected)


def hooks():
    def allreduce_twice(state, bucket):
        """Halves on this rank, sums, in a future of torch's."""
        work = torch.distributed.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    compare(prepare=lambda module: module.register_comm_hook(None, allreduce_twice))
    for hook in (default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook):
        compare(
            prepare=lambda module, hook=hook: module.register_comm_hook(None, hook), tolerance=0.05
        )


def does_not_wait():
    """After the first steps, a step makes the host wait for nothing."""
    module = simulated_torch.move(torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 1)))
    wrapped = wrap(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    inputs = simulated_torch.on_cuda(batches(0)[0])
    for step in range(4):
        before = simulated_torch.host_waits, simulated_arrays.calls("cuEventSynchronize")
        wrapped(inputs).sum().backward()
        optimizer.step()
        if step > 1:
            assert simulated_torch.host_waits == before[0]
            assert simulated_arrays.calls("cuEventSynchronize") == before[1]


def all_of_them():
    global group
    group = dist.new_group(backend="cpu:auto,cuda:nccl")
    torch.distributed.init_process_group(
        "syncline",
        store=torch.distributed.FileStore(ranks.shared_folder() + "/torch", dist.get_world_size()),
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        pg_options=syncline.torch.Options("nccl"),
    )
    for function in (plain, precision, normalisation, delayed, uneven, hooks, does_not_wait):
        print(function.__name__, flush=True)
        function()
    dist.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Arrays of the simulated devices outlive the module that frees them.


def test_two_processes():
    ranks.in_processes(2, __file__, all_of_them.__name__)


if __name__ == "__main__":
    ranks.main(globals())
