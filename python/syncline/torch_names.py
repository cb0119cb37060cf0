"""Names of torch.distributed that scripts import, and that mean little here.

What belongs to torch's own parts, and names of its early versions. The rest of them, with other
behaviour than torch's, is listed in docs/compatibility.md.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

from syncline import job
from syncline._syncline import ProcessGroup, Store, World
from syncline.backends import Backend, DistributedBackendOptions, get_backend_config
from syncline.calls import choose_rank
from syncline.errors import DistValueError
from syncline.job import Group, NonGroupMember, resolve
from syncline.objects import all_gather_object
from syncline.process_groups import (
    default_pg_timeout,
    destroy_process_group,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
)

GroupName = str
default_pg_nccl_timeout = timedelta(minutes=10)
"""Torch's timeout for NCCL. Here all backends have default_pg_timeout."""

dist_backend = Backend
_DistributedBackendOptions = DistributedBackendOptions
_DEFAULT_FIRST_BUCKET_BYTES = 1024 * 1024

# ---- How much is checked ----


class DebugLevel(Enum):
    """What TORCH_DISTRIBUTED_DEBUG says. Calls are compared whatever it is: see SYNCLINE_DEBUG."""

    OFF = 0
    INFO = 1
    DETAIL = 2


_debug_level: DebugLevel | None = None  # Not set yet.


def get_debug_level() -> DebugLevel:
    """What was set, or is found in the environment at the first call."""
    if _debug_level is None:
        set_debug_level_from_env()
    assert _debug_level is not None
    return _debug_level


def set_debug_level(level: DebugLevel) -> None:
    """Sets what get_debug_level returns; nothing else."""
    global _debug_level
    if not isinstance(level, DebugLevel):
        raise DistValueError(f"level must be a DebugLevel, not {level!r}")
    _debug_level = level


def set_debug_level_from_env() -> None:
    """Sets what TORCH_DISTRIBUTED_DEBUG names. ValueError for what is no level."""
    given = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if given not in DebugLevel.__members__:
        raise DistValueError(
            f"The value of TORCH_DISTRIBUTED_DEBUG must be one of OFF, INFO, DETAIL, not {given!r}"
        )
    set_debug_level(DebugLevel[given])


_DistributedDebugLevel = DebugLevel  # Torch 1.9.
_get_debug_mode = get_debug_level

# ---- The groups ----


def _get_default_group() -> ProcessGroup:
    """The group of all ranks. DistUsageError before init_process_group."""
    return resolve(None)


get_default_group = _get_default_group
_check_default_pg = _get_default_group  # Torch 1.5: raises if there is none.


def _get_default_store() -> Store:
    """The store through which the ranks of the job met."""
    return job.joined().store


def _rank_not_in_group(group: Group) -> bool:
    return isinstance(group, NonGroupMember)


def _group_or_default_group(group: ProcessGroup | None = None) -> ProcessGroup:
    return resolve(group)


def _get_group_size(group: Group) -> int:
    return get_world_size(group)


def _get_process_group_name(pg: ProcessGroup) -> str:
    return pg.name()


def _get_process_group_store(pg: ProcessGroup) -> Store:
    return _get_default_store()


def _get_global_rank(group: ProcessGroup, rank: int) -> int:
    """As get_global_rank. Torch's early name."""
    return get_global_rank(group, rank)


def _get_group_rank(group: ProcessGroup, rank: int) -> int:
    """As get_group_rank. Torch's early name."""
    return get_group_rank(group, rank)


def _set_pg_timeout(timeout: timedelta, group: ProcessGroup | None = None) -> None:
    """As group.set_timeout(timeout)."""
    resolve(group).set_timeout(timeout)


def _add_ephemeral_timeout_for_all_pgs(timeout: timedelta) -> None:
    """Nothing: a call can be given a timeout of its own, and barrier is."""


def _abort_process_group(group: Group = None) -> None:
    """Ends `group` at once, here and on the peers; without a group, or of all ranks, the job."""
    if isinstance(group, NonGroupMember):
        return
    ended = resolve(group)
    ends = job.made() if ended is job.default() else [ended]
    for each in reversed(ends):
        each.abort()
    destroy_process_group(ended)


def _get_pg_config(group: ProcessGroup | None = None) -> dict[str, Any]:
    """What torch tells of a group: name, description, backend, ranks and size."""
    members = resolve(group)
    return {
        "pg_name": members.name(),
        "pg_desc": job.description_of(members),
        "backend_config": get_backend_config(members),
        "pg_size": members.size(),
        "ranks": get_process_group_ranks(members),
    }


def _get_all_pg_configs() -> list[dict[str, Any]]:
    return [_get_pg_config(group) for group in job.made()]


class _Groups:
    """What torch keeps of its groups in `distributed_c10d._world`, to be read."""

    @property
    def default_pg(self) -> ProcessGroup | None:
        return job.default()

    @property
    def pg_map(self) -> dict[ProcessGroup, tuple[str, Store]]:
        return {group: (group.backend, _get_default_store()) for group in job.made()}

    @property
    def pg_names(self) -> dict[ProcessGroup, str]:
        return {group: group.name() for group in job.made()}

    @property
    def pg_group_ranks(self) -> dict[ProcessGroup, dict[int, int]]:
        return {group: dict(job.members_of(group).index) for group in job.made()}

    @property
    def pg_backend_config(self) -> dict[ProcessGroup, str]:
        return {group: get_backend_config(group) for group in job.made()}

    @property
    def group_count(self) -> int:
        return len(job.made())

    @property
    def pg_config_info(self) -> list[dict[str, Any]]:
        return _get_all_pg_configs()


_world = _Groups()


@contextmanager
def record_comm(name: str) -> Iterator[None]:
    """Nothing: operations have the same names in logs and messages as outside of it."""
    del name
    yield


# ---- Groups of one backend, by the names of torch's classes ----


class _OfBackend(type):
    """Has `isinstance(group, ProcessGroupGloo)` say whether the group's backend is that."""

    BACKEND: str

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ProcessGroup) and cls.BACKEND in re.split(
            "[:,]", instance.backend
        )


class _OfStore(metaclass=_OfBackend):
    """Makes a group, in place of an object, of the ranks that share `store`."""

    BACKEND: str

    def __new__(  # type: ignore[misc]
        cls, store: Store, rank: int, size: int, timeout: timedelta | float = default_pg_timeout
    ) -> ProcessGroup:
        return _alone(cls.BACKEND, store, rank, size, timeout)


class ProcessGroupGloo(_OfStore):
    """Makes a group over Gloo of the ranks that share `store`, without init_process_group."""

    BACKEND = "gloo"


class ProcessGroupNCCL(_OfStore):
    """Makes a group over NCCL of the ranks that share `store`, without init_process_group."""

    BACKEND = "nccl"


class ProcessGroupMPI(metaclass=_OfBackend):
    """For isinstance: groups over MPI are made by init_process_group("mpi")."""

    BACKEND = "mpi"


def _alone(backend: str, store: Store, rank: int, size: int, timeout: Any) -> ProcessGroup:
    if isinstance(timeout, float):  # Seconds, as torch's classes take them.
        timeout = timedelta(seconds=timeout)
    timeout = getattr(timeout, "_timeout", timeout)  # Options of torch's have one.
    world = World.init(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    _worlds[world.group] = world
    return world.group


_worlds: WeakKeyDictionary[ProcessGroup, World] = WeakKeyDictionary()


# ---- What torch's DistributedDataParallel is made of ----


def _broadcast_coalesced(
    process_group: ProcessGroup, tensors: Sequence[Any], buffer_size: int, src: int = 0
) -> None:
    """Broadcasts `tensors` from rank `src` of the group, at most `buffer_size` bytes at once."""
    waiting: list[Any] = []
    size = 0
    for tensor in tensors:
        if waiting and size + tensor.nbytes > buffer_size:
            process_group.broadcast_coalesced(waiting, src)
            waiting, size = [], 0
        waiting.append(tensor)
        size += tensor.nbytes
    if waiting:
        process_group.broadcast_coalesced(waiting, src)


def _compute_bucket_assignment_by_size(
    tensors: Sequence[Any],
    bucket_size_limits: Sequence[int],
    expect_sparse_gradient: Sequence[bool] = (),
    tensor_indices: Sequence[int] = (),
) -> tuple[list[list[int]], list[int]]:
    """Which tensors go into one bucket, and the limit of each bucket.

    A bucket has tensors of one type and device, and is closed once it has reached its limit: those
    of one kind have the limits in turn, of which the last one goes on. A sparse tensor has a bucket
    of its own. Without `tensor_indices` buckets are in the order of their first tensors.
    """
    done: list[tuple[list[int], int]] = []
    open_buckets: dict[Any, list[int]] = {}
    sizes: dict[Any, int] = {}
    closed: dict[Any, int] = {}

    def limit_of(kind: Any) -> int:
        return bucket_size_limits[min(closed.get(kind, 0), len(bucket_size_limits) - 1)]

    for place, tensor in enumerate(tensors):
        index = tensor_indices[place] if tensor_indices else place
        if expect_sparse_gradient and expect_sparse_gradient[place]:
            done.append(([index], 0))
            continue
        kind = (str(tensor.dtype), str(getattr(tensor, "device", "cpu")))
        open_buckets.setdefault(kind, []).append(index)
        sizes[kind] = sizes.get(kind, 0) + tensor.nbytes
        if sizes[kind] >= limit_of(kind):
            done.append((open_buckets.pop(kind), limit_of(kind)))
            sizes[kind] = 0
            closed[kind] = closed.get(kind, 0) + 1
    done += [(bucket, limit_of(kind)) for kind, bucket in open_buckets.items()]
    if not tensor_indices:
        done.sort(key=lambda bucket: min(bucket[0]))
    return [bucket for bucket, _ in done], [limit for _, limit in done]


def _verify_params_across_processes(
    process_group: ProcessGroup, params: Sequence[Any], logger: Any = None
) -> None:
    """Raises RuntimeError, on all ranks, unless all have parameters of equal types and shapes."""
    del logger
    mine = [[str(param.dtype), *map(int, param.shape)] for param in params]
    everyone: list[Any] = [None] * process_group.size()
    all_gather_object(everyone, mine, process_group)
    for rank, theirs in enumerate(everyone):
        if len(theirs) != len(everyone[0]):
            raise RuntimeError(
                f"DDP expects same model across all ranks, but Rank {rank} has {len(theirs)} "
                f"params, while rank 0 has {len(everyone[0])}."
            )
        for place, (this, that) in enumerate(zip(theirs, everyone[0], strict=True)):
            if this != that:
                raise RuntimeError(
                    f"[{place}]: params[{place}] in rank {rank}, {this}, appears not to match the "
                    f"same param in process 0, {that}."
                )


_verify_model_across_ranks = _verify_params_across_processes  # Torch 1.9.


class BuiltinCommHookType(Enum):
    """For DistributedDataParallel._register_builtin_comm_hook."""

    ALLREDUCE = 1
    FP16_COMPRESS = 2


def _warn_not_in_group(op_name: str) -> None:
    text = f"{op_name} does nothing on rank {get_rank()}: it is not in the group"
    warnings.warn(text, stacklevel=2)


def _canonicalize_group_rank(
    group: ProcessGroup,
    global_rank: int | None = None,
    group_rank: int | None = None,
    return_global: bool = False,
) -> int:
    """The rank that is meant by one of the two, in the group or in the world."""
    rank = choose_rank(group, global_rank, group_rank, "rank")
    return get_global_rank(group, rank) if return_global else rank


def dynamic(name: str) -> Any:
    """Variables of torch's module that change: for distributed_c10d.__getattr__."""
    if name == "_default_pg":
        return job.default()
    if name == "_backend":
        group = job.default()
        return Backend.UNDEFINED if group is None else Backend(group.backend)
    if name in ("_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_group_count"):
        return getattr(_world, name[1:])
    raise AttributeError(f"module 'syncline.distributed_c10d' has no attribute {name!r}")
