"""Time of a training step: torch's DDP over NCCL, and Syncline's; in one run, alternating.

Prints for each network the median, and the least, of all steps of both in milliseconds. Fails if
the two do not end with the same loss.
"""

import itertools
import os
import statistics

import gpu_ranks
import models
import torch
import torch.distributed as dist
from syncline.torch import DistributedDataParallel as Ours
from torch.nn.parallel import DistributedDataParallel as Theirs

ROUNDS, STEPS, WARM_UP = 6, 10, 5


class Training:
    """A module, its optimizer and its input."""

    def __init__(self, module: torch.nn.Module, inputs: torch.Tensor) -> None:
        self.module, self.inputs = module, inputs
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.9)
        self.times: list[float] = []
        self.loss = torch.zeros(())
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss = self.module(self.inputs).square().mean()
        self.loss.backward()
        self.optimizer.step()

    def measure(self) -> None:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
        events[0].record()
        for event in events[1:]:
            self.step()
            event.record()
        torch.cuda.synchronize()
        self.times += [a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def step_times() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu_ranks.join("nccl", "nccl", rank, size, os.environ["GPU_RANKS_FOLDER"])
    import syncline

    syncline.init_process_group(  # Beside it.
        store=syncline.FileStore(os.environ["GPU_RANKS_FOLDER"] + "/syncline"),
        rank=rank,
        world_size=size,
    )
    here = [torch.cuda.current_device()]
    for name, make, shape in (
        ("CNN", lambda: models.cnn(64), (64, 3, 64, 64)),
        ("transformer", lambda: models.transformer(512, 6), (8, 256, 512)),
    ):
        torch.manual_seed(rank)
        inputs = torch.randn(shape, device=gpu_ranks.device())
        trainings = {}
        for label, kind in (("torch DDP over NCCL", Theirs), ("syncline DDP", Ours)):
            torch.manual_seed(1)
            module = kind(make().to(gpu_ranks.device()), device_ids=here)
            trainings[label] = Training(module, inputs)
        for _ in range(ROUNDS):
            for training in trainings.values():
                dist.barrier()
                training.measure()
        losses = {label: float(training.loss) for label, training in trainings.items()}
        if rank == 0:
            for label, training in trainings.items():
                median, least = statistics.median(training.times), min(training.times)
                print(f"{name}, {size} ranks, {label}: {median:.3f} ms, least {least:.3f}")
        first, second = losses.values()
        assert abs(first - second) <= 0.01 * max(1.0, abs(first)), losses
    dist.barrier()


if __name__ == "__main__":
    gpu_ranks.main(step_times, joins=False)
