"""SyncBatchNorm over the batches of ranks is BatchNorm over all of them."""

import pypi_torch_status
import pytest
import ranks

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import torch
from syncline.torch import DistributedDataParallel, SyncBatchNorm
from torch import nn

torch.set_num_threads(1)

SHAPES = [(4,), (4, 5), (4, 3, 2), (4, 2, 3, 2)]  # Behind the batch's size: channels, and more.


def batches(size, shape, dtype=torch.float32, seed=0):
    """One for each rank, of different sizes; rank 1's may be empty."""
    generator = torch.Generator().manual_seed(seed)
    counts = [3, 0, 5][:size] if size > 1 else [4]
    return [torch.randn(n, *shape, generator=generator, dtype=dtype) * 3 + 7 for n in counts]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_gradients_and_running_moments_are_those_of_the_whole_batch(size, shape):
    def run(world):
        kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}
        whole = kind[len(shape)](4)
        fill(whole)
        part = SyncBatchNorm.convert_sync_batchnorm(kind[len(shape)](4), world)
        part.load_state_dict(whole.state_dict())
        for seed in range(3):
            inputs = batches(size, shape, seed=seed)
            check(world, whole, part, inputs)
        whole.eval(), part.eval()
        everything = torch.cat(inputs)
        torch.testing.assert_close(part(everything), whole(everything))

    ranks.in_threads(size, run)


def fill(module):
    """Gives parameters the same values on all ranks, which as threads share torch's generator."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(1.0, 1 + parameter.numel()).sin().view_as(parameter))


def check(world, whole, part, inputs):
    mine = inputs[world.rank].clone().requires_grad_()
    everything = torch.cat(inputs).requires_grad_()
    start = sum(len(x) for x in inputs[: world.rank])
    slope = torch.arange(float(everything.numel())).reshape(everything.shape).sin()
    expected = whole(everything)
    output = part(mine)
    end = start + len(mine)
    torch.testing.assert_close(output, expected[start:end])
    torch.testing.assert_close(part.running_mean, whole.running_mean)
    torch.testing.assert_close(part.running_var, whole.running_var)
    assert part.num_batches_tracked == whole.num_batches_tracked
    whole.zero_grad(), part.zero_grad()
    (expected * slope).sum().backward()
    (output * slope[start:end]).sum().backward()
    torch.testing.assert_close(mine.grad, everything.grad[start:end], rtol=1e-4, atol=1e-5)
    for name in ("weight", "bias"):  # The sums over ranks are those of the whole batch.
        gradient = getattr(part, name).grad.clone()
        world.group.all_reduce(gradient)
        torch.testing.assert_close(gradient, getattr(whole, name).grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("momentum", [None, 0.3])
@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}])
def test_options_of_batch_norm_mean_the_same(momentum, options):
    def run(world):
        whole = nn.BatchNorm1d(4, momentum=momentum, **options).double()
        part = SyncBatchNorm(4, momentum=momentum, process_group=world, **options).double()
        inputs = batches(3, (4,), torch.float64)
        start = sum(len(x) for x in inputs[: world.rank])
        for _ in range(2):
            expected = whole(torch.cat(inputs))
            output = part(inputs[world.rank])
            torch.testing.assert_close(output, expected[start : start + len(output)])
        if whole.running_var is not None:
            torch.testing.assert_close(part.running_var, whole.running_var)

    ranks.in_threads(3, run)


def test_a_converted_model_trains_like_one_rank_with_all_data():
    def run(world):
        alone, model = (
            nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
            for _ in range(2)
        )
        fill(alone), fill(model)
        weight = model[1].weight
        model = SyncBatchNorm.convert_sync_batchnorm(model, world)
        assert isinstance(model[1], SyncBatchNorm) and model[1].weight is weight
        assert list(model.state_dict()) == list(alone.state_dict())
        module = DistributedDataParallel(model, process_group=world)
        generator = torch.Generator().manual_seed(1)
        both = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone, module)]
        for _ in range(5):
            x = torch.randn(6, 5, generator=generator)
            for optimizer, m, part in zip(
                both, (alone, module), (x, x.chunk(2)[world.rank]), strict=True
            ):
                optimizer.zero_grad()
                m(part).square().mean().backward()
                optimizer.step()
        for ours, theirs in zip(module.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)

    ranks.in_threads(2, run)


def test_layers_of_torch_are_converted_at_any_depth_and_ours_are_kept():
    model = nn.Sequential(nn.Sequential(nn.SyncBatchNorm(3)), SyncBatchNorm(3))
    kept = model[1]
    converted = SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model and type(model[0][0]) is SyncBatchNorm and model[1] is kept
    assert SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3)).num_features == 3
