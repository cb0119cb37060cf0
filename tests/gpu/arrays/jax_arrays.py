"""Arrays of JAX on a CUDA device, which stay there outside of jit."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # Two ranks share a device.

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import syncline as dist  # noqa: E402
import syncline.jax as sjax  # noqa: E402
import two_ranks  # noqa: E402


def _device(rank: int) -> jax.Device:
    devices = jax.local_devices(backend="gpu")
    return devices[rank % len(devices)]


def operations(rank: int) -> None:
    with jax.default_device(_device(rank)):
        for dtype in (jnp.float32, jnp.bfloat16, jnp.int32, jnp.int16):
            x = jnp.ones(100_003, dtype)
            total = dist.functional.all_reduce(x)
            assert total.devices() == x.devices()
            assert (total == two_ranks.SIZE).all() and (x == 1).all(), dtype
        x = jnp.full(1000, rank, jnp.int32)
        assert (dist.functional.broadcast(x, src=1) == 1).all()


def gradients(rank: int) -> None:
    with jax.default_device(_device(rank)):
        w = jnp.arange(1000, dtype=jnp.float32)
        x = jnp.full(1000, rank + 1, jnp.float32)
        step = jax.grad(lambda weights: (weights * x).sum())
        averaged = sjax.average_gradients({"w": step(w), "b": jnp.ones(3)})
        assert jnp.allclose(averaged["w"], 1.5) and jnp.allclose(averaged["b"], 1)


if __name__ == "__main__":
    two_ranks.main(operations, gradients)
