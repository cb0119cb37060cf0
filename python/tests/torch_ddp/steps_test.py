"""What backward passes of DistributedDataParallel do, apart from plain training."""

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
