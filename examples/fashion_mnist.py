"""Data-parallel training of a perceptron on Fashion-MNIST, in NumPy and Syncline alone.

    ./bazelw run //launch:run -- --standalone --nproc-per-node=2 examples/fashion_mnist.py

Every process holds the whole model and works on its share of each batch. The gradients of a layer
are averaged over the processes while those of the layer before are still being computed. The
global batches do not depend on the number of processes, so neither does the result, up to
rounding; training amplifies rounding, hence float64 unless --dtype says otherwise.
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

import numpy as np
import syncline as dist
from tqdm import tqdm

LAYERS = (784, 256, 128, 10)
PIXEL_MEAN = 72.94  # Of the training images.


def load(folder: pathlib.Path, split: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as `dtype` [n, 784] of mean 0, and labels as int64 [n], of "train" or "t10k"."""

    def read(name: str, header: int) -> np.ndarray:
        with gzip.open(folder / name) as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    images = read(f"{split}-images-idx3-ubyte.gz", 16).reshape(-1, LAYERS[0])
    labels = read(f"{split}-labels-idx1-ubyte.gz", 8)
    return (images.astype(dtype) - PIXEL_MEAN) / 255, labels.astype(np.int64)


def find_data() -> pathlib.Path:
    """The data set's folder among the files that Bazel hands to //launch:run."""
    root = pathlib.Path(os.environ.get("SYNCLINE_RUNFILES", ".")) / "fashion_mnist"
    found = sorted(root.rglob("train-images-idx3-ubyte.gz"))
    if not found:
        sys.exit("Fashion-MNIST was not found: start with //launch:run, or pass --data FOLDER")
    return found[0].parent


class Perceptron:
    """A multi-layer perceptron with ReLU and softmax cross-entropy, its gradients by hand."""

    def __init__(self, seed: int, dtype: str) -> None:
        generator = np.random.default_rng(seed)
        self.parameters: list[np.ndarray] = []  # weight, bias, weight, bias, ...
        for fan_in, fan_out in zip(LAYERS, LAYERS[1:], strict=False):
            weight = generator.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)
            self.parameters += [weight.astype(dtype), np.zeros(fan_out, dtype)]
        self.velocity = [np.zeros_like(p) for p in self.parameters]

    def forward(self, images: np.ndarray) -> list[np.ndarray]:
        """The input and the activations of all layers; the last are the logits."""
        activations = [images]
        for i in range(0, len(self.parameters), 2):
            z = activations[-1] @ self.parameters[i] + self.parameters[i + 1]
            is_last = i + 2 == len(self.parameters)
            activations.append(z if is_last else np.maximum(z, 0))
        return activations

    def backward(
        self,
        activations: list[np.ndarray],
        labels: np.ndarray,
        weight: float,
        reducer: dist.GradientReducer,
    ) -> float:
        """Hands the gradients of `weight` * summed loss to `reducer`, last layer first.

        Returns the summed loss.
        """
        logits = activations[-1]
        delta = np.exp(logits - logits.max(axis=1, keepdims=True))
        delta /= delta.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(delta[rows, labels] + 1e-12).sum()
        delta[rows, labels] -= 1
        delta *= weight
        for i in range(len(self.parameters) - 2, -1, -2):
            inputs = activations[i // 2]
            np.sum(delta, axis=0, out=reducer.gradients[i + 1])
            reducer.mark_ready(i + 1)
            np.matmul(inputs.T, delta, out=reducer.gradients[i])
            reducer.mark_ready(i)
            if i > 0:
                delta = (delta @ self.parameters[i].T) * (inputs > 0)
        return float(loss)

    def step(self, gradients: list[np.ndarray], rate: float, momentum: float = 0.9) -> None:
        """Stochastic gradient descent with momentum."""
        for parameter, velocity, gradient in zip(
            self.parameters, self.velocity, gradients, strict=True
        ):
            velocity *= momentum
            velocity += gradient
            parameter -= rate * velocity

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        return float((self.forward(images)[-1].argmax(axis=1) == labels).mean())


def batches(count: int, size: int, epoch: int, rank: int, world: int) -> Iterator[np.ndarray]:
    """This rank's part of each global batch of `size` images; the order is that of the epoch."""
    order = np.random.default_rng(epoch).permutation(count)
    for start in range(0, count - size + 1, size):
        yield order[start : start + size][rank::world]


def train_epoch(
    model: Perceptron,
    reducer: dist.GradientReducer,
    data: tuple[np.ndarray, np.ndarray],
    epoch: int,
    options: argparse.Namespace,
) -> float:
    """One pass over the data. Returns the mean loss over all ranks."""
    images, labels = data
    rank, world = dist.get_rank(), dist.get_world_size()
    total = np.zeros(2)  # Loss, images.
    steps = len(images) // options.batch_size
    bar = tqdm(total=steps, desc=f"epoch {epoch}", disable=rank != 0, mininterval=0.5, ncols=90)
    began = time.perf_counter()
    for i, part in enumerate(batches(len(images), options.batch_size, epoch, rank, world)):
        progress = (epoch - 1 + i / steps) / options.epochs
        activations = model.forward(images[part])
        # The reducer averages over ranks; what is wanted is the sum over the batch by its size.
        weight = world / options.batch_size
        total[0] += model.backward(activations, labels[part], weight, reducer)
        total[1] += len(part)
        model.step(reducer.finish(), options.learning_rate * (1 - progress))
        speed = total[1] * world / (time.perf_counter() - began)
        bar.set_postfix_str(f"loss {total[0] / total[1]:.4f}, {speed:,.0f} images/s", refresh=False)
        bar.update()
    bar.close()
    dist.all_reduce(total)
    return float(total[0] / total[1])


def digest(model: Perceptron) -> np.ndarray:
    """SHA-256 of all weights, as uint8 [32]."""
    hashed = hashlib.sha256(b"".join(p.tobytes() for p in model.parameters))
    return np.frombuffer(hashed.digest(), np.uint8).copy()


def check_equal_weights(model: Perceptron) -> None:
    """Raises on every rank if the weights are not bitwise equal on all of them."""
    digests = [np.empty(32, np.uint8) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, digest(model))
    differing = [r for r, d in enumerate(digests) if not np.array_equal(d, digests[0])]
    if differing:
        raise RuntimeError(f"the weights of ranks {differing} differ from those of rank 0")


def draw(losses: list[float], path: pathlib.Path) -> None:
    """The loss curve as a picture in SVG, which needs no library."""
    width, height, top = 480, 320, max(losses)
    across = [40 + (width - 60) * i / max(1, len(losses) - 1) for i in range(len(losses))]
    down = [height - 40 - (height - 70) * loss / top for loss in losses]
    points = list(zip(across, down, strict=True))
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>epoch {i}: {loss:.4f}</title></circle>'
        for i, ((x, y), loss) in enumerate(zip(points, losses, strict=True), 1)
    )
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="40" y="18">Fashion-MNIST: training loss, {losses[0]:.4f} to {losses[-1]:.4f}'
        f'</text><path d="M40 26V{height - 40}H{width - 20}" fill="none" stroke="gray"/>'
        f'<polyline points="{curve}" fill="none" stroke="navy" stroke-width="2"/>'
        f'<g fill="navy">{dots}</g><text x="40" y="{height - 16}">epoch 1 to {len(losses)}</text>'
        "</svg>\n"
    )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", help="auto if not given; mpi, under mpirun")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=240, help="over all processes")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="falls to 0 at the end")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the four .gz files")
    parser.add_argument("--limit", type=int, help="train on the first N images only")
    parser.add_argument("--picture", type=pathlib.Path, default="fashion_mnist_loss.svg")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures as JSON")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    folder = options.data or find_data()
    images, labels = load(folder, "train", options.dtype)
    data = images[: options.limit], labels[: options.limit]

    dist.init_process_group(options.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Perceptron(1, options.dtype)
    for parameter in model.parameters:
        dist.broadcast(parameter, src=0)
    names = [f"layer{i // 2}.{('weight', 'bias')[i % 2]}" for i in range(len(model.parameters))]
    reducer = dist.GradientReducer(
        model.parameters, names=names, bucket_cap_mb=0.5, first_bucket_mb=0.1
    )
    losses = []
    for epoch in range(1, options.epochs + 1):
        losses.append(train_epoch(model, reducer, data, epoch, options))
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.6f}", flush=True)
    check_equal_weights(model)
    if rank == 0:
        accuracy = model.accuracy(*load(folder, "t10k", options.dtype))
        print(f"test accuracy {accuracy:.2%}; weights bitwise equal on all {world} ranks")
        draw(losses, options.picture)
        print(f"loss curve: {options.picture}")
        if options.result:
            figures = {"losses": losses, "accuracy": accuracy, "ranks": world}
            options.result.write_text(json.dumps(figures))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
