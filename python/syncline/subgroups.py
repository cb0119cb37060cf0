"""Groups made from groups: equal parts, parts by lists of ranks, what is left after a loss."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from syncline import job
from syncline._syncline import ProcessGroup
from syncline.backends import backend_name
from syncline.job import Group, GroupMember, NonGroupMember, resolve
from syncline.process_groups import get_process_group_ranks, new_group

Subgroups = tuple[ProcessGroup | NonGroupMember, list[ProcessGroup | NonGroupMember]]

SHRINK_DEFAULT = 0x00
SHRINK_ABORT = 0x01


def new_subgroups(
    group_size: int | None = None,
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> Subgroups:
    """Divides `group` (None: all ranks) into groups of `group_size` neighbours each.

    All ranks of the world must call it. `group_size` is the number of ranks on this host if None,
    as LOCAL_WORLD_SIZE says. Returns this rank's new group, and all of them in order, with
    GroupMember.NON_GROUP_MEMBER for those that it is not in. Raises ValueError if the size is not
    positive, or does not divide the number of ranks.
    """
    if group_size is None:
        local = os.environ.get("LOCAL_WORLD_SIZE")
        if local is None:
            raise ValueError("group_size is needed, as LOCAL_WORLD_SIZE is not set")
        group_size = int(local)
    ranks = get_process_group_ranks(group)
    if group_size <= 0:
        raise ValueError(f"group_size must be positive, not {group_size}")
    if len(ranks) < group_size:
        raise ValueError(f"group_size must be at most the {len(ranks)} ranks, not {group_size}")
    if len(ranks) % group_size != 0:
        raise ValueError(f"group_size must divide the number of ranks, {len(ranks)}: {group_size}")
    lists = [ranks[i : i + group_size] for i in range(0, len(ranks), group_size)]
    return new_subgroups_by_enumeration(lists, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> Subgroups:
    """Makes one group for each list of the world's ranks, of which no two share a rank.

    All ranks of the world must call it. Returns as new_subgroups does. Raises ValueError if there
    are no lists, or a rank is in several.
    """
    if not ranks_per_subgroup_list:
        raise ValueError("ranks_per_subgroup_list must have a list of ranks for each group")
    place: dict[int, int] = {}
    for number, ranks in enumerate(ranks_per_subgroup_list):
        for rank in ranks:
            if rank in place:
                raise ValueError(f"rank {rank} is in list {place[rank]} and in list {number}")
            place[rank] = number
    own: ProcessGroup | NonGroupMember = GroupMember.NON_GROUP_MEMBER
    subgroups = []
    for ranks in ranks_per_subgroup_list:
        made = new_group(ranks, timeout, backend, pg_options, group_desc=group_desc)
        subgroups.append(made)
        if isinstance(made, ProcessGroup):
            own = made
    return own, subgroups


def split_group(
    parent_pg: Group = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Divides `parent_pg` (None: all ranks) by lists of its ranks; returns this rank's new group.

    All ranks of the parent, and only they, must call it, with equal lists. Each rank is in at most
    one list; None is returned to those that are in none. New groups number their ranks ascending.
    `timeout` is the parent's if None; `pg_options` has no effect. `backend` must be the parent's.
    Raises ValueError if there is no list, or one is empty, repeats a rank or has one out of range.
    """
    del pg_options
    if isinstance(parent_pg, NonGroupMember):
        return None
    parent = resolve(parent_pg)
    if backend is not None and backend_name(backend) != parent.backend:
        raise NotImplementedError(
            f"split_group keeps the backend of its parent, {parent.backend}: new_group takes one"
        )
    if not split_ranks or not all(len(ranks) > 0 for ranks in split_ranks):
        raise ValueError("split_ranks must have a list of ranks, not empty, for each new group")
    lists = [sorted(ranks) for ranks in split_ranks]
    made = parent.split(lists, timeout)
    if made is not None:
        own = next(ranks for ranks in lists if parent.rank() in ranks)
        world_ranks = job.members_of(parent).ranks
        job.add(made, [world_ranks[rank] for rank in own])
        job.describe(made, group_desc, job.device_of(parent))
    return made


def shrink_group(
    ranks_to_exclude: Sequence[int],
    group: Group = None,
    shrink_flags: int = SHRINK_DEFAULT,
    pg_options: Any = None,
    timeout: timedelta | None = None,
) -> ProcessGroup:
    """Makes a group without `ranks_to_exclude`, ranks of `group` (None: all ranks): after a loss.

    Only the survivors call it, with equal arguments. They keep their order and are renumbered;
    the old group is gone, broken or not. If it was that of all ranks, the new one takes its place:
    ranks are from then on counted in it, and all other groups are destroyed. `timeout` bounds the
    call; the group's if None. `shrink_flags` and `pg_options` are accepted for compatibility:
    operations in flight are always aborted. Raises ValueError if this rank or nobody is to be
    excluded or a rank is out of range, DistTimeoutError if survivors did not come; it names them.
    """
    del shrink_flags, pg_options
    if isinstance(group, NonGroupMember):
        raise ValueError("this process is not in the group")
    old = resolve(group)
    excluded = sorted(set(ranks_to_exclude))
    if not excluded:
        raise ValueError("ranks_to_exclude must not be empty")
    world_ranks = job.members_of(old).ranks
    made = old.shrink(excluded, timeout)
    survivors = [rank for i, rank in enumerate(world_ranks) if i not in excluded]
    if old is not job.default():
        job.add(made, survivors)
        if old in job.made():
            job.remove(old)
        return made
    for other in reversed(job.made()):
        if other is not old:
            other.abort("the group of all ranks has been shrunk")
        job.remove(other)
    job.set_default(made)
    return made
