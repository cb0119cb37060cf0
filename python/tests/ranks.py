"""Ranks for tests: as threads of this process, or as processes.

A test file that starts processes ends with

    if __name__ == "__main__":
        ranks.main(globals())

and each process calls the function of that file that `in_processes` names.
"""

import os
import subprocess
import sys
import tempfile
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


def in_processes(size: int, file: str, function: str, init_method: str = "") -> None:
    """Calls `function` of the test file `file` in `size` processes that have joined as ranks.

    They meet by `init_method`, which is a URL without ranks, or by a TCP store of this process.
    Fails, with their output, if one of them fails.
    """
    server = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path]),
            "TEST_FOLDER": folder,
            "TEST_INIT_METHOD": init_method,
            "TEST_PORT": str(server.port),
            "WORLD_SIZE": str(size),
        }
        run(size, [sys.executable, file, function], environment)


def meet_in_store(name: str) -> None:
    """Returns when all ranks of `in_processes` have come, though one of them dies then.

    Who dies right after a collective may fail it for those that have not returned from it yet.
    """
    store = dist.TCPStore("127.0.0.1", int(os.environ["TEST_PORT"]))
    store.set(f"{name}: {dist.get_rank()}", b"")
    store.wait([f"{name}: {rank}" for rank in range(dist.get_world_size())])


def run(size: int, command: list[str], environment: dict[str, str]) -> None:
    """Runs `command` once for each rank, with RANK set; fails, with their output, if one fails."""
    processes = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [
            process.communicate(timeout=2 * TIMEOUT.total_seconds())[0] for process in processes
        ]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failed = [rank for rank, process in enumerate(processes) if process.returncode != 0]
    assert not failed, "\n".join(f"rank {rank} failed:\n{outputs[rank]}" for rank in failed)


def shared_folder() -> str:
    """A folder of its own for each call of in_processes, for its processes."""
    return os.environ["TEST_FOLDER"]


def join(name: str = "") -> None:
    """Joins the job `name` of in_processes, in one of its processes."""
    init_method = os.environ["TEST_INIT_METHOD"]
    dist.init_process_group(
        "gloo",
        init_method=init_method or None,
        store=None if init_method else dist.TCPStore("127.0.0.1", int(os.environ["TEST_PORT"])),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=TIMEOUT,
        group_name=name,
    )


def main(functions: dict[str, Any]) -> None:
    """The other side of in_processes."""
    join()
    functions[sys.argv[1]]()
    dist.destroy_process_group()
