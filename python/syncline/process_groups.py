"""This process's membership of a job: one world, and the groups made in it.

The default group is a variable of this module. Ranks that are threads of one process use
syncline.World objects instead, of which there may be many.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from datetime import timedelta

from syncline import failures
from syncline._syncline import ProcessGroup, Store, World
from syncline.errors import DistError

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_EXIT_TIMEOUT = timedelta(seconds=2)


class NonGroupMember:
    """The type of GroupMember.NON_GROUP_MEMBER."""

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


class _WorldProperty(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The group of all ranks; None before init_process_group."""
        return _default


class group(metaclass=_WorldProperty):
    """Holds `group.WORLD`, the group of all ranks."""


class GroupMember(metaclass=_WorldProperty):
    """Holds what new_group returns on ranks that are not in the new group."""

    NON_GROUP_MEMBER = NonGroupMember()


_world: World | None = None
_default: ProcessGroup | None = None  # The world's group, at hand.
_forked = False  # Whether _world is that of this process's parent.
_ranks: dict[ProcessGroup, list[int]] = {}  # Of each group: the world's ranks, by group rank.
_init_lock = threading.Lock()


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
) -> None:
    """Joins the job; returns once all ranks have.

    Args:
      backend: "gloo" (the default) or "local", in any case.
      init_method: "env://" (the default: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as a
        launcher sets them), "tcp://host:port" or "file:///path"; the latter two with `rank` and
        `world_size`, here or as "?rank=R&world_size=N".
      timeout: for joining, and for each operation that is not given its own; 30 minutes if None.
      world_size: number of ranks.
      rank: this process's rank, 0 to world_size - 1.
      store: replaces `init_method`; `rank` and `world_size` are then needed.
      group_name: jobs of different names may share a store.

    An uncaught exception that ends this process is from then on recorded for the launcher (in the
    file that TORCHELASTIC_ERROR_FILE names) and told to the peers, whose operations fail with it.

    Raises:
      DistError: this process has already joined.
      ValueError: `store` and `init_method` are both given, the backend is unknown, or a rank, a
        size or an environment variable is missing, taken or out of range.
      TypeError: an argument is of a wrong type; `timeout` must be a datetime.timedelta.
      DistTimeoutError: ranks have not joined in time; it names them.
      DistNetworkError: the store's port is in use, or nobody answers there.
    """
    global _world, _default
    if not _init_lock.acquire(blocking=False):
        raise DistError("another thread of this process is in init_process_group")
    try:
        if _world is not None:
            raise DistError(
                f"already initialized as rank {_joined().rank} of {_joined().size}: call "
                "destroy_process_group() first"
            )
        if store is not None and init_method is not None:
            raise ValueError("give either store or init_method, not both")
        _world = World.init(
            backend=_backend_name(backend) or "gloo",
            init_method=init_method or "",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=_DEFAULT_TIMEOUT if timeout is None else timeout,
            group_name=group_name,
        )
        _default = _world.group
        _ranks[_default] = list(range(_world.size))
        failures.watch(_abort_all)
    finally:
        _init_lock.release()


def is_initialized() -> bool:
    """Whether this process has joined a job."""
    return _default is not None


def get_rank(group: ProcessGroup | NonGroupMember | None = None) -> int:
    """This process's rank in `group` (None: all ranks); -1 if it is not in it."""
    return -1 if isinstance(group, NonGroupMember) else resolve(group).rank


def get_world_size(group: ProcessGroup | NonGroupMember | None = None) -> int:
    """The number of ranks in `group` (None: all ranks); -1 if this process is not in it."""
    return -1 if isinstance(group, NonGroupMember) else resolve(group).size


def get_backend(group: ProcessGroup | None = None) -> str:
    """The name of the backend of `group` (None: of the group of all ranks)."""
    return resolve(group).backend


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
) -> ProcessGroup | NonGroupMember:
    """Makes a group of `ranks` (None: all), numbered by ascending rank; returns once they joined.

    All ranks must call it, also those that are not in the group, with equal arguments and in the
    same order; those outside get GroupMember.NON_GROUP_MEMBER. `timeout` and `backend` are the
    world's if None. Raises ValueError for a rank that is not in the world or is listed twice.
    """
    world = _joined()
    members = list(range(world.size)) if ranks is None else sorted(ranks)
    made = world.new_group(members, _backend_name(backend), timeout)
    if made is None:
        return GroupMember.NON_GROUP_MEMBER
    _ranks[made] = members
    return made


def destroy_process_group(group: ProcessGroup | NonGroupMember | None = None) -> None:
    """Leaves `group`; if it is None or group.WORLD, leaves the job.

    Waits up to 10 seconds for operations in flight, then aborts them. Afterwards
    init_process_group can be called again.
    """
    if isinstance(group, NonGroupMember):
        return
    process_group = resolve(group)
    if process_group is not _default:
        process_group.close()
        del _ranks[process_group]
        return
    for made in reversed(_ranks):
        if made is not process_group:
            made.close()
    _joined().close()
    _forget()


def resolve(group: ProcessGroup | None) -> ProcessGroup:
    """`group`, or the group of all ranks if it is None. Raises if it is no group of this job."""
    if group is None:
        return _default or _joined().group
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"group must be None or what new_group returned, not {type(group).__name__}"
        )
    if group not in _ranks:
        raise ValueError(
            f"group '{group.name}' was destroyed or was not made by new_group: use the methods of "
            "the object itself, or make it by new_group"
        )
    return group


def rank_in(group: ProcessGroup, rank: int, argument: str) -> int:
    """The number in `group` of the world's `rank`; a ValueError names `argument`."""
    ranks = _ranks[group]
    if rank not in ranks:
        raise ValueError(
            f"{argument} must be a rank of group '{group.name}', one of "
            f"{', '.join(map(str, ranks))}, not {rank!r}"
        )
    return ranks.index(rank)


def _joined() -> World:
    if _world is None:
        raise DistError("this process has not joined a job: call init_process_group first")
    if _forked:
        raise DistError(
            "this process was forked after init_process_group, and cannot use its parent's groups: "
            "start processes before joining, or by multiprocessing's 'spawn'"
        )
    return _world


def _backend_name(backend: str | None) -> str | None:
    return backend.lower() if isinstance(backend, str) else backend


def _forget() -> None:
    global _world, _default
    failures.unwatch()
    _ranks.clear()
    _default = None
    _world = None


def _abort_all(failure: str) -> None:
    """Lets the peers, who may be waiting for this process, know at once why it ends."""
    if _default is None:
        return
    reason = f"rank {_default.rank} failed: {failure}"
    for made in reversed(_ranks):
        made.abort(reason)


def _leave_at_exit() -> None:
    """Without it, a rank that forgets destroy_process_group could wait for its peers forever."""
    if _default is None:
        return
    for made in reversed(_ranks):
        made.close(_EXIT_TIMEOUT)
    _forget()


def _abandon_in_child() -> None:
    global _default, _forked
    failures.unwatch()
    _default = None
    _forked = _world is not None


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_abandon_in_child)
