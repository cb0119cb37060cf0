"""Data-parallel training of a small convolutional network on Fashion-MNIST, in PyTorch.

    ./bazelw run //launch:run -- --standalone --nproc-per-node=2 examples/fashion_mnist_torch.py

With --backend it is a script of torch.distributed, whose own DistributedDataParallel then works
over that backend: "syncline", or "gloo" to compare.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator

import numpy
import syncline as dist
import syncline.torch
import torch
import torch.distributed
from torch import nn

PIXEL_MEAN = 72.94  # Of the training images.


def load(folder: pathlib.Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as float32 [n, 1, 28, 28] of mean 0, and labels as int64 [n], of "train" or "t10k"."""

    def read(name: str, header: int) -> numpy.ndarray:
        with gzip.open(folder / name) as file:
            return numpy.frombuffer(file.read(), numpy.uint8, offset=header)

    images = read(f"{split}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    labels = read(f"{split}-labels-idx1-ubyte.gz", 8)
    pixels = (images.astype(numpy.float32) - PIXEL_MEAN) / 255
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(numpy.int64))


def find_data() -> pathlib.Path:
    """The data set's folder among the files that Bazel hands to //launch:run."""
    root = pathlib.Path(os.environ.get("SYNCLINE_RUNFILES", ".")) / "fashion_mnist"
    found = sorted(root.rglob("train-images-idx3-ubyte.gz"))
    if not found:
        sys.exit("Fashion-MNIST was not found: start with //launch:run, or pass --data FOLDER")
    return found[0].parent


def network() -> nn.Module:
    """Two convolutions, each with normalisation and pooling, and two linear layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def batches(count: int, size: int, epoch: int, rank: int, world: int) -> Iterator[torch.Tensor]:
    """This rank's part of each global batch of `size` images; the order is that of the epoch."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    for start in range(0, count - size + 1, size):
        yield order[start : start + size][rank::world]


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: tuple[torch.Tensor, torch.Tensor],
    parts: Iterator[torch.Tensor],
) -> float:
    """One pass over this rank's `parts` of the data. Returns their mean loss."""
    model.train()
    total, count = 0.0, 0
    for part in parts:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data[0][part]), data[1][part])
        loss.backward()
        optimizer.step()
        total, count = total + loss.item(), count + 1
    return total / max(count, 1)


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of `images` that `model` names rightly."""
    model.eval()
    right = sum(
        int((model(part).argmax(1) == truth).sum())
        for part, truth in zip(images.split(500), labels.split(500), strict=True)
    )
    return right / len(images)


def digest(model: nn.Module) -> torch.Tensor:
    """SHA-256 of all weights, as uint8 [32]."""
    hashed = hashlib.sha256()
    for parameter in model.parameters():
        hashed.update(parameter.detach().numpy().tobytes())
    return torch.frombuffer(bytearray(hashed.digest()), dtype=torch.uint8)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", help="use torch's DistributedDataParallel over this backend")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128, help="over all processes")
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the four .gz files")
    parser.add_argument("--limit", type=int, help="train on the first N images only")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures as JSON")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)  # The processes share the cores.
    folder = options.data or find_data()
    images, labels = load(folder, "train")
    data = images[: options.limit], labels[: options.limit]

    if options.backend:
        library = torch.distributed
        torch.distributed.init_process_group(options.backend)
        wrap = nn.parallel.DistributedDataParallel
    else:
        library = dist
        dist.init_process_group()
        wrap = syncline.torch.DistributedDataParallel
    rank, world = library.get_rank(), library.get_world_size()
    torch.manual_seed(rank)  # Rank 0's parameters are everybody's.
    model = wrap(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    losses = []
    for epoch in range(1, options.epochs + 1):
        began = time.perf_counter()
        parts = batches(len(data[0]), options.batch_size, epoch, rank, world)
        loss = torch.tensor([train_epoch(model, optimizer, data, parts)])
        library.all_reduce(loss)
        losses.append(loss.item() / world)
        if rank == 0:
            took = time.perf_counter() - began
            print(f"epoch {epoch}: loss {losses[-1]:.6f} in {took:.1f} s", flush=True)

    digests = [torch.empty(32, dtype=torch.uint8) for _ in range(world)]
    library.all_gather(digests, digest(model))
    if any(not torch.equal(other, digests[0]) for other in digests):
        raise RuntimeError("the weights are not bitwise equal on all ranks")
    if rank == 0:
        share = accuracy(model.module, *load(folder, "t10k"))
        print(f"test accuracy {share:.2%}; weights bitwise equal on all {world} ranks")
        if isinstance(model, syncline.torch.DistributedDataParallel):
            print(model.stats().table)
        if options.result:
            figures = {"losses": losses, "accuracy": share, "ranks": world}
            options.result.write_text(json.dumps(figures))
    library.destroy_process_group()


if __name__ == "__main__":
    main()
