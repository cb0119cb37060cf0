"""Queues of processes: syncline.multiprocessing beside the standard module and torch.

    ./bazelw run //benchmarks:multiprocessing_queues

A producer puts arrays, each of which it has just written, to a queue of four; this process gets
them, and reads a byte of each page. All systems take turns; the median of the rounds is printed, as
a table in Markdown.
"""

import argparse
import multiprocessing
import statistics
import time
from multiprocessing import resource_tracker, shared_memory

import numpy
import pypi_torch_status
import syncline.multiprocessing as mp

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
PAGE = 4096


def modules():
    """The systems: name, module, kind of array."""
    found = [
        ("syncline, NumPy", mp, "numpy"),
        ("standard, NumPy", multiprocessing, "numpy"),
        ("shared_memory", multiprocessing, "by hand"),
    ]
    if pypi_torch_status.AVAILABLE:
        import torch.multiprocessing

        found.append(("syncline, torch", mp, "torch"))
        found.append(("torch", torch.multiprocessing, "torch"))
    return found


def make(kind, size, value):
    if kind == "torch":
        import torch

        return torch.full((size,), value, dtype=torch.uint8)
    return numpy.full(size, value, "u1")


def by_hand(array):
    """The name of a shared memory with a copy."""
    memory = shared_memory.SharedMemory(create=True, size=array.nbytes)
    numpy.ndarray(array.shape, array.dtype, memory.buf)[...] = array
    memory.close()
    # The consumer removes it.
    resource_tracker.unregister(memory._name, "shared_memory")
    return memory.name


def produce(kind, size, count, queue, go, done):
    """A warm-up, then `count` arrays."""
    array = make(kind, size, 1)
    for part in (min(count, 4), count):
        go.wait()
        go.clear()
        for _ in range(part):
            array = make(kind, size, 1) if kind == "torch" else array
            queue.put(by_hand(array) if kind == "by hand" else array)
    done.wait()


def consume(kind, size, queue):
    array = queue.get()
    if kind == "by hand":
        memory = shared_memory.SharedMemory(array)
        assert memory.buf[size - 1] == 1
        numpy.ndarray((size,), "u1", memory.buf)[::PAGE].sum()
        memory.close()
        memory.unlink()
        return
    assert array[size - 1] == 1
    array[::PAGE].sum()


def throughput(module, kind, size, count):
    """GB/s."""
    context = module.get_context("fork")
    queue, go, done = context.Queue(4), context.Event(), context.Event()
    child = context.Process(target=produce, args=(kind, size, count, queue, go, done))
    child.start()
    go.set()
    for _ in range(min(count, 4)):
        consume(kind, size, queue)
    start = time.perf_counter()
    go.set()
    for _ in range(count):
        consume(kind, size, queue)
    seconds = time.perf_counter() - start
    done.set()
    child.join()
    return size * count / seconds / 1e9


def echo(inbox, outbox, count, done):
    for _ in range(count):
        outbox.put(inbox.get())
    done.wait()


def latency(module, kind, count):
    """Microseconds one way, of an array of 4 KiB."""
    context = module.get_context("fork")
    inbox, outbox, done = context.Queue(), context.Queue(), context.Event()
    child = context.Process(target=echo, args=(inbox, outbox, count, done))
    child.start()
    array = make(kind, 4 << 10, 1)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        inbox.put(array)
        outbox.get()
        times.append(time.perf_counter() - start)
    done.set()
    child.join()
    return statistics.median(times) / 2 * 1e6


def many(module, kind):
    """Milliseconds to pass a list of 1,000 arrays of 4 KiB and to get it back."""
    context = module.get_context("fork")
    inbox, outbox, done = context.Queue(), context.Queue(), context.Event()
    child = context.Process(target=echo, args=(inbox, outbox, 3, done))
    child.start()
    times = []
    for _ in range(3):
        arrays = [make(kind, 4 << 10, 1) for _ in range(1000)]
        start = time.perf_counter()
        inbox.put(arrays)
        outbox.get()
        times.append(time.perf_counter() - start)
    done.set()
    child.join()
    return min(times) / 2 * 1e3


def name_of(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    systems = modules()
    if pypi_torch_status.AVAILABLE:
        import torch

        torch.set_num_threads(1)
    print("| | " + " | ".join(name for name, _, _ in systems) + " |")
    print("|---" * (len(systems) + 1) + "|")

    def row(title, measure, kinds=("numpy", "torch", "by hand")):
        results = {name: [] for name, _, _ in systems}
        for _ in range(options.rounds):
            for name, module, kind in systems:
                if kind in kinds:
                    results[name].append(measure(module, kind))
        cells = [f"{statistics.median(r):.3g}" if r else "" for r in results.values()]
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)

    for size in SIZES:
        count = max(6, min(1000, (512 << 20) // size))
        row(
            f"{name_of(size)}, GB/s",
            lambda module, kind, size=size, count=count: throughput(module, kind, size, count),
        )
    plain = ("numpy", "torch")
    row("4 KiB one way, us", lambda module, kind: latency(module, kind, 1000), plain)
    row("1,000 arrays of 4 KiB, ms", many, plain)


if __name__ == "__main__":
    main()
