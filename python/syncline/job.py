"""What this process has joined: the world, its groups, and the ranks as numbers in them.

The default group is a variable of this module. Ranks that are threads of one process use
syncline.World objects instead, of which there may be many, and pass their groups to functions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from syncline import failures
from syncline._syncline import ProcessGroup, World
from syncline.errors import DistError, DistTypeError, DistUsageError, DistValueError


class NonGroupMember(int):
    """The type of GroupMember.NON_GROUP_MEMBER, which torch has as the number -100."""

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


Group: TypeAlias = ProcessGroup | NonGroupMember | None
"""What functions take as a group; None is the group of all ranks."""


class _WorldProperty(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The group of all ranks; None before init_process_group."""
        return _default


class group(metaclass=_WorldProperty):
    """Holds `group.WORLD`, the group of all ranks."""


class GroupMember(metaclass=_WorldProperty):
    """Holds what new_group returns on ranks that are not in the new group."""

    NON_GROUP_MEMBER = NonGroupMember(-100)


class Members:
    """Which ranks of the job a group has; both ways between their numbers."""

    def __init__(self, ranks: Sequence[int]):
        self.ranks = list(ranks)  # The world's rank of each rank of the group.
        self.index = {rank: number for number, rank in enumerate(self.ranks)}


_world: World | None = None
_default: ProcessGroup | None = None  # The group of all ranks: the world's, or what is left of it.
_forked = False  # Whether _world is that of this process's parent.
_made: dict[ProcessGroup, Members] = {}  # The groups of this job, in the order of their making.
_descriptions: WeakKeyDictionary[ProcessGroup, str] = WeakKeyDictionary()
_devices: WeakKeyDictionary[ProcessGroup, str] = WeakKeyDictionary()
_others: WeakKeyDictionary[ProcessGroup, Members] = WeakKeyDictionary()  # Of World objects.
_destroyed: WeakSet[ProcessGroup] = WeakSet()
_former_defaults: WeakSet[ProcessGroup] = WeakSet()  # Those of all ranks of jobs that were left.


def joined() -> World:
    """The world; a DistError that says what to do if there is none."""
    if _world is None:
        raise DistUsageError(
            "Default process group has not been initialized, please make sure to call "
            "init_process_group. This process has not joined a job: call init_process_group first"
        )
    if _forked:
        raise DistError(
            "this process was forked after init_process_group, and cannot use its parent's groups: "
            "start processes before joining, or by multiprocessing's 'spawn'"
        )
    return _world


def is_joined() -> bool:
    """Whether this process, or the one it was forked from, has joined."""
    return _world is not None


def default() -> ProcessGroup | None:
    """The group of all ranks; None before joining."""
    return _default


def made() -> list[ProcessGroup]:
    """The groups of this job that have not been destroyed, in the order of their making."""
    return list(_made)


def join(world: World) -> None:
    """`world` is this process's from now on."""
    global _world
    _world = world
    set_default(world.group)
    failures.watch(_abort_all)


def set_default(all_ranks: ProcessGroup) -> None:
    """Makes `all_ranks` the group of all ranks, which are numbered as it numbers them."""
    global _default
    _default = all_ranks
    add(all_ranks, range(all_ranks.size()))


def add(made: ProcessGroup, ranks: Sequence[int]) -> None:
    """Registers a group of this job; `ranks` are its members, by rank in the group."""
    _made[made] = Members(ranks)


def describe(made: ProcessGroup, description: str | None, device: str | None) -> None:
    """Remembers what a group was made with: its `group_desc` and its `device_id`."""
    if description is not None:
        _descriptions[made] = description
    if device is not None:
        _devices[made] = device


def description_of(made: ProcessGroup) -> str:
    """What `describe` was told, or how torch describes such a group."""
    return _descriptions.get(made, "default_pg" if made is _default else "undefined")


def device_of(made: ProcessGroup) -> str | None:
    """The device that `describe` was told."""
    return _devices.get(made)


def remove(made: ProcessGroup) -> None:
    """Forgets a group, which has been closed."""
    del _made[made]
    _destroyed.add(made)


def leave() -> None:
    """Forgets the world and all groups."""
    global _world, _default
    failures.unwatch()
    if _default is not None:
        _former_defaults.add(_default)
    for made in list(_made):
        remove(made)
    _default = None
    _world = None


def resolve(group: ProcessGroup | None) -> ProcessGroup:
    """`group`, or the group of all ranks if it is None. Raises if it is none, or was destroyed.

    The group of all ranks of a job that this process has left stands for that of the job that it is
    in now: it may be a parameter's default, `group=dist.group.WORLD`.
    """
    if group is None:
        return _default or joined().group
    if group in _made:
        return group
    if not isinstance(group, ProcessGroup):
        raise DistTypeError(
            f"group must be None or what new_group returned, not {type(group).__name__}"
        )
    if group in _former_defaults:
        return _default or joined().group
    if group in _destroyed:
        raise DistValueError(f"group '{group.name()}' was destroyed: make a new one by new_group")
    return group


def members_of(group: ProcessGroup) -> Members:
    """Which ranks `group` has."""
    members = _made.get(group) or _others.get(group)
    if members is None:
        _others[group] = members = Members(group.ranks)
    return members


def rank_in(group: ProcessGroup, rank: int, argument: str) -> int:
    """The number in `group` of the world's `rank`; a ValueError names `argument`."""
    members = members_of(group)
    number = members.index.get(rank)
    if number is None:
        raise DistValueError(
            f"{argument} must be a rank of group '{group.name()}', one of "
            f"{', '.join(map(str, members.ranks))}, not {rank!r}"
        )
    return number


def _abort_all(failure: str) -> None:
    """Lets the peers, who may be waiting for this process, know at once why it ends."""
    if _default is None:
        return
    reason = f"rank {_default.rank()} failed: {failure}"
    for made in reversed(_made):
        made.abort(reason)


def _abandon_in_child() -> None:
    global _default, _forked
    failures.unwatch()
    _default = None
    _forked = _world is not None


os.register_at_fork(after_in_child=_abandon_in_child)
