"""Starts the two ranks of the scripts in this folder, each a process; it does nothing by itself."""

import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta

import syncline as dist

SIZE = 2
TIMEOUT = timedelta(seconds=60)
_SECONDS = 100  # For a rank, from its start to its end.


def _run(check: Callable[[int], None], rank: int, folder: str) -> None:
    dist.init_process_group(
        "cpu:auto,cuda:nccl",
        store=dist.FileStore(f"{folder}/store"),
        rank=rank,
        world_size=SIZE,
        timeout=TIMEOUT,
    )
    check(rank)
    dist.barrier()
    dist.destroy_process_group()


def main(*checks: Callable[[int], None]) -> None:
    """Calls each of `checks` with its rank, in two new processes; exits with 1 if one fails."""
    failed = 0
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            context = multiprocessing.get_context("spawn")
            ranks = [context.Process(target=_run, args=(check, r, folder)) for r in range(SIZE)]
            for each in ranks:
                each.start()
            for each in ranks:
                each.join(_SECONDS)
            good = all(each.exitcode == 0 for each in ranks)
            for each in ranks:
                each.kill()
                each.join(_SECONDS)
        print(f"{check.__name__}: {'passed' if good else 'FAILED'}", flush=True)
        failed |= not good
    sys.exit(failed)
