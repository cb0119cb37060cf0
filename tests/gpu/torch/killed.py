"""A rank that is killed amid operations on CUDA tensors: the others learn of it, and whose."""

import os
import signal
import time

import gpu_ranks
import torch
import torch.distributed as dist

VICTIM = 1


def the_others_learn_of_it() -> None:
    if dist.get_world_size() == 1:
        print("not possible with one rank: NOT TESTED", flush=True)
        return
    x = torch.ones(1 << 20, device=gpu_ranks.device())
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if dist.get_rank() == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    work = dist.all_reduce(x, async_op=True)
    try:
        work.wait(gpu_ranks.TIMEOUT)
    except dist.DistBackendError as error:
        assert f"rank {VICTIM}" in str(error), error
        assert not work.is_success()
        print(f"rank {dist.get_rank()} knew after {time.monotonic() - begun:.2f} s", flush=True)
        os._exit(0)  # The job is over.
    raise AssertionError("no error")


if __name__ == "__main__":
    gpu_ranks.main(the_others_learn_of_it, may_die=(VICTIM,))
