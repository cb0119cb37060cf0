"""Collectives that treat every element by itself, on the leaves of trees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy
import numpy
from jax.experimental import io_callback

from syncline import coalesced_calls
from syncline._syncline import ProcessGroup, ReduceOp
from syncline.arrays import cuda_device_of
from syncline.calls import choose_rank
from syncline.errors import DistMismatchError
from syncline.jax.flat import HOST_ROOM, DeviceRoom, Room
from syncline.job import Group, NonGroupMember, resolve
from syncline.reduce_ops import Op, split_op

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tree = TypeVar("Tree")
# Replaces a flat array by what it is to be.
_Replace = Callable[[ProcessGroup, Any], None]
_Paths = tuple[str, ...]
_Types = tuple[tuple[Any, tuple[int, ...]], ...]  # Of each leaf, its element type and shape.

_HAS_GRADIENT = (ReduceOp.SUM, ReduceOp.AVG)


def average_gradients(tree: Tree, group: Group = None) -> Tree:
    """The average of all ranks' trees, bitwise equal on all; all_reduce with AVG."""
    return all_reduce(tree, ReduceOp.AVG, group)


def all_reduce(tree: Tree, op: Op = ReduceOp.SUM, group: Group = None) -> Tree:
    """The elementwise reduction of all ranks' trees, bitwise equal on all.

    `tree` has arrays of JAX or NumPy, or numbers, as leaves; all ranks' trees must have the same
    structure, shapes and element types. The result has the same, as arrays of JAX on the devices of
    the leaves; leaves that are not of JAX become what jax.numpy.asarray makes of them, so those of
    64 bits come back with 32 unless jax_enable_x64 is set. A tree without leaves is returned at
    once, the call of no other rank.

    The gradient of a sum over ranks is that of the sum of all ranks' losses: with SUM or AVG,
    jax.grad gives the same reduction of the ranks' cotangents, so all of them must take it.

    Raises:
      DistMismatchError: trees differ; it names the ranks and the first leaf.
      NotImplementedError: jax.grad with another `op`.
      ValueError: a leaf is an array of several processes; this process is not in the group.
    """
    reduce_op, factor = split_op(op)
    known = _known(group)

    def replace(members: ProcessGroup, flat: Any) -> None:
        members.all_reduce(flat, reduce_op, None, factor)

    def gradient(*cotangents: Any) -> tuple[Any, ...]:
        if reduce_op not in _HAS_GRADIENT:
            raise NotImplementedError(
                f"all_reduce with {reduce_op.name} has no gradient, only SUM and AVG have: put "
                "jax.lax.stop_gradient around it"
            )
        return _reduced(cotangents, replace, known)

    return _on_leaves(tree, replace, known, gradient)


def broadcast_tree(tree: Tree, src: int = 0, group: Group = None) -> Tree:
    """Rank `src`'s tree, on all ranks: for parameters and the state of optimizers.

    The others pass trees of the same structure, shapes and element types; otherwise as all_reduce.
    It has no gradient. Raises TypeError for leaves of types that NumPy lacks: send the keys of
    jax.random as jax.random.key_data, and int4 as a wider type.
    """

    def replace(members: ProcessGroup, flat: Any) -> None:
        members.broadcast(flat, choose_rank(members, src, None, "src"))

    def gradient(*_: Any) -> tuple[Any, ...]:
        raise NotImplementedError(
            "broadcast_tree has no gradient: put jax.lax.stop_gradient around it"
        )

    return _on_leaves(tree, replace, _known(group), gradient)


def _known(group: Group) -> ProcessGroup | None:
    """The group, or None for that of all ranks; ValueError if this process is not in it."""
    if isinstance(group, NonGroupMember):
        raise ValueError("this process is not in the group")
    return group


def _on_leaves(
    tree: Tree,
    replace: _Replace,
    group: ProcessGroup | None,
    gradient: Callable[..., tuple[Any, ...]],
) -> Tree:
    """The tree of what `replace` makes of the leaves; `gradient` takes and gives cotangents."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if not leaves:
        return tree
    paths = _paths_of(tree, structure)
    if not _is_traced(leaves):
        results = _now(leaves, paths, replace, group)
    else:
        call = jax.custom_vjp(lambda *leaves: _elementwise(leaves, paths, replace, group))
        call.defvjp(
            lambda *leaves: (_elementwise(leaves, paths, replace, group), None),
            lambda _, cotangents: gradient(*cotangents),
        )
        results = call(*leaves)
    result: Tree = jax.tree_util.tree_unflatten(structure, results)
    return result


def _reduced(
    cotangents: Sequence[Any], replace: _Replace, group: ProcessGroup | None
) -> tuple[Any, ...]:
    """The same operation on cotangents, except those of integers, which carry nothing."""
    float0 = jax.dtypes.float0
    real = [i for i, cotangent in enumerate(cotangents) if cotangent.dtype != float0]
    paths = tuple(f"cotangent {i}" for i in real)
    done = _elementwise([cotangents[i] for i in real], paths, replace, group) if real else ()
    results = list(cotangents)
    for i, result in zip(real, done, strict=True):
        results[i] = result
    return tuple(results)


def _elementwise(
    leaves: Sequence[Any], paths: _Paths, replace: _Replace, group: ProcessGroup | None
) -> tuple[Any, ...]:
    """What `replace` makes of the leaves, which may be traced, now or when the program runs.

    Where they are mapped by jax.vmap, all elements go together.
    """

    def on_host(*arrays: Any) -> list[NDArray[Any]]:
        return _exchange([numpy.asarray(array) for array in arrays], paths, replace, group)

    def call(*leaves: Any) -> tuple[Any, ...]:
        if not _is_traced(leaves):
            return tuple(_now(leaves, paths, replace, group))
        _refuse_many_devices()
        results = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        return tuple(io_callback(on_host, results, *leaves, ordered=True))

    mapped = jax.custom_batching.custom_vmap(call)
    mapped.def_vmap(lambda _, is_batched, *leaves: (mapped(*leaves), tuple(is_batched)))
    results: tuple[Any, ...] = mapped(*leaves)
    return results


def _refuse_many_devices() -> None:
    """NotImplementedError where each of several devices would call, in an order of its own."""
    mesh = jax.sharding.get_abstract_mesh()
    if math.prod(mesh.shape[axis] for axis in mesh.manual_axes) > 1:
        raise NotImplementedError(
            "syncline.jax works inside shard_map and pmap over one device only: reduce over this "
            "process's devices there (jax.lax.pmean), and over processes outside of them"
        )


def _now(
    leaves: Sequence[Any], paths: _Paths, replace: _Replace, group: ProcessGroup | None
) -> list[Any]:
    """What `replace` makes of leaves that have elements, as arrays of JAX."""
    with suppress(jax.errors.JaxRuntimeError):  # Raised where that program's results are used.
        jax.effects_barrier()
    arrays = [leaf if isinstance(leaf, jax.Array) else jax.numpy.asarray(leaf) for leaf in leaves]
    for array, path in zip(arrays, paths, strict=True):
        if not array.is_fully_addressable:
            raise ValueError(
                f"leaf {path} is an array of several processes, {array.sharding}: use "
                "jax.lax.psum, or pass each process's part"
            )
    devices = {cuda_device_of(array) for array in arrays}
    if len(devices) == 1 and (device := devices.pop()) is not None:
        return _exchange(arrays, paths, replace, group, DeviceRoom(device))
    results = _exchange([numpy.asarray(array) for array in arrays], paths, replace, group)
    if any(array.committed for array in arrays):
        places = [array.sharding for array in arrays]
        moved: list[Any] = jax.device_put(results, places, may_alias=True)
        return moved
    moved = jax.device_put(results, may_alias=True)
    return moved


def _exchange(
    arrays: list[Any],
    paths: _Paths,
    replace: _Replace,
    group: ProcessGroup | None,
    room: Room = HOST_ROOM,
) -> list[Any]:
    """What `replace` makes of the arrays, as new ones; those of a type go together."""
    members = resolve(group)
    if coalesced_calls.open_contexts:
        coalesced_calls.issue(members)
    _check_equal(members, arrays, paths)
    by_type: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        by_type.setdefault(array.dtype, []).append(i)
    results: list[Any] = [None] * len(arrays)
    for indices in by_type.values():
        whole, parts = room.copies_of([arrays[i] for i in indices])
        if any(arrays[i].size for i in indices):
            replace(members, whole)
        for i, part in zip(indices, parts, strict=True):
            results[i] = room.finish(part)
    return results


def _check_equal(members: ProcessGroup, arrays: list[Any], paths: _Paths) -> None:
    """DistMismatchError, on all ranks, unless they pass alike trees.

    Every call compares fingerprints, whatever a rank has seen before: all ranks must do the same.
    """
    if members.size() == 1:
        return
    types = tuple((array.dtype, array.shape) for array in arrays)
    mine = _fingerprint(paths, types)
    extremes = numpy.array([mine, -mine])
    members.all_reduce(extremes, ReduceOp.MAX)  # The greatest one, and the least one's negative.
    if extremes[0] == -extremes[1]:
        return
    everyones = members.all_gather_bytes("\n".join(_leaves_of(paths, types)).encode())
    trees = [tree.decode().split("\n") for tree in everyones]
    for rank, tree in enumerate(trees):
        if tree == trees[0]:
            continue
        pairs = zip([*trees[0], "nothing more"], [*tree, "nothing more"], strict=False)
        ours, theirs = next(pair for pair in pairs if pair[0] != pair[1])
        raise DistMismatchError(
            f"the trees of group '{members.name()}' differ: rank 0 has {ours}, rank {rank} has "
            f"{theirs}; pass trees of the same structure, shapes and types on all ranks"
        )


@lru_cache(maxsize=1024)
def _fingerprint(paths: _Paths, types: _Types) -> int:
    """63 bits that are the same in all processes for the same tree, unlike those of hash()."""
    leaves = "\n".join(_leaves_of(paths, types)).encode()
    return int.from_bytes(blake2b(leaves, digest_size=8).digest(), "big") >> 1


def _leaves_of(paths: _Paths, types: _Types) -> list[str]:
    return [
        f"{path} {dtype}{list(shape)}" for path, (dtype, shape) in zip(paths, types, strict=True)
    ]


_paths: dict[Any, _Paths] = {}


def _paths_of(tree: Any, structure: Any) -> _Paths:
    """What leads to each leaf, such as "['layer1']['bias']"."""
    paths = _paths.get(structure)
    if paths is None:
        keyed, _ = jax.tree_util.tree_flatten_with_path(tree)
        paths = tuple(jax.tree_util.keystr(path) or "the tree" for path, _ in keyed)
        _paths[structure] = paths
    return paths


def _is_traced(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
