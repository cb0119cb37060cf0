"""Joining a job, making groups, leaving; and what can be asked of groups."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from syncline import _syncline, job
from syncline._syncline import ProcessGroup, Store, World
from syncline.backends import Backend, backend_name, making
from syncline.errors import DistError, DistUsageError, DistValueError
from syncline.job import Group, GroupMember, NonGroupMember, resolve
from syncline.mpi_comm import native_communicator
from syncline.rendezvous import has_own_handler, meet

default_pg_timeout = timedelta(minutes=30)
"""How long joining and operations take at most where no timeout is given."""

_EXIT_TIMEOUT = timedelta(seconds=2)
_init_lock = threading.Lock()
_task_local_rank: Callable[[], int | None] = vars(_syncline)["_task_local_rank"]


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    _ranks: Any = None,
    comm: Any = None,
) -> None:
    """Joins the job; returns once all ranks have.

    Args:
      backend: "auto" (the default: shared memory within a host, TCP between hosts) or another of
        `python -m syncline.info`, in any case; or one for each device: "cpu:gloo,cuda:nccl".
      init_method: "env://" (the default: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as a
        launcher sets them, or else what Slurm's srun, mpirun, PALS or Flux say), "tcp://host:port"
        (also of a multicast address), "file:///path" or "etcd://host:port/prefix"; the latter three
        with `world_size`, and perhaps `rank`, here or as "?rank=R&world_size=N". Without a rank,
        ranks are assigned. Or a scheme of register_rendezvous_handler.
        "mpi://": rank and size are MPI's; the default of backend "mpi" where nothing else is set.
      timeout: for joining, and for each operation that is not given its own; 30 minutes if None.
      world_size: number of ranks.
      rank: this process's rank, 0 to world_size - 1.
      store: replaces `init_method`; `rank` and `world_size` are then needed.
      group_name: jobs of different names may share a store; of no use with `comm`.
      pg_options: for backends registered with `extended_api`.
      device_id: the CUDA device whose tensors this rank will pass: a number, "cuda:0", a
        torch.device, or what else has a type and an index. Backend nccl then makes its communicator
        before this returns, and those of new_group and split_group from that one; new_group then
        waits for all ranks. All ranks give one, or none does. Backends that do not serve tensors
        where they are ignore it.
      comm: a communicator of mpi4py, whose processes are the ranks, instead of `init_method`,
        `store`, `rank` and `world_size`. With any backend. MPI stays the program's to finalise.

    Without arguments, and with nothing in the environment from a launcher, it is a world of one;
    so is rank 0 of 1. The log (SYNCLINE_LOG_LEVEL=info) says which, and why.

    An uncaught exception that ends this process is from then on recorded for the launcher (in the
    file that TORCHELASTIC_ERROR_FILE names) and reported to the peers; their operations fail with
    it.

    Raises:
      DistUsageError: this process has already joined.
      ValueError: of `store`, `init_method` and `comm` two are given, the backend is unknown, or a
        rank, a size or an environment variable is missing, taken or out of range; `comm` is
        MPI.COMM_NULL, an intercommunicator, or of another MPI than this process uses; `device_id`
        is the CPU, has no number, or is none of this process.
      DistMismatchError: some ranks give a `device_id`, and some do not.
      TypeError: an argument is of a wrong type; `timeout` must be a datetime.timedelta.
      DistTimeoutError: ranks have not joined in time; it names them.
      DistNetworkError: the store's port is in use, or nobody answers there.
    """
    del _ranks  # Of torch's own parts.
    device = device_name(device_id)
    if not _init_lock.acquire(blocking=False):
        raise DistError("another thread of this process is in init_process_group")
    try:
        if job.is_joined():
            world = job.joined()
            raise DistUsageError(
                "trying to initialize the default process group twice! already initialized as rank "
                f"{world.rank} of {world.size}: call destroy_process_group() first"
            )
        if store is not None and init_method is not None:
            raise ValueError("give either store or init_method, not both")
        if comm is not None and (init_method, store, rank, world_size) != (None, None, -1, -1):
            raise ValueError("comm replaces init_method, store, rank and world_size")
        name = backend_name(backend) or "auto"
        limit = default_pg_timeout if timeout is None else timeout
        if init_method is not None and has_own_handler(init_method):
            store, rank, world_size = meet(init_method, rank, world_size, limit)
            init_method = None
        with making("default", range(max(world_size, 0)), pg_options):
            if comm is not None:
                world = World.from_mpi(*native_communicator(comm), name, limit, device)
            else:
                world = World.init(
                    backend=name,
                    init_method=init_method or "",
                    store=store,
                    rank=rank,
                    world_size=world_size,
                    timeout=limit,
                    group_name=group_name,
                    device_id=device,
                )
        job.join(world)
        job.describe(world.group, None, device)
    finally:
        _init_lock.release()


def device_name(device: Any) -> str | None:
    """A `device_id` of whatever kind as "cuda:1"; None for None."""
    if device is None or isinstance(device, str):
        return device
    if isinstance(device, bool):
        raise TypeError("device_id must be a device, not a bool")
    if isinstance(device, int):
        return f"cuda:{device}"
    kind, index = getattr(device, "type", None), getattr(device, "index", None)
    if not isinstance(kind, str):
        raise TypeError(f"device_id must be a number, a text or a device, not {device!r}")
    if index is None:
        raise ValueError(f"device_id must have a number, as cuda:0 has, which {device!r} has not")
    return f"{kind}:{index}"


def is_initialized() -> bool:
    """Whether this process has joined a job."""
    return job.default() is not None


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> ProcessGroup | NonGroupMember:
    """Makes a group of `ranks` (None: all); returns once they have joined.

    All ranks must call it, also those that are not in the group, with equal arguments and in the
    same order; with `use_local_synchronization` only its members. Those outside get
    GroupMember.NON_GROUP_MEMBER. Ranks are numbered by ascending rank, or in the order of the list
    if `sort_ranks` is false. `timeout` and `backend` are the world's if None; `pg_options` is for
    backends registered with `extended_api`; the group's own `group_desc` is what is given here.

    `device_id` is as for init_process_group, whose value is the default: backend nccl makes the
    group's communicator before this returns. It is split off that of all ranks if these have been
    given the same device, and use_local_synchronization is false. All members give one, or none
    does: else it is a DistMismatchError.

    Raises ValueError for a rank that is not in the world or is listed twice.
    """
    device = device_name(device_id)
    world = job.joined()
    all_ranks = resolve(None)
    members = list(range(all_ranks.size())) if ranks is None else list(ranks)
    if sort_ranks:
        members.sort()
    with making("", members, pg_options):
        if all_ranks is world.group:
            made = world.new_group(
                members, backend_name(backend), timeout, use_local_synchronization, device
            )
        else:
            made = _new_group_of_survivors(all_ranks, members, backend, timeout, device)
    if made is None:
        return GroupMember.NON_GROUP_MEMBER
    job.add(made, members)
    job.describe(made, group_desc, device)
    return made


def _new_group_of_survivors(
    all_ranks: ProcessGroup,
    members: list[int],
    backend: str | None,
    timeout: timedelta | None,
    device: str | None,
) -> ProcessGroup | None:
    """After shrink_group, the world is no longer complete."""
    if device is not None:
        raise NotImplementedError(
            "after shrink_group, new groups have the device_id of init_process_group: "
            "new_group takes none"
        )
    if backend is not None and backend_name(backend) != all_ranks.backend:
        raise NotImplementedError("after shrink_group, new groups have the backend of the old one")
    return all_ranks.split([members], timeout)


def destroy_process_group(group: Group = None) -> None:
    """Leaves `group`; if it is None or group.WORLD, leaves the job.

    Waits up to 10 seconds for operations in flight, then aborts them. Afterwards
    init_process_group can be called again, also with names that were in use.
    """
    if isinstance(group, NonGroupMember):
        return
    process_group = resolve(group)
    if process_group is not job.default():
        process_group.close()
        if process_group in job.made():
            job.remove(process_group)
        return
    for made in reversed(job.made()):
        if made is not process_group:
            made.close()
    world = job.joined()
    if process_group is not world.group:  # What shrink_group has left of it.
        process_group.close()
    world.close()
    job.leave()


def get_rank(group: Group = None) -> int:
    """This process's rank in `group` (None: all ranks); -1 if it is not in it."""
    return -1 if isinstance(group, NonGroupMember) else resolve(group).rank()


def get_world_size(group: Group = None) -> int:
    """The number of ranks in `group` (None: all ranks); -1 if this process is not in it."""
    return -1 if isinstance(group, NonGroupMember) else resolve(group).size()


def get_backend(group: Group = None) -> Backend:
    """The name of the backend of `group` (None: of the group of all ranks)."""
    return Backend(_member(group).backend)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The rank in `group` of the world's `global_rank`. ValueError if it is not in the group."""
    return job.rank_in(_member(group), global_rank, "global_rank")


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """The world's rank of the group's `group_rank`. ValueError if it is out of range."""
    members = _member(group)
    if not 0 <= group_rank < members.size():
        raise DistValueError(
            f"group_rank must be a rank in group '{members.name()}', 0 to {members.size() - 1}, "
            f"not {group_rank!r}"
        )
    return job.members_of(members).ranks[group_rank]


def get_process_group_ranks(group: ProcessGroup | None) -> list[int]:
    """The world's rank of each member of `group` (None: all ranks), by rank in the group."""
    return list(job.members_of(_member(group)).ranks)


def get_pg_count() -> int:
    """How many groups this process is in, that of all ranks included."""
    return len(job.made())


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's rank among those of its host: LOCAL_RANK, or what srun or mpirun sets.

    Without them `fallback_rank`, or what the ranks of the job have found when they met; a
    RuntimeError if there is neither.
    """
    local_rank = os.environ.get("LOCAL_RANK", _task_local_rank())
    if local_rank is not None:
        return int(local_rank)
    if fallback_rank is not None:
        return int(fallback_rank)
    if job.is_joined():
        return job.joined().local_rank
    raise RuntimeError(
        "LOCAL_RANK is not set in the environment: start by a launcher, or pass fallback_rank"
    )


def is_torchelastic_launched() -> bool:
    """Whether an elastic launcher has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _member(group: Group) -> ProcessGroup:
    if isinstance(group, NonGroupMember):
        raise DistValueError("Invalid process group specified: this process is not in the group")
    return resolve(group)


def _leave_at_exit() -> None:
    """Without it, a rank that forgets destroy_process_group could wait for its peers forever."""
    if job.default() is None:
        return
    for made in reversed(job.made()):
        made.close(_EXIT_TIMEOUT)
    job.leave()


atexit.register(_leave_at_exit)
