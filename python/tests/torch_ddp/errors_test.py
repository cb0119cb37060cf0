"""What goes wrong with DistributedDataParallel is said on all ranks, by name."""

import os
import time

import pypi_torch_status
import pytest
import ranks

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import models
import syncline as dist
import torch
from syncline.torch import DistributedDataParallel, SyncBatchNorm
from torch import nn

torch.set_num_threads(1)


def wrapped(world, model, **options):
    torch.manual_seed(0)
    return DistributedDataParallel(model(), process_group=world, **options)


def step(module, branch):
    module.zero_grad()
    module(torch.ones(2, models.WIDTH), branch=branch).sum().backward()


def check_a_step(module, **kwargs):
    """A step after a failed one is like any other."""
    module.zero_grad()
    module(torch.ones(2, models.WIDTH), **kwargs).sum().backward()
    assert module.module.trunk.weight.grad is not None


def test_a_parameter_without_gradient_is_named_with_its_rank_on_all_ranks():
    def run(world):
        module = wrapped(world, models.Branches)
        for _ in range(2):  # The first error ends the step, nothing else.
            with pytest.raises(ValueError, match="rank 1 produced no gradient for") as error:
                step(module, branch=int(world.rank == 1))
            assert "'branches.0.weight'" in str(error.value)
            assert "'never.bias'" in str(error.value)

    ranks.in_threads(2, run)


@pytest.mark.parametrize("what", ["shape", "type", "count"])
def test_models_that_differ_are_refused_at_construction(what):
    def run(world):
        odd = world.rank == 1
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5 if odd and what == "shape" else 2))
        if odd and what == "type":
            model[1].double()
        if odd and what == "count":
            model.append(nn.Linear(2, 2))
        pattern = "rank 1" if what == "count" else r"'1.weight'.* rank 1|rank 1.* '1.weight'"
        with pytest.raises(dist.DistMismatchError, match=pattern):
            DistributedDataParallel(model, process_group=world)

    ranks.in_threads(2, run)


def test_options_that_differ_are_refused_at_construction():
    def run(world):
        with pytest.raises(dist.DistMismatchError, match="rank 1"):
            wrapped(world, models.mlp, find_unused_parameters=world.rank == 1)

    ranks.in_threads(2, run)


def test_a_parameter_that_is_trained_later_than_wrapped_is_refused():
    def run(world):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        model[0].bias.requires_grad_(False)
        module = DistributedDataParallel(model, process_group=world)
        module(torch.ones(1, 3)).sum().backward()
        model[0].bias.requires_grad_(True)
        with pytest.raises(RuntimeError, match="'0.bias' did not require a gradient when"):
            module(torch.ones(1, 3))

    ranks.in_threads(2, run)


def test_a_gradient_that_comes_twice_is_named_with_what_to_do():
    def run(world):
        module = wrapped(world, lambda: models.Checkpointed(True, 2))
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"'blocks.2.*twice.*use_reentrant=False"):
                module(torch.ones(2, models.WIDTH, requires_grad=True)).sum().backward()
            module.module.times = 1
            module(torch.ones(2, models.WIDTH)).sum().backward()
            module.module.times = 2

    ranks.in_threads(2, run)


def test_use_outside_forward_of_what_forward_leaves_out_is_explained():
    def run(world):
        module = wrapped(world, models.Branches, find_unused_parameters=True)
        with pytest.raises(RuntimeError, match=r"'never.weight'.*outputs of forward do not depend"):
            extra = module.module.never.weight.sum()  # Made first, it is differentiated last.
            (module(torch.ones(2, models.WIDTH)).sum() + extra).backward()

    ranks.in_threads(2, run)


class Failing(Exception):
    pass


def failing(gradient):
    raise Failing("in backward")


def test_an_exception_in_backward_is_its_ranks_own_and_the_others_are_told():
    def run(world):
        module = wrapped(world, Trunk)
        if world.rank == 1:
            hook = module.module.trunk.bias.register_hook(failing)
            with pytest.raises(Failing):
                check_a_step(module)
            hook.remove()
        else:
            with pytest.raises(ValueError, match="rank 1 produced no gradient for"):
                check_a_step(module)
        for _ in range(2):
            check_a_step(module)

    ranks.in_threads(2, run)


class Trunk(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(models.WIDTH, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.trunk(x))


def test_where_missing_gradients_are_zeros_an_exception_in_backward_ends_the_group():
    def run(world):
        module = wrapped(world, Trunk, find_unused_parameters=True)
        if world.rank == 1:
            hook = module.module.trunk.bias.register_hook(failing)
            with pytest.raises(Failing):
                check_a_step(module)
            hook.remove()
            with pytest.raises(dist.DistError, match="has given up a backward pass"):
                check_a_step(module)
        else:
            with pytest.raises(dist.DistError, match="rank 1 has given up a backward pass"):
                check_a_step(module)

    ranks.in_threads(2, run)


def test_an_exception_in_forward_disturbs_nothing():
    def run(world):
        module = wrapped(world, Trunk)
        with pytest.raises(RuntimeError, match="shapes"):
            module(torch.ones(2, 5))
        check_a_step(module)

    ranks.in_threads(2, run)


def test_a_second_backward_that_lacks_parameters_says_what_to_do():
    def run(world):
        module = wrapped(world, models.ManyOutputs)
        output = module(x=torch.ones(1, models.WIDTH))
        output.first.sum().backward()  # Another one may follow.
        with pytest.raises(ValueError, match="no rank produced .*find_unused_parameters"):
            module(x=torch.ones(1, models.WIDTH))

    ranks.in_threads(2, run)


def die_in_backward():
    """Rank 1 ends; the others get to know who, at once."""
    module = DistributedDataParallel(Trunk())
    module(torch.ones(2, models.WIDTH)).sum().backward()
    ranks.meet_in_store("past the first step")
    if dist.get_rank() == 1:
        module.module.trunk.bias.register_hook(lambda gradient: os._exit(0))
    began = time.monotonic()
    with pytest.raises(dist.DistError, match="rank 1"):
        for _ in range(3):
            module(torch.ones(2, models.WIDTH)).sum().backward()
    assert time.monotonic() - began < 10
    os._exit(0)


def test_a_rank_that_dies_in_backward_is_named_by_the_others():
    ranks.in_processes(3, __file__, "die_in_backward")


def test_training_goes_on_in_another_group():
    def run(world):
        both = world.new_group([0, 1])
        module = wrapped(world, Trunk)
        check_a_step(module)
        if world.rank == 2:
            world.group.abort("for the test")
            return
        with pytest.raises(dist.DistError, match="for the test"):
            for _ in range(1000):
                check_a_step(module)
        module._update_process_group(both)
        x = torch.full((2, models.WIDTH), 1.0 + world.rank)
        module.zero_grad()
        module(x).sum().backward()
        assert module.module.last.bias.grad.tolist() == [2.0, 2.0]
        assert module.stats().steps >= 2

    ranks.in_threads(3, run)


ARGUMENTS = {
    "at the same time": {"delay_all_reduce_named_params": []},
    "give one of them": {"process_group": "a group", "device_mesh": "a mesh"},
    "must be a ProcessGroup": {"process_group": "a group"},
    "have one element": {"device_ids": [0, 1]},
    "on one GPU": {"device_ids": [0]},
}


@pytest.mark.parametrize("message", list(ARGUMENTS))
def test_arguments_that_make_no_sense_are_refused(message):
    def run(world):
        with pytest.raises((ValueError, RuntimeError, TypeError), match=message):
            DistributedDataParallel(Trunk(), **{"process_group": world, **ARGUMENTS[message]})

    ranks.in_threads(1, run)


MODULES = {
    "doesn't have any parameter": lambda: Trunk().requires_grad_(False),
    "uninitialized": lambda: nn.LazyLinear(3),
    "convert_sync_batchnorm": lambda: nn.SyncBatchNorm(3),
}


@pytest.mark.parametrize("message", list(MODULES))
def test_modules_that_cannot_be_trained_are_refused(message):
    def run(world):
        with pytest.raises((ValueError, RuntimeError), match=message):
            DistributedDataParallel(MODULES[message](), process_group=world)

    ranks.in_threads(1, run)


def test_without_a_job_it_is_said_how_to_join_one():
    with pytest.raises(dist.DistError, match=r"syncline.init_process_group\(\)"):
        DistributedDataParallel(Trunk())


def test_torchs_join_is_refused_for_a_group_that_torch_does_not_know():
    def run(world):
        with pytest.raises(ValueError, match=r"own join\(\)"):
            torch.distributed.algorithms.Join([wrapped(world.group, Trunk)])

    ranks.in_threads(1, run)


def test_the_first_rank_without_input_ends_training_on_all_if_that_is_asked_for():
    def run(world):
        module = wrapped(world, Trunk)
        pattern = "rank 0 has exhausted its inputs" if world.rank == 0 else "rank 0 exhausted all"
        with (
            pytest.raises(RuntimeError, match=pattern),
            module.join(throw_on_early_termination=True),
        ):
            for _ in range(1 + world.rank):
                check_a_step(module)
        check_a_step(module)

    ranks.in_threads(3, run)


def test_batch_norm_needs_more_than_one_value():
    def run(world):
        layer = SyncBatchNorm(3, process_group=world)
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            layer(torch.ones(1 - world.rank, 3))

    ranks.in_threads(2, run)


if __name__ == "__main__":
    ranks.main(globals())
