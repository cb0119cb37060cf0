"""Processes that decode and augment images feed ranks that train, through a TensorQueue.

    ./bazelw run //launch:run -- --standalone --nproc-per-node=2 examples/data_loader.py

The images of Fashion-MNIST are held compressed, as a data set on a disk is. Loader processes
decompress those of a batch, shift and flip them at random, and put the batch into one queue in
shared memory, from which all ranks take the next batch when they need one. The model is that of
fashion_mnist.py. With --compare no rank trains: it prints how many images per second come through
this queue, syncline.multiprocessing's, the standard module's, and torch's DataLoader.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import multiprocessing
import pathlib
import resource
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import syncline as dist
import syncline.multiprocessing as mp
from fashion_mnist import LAYERS, PIXEL_MEAN, Perceptron, check_equal_weights, find_data, load

SIDE = 28
MOST_SHIFT = 2  # Pixels.
DEPTH = 4  # Batches of each loader that are ready, or on their way.
TIMEOUT = 60  # Seconds, of any wait for a batch.

Batch = tuple[Any, Any]  # float32 [size, 784] of mean 0, int64 [size].


class Records(NamedTuple):
    """Compressed images: the bytes of image i are data[offsets[i] : offsets[i + 1]]."""

    data: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray

    @staticmethod
    def read(folder: pathlib.Path, limit: int | None) -> Records:
        """The training images, in shared memory, which loaders get without a copy."""
        images, labels = load(folder, "train", "float32")
        pixels = np.rint(images[:limit] * 255 + PIXEL_MEAN).astype(np.uint8)
        compressed = [zlib.compress(image.tobytes()) for image in pixels]
        offsets = np.cumsum([0, *map(len, compressed)])
        data = np.frombuffer(b"".join(compressed), np.uint8)
        return Records(*map(mp.share_memory_, (data, offsets, labels[:limit])))

    def decode(self, i: int) -> np.ndarray:
        pixels = zlib.decompress(self.data[self.offsets[i] : self.offsets[i + 1]])
        return np.frombuffer(pixels, np.uint8).reshape(SIDE, SIDE)


def augment(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The image, shifted by some pixels, mirrored or not."""
    down, right = random.integers(0, 2 * MOST_SHIFT + 1, 2)
    crop = np.pad(image, MOST_SHIFT)[down : down + SIDE, right : right + SIDE]
    return crop[:, ::-1] if random.random() < 0.5 else crop


class Work(NamedTuple):
    """What loaders do: the batches from `first` to `last`, of `size` images."""

    records: Records
    size: int
    first: int
    last: int
    is_ready: bool = False  # The same batch over and over, to see what passing it on costs.

    def batch(self, number: int) -> Batch:
        """The same one for the same number, whoever makes it."""
        if self.is_ready:
            return _ready_batch(self.size)
        per_epoch = len(self.records.labels) // self.size
        epoch, i = divmod(number, per_epoch)
        order = _order(epoch, len(self.records.labels))[i * self.size : (i + 1) * self.size]
        random = np.random.default_rng(number)
        images = np.empty((self.size, LAYERS[0]), np.float32)
        for row, index in zip(images, order, strict=True):
            row[:] = augment(self.records.decode(index), random).ravel()
        images -= PIXEL_MEAN
        images /= 255
        return images, self.records.labels[order]


@functools.lru_cache(maxsize=1)
def _order(epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng(epoch).permutation(count)


@functools.lru_cache(maxsize=1)
def _ready_batch(size: int) -> Batch:
    return np.ones((size, LAYERS[0]), np.float32), np.zeros(size, np.int64)


def run_loader(rank: int, loaders: int, work: Work, queue: Any) -> None:
    """A loader: every so many batches are its own."""
    for number in range(work.first + rank, work.last, loaders):
        queue.put(work.batch(number), timeout=TIMEOUT)


@contextlib.contextmanager
def tensor_queue(
    work: Work, loaders: int, start_method: str = "spawn"
) -> Iterator[dist.TensorQueue]:
    """A queue that the loaders fill. It is bounded by bytes."""
    bytes_of_batch = work.size * (4 * LAYERS[0] + 8) + 4096
    queue = mp.TensorQueue(DEPTH * loaders * bytes_of_batch, timeout=TIMEOUT)
    arguments = (loaders, work, queue)
    started = mp.start_processes(
        run_loader, arguments, loaders, join=False, daemon=True, start_method=start_method
    )
    yield queue
    while not started.join(TIMEOUT):  # Raises what a loader has raised.
        pass


# ---- Training ----


def train(options: argparse.Namespace) -> None:
    """Each rank takes any batch: that which is ready next."""
    folder = options.data or find_data()
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    count = min(options.limit or 60_000, 60_000)
    steps = options.epochs * count // (options.batch_size * world)
    model = Perceptron(1, "float32")
    reducer = dist.GradientReducer(model.parameters)
    with contextlib.ExitStack() as stack:
        handles: list[Any] = [None]
        if rank == 0:
            records = Records.read(folder, options.limit)
            work = Work(records, options.batch_size, 0, steps * world)
            batches = stack.enter_context(tensor_queue(work, options.loaders))
            handles = [batches.handle]
        dist.broadcast_object_list(handles, src=0)
        if rank > 0:
            batches = dist.TensorQueue.open(handles[0], timeout=TIMEOUT)
        losses = []
        began = 0.0
        for step in range(steps):
            images, labels = batches.get()
            if step == 0:  # The loaders have started.
                dist.barrier()
                began = time.perf_counter()
            activations = model.forward(images)
            loss = model.backward(activations, labels, 1 / options.batch_size, reducer)
            model.step(reducer.finish(), 0.05 * (1 - step / steps))
            losses.append(loss / options.batch_size)
        dist.barrier()
        seconds = time.perf_counter() - began
    check_equal_weights(model)
    if rank == 0:
        part = max(1, steps // 10)
        first, last = np.mean(losses[:part]), np.mean(losses[-part:])
        accuracy = model.accuracy(*load(folder, "t10k", "float32"))
        speed = steps * world * options.batch_size / seconds
        print(f"loss {first:.4f} to {last:.4f}; test accuracy {accuracy:.2%}")
        print(f"{speed:,.0f} images/s, {world} ranks, {options.loaders} loaders", flush=True)
    dist.destroy_process_group()


# ---- Comparison ----

# How torch's DataLoader starts its processes, and so all others here. A rank has threads.
FORK = "fork"


@contextlib.contextmanager
def ours(work: Work, loaders: int) -> Iterator[Callable[[], Batch]]:
    with tensor_queue(work, loaders, FORK) as queue:
        yield queue.get


@contextlib.contextmanager
def queue_of(module: Any, work: Work, loaders: int) -> Iterator[Callable[[], Batch]]:
    """The Queue of a module, which is bounded by a number of messages."""
    context = module.get_context(FORK)
    queue = context.Queue(DEPTH * loaders)
    processes = [
        context.Process(target=run_loader, args=(rank, loaders, work, queue), daemon=True)
        for rank in range(loaders)
    ]
    for process in processes:
        process.start()
    yield lambda: queue.get(timeout=TIMEOUT)
    for process in processes:
        process.join(TIMEOUT)


class Batches:
    """A data set of torch, whose items are batches."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __getitem__(self, number: int) -> Batch:
        import torch

        images, labels = self._work.batch(number)
        return torch.from_numpy(images), torch.from_numpy(labels)


@contextlib.contextmanager
def torch_loader(work: Work, loaders: int) -> Iterator[Callable[[], Batch]]:
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)  # As the others; loaders have the other cores.
    loader = DataLoader(
        Batches(work),
        batch_size=None,
        sampler=range(work.first, work.last),
        num_workers=loaders,
        prefetch_factor=DEPTH,
        multiprocessing_context=FORK,
        timeout=TIMEOUT,
    )
    iterator = iter(loader)
    yield lambda: next(iterator)
    assert next(iterator, None) is None  # Ends its processes.


def systems() -> dict[str, Any]:
    found = {
        "TensorQueue": ours,
        "syncline.multiprocessing.Queue": functools.partial(queue_of, mp),
        "multiprocessing.Queue": functools.partial(queue_of, multiprocessing),
    }
    if importlib.util.find_spec("torch") is not None:
        found["torch DataLoader"] = torch_loader
    return found


def processor_seconds() -> float:
    """What this process, and its children that have ended, have used."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(system: Any, work: Work, loaders: int) -> tuple[float, float]:
    """Images per second that this process receives, once all loaders have started.

    And the microseconds of processor time that an image takes in all processes together, which
    depend less on what else the machine does.
    """
    used = processor_seconds()
    with system(work, loaders) as get:
        warm = 2 * DEPTH * loaders
        for _ in range(warm):
            get()
        count = work.last - work.first - warm
        began = time.perf_counter()
        for _ in range(count):
            images, _ = get()
            images.sum()  # Reads all of them.
        speed = count * work.size / (time.perf_counter() - began)
    used = processor_seconds() - used
    return speed, used / ((work.last - work.first) * work.size) * 1e6


def compare(options: argparse.Namespace) -> None:
    """Prints a table in Markdown."""
    records = Records.read(options.data or find_data(), options.limit)
    found = systems()
    print(f"{options.loaders} loaders, batches of {options.batch_size}, {options.rounds} rounds\n")
    print(
        "| | images/s, decoded | µs of CPU | images/s, ready | µs of CPU |\n|---|---|---|---|---|"
    )
    results: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for name, system in found.items():
            for is_ready in (False, True):
                batches = options.batches * (10 if is_ready else 1) + 2 * DEPTH * options.loaders
                work = Work(records, options.batch_size, 0, batches, is_ready)
                result = measure(system, work, options.loaders)
                results.setdefault((name, is_ready), []).append(result)
    for name in found:
        cells = [name]
        for is_ready in (False, True):
            speed, used = map(statistics.median, zip(*results[name, is_ready], strict=True))
            cells += [f"{speed:,.0f}", f"{used:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=120, help="of each rank")
    parser.add_argument("--loaders", type=int, default=2, help="processes")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the four .gz files")
    parser.add_argument("--limit", type=int, help="train on the first N images only")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="of --compare")
    parser.add_argument("--batches", type=int, default=200, help="of a round of --compare")
    options = parser.parse_args()
    if options.compare:
        compare(options)
    else:
        train(options)


if __name__ == "__main__":
    main()
