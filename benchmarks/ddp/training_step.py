"""A training step of data-parallel PyTorch: who moves the gradients, side by side, in turns.

./bazelw run //benchmarks/ddp
./bazelw run //benchmarks/ddp -- --ranks 2 --rounds 41 --models mlp
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import syncline.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_WARM_UP = 5  # Rounds that are not counted: buckets are rebuilt after the first.
_DEADLINE = 900.0  # Seconds, for the whole run.
_LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Model:
    """What is trained."""

    title: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]


def _mlp() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(1800, 1800), nn.ReLU())))


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 14 * 14, 64), nn.ReLU()),
        nn.Linear(64, 10),
    )


def _small() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _many() -> nn.Module:
    return nn.Sequential(*(nn.Linear(128, 128) for _ in range(500)))


MODELS = {
    "mlp": Model("MLP, batch 8", _mlp, lambda: torch.randn(8, 1800)),
    "cnn": Model("CNN, batch 16", _cnn, lambda: torch.randn(16, 1, 28, 28)),
    "many": Model("1,000 parameters, batch 64", _many, lambda: torch.randn(64, 128)),
    "small": Model("small MLP, batch 8", _small, lambda: torch.randn(8, 64)),
}


def _torch_ddp(backend: str) -> Callable[[nn.Module], nn.Module]:
    return lambda model: DistributedDataParallel(
        model, process_group=dist.new_group(backend=backend)
    )


def _our_ddp(**options: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda model: syncline.torch.DistributedDataParallel(
        model, process_group=dist.new_group(backend="syncline"), **options
    )


# How a model is made data-parallel, in a job whose default group is gloo's. The first is what the
# others are compared with.
SYSTEMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torch DDP over gloo": _torch_ddp("gloo"),
    "torch DDP over syncline": _torch_ddp("syncline"),
    "Syncline's DDP": _our_ddp(),
    "Syncline's DDP, views of buckets": _our_ddp(gradient_as_bucket_view=True),
    "Syncline's DDP, buckets of 2 MiB": _our_ddp(bucket_cap_mb=2),
    "no communication": lambda model: model,
}


@dataclasses.dataclass
class Result:
    """Of one system, on one rank."""

    steps: list[float]  # Seconds of each: forward, backward and the optimizer.
    buckets: int = 0  # This and the rest is what the reducer says of itself, if it is ours.
    in_flight: list[float] = dataclasses.field(default_factory=list)  # Seconds of each step with
    hidden: list[float] = dataclasses.field(default_factory=list)  # communication; in backward.
    own: list[float] = dataclasses.field(default_factory=list)  # Seconds of each step, copying
    copying: list[float] = dataclasses.field(default_factory=list)  # to buckets not included.

    def of_reducer(self) -> tuple[list[float], ...]:
        return self.in_flight, self.hidden, self.own, self.copying


def measure(model: Model, rounds: int) -> dict[str, Result]:
    """Steps of all systems in turns."""
    modules = {}
    for name, parallel in SYSTEMS.items():
        torch.manual_seed(0)
        modules[name] = parallel(model.make())
    optimizers = {
        name: torch.optim.SGD(module.parameters(), _LEARNING_RATE)
        for name, module in modules.items()
    }
    inputs = model.inputs()
    results = {name: Result([]) for name in modules}
    in_step = dist.new_group(backend="syncline")
    for _ in range(_WARM_UP + rounds):
        for name, module in modules.items():
            dist.barrier(in_step)
            start = time.perf_counter()
            optimizers[name].zero_grad()
            module(inputs).square().mean().backward()
            optimizers[name].step()
            results[name].steps.append(time.perf_counter() - start)
            if isinstance(module, syncline.torch.DistributedDataParallel):
                stats = module.stats()
                results[name].own.append(stats.own_time / 1e9)
                results[name].copying.append(stats.copy_time / 1e9)
                results[name].buckets = len(stats.end)
                results[name].in_flight.append(stats.communication_time / 1e9)
                results[name].hidden.append(stats.hidden_time / 1e9)
    for result in results.values():
        for values in (result.steps, *result.of_reducer()):
            del values[:_WARM_UP]
    return results


def work(rank: int, ranks: int, store: str, models: Sequence[str], rounds: int) -> None:
    """One rank; rank 0 writes the times as JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    results = {name: measure(MODELS[name], rounds) for name in models}
    dist.barrier()
    if rank == 0:
        print(json.dumps(results, default=dataclasses.asdict))
    sys.stdout.flush()
    # torch's gloo may abort the process at its regular end ("terminate called without an active
    # exception").
    os._exit(0)


def run(ranks: int, models: Sequence[str], rounds: int) -> dict[str, dict[str, Result]]:
    """The results of rank 0, by model and system."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--ranks", str(ranks), "--rounds", str(rounds), "--models", *models]
        arguments += ["--store", str(pathlib.Path(folder, "store"))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        processes = [
            subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), *arguments, "--rank", str(rank)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=_DEADLINE)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    if any(process.returncode for process in processes):
        raise SystemExit("a rank has failed")
    return {
        model: {system: Result(**values) for system, values in by_system.items()}
        for model, by_system in json.loads(outputs[0]).items()
    }


def table(name: str, results: dict[str, Result]) -> str:
    """The steps of one model, in Markdown."""
    model = MODELS[name]
    elements = sum(parameter.numel() for parameter in model.make().parameters())
    megabytes = elements * 4 / 1e6
    lines = [
        f"| {model.title}: {megabytes:.2f} MB of gradients | step, ms | ratio | hidden | reducer "
        "| copying |",
        "|---|---|---|---|---|---|",
    ]
    first = statistics.median(next(iter(results.values())).steps)
    for system, result in results.items():
        median = statistics.median(result.steps)
        spread = f"{min(result.steps) * 1e3:.2f} to {max(result.steps) * 1e3:.2f}"
        says = "| | | |"
        if result.buckets:
            hidden = sum(result.hidden) / sum(result.in_flight)
            own = statistics.median(result.own) / median
            copying = statistics.median(result.copying) / median
            says = f"| {hidden:.0%}, {result.buckets} buckets | {own:.1%} | {copying:.1%} |"
        lines.append(f"| {system} | {median * 1e3:.2f} ({spread}) | {first / median:.2f} {says}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=41, help="steps of each that are counted")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        work(arguments.rank, arguments.ranks, arguments.store, arguments.models, arguments.rounds)
    results = run(arguments.ranks, arguments.models, arguments.rounds)
    print(f"{arguments.ranks} ranks, torch {torch.__version__}, {platform.release()}")
    for name, by_system in results.items():
        print("\n" + table(name, by_system))


if __name__ == "__main__":
    main()
