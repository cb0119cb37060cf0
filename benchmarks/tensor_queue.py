"""Arrays from one process to another: TensorQueue beside the queues and the pipe that there are.

    ./bazelw run //benchmarks:tensor_queue

One producer, one consumer, both of this host, all systems in turns. The producer makes a new
array each time, as a data loader does; at most WINDOW of them are under way. Prints a table in
Markdown: arrays per second, bytes per second and how often TensorQueue's rate each one has, in
medians of ROUNDS rounds.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.multiprocessing
from syncline.tensor_queue import TensorQueue

WINDOW = 16
ROUNDS = 7
COUNTS = {4 << 10: 4000, 64 << 10: 2000, 1 << 20: 300, 16 << 20: 24}  # Arrays of a round, by size.
TIMEOUT = 60  # Seconds.


class PipeQueue:
    """A pipe, which its buffer bounds."""

    def __init__(self, context: Any) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)

    def put(self, x: Any) -> None:
        self._writer.send(x)

    def get(self) -> Any:
        return self._reader.recv()


def tensor_queue(size: int) -> TensorQueue:
    return TensorQueue(WINDOW * (size + 4096), max_messages=WINDOW)


CONTEXT = multiprocessing.get_context("fork")
# By name: what makes the queue for arrays of a size, and whether they are torch's.
SYSTEMS: dict[str, tuple[Callable[[int], Any], bool]] = {
    "TensorQueue, NumPy": (tensor_queue, False),
    "TensorQueue, torch": (tensor_queue, True),
    "torch.multiprocessing.Queue": (
        lambda size: torch.multiprocessing.get_context("fork").Queue(WINDOW),
        True,
    ),
    "multiprocessing.Queue": (lambda size: CONTEXT.Queue(WINDOW), False),
    "multiprocessing.Pipe": (lambda size: PipeQueue(CONTEXT), False),
}


def produce(queue: Any, is_torch: bool, size: int, turns: Any) -> None:
    torch.set_num_threads(1)
    numbers = numpy.random.default_rng(0).integers(0, 255, size, numpy.uint8)
    source = torch.from_numpy(numbers) if is_torch else numbers
    while (count := turns.recv()) > 0:
        for _ in range(count):
            queue.put(source.clone() if is_torch else source.copy())


class Route:
    """A queue with a producer at its other end."""

    def __init__(self, name: str, size: int) -> None:
        make, is_torch = SYSTEMS[name]
        self._queue = make(size)
        self._size = size
        turns, self._turns = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(
            target=produce, args=(self._queue, is_torch, size, turns), daemon=True
        )
        self._process.start()

    def run(self, count: int) -> float:
        """Arrays per second."""
        begin = time.perf_counter()
        self._turns.send(count)
        for _ in range(count):
            x = self._queue.get()
        rate = count / (time.perf_counter() - begin)
        assert x.nbytes == self._size
        return rate

    def close(self) -> None:
        self._turns.send(0)
        self._process.join(TIMEOUT)


def label(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main() -> None:
    torch.set_num_threads(1)
    print("| size | system | arrays/s | GB/s | TensorQueue is so many times as fast |")
    print("|---|---|---|---|---|")
    for size, count in COUNTS.items():
        routes = {name: Route(name, size) for name in SYSTEMS}
        rates: dict[str, list[float]] = {name: [] for name in SYSTEMS}
        for round in range(ROUNDS + 1):
            for name, route in routes.items():
                rate = route.run(count)
                if round > 0:
                    rates[name].append(rate)
        for route in routes.values():
            route.close()
        medians = {name: statistics.median(of_name) for name, of_name in rates.items()}
        for name, rate in medians.items():
            ours = medians["TensorQueue, torch" if "torch" in name else "TensorQueue, NumPy"]
            print(
                f"| {label(size)} | {name} | {rate:,.0f} | {rate * size / 1e9:.3g} "
                f"| {ours / rate:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
