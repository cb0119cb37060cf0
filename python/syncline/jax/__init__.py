"""Collectives over trees of JAX arrays, outside and inside jax.jit.

    import jax
    import syncline as dist
    import syncline.jax as sjax

    dist.init_process_group()
    parameters = sjax.broadcast_tree(parameters)  # All ranks begin with rank 0's.

    @jax.jit
    def step(parameters, batch):
        gradients = sjax.average_gradients(jax.grad(loss)(parameters, batch))
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)

Each process is a rank with devices of its own; what jax.distributed would make one array of several
processes is not needed, nor known here. A function sends all leaves of one element type together,
takes them where they are, and makes new arrays: nothing is written in place. Outside jit, leaves
that all lie on one CUDA device stay there, and XLA's streams wait instead of the host.

Outside jit the functions first wait for those that run in compiled programs, so that all keep the
order of the program. The other functions of syncline do not: call jax.effects_barrier() before them
where compiled programs use these here.

Inside jit they run on the host, by jax.experimental.io_callback, in the order of the program. That
costs 0.2 ms and two copies of the leaves, so large trees are better averaged between two programs.
jax.vmap works, as every element is treated by itself; jax.grad does through all_reduce with SUM or
AVG; jax.lax.scan, while_loop and cond do if all ranks take the same turns. Refused are shard_map
and pmap over several devices, where each would call; and, by JAX, forward mode (jax.jvp) and
jax.checkpoint around a function here. Arrays that are sharded over several devices of a process
keep their sharding outside jit; inside they are gathered on one device. Ranks that are threads of
one process must stay outside jit, where one waiting callback can keep the other from running.

An error inside jit arrives as JAX's JaxRuntimeError, which quotes it, when the result is used:
jax.jit(f)(x) may have returned before. JAX may then fail all later programs of that thread that use
a function here, with the same error.
"""

from syncline.jax.trees import all_reduce, average_gradients, broadcast_tree

__all__ = ["all_reduce", "average_gradients", "broadcast_tree"]
