"""Training that survives failures, ranks that come and go, and being told to stop.

    ./bazelw run //launch:run -- --standalone --nproc-per-node=2 --max-restarts=3 \
        examples/elastic_fashion_mnist.py --checkpoint /tmp/mnist --fail-at 50:1

A perceptron on Fashion-MNIST, in NumPy. Every few steps rank 0 writes a checkpoint; each round of
the job goes on from the latest that any of its ranks can read, with however many ranks there are
then: the global batch of a step does not depend on their number, so neither does the result, up to
rounding. A SIGTERM stops all ranks at the same step, after which they save and end; started again,
they go on from there. Runs under syncline-run and under torchrun, unchanged.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pathlib
import sys
import time

import numpy as np
import syncline as dist
from syncline import elastic, preemption

LAYERS = (784, 64, 10)
PIXEL_MEAN = 72.94  # Of the training images.


def find_data() -> pathlib.Path:
    """The data set's folder among the files that Bazel hands to //launch:run."""
    root = pathlib.Path(os.environ.get("SYNCLINE_RUNFILES", ".")) / "fashion_mnist"
    found = sorted(root.rglob("train-images-idx3-ubyte.gz"))
    if not found:
        sys.exit("Fashion-MNIST was not found: start with //launch:run, or pass --data FOLDER")
    return found[0].parent


def load(folder: pathlib.Path, split: str, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `limit` images as uint8 [n, 784], and labels as uint8 [n], of "train" or "t10k"."""

    def read(name: str, header: int, size: int) -> np.ndarray:
        with gzip.open(folder / name) as file:
            return np.frombuffer(file.read(header + limit * size), np.uint8, offset=header)

    images = read(f"{split}-images-idx3-ubyte.gz", 16, LAYERS[0]).reshape(-1, LAYERS[0])
    return images, read(f"{split}-labels-idx1-ubyte.gz", 8, 1)


def pixels(images: np.ndarray) -> np.ndarray:
    """Images of uint8 as float32, of mean 0."""
    return (images - np.float32(PIXEL_MEAN)) / np.float32(255)


class Perceptron:
    """Two layers with ReLU and softmax cross-entropy, trained with momentum."""

    def __init__(self) -> None:
        generator = np.random.default_rng(1)
        self.step = 0  # How many there have been.
        self.parameters: list[np.ndarray] = []  # Weight, bias, weight, bias.
        for fan_in, fan_out in zip(LAYERS, LAYERS[1:], strict=False):
            weight = generator.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)
            self.parameters += [weight.astype(np.float32), np.zeros(fan_out, np.float32)]
        self.velocity = [np.zeros_like(p) for p in self.parameters]

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hidden layer's activations and the logits."""
        w1, b1, w2, b2 = self.parameters
        hidden = np.maximum(x @ w1 + b1, 0)
        return hidden, hidden @ w2 + b2

    def gradients(
        self, x: np.ndarray, labels: np.ndarray, weight: float, reducer: dist.GradientReducer
    ) -> float:
        """Hands those of `weight` * the summed loss to `reducer`. Returns the summed loss."""
        hidden, logits = self.forward(x)
        delta = np.exp(logits - logits.max(axis=1, keepdims=True))
        delta /= delta.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(delta[rows, labels] + 1e-12).sum()
        delta[rows, labels] -= 1
        delta *= np.float32(weight)
        np.sum(delta, axis=0, out=reducer.gradients[3])
        np.matmul(hidden.T, delta, out=reducer.gradients[2])
        delta = (delta @ self.parameters[2].T) * (hidden > 0)
        np.sum(delta, axis=0, out=reducer.gradients[1])
        np.matmul(x.T, delta, out=reducer.gradients[0])
        for i in (3, 2, 1, 0):
            reducer.mark_ready(i)
        return float(loss)

    def update(self, gradients: list[np.ndarray], rate: float) -> None:
        """One step of stochastic gradient descent."""
        for parameter, velocity, gradient in zip(
            self.parameters, self.velocity, gradients, strict=True
        ):
            velocity *= 0.9
            velocity += gradient
            parameter -= np.float32(rate) * velocity
        self.step += 1

    def arrays(self) -> list[np.ndarray]:
        return [*self.parameters, *self.velocity]

    def save(self, path: pathlib.Path) -> None:
        """Replaces the file in one step: who is killed meanwhile leaves the old one."""
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            with fresh.open("wb") as file:
                named = {f"array{i}": array for i, array in enumerate(self.arrays())}
                np.savez(file, step=self.step, **named)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)

    def restore(self, path: pathlib.Path) -> None:
        """What `save` has written, if it is there."""
        if not path.exists():
            return
        with np.load(path) as saved:
            self.step = int(saved["step"])
            for i, array in enumerate(self.arrays()):
                array[:] = saved[f"array{i}"]

    def agree(self) -> None:
        """Every rank takes over the state of the one that has made the most steps."""
        steps = [np.zeros(1, np.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, np.array([self.step]))
        furthest = int(np.argmax(steps))
        for array in self.arrays():
            dist.broadcast(array, src=furthest)
        self.step = int(steps[furthest][0])


class StepLog:
    """A file to which all ranks of all rounds append a line of JSON for each step."""

    def __init__(self, path: pathlib.Path | None) -> None:
        self._file = path.open("ab", buffering=0) if path else None
        self._facts = {
            "round": elastic.round(),
            "rank": dist.get_rank(),
            "world": dist.get_world_size(),
        }

    def write(self, step: int) -> None:
        """After a step; `t` is seconds since 1970."""
        if self._file:
            line = json.dumps({"t": time.time(), "step": step, **self._facts}) + "\n"
            self._file.write(line.encode())  # In one piece, hence whole.


def part_of_batch(step: int, count: int, size: int) -> np.ndarray:
    """This rank's share of the global batch of `size` out of `count` images, as indices."""
    per_epoch = count // size
    order = np.random.default_rng(step // per_epoch).permutation(count)
    start = step % per_epoch * size
    return order[start : start + size][dist.get_rank() :: dist.get_world_size()]


def train(model: Perceptron, options: argparse.Namespace) -> bool:
    """Trains up to --steps. Returns whether it got there, rather than being told to stop."""
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = load(options.data or find_data(), "train", options.limit)
    reducer = dist.GradientReducer(model.parameters)
    log = StepLog(options.log_steps)
    while model.step < options.steps:
        step = model.step
        if preemption.reached(step):
            return False
        if options.fail_at == (step, rank) and elastic.round() == 0:
            raise RuntimeError(f"rank {rank} fails at step {step}, as --fail-at says")
        part = part_of_batch(step, len(images), options.batch_size)
        # The reducer averages over ranks; what is wanted is the sum over the batch by its size.
        weight = world / options.batch_size
        model.gradients(pixels(images[part]), labels[part], weight, reducer)
        model.update(reducer.finish(), options.learning_rate)
        time.sleep(options.step_time)
        elastic.heartbeat()
        log.write(step)
        if rank == 0 and model.step % options.checkpoint_every == 0 and options.checkpoint:
            model.save(options.checkpoint / "checkpoint.npz")
    return True


def report(model: Perceptron, options: argparse.Namespace) -> None:
    """Says on rank 0 how good the model is."""
    images, labels = load(options.data or find_data(), "t10k", 10_000)
    accuracy = float((model.forward(pixels(images))[1].argmax(axis=1) == labels).mean())
    print(f"step {model.step}: test accuracy {accuracy:.2%}", flush=True)
    if options.result:
        world = dist.get_world_size()
        figures = {"accuracy": accuracy, "round": elastic.round(), "steps": model.step}
        options.result.write_text(json.dumps({**figures, "ranks": world}))


def parse_options() -> argparse.Namespace:
    def step_and_rank(text: str) -> tuple[int, int]:
        step, rank = text.split(":")
        return int(step), int(rank)

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="how many, restarts not counted")
    parser.add_argument("--batch-size", type=int, default=240, help="over all processes")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--checkpoint", type=pathlib.Path, help="the folder; none without it")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the four .gz files")
    parser.add_argument("--limit", type=int, default=12_000, help="train on the first N images")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures as JSON")
    parser.add_argument("--log-steps", type=pathlib.Path, help="append a line of JSON per step")
    parser.add_argument("--step-time", type=float, default=0, help="seconds to sleep in each step")
    parser.add_argument(
        "--fail-at", type=step_and_rank, metavar="STEP:RANK", help="in the first round"
    )
    return parser.parse_args()


@elastic.record
def main() -> None:
    options = parse_options()
    model = Perceptron()
    if options.checkpoint:
        options.checkpoint.mkdir(parents=True, exist_ok=True)
        model.restore(options.checkpoint / "checkpoint.npz")
    dist.init_process_group()
    preemption.install()
    model.agree()
    rank = dist.get_rank()
    if rank == 0:
        ranks = dist.get_world_size()
        print(f"round {elastic.round()}: {ranks} ranks, from step {model.step}", flush=True)
    is_done = train(model, options)
    if rank == 0 and options.checkpoint:
        model.save(options.checkpoint / "checkpoint.npz")
    if rank == 0 and is_done:
        report(model, options)
    elif rank == 0:
        print(f"stopped before step {model.step}, as all ranks agreed", flush=True)
    dist.barrier()  # Rank 0 may host the store.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
