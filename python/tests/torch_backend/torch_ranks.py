"""Ranks of torch.distributed for tests: groups on threads of this process, or processes.

A test file that starts processes ends with

    if __name__ == "__main__":
        torch_ranks.main(globals())

and each process calls the function of that file that `in_processes` names.
"""

import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import syncline.torch  # noqa: F401 (registers the backend)
import torch
import torch.distributed as dist
from syncline.torch.backend.registration import create_group

TIMEOUT = timedelta(seconds=60)
_jobs = itertools.count()


def in_threads(size: int, function: Callable[[Any], Any], options: Any = None) -> list[Any]:
    """Calls function(group) on `size` ranks; returns the results by rank, or raises the first."""
    store = dist.HashStore()
    results: list[Any] = [None] * size
    errors: list[BaseException] = []
    done = threading.Barrier(size)

    def run(rank: int) -> None:
        try:
            group = create_group(store, rank, size, TIMEOUT, None, options)
            results[rank] = function(group)
            done.wait(TIMEOUT.total_seconds())
            group.shutdown()
        except threading.BrokenBarrierError:
            pass  # Another rank has failed.
        except BaseException as error:
            errors.append(error)
            done.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT.total_seconds())
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


class Ranks:
    """What `in_processes` has seen: the processes' exit codes and what they wrote, by rank."""

    def __init__(self, codes: list[int], outputs: list[str]):
        self.codes = codes
        self.outputs = outputs


def start(size: int, file: str, function: str, **environment: str) -> Ranks:
    """Calls `function` of the test file `file` in `size` processes; waits until all have ended."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    paths = [os.path.dirname(__file__), *sys.path]
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
            "TEST_PORT": str(store.port),
            "TEST_FOLDER": folder,
            "WORLD_SIZE": str(size),
            **environment,
        }
        processes = [
            subprocess.Popen(
                [sys.executable, file, function],
                env={**variables, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            limit = 2 * TIMEOUT.total_seconds()
            outputs = [process.communicate(timeout=limit)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return Ranks([process.returncode for process in processes], outputs)


def in_processes(size: int, file: str, function: str, **environment: str) -> None:
    """As start; fails, with their output, if one of them fails."""
    ranks = start(size, file, function, **environment)
    failed = [rank for rank, code in enumerate(ranks.codes) if code != 0]
    assert not failed, "\n".join(
        f"rank {rank} ended with {ranks.codes[rank]}:\n{ranks.outputs[rank]}" for rank in failed
    )


def shared_folder() -> pathlib.Path:
    """A folder of its own for each call of in_processes, for its processes."""
    return pathlib.Path(os.environ["TEST_FOLDER"])


def join(backend: str = "syncline", **arguments: Any) -> None:
    """Calls init_process_group in a process of in_processes; each call makes a job of its own."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["TEST_PORT"]), timeout=TIMEOUT)
    store = dist.PrefixStore(f"job {next(_jobs)}", store)
    # Starting Python may take some of them longer than a timeout of `arguments`.
    store.set(f"rank {rank} is there", "")
    store.wait([f"rank {other} is there" for other in range(world_size)])
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=arguments.pop("timeout", TIMEOUT),
        **arguments,
    )


def assert_equal_to_gloo(
    name: str, function: Callable[[], list[torch.Tensor]], tolerance: float = 1e-6
) -> None:
    """Calls `function` in a job over gloo and in one over syncline: the results must be equal."""
    results = {}
    for backend in ("gloo", "syncline"):
        join(backend)
        torch.manual_seed(7)
        results[backend] = [tensor.detach().clone() for tensor in function()]
        leave()
    assert len(results["gloo"]) == len(results["syncline"]) > 0
    for ours, theirs in zip(results["syncline"], results["gloo"], strict=True):
        assert torch.isfinite(ours).all(), name
        difference = (ours - theirs).abs().max().item()
        assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance), (name, difference)


def leave() -> None:
    """Waits for all ranks, and leaves the job."""
    dist.barrier()
    dist.destroy_process_group()


def run_each(functions: list[Callable[[], None]]) -> None:
    """Calls them in this process; leaves the job that each has joined and not left."""
    for function in functions:
        print(function.__name__, flush=True)  # Whatever fails, it is seen where.
        function()
        if dist.is_initialized():
            leave()


def main(functions: dict[str, Any]) -> None:
    """The other side of in_processes. With TEST_PLAINLY, the process ends as any script does."""
    if "TEST_PLAINLY" in os.environ:
        functions[sys.argv[1]]()
        return
    try:
        functions[sys.argv[1]]()
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    # A process that has used torch's gloo may abort in the destructors of torch's threads.
    os._exit(code)
