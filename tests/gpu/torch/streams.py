"""Waits of backend "syncline": streams wait for operations, and the host for none."""

import time

import gpu_ranks
import torch
import torch.distributed as dist

LONG = 2_000_000_000  # Cycles of the device: about a second.
COUNT = 1 << 20


def the_host_does_not_wait() -> None:
    size = dist.get_world_size()
    x = torch.ones(COUNT, device=gpu_ranks.device())
    dist.all_reduce(x)  # Ranks connect.
    torch.cuda.synchronize()
    begun = time.monotonic()
    torch.cuda._sleep(LONG)
    x.fill_(1)
    work = dist.all_reduce(x, async_op=True)
    assert not work.is_completed()
    work.wait()
    y = x * 2
    enqueued = time.monotonic() - begun
    torch.cuda.synchronize()
    done = time.monotonic() - begun
    print(f"enqueued after {enqueued:.4f} s, done after {done:.4f} s", flush=True)
    assert enqueued < done / 2
    assert (y == 2 * size).all() and work.is_completed() and work.is_success()


def side_streams() -> None:
    size = dist.get_world_size()
    side = torch.cuda.Stream()
    for _ in range(20):
        x = torch.empty(COUNT, device=gpu_ranks.device())
        torch.cuda._sleep(LONG // 100)
        x.fill_(1)
        work = dist.all_reduce(x, async_op=True)
        with torch.cuda.stream(side):
            work.wait()
            y = x * 2
        x.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        assert (y == 2 * size).all()


def futures() -> None:
    size = dist.get_world_size()
    x = torch.empty(COUNT, device=gpu_ranks.device())
    torch.cuda._sleep(LONG // 100)
    x.fill_(1)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert (doubled.wait() == 2 * size).all()


def memory_is_not_used_again_too_early() -> None:
    """Tensors are dropped at once; what comes next in their memory does not reach the peers."""
    size = dist.get_world_size()
    results = []
    for _ in range(50):
        x = torch.ones(COUNT, device=gpu_ranks.device()).view(1024, 1024).t()
        results.append(torch.empty(size * COUNT, device=x.device))
        work = dist.all_gather_into_tensor(results[-1], x, async_op=True)
        del x
        torch.full((COUNT,), float("nan"), device=results[-1].device)
        work.wait()
    assert all((result == 1).all() for result in results)


def captured_graph() -> None:
    size = dist.get_world_size()
    x = torch.ones(COUNT, device=gpu_ranks.device())
    dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        x.mul_(2)
        dist.all_reduce(x)
        x.div_(size)
    x.fill_(1)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (x == 8).all(), x[0].item()


if __name__ == "__main__":
    gpu_ranks.main(
        the_host_does_not_wait,
        side_streams,
        futures,
        memory_is_not_used_again_too_early,
        captured_graph,
    )
