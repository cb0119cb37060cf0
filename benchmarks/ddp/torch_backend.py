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

import syncline.torch  # noqa: F401 (registers the backend)
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


MODELS = {
    "mlp": Model("MLP, batch 8", _mlp, lambda: torch.randn(8, 1800)),
    "cnn": Model("CNN, batch 16", _cnn, lambda: torch.randn(16, 1, 28, 28)),
    "small": Model("small MLP, batch 8", _small, lambda: torch.randn(8, 64)),
}


def _torch_ddp(backend: str) -> Callable[[nn.Module], nn.Module]:
    return lambda model: DistributedDataParallel(
        model, process_group=dist.new_group(backend=backend)
    )


# How a model is made data-parallel, in a job whose default group is gloo's. The first is what the
# others are compared with.
SYSTEMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torch DDP over gloo": _torch_ddp("gloo"),
    "torch DDP over syncline": _torch_ddp("syncline"),
    "no communication": lambda model: model,
}


def measure(model: Model, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step of each system: forward, backward and the optimizer, on this rank."""
    modules = {}
    for name, parallel in SYSTEMS.items():
        torch.manual_seed(0)
        modules[name] = parallel(model.make())
    optimizers = {
        name: torch.optim.SGD(module.parameters(), _LEARNING_RATE)
        for name, module in modules.items()
    }
    inputs = model.inputs()
    times: dict[str, list[float]] = {name: [] for name in modules}
    in_step = dist.new_group(backend="syncline")
    for _ in range(_WARM_UP + rounds):
        for name, module in modules.items():
            dist.barrier(in_step)
            start = time.perf_counter()
            optimizers[name].zero_grad()
            module(inputs).square().mean().backward()
            optimizers[name].step()
            times[name].append(time.perf_counter() - start)
    return {name: values[_WARM_UP:] for name, values in times.items()}


def work(rank: int, ranks: int, store: str, models: Sequence[str], rounds: int) -> None:
    """One rank; rank 0 writes the times as JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    times = {name: measure(MODELS[name], rounds) for name in models}
    dist.barrier()
    if rank == 0:
        print(json.dumps(times))
    sys.stdout.flush()
    # torch's gloo may abort the process at its regular end ("terminate called without an active
    # exception").
    os._exit(0)


def run(ranks: int, models: Sequence[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """The times of rank 0, by model and system."""
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
    times: dict[str, dict[str, list[float]]] = json.loads(outputs[0])
    return times


def table(name: str, times: dict[str, list[float]]) -> str:
    """The steps of one model, in Markdown."""
    model = MODELS[name]
    elements = sum(parameter.numel() for parameter in model.make().parameters())
    lines = [
        f"| {model.title}: {elements * 4 / 1e6:.2f} MB of gradients | step, ms | ratio |",
        "|---|---|---|",
    ]
    first = statistics.median(next(iter(times.values())))
    for system, values in times.items():
        median = statistics.median(values)
        spread = f"{min(values) * 1e3:.2f} to {max(values) * 1e3:.2f}"
        lines.append(f"| {system} | {median * 1e3:.2f} ({spread}) | {first / median:.2f} |")
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
    times = run(arguments.ranks, arguments.models, arguments.rounds)
    print(f"{arguments.ranks} ranks, torch {torch.__version__}, {platform.release()}")
    for name, by_system in times.items():
        print("\n" + table(name, by_system))


if __name__ == "__main__":
    main()
