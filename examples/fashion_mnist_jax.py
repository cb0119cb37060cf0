"""Data-parallel training in JAX: a perceptron on Fashion-MNIST, one process per rank.

    ./bazelw run //launch:run -- --standalone --nproc-per-node=2 examples/fashion_mnist_jax.py

The whole step is one compiled program, which averages the gradients over the ranks in its middle.
With --outside-jit the gradients leave it, are averaged without a copy of their own, and go into a
second one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import syncline as dist
import syncline.jax as sjax

LAYERS = (784, 256, 128, 10)
PIXEL_MEAN = 72.94  # Of the training images.
MOMENTUM = 0.9


def load(folder: pathlib.Path, split: str, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `limit` images as float32 [n, 784] of mean 0, and labels as int32 [n]."""

    def read(name: str, header: int, size: int) -> np.ndarray:
        with gzip.open(folder / name) as file:
            return np.frombuffer(file.read(header + limit * size), np.uint8, offset=header)

    images = read(f"{split}-images-idx3-ubyte.gz", 16, LAYERS[0]).reshape(-1, LAYERS[0])
    labels = read(f"{split}-labels-idx1-ubyte.gz", 8, 1)
    return (images.astype(np.float32) - PIXEL_MEAN) / 255, labels.astype(np.int32)


def find_data() -> pathlib.Path:
    """The data set's folder among the files that Bazel hands to //launch:run."""
    root = pathlib.Path(os.environ.get("SYNCLINE_RUNFILES", ".")) / "fashion_mnist"
    found = sorted(root.rglob("train-images-idx3-ubyte.gz"))
    if not found:
        sys.exit("Fashion-MNIST was not found: start with //launch:run, or pass --data FOLDER")
    return found[0].parent


def new_parameters(seed: int) -> list[dict[str, jax.Array]]:
    """Weight [in, out] and bias [out] of each layer."""
    layers = []
    shapes = list(zip(LAYERS, LAYERS[1:], strict=False))
    for key, shape in zip(jax.random.split(jax.random.key(seed), len(shapes)), shapes, strict=True):
        weight = jax.random.normal(key, shape) * np.sqrt(2 / shape[0])
        layers.append({"weight": weight, "bias": jnp.zeros(shape[1])})
    return layers


def logits(parameters: list[dict[str, jax.Array]], images: jax.Array) -> jax.Array:
    """Of shape [n, 10]."""
    for layer in parameters[:-1]:
        images = jax.nn.relu(images @ layer["weight"] + layer["bias"])
    return images @ parameters[-1]["weight"] + parameters[-1]["bias"]


def summed_loss(parameters, images, labels):
    """The softmax cross-entropy, summed over the images."""
    scores = jax.nn.log_softmax(logits(parameters, images))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).sum()


def gradients_of(parameters, images, labels):
    """The summed loss, and the gradients of its share in the mean of this rank's images."""
    loss, gradients = jax.value_and_grad(summed_loss)(parameters, images, labels)
    return loss, jax.tree.map(lambda g: g / len(images), gradients)


def descend(parameters, velocity, gradients, rate):
    """Stochastic gradient descent with momentum."""
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradients)
    return jax.tree.map(lambda p, v: p - rate * v, parameters, velocity), velocity


@jax.jit
def step_inside(parameters, velocity, images, labels, rate):
    """A step as one program."""
    loss, gradients = gradients_of(parameters, images, labels)
    return loss, *descend(parameters, velocity, sjax.average_gradients(gradients), rate)


_gradients_of = jax.jit(gradients_of)
_descend = jax.jit(descend, donate_argnums=(0, 1))


def step_outside(parameters, velocity, images, labels, rate):
    """The same as two programs."""
    loss, gradients = _gradients_of(parameters, images, labels)
    return loss, *_descend(parameters, velocity, sjax.average_gradients(gradients), rate)


def batches(count: int, size: int, epoch: int) -> Iterator[np.ndarray]:
    """This rank's part of each global batch of `size` images; the order is that of the epoch."""
    order = np.random.default_rng(epoch).permutation(count)
    rank, world = dist.get_rank(), dist.get_world_size()
    part = size // world
    for start in range(0, count - size + 1, size):
        yield order[start + rank * part : start + (rank + 1) * part]


def train_epoch(state, data, epoch: int, options: argparse.Namespace):
    """One pass over the data. Returns parameters and velocity, and the mean loss of all ranks."""
    images, labels = data
    step = step_outside if options.outside_jit else step_inside
    total, count = 0.0, 0
    steps = len(images) // options.batch_size
    for i, part in enumerate(batches(len(images), options.batch_size, epoch)):
        progress = (epoch - 1 + i / steps) / options.epochs
        rate = options.learning_rate * (1 - progress)
        loss, *state = step(*state, images[part], labels[part], rate)
        total += loss
        count += len(part)
    mean = sjax.all_reduce(jnp.asarray([total, count], jnp.float32))
    return state, float(mean[0] / mean[1])


def check_equal_weights(parameters) -> None:
    """Raises on every rank if the weights are not bitwise equal on all of them."""
    first = sjax.broadcast_tree(parameters)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(parameters), strict=True)
    equal = all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
    if int(sjax.all_reduce(jnp.int32(equal))) != dist.get_world_size():
        raise RuntimeError("the weights differ from those of rank 0")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=240, help="over all processes")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="falls to 0 at the end")
    parser.add_argument("--limit", type=int, default=60000, help="train on the first N images only")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the four .gz files")
    parser.add_argument("--outside-jit", action="store_true", help="average between two programs")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures as JSON")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    folder = options.data or find_data()
    data = load(folder, "train", options.limit)
    test_images, test_labels = load(folder, "t10k", 10000)

    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    parameters = sjax.broadcast_tree(new_parameters(seed=rank))  # All begin with rank 0's.
    state = [parameters, jax.tree.map(jnp.zeros_like, parameters)]
    losses = []
    for epoch in range(1, options.epochs + 1):
        began = time.perf_counter()
        state, loss = train_epoch(state, data, epoch, options)
        losses.append(loss)
        accuracy = float((logits(state[0], test_images).argmax(axis=1) == test_labels).mean())
        if rank == 0:
            seconds = time.perf_counter() - began
            text = f"loss {loss:.6f}, test accuracy {accuracy:.2%}, {seconds:.1f} s"
            print(f"epoch {epoch}: {text}", flush=True)
    check_equal_weights(state[0])
    if rank == 0:
        print(f"weights bitwise equal on all {world} ranks")
        if options.result:
            figures = {"losses": losses, "accuracy": accuracy, "ranks": world}
            options.result.write_text(json.dumps(figures))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
