"""Starts the ranks of the scripts in this folder; it is none of them, and does nothing by itself.

A script ends with

    if __name__ == "__main__":
        gpu_ranks.main(check_this, check_that)

Each function is called on all ranks, which have joined torch.distributed over "syncline".
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing

TIMEOUT = timedelta(seconds=60)
NCCL_FOR_SHARED_DEVICES = (2, 30)


def count() -> int:
    """How many ranks there are: one for each device, up to 4; on one device two if NCCL can."""
    devices = torch.cuda.device_count()
    if devices == 0:
        sys.exit("these scripts need a CUDA device")
    if devices > 1:
        return min(devices, 4)
    if torch.cuda.nccl.version()[:2] >= NCCL_FOR_SHARED_DEVICES:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        return 2
    print(f"one device and NCCL {torch.cuda.nccl.version()}: world size 1", flush=True)
    return 1


def device() -> torch.device:
    """This rank's."""
    return torch.device("cuda", torch.cuda.current_device())


def join(backend: str, name: str, rank: int, size: int, folder: str, **arguments: object) -> None:
    """Joins a job of torch.distributed; each has a `name` of its own."""
    dist.init_process_group(
        backend,
        store=dist.FileStore(f"{folder}/{name}", size),
        rank=rank,
        world_size=size,
        timeout=TIMEOUT,
        **arguments,  # type: ignore[arg-type]
    )


def _run(
    rank: int, size: int, folder: str, functions: tuple[Callable[[], None], ...], joins: bool
) -> None:
    import syncline.torch  # noqa: F401 (makes the backend known)

    torch.cuda.set_device(rank % torch.cuda.device_count())
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), GPU_RANKS_FOLDER=folder)
    failed = False
    if joins:
        join("syncline", "job", rank, size, folder)
    for function in functions:
        try:
            function()
        except Exception:
            failed = True
            print(f"FAILED: {function.__name__} on rank {rank} of {size}", flush=True)
            traceback.print_exc()
            break  # The ranks may be apart.
        if rank == 0:
            print(f"passed: {function.__name__} ({size} ranks)", flush=True)
    if joins and not failed:
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(failed))


def main(*functions: Callable[[], None], joins: bool = True, may_die: tuple[int, ...] = ()) -> None:
    """Runs the functions on all ranks; exits with 0 if all have passed, else with 1."""
    size = count()
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_run, args=(rank, size, folder, functions, joins))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(300)
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
            process.join()
    if late:
        print(f"FAILED: ranks {late} have not ended", flush=True)
    codes = [process.exitcode for process in processes]
    failed = [rank for rank, code in enumerate(codes) if code != 0 and rank not in may_die]
    sys.exit(1 if late or failed else 0)
