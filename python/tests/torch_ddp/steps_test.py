"""What backward passes of DistributedDataParallel do, apart from plain training."""

import copy
import functools
import gc
import weakref

import pypi_torch_status
import pytest
import ranks

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import models
import torch
from syncline.torch import DistributedDataParallel
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)


def line(world, *, width=3, **options):
    """One linear layer, whose gradient of sum(output) is the sum of the inputs."""
    module = nn.Linear(width, 1, bias=False)
    return DistributedDataParallel(module, process_group=world, **options)


def gradient(module):
    return module.module.weight.grad


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_gradients_are_averages(size):
    def run(world):
        module = line(world)
        for _ in range(3):
            module.zero_grad()
            module(torch.full((2, 3), float(world.rank))).sum().backward()
            assert gradient(module).tolist() == [[2 * (size - 1) / 2] * 3]

    ranks.in_threads(size, run)


def test_in_no_sync_gradients_stay_this_ranks_own_until_the_next_pass():
    def run(world):
        module = line(world)
        x = torch.full((1, 3), 1.0 + world.rank)
        with module.no_sync():
            module(x).sum().backward()
        assert gradient(module).tolist() == [[1.0 + world.rank] * 3]
        module(x).sum().backward()
        assert gradient(module).tolist() == [[3.0] * 3]

    ranks.in_threads(2, run)


def test_a_pass_belongs_to_no_sync_if_its_forward_does():
    def run(world):
        module = line(world)
        x = torch.full((1, 3), 1.0 + world.rank)
        loss = module(x).sum()
        with module.no_sync():
            loss.backward()
        assert gradient(module).tolist() == [[1.5] * 3]

    ranks.in_threads(2, run)


def test_every_backward_pass_of_a_kept_graph_averages():
    def run(world):
        module = line(world)
        loss = module(torch.full((1, 3), 1.0 + world.rank)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        assert gradient(module).tolist() == [[3.0] * 3]

    ranks.in_threads(2, run)


def test_torch_autograd_grad_averages_nothing_and_disturbs_nothing():
    def run(world):
        for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
            module = line(world, **options)
            x = torch.full((1, 3), 1.0 + world.rank, requires_grad=True)
            (by_input,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
            assert gradient(module) is None
            (module(x).sum() + by_input.square().sum()).backward()
            expected = 1.5 + 2 * module.module.weight.detach()
            torch.testing.assert_close(gradient(module), expected)

    ranks.in_threads(2, run)


def layers(*, shared):
    """Two layers, and others of the same shape to compare with."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    if shared:
        first.weight = second.weight
    module = nn.Sequential(first, second)
    return module, copy.deepcopy(module)


def assert_equal_to_one_process(world, wrapped, run_wrapped, module, run):
    """Compares gradients with those of all ranks' inputs in one process, in several steps."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter, other in zip(module.parameters(), wrapped.parameters(), strict=True):
            parameter.copy_(other)
    for _ in range(4):
        wrapped.zero_grad()
        module.zero_grad()
        x = torch.randn(world.size, 4, generator=generator)
        run(x.requires_grad_()).square().mean().backward()
        own = x.detach()[world.rank : world.rank + 1].requires_grad_()
        run_wrapped(own).square().mean().backward()
        for averaged, expected in zip(wrapped.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(averaged.grad, expected.grad)


OF_GRAPHS = [{}, {"static_graph": True}, {"find_unused_parameters": True}]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("options", OF_GRAPHS)
@pytest.mark.parametrize("views", [False, True])
def test_a_module_called_in_a_reentrant_checkpoint_averages(options, shared, views):
    def run(world):
        module, alone = layers(shared=shared)
        options_of_all = {**options, "process_group": world, "gradient_as_bucket_view": views}
        wrapped = DistributedDataParallel(module, **options_of_all)
        checkpointed = functools.partial(checkpoint, wrapped, use_reentrant=True)
        assert_equal_to_one_process(world, wrapped, checkpointed, alone, alone)

    ranks.in_threads(2, run)


class AllInCheckpoints(nn.Module):
    """Each layer in a reentrant checkpoint of its own: the outer pass comes to no parameter."""

    def __init__(self, layers, *, wrap=lambda output: output):
        super().__init__()
        self.layers = layers
        self.wrap = wrap

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return self.wrap(x)


@pytest.mark.parametrize("shared", [False, True])
def test_a_static_graph_whose_layers_all_are_in_reentrant_checkpoints_averages(shared):
    def run(world):
        module, alone = layers(shared=shared)
        wrapped = DistributedDataParallel(
            AllInCheckpoints(module), process_group=world, static_graph=True
        )
        assert_equal_to_one_process(world, wrapped, wrapped, alone, alone)

    ranks.in_threads(2, run)


class Opaque:
    """An output in which no tensors are found."""

    def __init__(self, tensor):
        self.tensor = tensor


def test_gradients_that_are_not_averaged_are_never_stepped_with():
    def run(world):
        module, _ = layers(shared=False)
        wrapped = DistributedDataParallel(
            AllInCheckpoints(module, wrap=Opaque), process_group=world, static_graph=True
        )
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        x = torch.ones(1, 4, requires_grad=True)
        wrapped(x).tensor.sum().backward()
        with pytest.raises(RuntimeError, match=f"rank {world.rank}.*not averaged"):
            optimizer.step()
        with pytest.raises(RuntimeError, match=f"rank {world.rank}.*not averaged"):
            wrapped(x)

    ranks.in_threads(2, run)


class FailsInBackward(nn.Module):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("in backward")

    def forward(self, x):
        return self.Function.apply(x)


def test_gradients_of_a_backward_pass_that_failed_are_never_stepped_with():
    def run(world):
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        module = nn.Sequential(first, FailsInBackward(), second)
        wrapped = DistributedDataParallel(module, process_group=world)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        with pytest.raises(KeyError):
            wrapped(torch.ones(1, 2)).sum().backward()
        with pytest.raises(RuntimeError, match="not averaged"):
            optimizer.step()
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1).step()  # Of another module.
        wrapped.zero_grad()
        optimizer.step()  # There is nothing that it could step with.

    ranks.in_threads(2, run)


@pytest.mark.parametrize("options", OF_GRAPHS)
def test_an_undefined_gradient_is_no_gradient(options):
    def run(world):
        module = line(world, **options)
        undefined = torch._C._functions.UndefinedGrad()
        for _ in range(2):
            module.zero_grad()
            undefined(module(torch.ones(1, 3)).sum()).backward()
            if options:
                assert gradient(module) is None
            else:
                assert gradient(module).tolist() == [[0.0] * 3]

    ranks.in_threads(2, run)


def test_gradients_with_a_graph_of_their_own_are_averaged():
    def run(world):
        module = line(world)
        module(torch.full((1, 3), 1.0 + world.rank)).square().sum().backward(create_graph=True)
        weight = module.module.weight.detach()
        each = [2 * (1 + r) ** 2 * weight.sum().expand(1, 3) for r in range(2)]
        torch.testing.assert_close(gradient(module).detach(), (each[0] + each[1]) / 2)

    ranks.in_threads(2, run)


def test_a_rank_may_use_no_parameter_at_all():
    def run(world):
        module = DistributedDataParallel(
            models.ManyOutputs(), process_group=world, find_unused_parameters=True
        )
        for _ in range(2):
            module.zero_grad()
            x = torch.ones(1, models.WIDTH, requires_grad=True)
            output = module(x=x)
            # Rank 1's loss depends on one layer, rank 0's on an input alone.
            loss = output.first.sum() if world.rank == 1 else output.first.sum() * 0 + x.sum()
            loss.backward()
            assert gradient_of(module, 0).eq(0.5).all()
            assert gradient_of(module, 1) is None

    def gradient_of(module, index):
        return module.module.layers[index].weight.grad

    ranks.in_threads(2, run)


def test_views_are_the_gradients_and_stay_so_when_buckets_are_made_anew():
    def run(world):
        torch.manual_seed(0)
        module = DistributedDataParallel(
            models.Backwards(),
            process_group=world,
            gradient_as_bucket_view=True,
            bucket_cap_mb=0.001,
        )
        for step in range(3):
            module.zero_grad(set_to_none=False)
            module(torch.ones(2, models.WIDTH)).sum().backward()
            for index, parameter in enumerate(module.parameters()):
                place = torch.from_dlpack(module.reducer.gradient(index))
                assert parameter.grad.data_ptr() == place.data_ptr(), step
        assert module.reducer.generation == 2

    ranks.in_threads(2, run)


def test_the_same_gradient_tensors_are_kept_and_hold_the_averages():
    def run(world):
        module = line(world)
        module(torch.full((1, 3), 1.0 + world.rank)).sum().backward()
        kept = gradient(module)
        module(torch.full((1, 3), 1.0 + world.rank)).sum().backward()
        assert gradient(module) is kept
        assert kept.tolist() == [[3.0] * 3]

    ranks.in_threads(2, run)


def test_a_removed_module_leaves_its_parameters_alone():
    def run(world):
        module = line(world)
        inner = module.module
        del module
        inner(torch.full((1, 3), 1.0 + world.rank)).sum().backward()
        assert inner.weight.grad.tolist() == [[1.0 + world.rank] * 3]

    ranks.in_threads(2, run)


def test_stats_tell_of_all_buckets_and_of_communication_during_backward():
    def run(world):
        torch.manual_seed(0)
        module = DistributedDataParallel(
            nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))),
            process_group=world,
            bucket_cap_mb=0.016,
        )
        for _ in range(3):
            module(torch.ones(64, 64)).sum().backward()
        stats = module.stats()
        assert stats.steps == 3
        assert sum(stats.bucket_parameters) == 16
        assert sum(stats.bucket_bytes) == 8 * 65 * 64 * 4
        assert len(stats.bucket_bytes) > 4
        assert all(r <= s <= e for r, s, e in zip(stats.ready, stats.start, stats.end, strict=True))
        assert stats.start[0] < stats.backward_end <= stats.step_end
        assert "bucket" in stats.table
        data = module._get_ddp_logging_data()
        assert data["iteration"] == 3 and data["can_set_static_graph"]
        assert data["world_size"] == 2 and data["num_parameter_tensors"] == 16
        assert data["bucket_sizes"] == ", ".join(map(str, stats.bucket_bytes))

    ranks.in_threads(2, run)


def test_an_optimizer_in_backward_runs_on_averages():
    from torch.distributed.optim import _apply_optimizer_in_backward

    def run(world):
        inner = nn.Linear(3, 1, bias=False)
        nn.init.ones_(inner.weight)
        _apply_optimizer_in_backward(torch.optim.SGD, inner.parameters(), {"lr": 1.0})
        module = DistributedDataParallel(inner, process_group=world)
        module(torch.full((1, 3), 1.0 + world.rank)).sum().backward()
        assert inner.weight.tolist() == [[-0.5] * 3]
        assert inner.weight.grad is None

    ranks.in_threads(2, run)


def test_a_compiled_module_is_averaged_too():
    def run(world):  # Compilation is for one thread at a time.
        module = torch.compile(line(world), backend="eager")
        module(torch.full((1, 3), 2.0)).sum().backward()
        assert module._orig_mod.stats().steps == 1
        assert gradient(module._orig_mod).tolist() == [[2.0] * 3]

    ranks.in_threads(1, run)


@pytest.mark.parametrize("views", [False, True])
def test_a_module_that_nobody_holds_is_freed_with_its_buckets(views):
    def run(world):
        module = line(world, gradient_as_bucket_view=views)
        module(torch.ones(1, 3)).sum().backward()
        gone = weakref.ref(module), weakref.ref(module.module)
        del module
        gc.collect()
        assert [reference() for reference in gone] == [None, None]

    ranks.in_threads(1, run)
