"""Backend "syncline" on CUDA tensors: the operations, against PyTorch's NCCL and the host."""

import os

import gpu_ranks
import torch
import torch.distributed as dist

REDUCTIONS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64)
COUNTS = (1, 1000, 3_000_001)


def filled(count: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    generator = torch.Generator(gpu_ranks.device()).manual_seed(rank)
    values = torch.randint(1, 4, (count,), generator=generator, device=gpu_ranks.device())
    return values.to(dtype)


def everyones(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([filled(count, dtype, rank) for rank in range(dist.get_world_size())])


def results(group: dist.ProcessGroup) -> list[torch.Tensor]:
    """What the operations have made, in one order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    made = []
    for dtype in DTYPES:
        for count in COUNTS:
            x = filled(count, dtype, rank)
            for name in REDUCTIONS:
                if name == "AVG" and not dtype.is_floating_point:
                    continue
                y = x.clone()
                dist.all_reduce(y, getattr(dist.ReduceOp, name), group=group)
                made.append(y)
            y = x.clone()
            dist.broadcast(y, size - 1, group=group)
            gathered = torch.empty(size * count, dtype=dtype, device=x.device)
            dist.all_gather_into_tensor(gathered, x, group=group)
            parts = [torch.empty_like(x) for _ in range(size)]
            dist.all_gather(parts, x, group=group)
            scattered = torch.empty_like(x)
            dist.reduce_scatter_tensor(scattered, gathered, group=group)
            exchanged = torch.empty_like(gathered)
            dist.all_to_all_single(exchanged, gathered, group=group)
            made += [y, gathered, *parts, scattered, exchanged]
            z = x.clone()
            dist.reduce(z, 0, group=group)
            if rank == 0:
                made.append(z)
            received = torch.empty_like(x)
            pair = [
                dist.P2POp(dist.isend, x, (rank + 1) % size, group),
                dist.P2POp(dist.irecv, received, (rank - 1) % size, group),
            ]
            if size > 1:
                for work in dist.batch_isend_irecv(pair):
                    work.wait()
                made.append(received)
    torch.cuda.synchronize()
    return made


def equal_those_of_the_host() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in DTYPES:
        for count in COUNTS:
            x = filled(count, dtype, rank)
            dist.all_reduce(x)
            expected = everyones(count, dtype).cpu().to(torch.float64).sum(0)
            assert torch.equal(x.cpu().to(torch.float64), expected), (dtype, count)
            gathered = torch.empty(size * count, dtype=dtype, device=x.device)
            dist.all_gather_into_tensor(gathered, filled(count, dtype, rank))
            assert torch.equal(gathered.view(size, count), everyones(count, dtype)), (dtype, count)


def strided_tensors() -> None:
    size = dist.get_world_size()
    for in_background in (False, True):
        x = torch.ones(512, 256, device=gpu_ranks.device()).t()
        work = dist.all_reduce(x, async_op=in_background)
        if work is not None:
            work.wait()
        assert (x == size).all()


def equal_those_of_nccl() -> None:
    ours = results(dist.group.WORLD)
    dist.barrier()
    dist.destroy_process_group()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu_ranks.join("nccl", "nccl", rank, size, os.environ["GPU_RANKS_FOLDER"])
    theirs = results(dist.group.WORLD)
    assert len(ours) == len(theirs)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        difference = (a.double() - b.double()).abs().max().item()
        bound = 0.02 if a.dtype in (torch.float16, torch.bfloat16) else 1e-6
        assert difference <= bound * max(1.0, b.double().abs().max().item()), (i, difference)


if __name__ == "__main__":
    gpu_ranks.main(equal_those_of_the_host, strided_tensors, equal_those_of_nccl)
