"""What a communication hook costs: a step of a reducer with one bucket of 25 MiB, hooks in turns.

    ./bazelw run //benchmarks:comm_hooks

Two processes on this host, over `auto` (shared memory) and over `gloo` (sockets). Prints a table in
Markdown: the bytes of float32 that each hook sends, and the median time of a step, both relative
to all_reduce.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from datetime import timedelta

import numpy
import syncline as dist

SIZE = 2
SHAPE = (2560, 2560)  # 25 MiB.
ROUNDS = 9

# By name: the hook, and what it sends of an all-reduce's bytes.
HOOKS = {
    "all_reduce": (dist.CommHook.all_reduce, 1.0),
    "float16_compress": (dist.CommHook.float16_compress, 1 / 2),
    "bfloat16_compress": (dist.CommHook.bfloat16_compress, 1 / 2),
    "quantize_per_tensor": (dist.CommHook.quantize_per_tensor, SIZE / 8),
    "quantize_per_channel": (dist.CommHook.quantize_per_channel, SIZE / 8 * (1 + 8 / 512)),
    "top_k, 1 %": (dist.CommHook.top_k, SIZE * 0.01),
    "power_sgd, rank 1": (lambda: dist.CommHook.power_sgd(1, 0), 2 / SHAPE[0]),
    "power_sgd, rank 4": (lambda: dist.CommHook.power_sgd(4, 0), 8 / SHAPE[0]),
    "batched_power_sgd": (lambda: dist.CommHook.batched_power_sgd(1, 0), 2 / SHAPE[0]),
    "post_local_sgd": (lambda: dist.CommHook.post_local_sgd(0), 1.0),
}


def run_rank(backend: str) -> None:
    store = dist.TCPStore("127.0.0.1", int(os.environ["PORT"]))
    dist.init_process_group(
        backend,
        store=store,
        rank=int(os.environ["RANK"]),
        world_size=SIZE,
        timeout=timedelta(seconds=120),
    )
    parameter = numpy.zeros(SHAPE, numpy.float32)
    gradient = numpy.random.default_rng(dist.get_rank()).standard_normal(SHAPE, numpy.float32)
    reducers = {}
    for name, (make, _) in HOOKS.items():
        reducers[name] = dist.Reducer.create(dist.group.WORLD, [parameter])
        reducers[name].set_hook(make())
    times: dict[str, list[float]] = {name: [] for name in HOOKS}
    for round in range(ROUNDS + 1):
        for name, reducer in reducers.items():
            numpy.asarray(reducer.gradient(0))[...] = gradient
            dist.barrier()
            begin = time.perf_counter()
            reducer.mark_ready(0)
            reducer.finish()
            if round > 0:
                times[name].append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        for name, of_hook in times.items():
            print(f"{name}\t{statistics.median(of_hook)}")
    dist.destroy_process_group()


def measure(backend: str) -> dict[str, float]:
    """The median time of a step in seconds, by hook."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True)
    environment = {**os.environ, "PORT": str(server.port), "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, backend],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank has failed: see above")
    return {name: float(t) for name, t in (line.split("\t") for line in outputs[0].splitlines())}


def main() -> None:
    auto, gloo = measure("auto"), measure("gloo")
    print("| hook | bytes | shared memory, ms | ratio | gloo, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for name, (_, share) in HOOKS.items():
        cells = [name, f"{share:.4g}"]
        for times in (auto, gloo):
            cells += [f"{1000 * times[name]:.1f}", f"{times[name] / times['all_reduce']:.2f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    run_rank(sys.argv[1]) if len(sys.argv) > 1 else main()
