"""DistributedDataParallel, torch's over backend "syncline" and Syncline's, step by step."""

from collections.abc import Callable

import gpu_ranks
import models
import torch
import torch.distributed as dist
from syncline.torch import DistributedDataParallel as Ours
from syncline.torch import MixedPrecision, SyncBatchNorm
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Theirs

STEPS = 8


def losses(
    wrap: Callable[[torch.nn.Module], torch.nn.Module],
    make: Callable[[], torch.nn.Module],
    shape: tuple[int, ...],
) -> list[float]:
    """The loss of each step, averaged over all ranks, as the host sees them at the end."""
    torch.manual_seed(5)
    module = wrap(make().to(gpu_ranks.device()))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator(gpu_ranks.device()).manual_seed(dist.get_rank())
    seen = []
    for _ in range(STEPS):
        inputs = torch.randn(shape, generator=generator, device=gpu_ranks.device())
        optimizer.zero_grad()
        loss = module(inputs).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    all_seen = torch.stack(seen)
    dist.all_reduce(all_seen, dist.ReduceOp.AVG)
    return all_seen.tolist()


def compare(name: str, ours: list[float], theirs: list[float], tolerance: float = 1e-3) -> None:
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert abs(a - b) <= tolerance * max(1.0, abs(b)), f"{name}, step {step}: {ours} {theirs}"


def _wrap(kind: type, **options: object) -> Callable[[torch.nn.Module], torch.nn.Module]:
    def wrap(module: torch.nn.Module) -> torch.nn.Module:
        return kind(module, device_ids=[torch.cuda.current_device()], **options)

    return wrap


def ours_and_theirs() -> None:
    for make, shape in (
        (lambda: models.transformer(128, 2), (4, 32, 128)),
        (lambda: models.cnn(16), (8, 3, 32, 32)),
        (lambda: models.cnn(16).to(memory_format=torch.channels_last), (8, 3, 32, 32)),
    ):
        theirs = losses(_wrap(Theirs), make, shape)
        for options in (
            {},
            {"gradient_as_bucket_view": True},
            {"find_unused_parameters": True},
            {"static_graph": True},
            {"bucket_cap_mb": 0.05},
        ):
            compare(f"ours with {options}", losses(_wrap(Ours, **options), make, shape), theirs)


def precision() -> None:
    def make() -> torch.nn.Module:
        return models.transformer(128, 2)

    lower = MixedPrecision(param_dtype=torch.bfloat16)
    ours = losses(_wrap(Ours, mixed_precision=lower), make, (4, 32, 128))
    compare("bfloat16", ours, losses(_wrap(Theirs), make, (4, 32, 128)), 0.1)


def normalisation() -> None:
    def make(kind: type) -> Callable[[], torch.nn.Module]:
        return lambda: kind.convert_sync_batchnorm(models.cnn(16))

    shape = (8, 3, 32, 32)
    ours = losses(_wrap(Ours), make(SyncBatchNorm), shape)
    compare("SyncBatchNorm", ours, losses(_wrap(Theirs), make(torch.nn.SyncBatchNorm), shape))


def hooks() -> None:
    def make() -> torch.nn.Module:
        return models.transformer(128, 2)

    def hooked(kind: type, hook: object) -> Callable[[torch.nn.Module], torch.nn.Module]:
        def wrap(module: torch.nn.Module) -> torch.nn.Module:
            made = _wrap(kind)(module)
            made.register_comm_hook(None, hook)
            return made

        return wrap

    shape = (4, 32, 128)
    for hook in (
        default_hooks.allreduce_hook,
        default_hooks.fp16_compress_hook,
        default_hooks.bf16_compress_hook,
    ):
        theirs = losses(hooked(Theirs, hook), make, shape)
        compare(hook.__name__, losses(hooked(Ours, hook), make, shape), theirs, 0.02)


def accumulation_and_uneven_inputs() -> None:
    torch.manual_seed(1)
    for kind in (Ours, Theirs):
        module = _wrap(kind)(torch.nn.Linear(8, 8).to(gpu_ranks.device()))
        with module.no_sync():
            module(torch.ones(2, 8, device=gpu_ranks.device())).sum().backward()
        module(torch.ones(2, 8, device=gpu_ranks.device())).sum().backward()
        gradient = next(module.parameters()).grad
        assert gradient is not None and (gradient == 4).all(), gradient
        with module.join():
            for _ in range(2 + dist.get_rank()):
                module(torch.ones(2, 8, device=gpu_ranks.device())).sum().backward()


if __name__ == "__main__":
    gpu_ranks.main(ours_and_theirs, precision, normalisation, hooks, accumulation_and_uneven_inputs)
