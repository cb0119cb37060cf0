"""Arrays of CuPy on a CUDA device: operations behind CuPy's streams."""

import cupy
import syncline as dist
import two_ranks


def _device(rank: int) -> cupy.cuda.Device:
    return cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount())


def operations(rank: int) -> None:
    with _device(rank), cupy.cuda.Stream(non_blocking=True):
        for dtype in ("float32", "float16", "int64", "int16", "bool"):
            x = cupy.ones(100_003, dtype)
            dist.all_reduce(x)
            assert (x == (1 if dtype == "bool" else two_ranks.SIZE)).all(), dtype
        x = cupy.full(1000, rank, cupy.int32)
        parts = [cupy.empty_like(x) for _ in range(two_ranks.SIZE)]
        dist.all_gather(parts, x)
        assert all((part == other).all() for other, part in enumerate(parts))
        dist.broadcast(x, src=1)
        assert (x == 1).all()
        if rank == 0:
            dist.send(x * 3, 1)
        else:
            dist.recv(x, 0)
            assert (x == 3).all()


def streams(rank: int) -> None:
    with _device(rank):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.ones(1 << 24, cupy.float32)
            for _ in range(20):
                x *= 1.0
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            x += 1  # Behind the sum.
            assert (x == two_ranks.SIZE + 1).all()
        y = cupy.ones(1000, cupy.float32)
        with dist.stream(stream.ptr, device=y.device.id):
            dist.all_reduce(y)
        stream.synchronize()
        assert (y == two_ranks.SIZE).all()


if __name__ == "__main__":
    two_ranks.main(operations, streams)
