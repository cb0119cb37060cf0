"""Parameters and buffers that ranks share, apart from plain training."""

import copy
import io

import pypi_torch_status
import pytest
import ranks

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import models
import syncline as dist
import torch
from syncline.torch import DistributedDataParallel
from syncline.torch.ddp import buffers, module_state
from torch import nn

torch.set_num_threads(1)
PRE_FORWARD = buffers.BufferCommHookLocation.PRE_FORWARD
POST_FORWARD = buffers.BufferCommHookLocation.POST_FORWARD


def test_tensors_of_all_types_and_layouts_are_broadcast_in_pieces():
    def run(world):
        def make(seed):
            values = (torch.arange(96.0) * (seed + 1)).sin()
            return [
                values[:15].reshape(5, 3).clone(),
                values.reshape(2, 3, 4, 4).to(memory_format=torch.channels_last),
                (9 * values[:7]).long(),
                values[:16].reshape(4, 4).to(torch.bfloat16).T,
                values[:12].reshape(6, 2).clone()[:, 0],  # With gaps.
                values[:3] > 0,
                torch.complex(values[1], values[2]),
                torch.empty(0),
            ]

        for at_once in (1, 50, 1 << 20):
            tensors = make(world.rank)
            module_state.broadcast(tensors, world.group, 1, at_once)
            assert all(torch.equal(a, b) for a, b in zip(tensors, make(1), strict=True))

    ranks.in_threads(3, run)


def test_all_ranks_begin_as_rank_0_is_unless_they_are_not_to():
    def run(world):
        for init_sync in (True, False):
            model = nn.BatchNorm1d(1)
            nn.init.constant_(model.weight, 10.0 + world.rank)
            model.running_mean.fill_(20 + world.rank)
            DistributedDataParallel(model, process_group=world, init_sync=init_sync)
            shift = 0 if init_sync else world.rank
            assert (model.weight.item(), model.running_mean.item()) == (10 + shift, 20 + shift)

    ranks.in_threads(2, run)


def test_forward_begins_with_rank_0s_buffers_after_a_pass_that_synchronised():
    def run(world):
        module = DistributedDataParallel(models.WithBuffers(), process_group=world)
        seen = module.module.seen
        seen[:] = world.rank == 0
        assert module.will_sync_module_buffers()
        module(torch.ones(1, models.WIDTH))
        assert seen.all()
        with module.no_sync():
            module(torch.ones(1, models.WIDTH))
        assert not module.will_sync_module_buffers()
        seen[:] = world.rank == 0
        module(torch.ones(1, models.WIDTH))
        assert seen.all() == (world.rank == 0)

    ranks.in_threads(2, run)


@pytest.mark.parametrize("location", [PRE_FORWARD, POST_FORWARD])
def test_a_hook_synchronises_buffers_in_place_of_the_broadcast(location):
    def run(world):
        module = DistributedDataParallel(models.WithBuffers(), process_group=world)
        calls = []

        def hook(state, named):
            calls.append((state, sorted(named)))
            future = torch.futures.Future()
            future.set_result(None)
            return [future]

        module._register_buffer_comm_hook("state", hook, location)
        module(torch.ones(1, models.WIDTH)).sum().backward()
        assert calls == [("state", ["scale", "seen", "steps"])]

    ranks.in_threads(2, run)


def test_ignored_buffers_and_parameters_stay_each_ranks_own():
    def run(world):
        model = models.WithBuffers()
        ignored = ["seen", "layer.bias"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        model.seen[:] = world.rank == 0
        module = DistributedDataParallel(model, process_group=world)
        module(torch.full((1, models.WIDTH), 1.0 + world.rank)).sum().backward()
        assert model.seen.all() == (world.rank == 0)
        assert sorted(module.named_module_buffers) == ["scale", "steps"]
        assert model.layer.bias.grad.tolist() == model.scale.tolist()
        names = [n for n, _ in module._get_data_parallel_params(model, named_params=True)]
        assert names == ["layer.weight"]

    ranks.in_threads(2, run)


def test_state_dicts_are_those_of_torchs_module():
    def run(world):
        model = models.batch_norm()
        module = DistributedDataParallel(model, process_group=world)
        state = module.state_dict()
        assert list(state) == [f"module.{name}" for name in model.state_dict()]
        module.load_state_dict({name: torch.ones_like(value) for name, value in state.items()})
        assert all((value == 1).all() for value in model.state_dict().values())

    ranks.in_threads(1, run)


@pytest.fixture
def joined():
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def pickled(module):
    memory = io.BytesIO()
    torch.save(module, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"find_unused_parameters": True}])
def test_a_module_of_the_default_group_can_be_copied_and_pickled(joined, copied, options):
    module = DistributedDataParallel(models.mlp(), **options)
    module(torch.ones(2, models.WIDTH)).sum().backward()
    other = copied(module)
    module.zero_grad(), other.zero_grad()
    for one in (module, other):
        one(torch.ones(2, models.WIDTH)).sum().backward()
    for a, b in zip(module.parameters(), other.parameters(), strict=True):
        assert a is not b and torch.equal(a, b) and torch.equal(a.grad, b.grad)
    assert other.stats().steps == 1
    assert list(other.state_dict()) == list(module.state_dict())


def test_a_module_of_another_group_or_with_a_hook_cannot_be_pickled(joined):
    def run(world):
        with pytest.raises(RuntimeError, match="default process group"):
            copy.deepcopy(DistributedDataParallel(models.mlp(), process_group=world))

    ranks.in_threads(1, run)
    module = DistributedDataParallel(models.mlp())
    module.register_comm_hook(None, dist.comm_hooks.CommHook.all_reduce())
    with pytest.raises(RuntimeError, match="communication hook"):
        copy.deepcopy(module)
