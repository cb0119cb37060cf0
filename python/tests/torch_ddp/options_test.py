"""Hooks, groups, precisions: what DistributedDataParallel can be given."""

import os
import sys

import pypi_torch_status
import pytest
import ranks

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import models
import syncline as dist
import torch
from syncline.torch import DistributedDataParallel, MixedPrecision
from torch import nn

torch.set_num_threads(1)


def line(group, **options):
    return DistributedDataParallel(nn.Linear(3, 1, bias=False), process_group=group, **options)


def average(module, rank):
    module.zero_grad()
    module(torch.full((1, 3), 1.0 + rank)).sum().backward()
    return module.module.weight.grad.tolist()[0]


HOOKS = ["all_reduce", "float16_compress", "bfloat16_compress", "quantize_per_tensor"]


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_syncline_average(name):
    def run(world):
        module = line(world)
        module.register_comm_hook(None, getattr(dist.comm_hooks.CommHook, name)())
        for _ in range(2):
            assert average(module, world.rank) == pytest.approx([1.5] * 3, rel=1e-2)
        assert name in module.stats().hook
        with pytest.raises(RuntimeError, match="registered already"):
            module.register_comm_hook(None, dist.comm_hooks.CommHook.all_reduce())

    ranks.in_threads(2, run)


def test_a_function_of_torchs_kind_is_called_with_each_bucket():
    def run(world):
        module = DistributedDataParallel(
            models.channels_last_cnn(), process_group=world, bucket_cap_mb=0.0001
        )
        seen = []

        def hook(state, bucket):
            seen.append((state, bucket.index(), bucket.is_last()))
            for parameter, part in zip(bucket.parameters(), bucket.gradients(), strict=True):
                assert part.shape == parameter.shape
                assert torch.equal(part, parameter.grad)
            future = torch.futures.Future()
            future.set_result(torch.zeros_like(bucket.buffer()))
            return future

        module.register_comm_hook("state", hook)
        for _ in range(2):
            module.zero_grad()
            seen.clear()
            count = len(module.reducer.buckets)  # Before they are rebuilt.
            module(torch.ones(2, 3, 8, 8)).sum().backward()
            assert seen == [("state", i, i == count - 1) for i in range(count)]
            assert count > 2
            assert all((p.grad == 0).all() for p in module.parameters())

    ranks.in_threads(2, run)


def test_what_a_hook_raises_is_the_error_of_backward():
    def run(world):
        module = line(world)

        def hook(state, bucket):
            raise KeyError("in the hook")

        module.register_comm_hook(None, hook)
        with pytest.raises(RuntimeError, match="in the hook"):
            average(module, world.rank)

    ranks.in_threads(2, run)


def test_a_hook_of_torchs_form_may_use_collectives_of_syncline():
    def run(world):
        def hook(state, bucket: dist.GradBucket) -> dist.futures.Future:
            work = dist.all_reduce(bucket.buffer(), group=world.group, async_op=True)
            return work.get_future().then(lambda future: future.value()[0] / 2)

        def fails(state, bucket):
            work = dist.all_reduce(bucket.buffer(), group=world.group, async_op=True)
            return work.get_future().then(lambda future: 1 // 0)

        module = line(world)
        module.register_comm_hook(None, hook)
        for _ in range(2):
            assert average(module, world.rank) == [1.5] * 3
        module = line(world)
        module.register_comm_hook(None, fails)
        with pytest.raises(RuntimeError, match="division"):
            average(module, world.rank)

    ranks.in_threads(2, run)


def test_what_is_no_hook_is_refused():
    def run(world):
        with pytest.raises(TypeError, match="CommHook or a function"):
            line(world).register_comm_hook(None, 5)
        with pytest.raises(ValueError, match="ALLREDUCE and FP16_COMPRESS"):
            line(world)._register_builtin_comm_hook("other")

    ranks.in_threads(1, run)


def test_what_annotations_of_a_hook_say_is_looked_at():
    def returns_int(state: object, bucket: torch.distributed.GradBucket) -> int:
        return 1

    def takes_tensor(state: object, bucket: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        raise AssertionError("not called")

    def says_right(
        state: object, bucket: torch.distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        future = torch.futures.Future()
        future.set_result(bucket.buffer() * 0)
        return future

    def run(world):
        module = line(world)
        with pytest.raises(ValueError, match="return.*Future"):
            module.register_comm_hook(None, returns_int)
        with pytest.raises(ValueError, match="GradBucket"):
            module.register_comm_hook(None, takes_tensor)
        module.register_comm_hook(None, says_right)
        assert average(module, world.rank) == [0.0] * 3

    ranks.in_threads(2, run)


def test_a_hook_that_returns_no_future_is_named():
    def returns_a_number(state, bucket):
        return 1

    def run(world):
        module = line(world)
        module.register_comm_hook(None, returns_a_number)
        with pytest.raises(RuntimeError, match="returns_a_number must return.*Future.*not int"):
            average(module, world.rank)

    ranks.in_threads(2, run)


def test_a_graph_is_said_to_be_static_before_training():
    def run(world):
        module = line(world)
        module._set_static_graph()
        assert average(module, world.rank) == [1.5] * 3
        module._set_static_graph()  # It is.
        module = line(world)
        average(module, world.rank)
        with pytest.raises(RuntimeError, match="before training loop starts"):
            module._set_static_graph()

    ranks.in_threads(2, run)


def test_built_in_hooks_of_torch_have_their_counterparts():
    def run(world):
        module = line(world)
        module._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.FP16_COMPRESS)
        assert average(module, world.rank) == [1.5] * 3
        assert "float16" in module.stats().hook

    ranks.in_threads(2, run)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision_runs_the_module_low_and_keeps_parameters_high(dtype):
    def run(world):
        module = DistributedDataParallel(
            Recorder(),
            process_group=world,
            mixed_precision=MixedPrecision(param_dtype=dtype, buffer_dtype=dtype),
        )
        inner = module.module
        module(torch.full((1, 3), 1.0 + world.rank)).sum().backward()
        assert inner.seen == (dtype, dtype)
        assert inner.buffer.dtype == dtype
        assert inner.weight.dtype == inner.weight.grad.dtype == torch.float32
        assert inner.weight.grad.tolist() == [[1.5] * 3]
        assert str(dtype).removeprefix("torch.") in module.stats().hook

    ranks.in_threads(2, run)


class Recorder(nn.Linear):
    """Notes the types in forward."""

    def __init__(self):
        super().__init__(3, 1, bias=False)
        self.register_buffer("buffer", torch.ones(2))

    def forward(self, x):
        self.seen = (x.dtype, self.weight.dtype)
        return super().forward(x)


def test_other_precisions_are_those_of_torchs_configuration():
    def run(world):
        torchs = nn.parallel.distributed._MixedPrecision(reduce_dtype=torch.float32)
        module = line(world, mixed_precision=torchs)
        assert average(module, world.rank) == [1.5] * 3
        assert module.stats().hook == "all_reduce"

    ranks.in_threads(2, run)


def test_a_world_and_its_group_are_taken():
    def run(world):
        for group in (world, world.group):
            assert line(group).syncline_group is world.group

    ranks.in_threads(2, run)


def torchs_groups():
    """A job of torch.distributed, whatever its backend; with torch's own Join."""
    rank, size = dist.get_rank(), dist.get_world_size()
    folder = ranks.shared_folder()
    dist.destroy_process_group()
    for backend in ("syncline", "gloo"):
        store = torch.distributed.FileStore(f"{folder}/{backend}", size)
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
        module = line(None)
        assert module.process_group is torch.distributed.group.WORLD
        assert average(module, rank) == [1.5] * 3
        mesh = torch.distributed.init_device_mesh("cpu", (size,))
        assert average(line(None, device_mesh=mesh), rank) == [1.5] * 3
        check_torchs_join(module, rank)
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    leave()


def check_torchs_join(module, rank):
    join = torch.distributed.algorithms.Join
    with join([module], divide_by_initial_world_size=False):
        steps = [average(module, rank) for _ in range(1 + rank)]
    assert steps == [[1.5] * 3, [2.0] * 3][: 1 + rank]
    with join([module], enable=False):
        assert average(module, rank) == [1.5] * 3


def leave():
    """Without the exit of torch's gloo, whose threads abort it once in about sixty times."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def test_groups_of_torch_are_taken_whatever_their_backend():
    ranks.in_processes(2, __file__, "torchs_groups")


if __name__ == "__main__":
    ranks.main(globals())
