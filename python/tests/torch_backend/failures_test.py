"""Ranks that die, fail or leave: what the others get, and how processes end."""

import os
import re
import time
from datetime import timedelta

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import syncline
import torch
import torch.distributed as dist
import torch_ranks
from torch.nn.parallel import DistributedDataParallel

VICTIM = 1


class DiesInBackward(torch.autograd.Function):
    """The identity; its backward pass ends the process of the victim."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if dist.get_rank() == VICTIM:
            os._exit(9)
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(300, 300), torch.nn.Linear(300, 300)
        self.dies = False

    def forward(self, x):
        x = self.first(x)
        return self.last(DiesInBackward.apply(x) if self.dies else x)


def dies_in_backward():
    torch_ranks.join()
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.1)
    model(torch.randn(4, 300)).sum().backward()
    model.module.dies = True
    loss = model(torch.randn(4, 300)).sum()
    # DDP broadcasts in the second forward; who dies then would fail it for a late rank.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"past forward: {dist.get_rank()}", "")
    store.wait([f"past forward: {rank}" for rank in range(dist.get_world_size())])
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"rank {VICTIM}\b"):
        loss.backward()
    assert time.monotonic() - began < 10
    with pytest.raises(dist.DistBackendError, match=rf"rank {VICTIM}\b"):
        dist.barrier()
    dist.destroy_process_group()


def raises():
    torch_ranks.join()
    if dist.get_rank() == VICTIM:
        raise KeyError("no such sample")
    dist.all_reduce(torch.ones(3))


def forgets_to_destroy():
    torch_ranks.join()
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.randn(2, 3)).sum().backward()
    dist.all_reduce(torch.ones(3), async_op=True)
    dist.new_group([0, 1])
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.get_future().then(lambda future: future.wait())


def waits_for_one_who_has_gone():
    """As above, but with an operation that never ends."""
    torch_ranks.join()
    if dist.get_rank() == 0:
        dist.irecv(torch.ones(3), src=1)


def mismatched():
    torch_ranks.join()
    with pytest.raises(
        syncline.DistMismatchError, match="(?s)all_reduce.*broadcast|broadcast.*all_reduce"
    ):
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(3))
        else:
            dist.broadcast(torch.ones(3), src=0)


def slow():
    torch_ranks.join(timeout=timedelta(seconds=2))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match=r"rank 1\b"):
            dist.all_reduce(torch.ones(3))
        store.set("failed", "yes")
    else:
        store.wait(["failed"])


def test_a_rank_that_dies_in_backward_is_named_by_the_others():
    ranks = torch_ranks.start(3, __file__, "dies_in_backward")
    assert ranks.codes == [0, 9, 0], "\n".join(ranks.outputs)


def test_an_uncaught_exception_is_told_to_the_peers():
    ranks = torch_ranks.start(2, __file__, "raises", TEST_PLAINLY="yes")
    assert ranks.codes == [1, 1], "\n".join(ranks.outputs)
    assert re.search("rank 1 failed: KeyError: 'no such sample'", ranks.outputs[0])


@pytest.mark.parametrize("function", [forgets_to_destroy, waits_for_one_who_has_gone])
def test_a_script_that_forgets_to_destroy_its_group_ends_well(function):
    began = time.monotonic()
    ranks = torch_ranks.start(2, __file__, function.__name__, TEST_PLAINLY="yes")
    assert ranks.codes == [0, 0], "\n".join(ranks.outputs)
    assert not any("terminate called" in output for output in ranks.outputs)
    assert time.monotonic() - began < 60


def test_ranks_that_call_different_operations_are_told():
    torch_ranks.in_processes(2, __file__, "mismatched")


def test_the_timeout_of_the_job_is_that_of_operations():
    torch_ranks.in_processes(2, __file__, "slow")


if __name__ == "__main__":
    torch_ranks.main(globals())
