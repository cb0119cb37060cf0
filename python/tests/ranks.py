"""Ranks for tests: as threads of this process, or as processes.

A test file that starts processes ends with

    if __name__ == "__main__":
        ranks.main(globals())

and each process calls the function of that file that `in_processes` names.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import syncline as dist

TIMEOUT = timedelta(seconds=60)


def in_threads(size: int, function: Callable[[dist.World], Any], backend: str = "local") -> list:
    """Calls function(world) on `size` ranks; returns the results by rank, or raises the first."""
    store = dist.HashStore()
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            world = dist.World.init(
                backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT
            )
            results[rank] = function(world)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT.total_seconds())
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


def in_processes(size: int, file: str, function: str, folder: str) -> list[str]:
    """Calls `function` of the test file `file` in `size` processes that have joined as ranks.

    They meet through a file in `folder`. Returns what they print, by rank; fails if one fails.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path]),
        "RANKS_URL": f"file://{folder}/store",
        "RANKS_SIZE": str(size),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, file, function],
            env={**environment, "RANKS_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failed = [rank for rank, process in enumerate(processes) if process.returncode != 0]
    assert not failed, "\n".join(f"rank {rank} failed:\n{outputs[rank]}" for rank in failed)
    return outputs


def main(functions: dict[str, Any]) -> None:
    """The other side of in_processes."""
    dist.init_process_group(
        init_method=os.environ["RANKS_URL"],
        rank=int(os.environ["RANKS_RANK"]),
        world_size=int(os.environ["RANKS_SIZE"]),
        timeout=TIMEOUT,
    )
    functions[sys.argv[1]]()
    dist.destroy_process_group()
