"""What the functions on groups have in common: whose call it is, in which form, on which rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from syncline import coalesced_calls
from syncline._syncline import ProcessGroup, Work
from syncline.errors import DistValueError
from syncline.job import Group, NonGroupMember, rank_in, resolve

# The methods that wait, as the extension has them: without torch's forms of group_methods.
waiting: dict[str, Callable[..., Any]] = {
    name.removesuffix("_async"): getattr(ProcessGroup, name.removesuffix("_async"))
    for name in dir(ProcessGroup)
    if name.endswith("_async")
}


def member_of(group: Group, operation: str, collected: bool = False) -> ProcessGroup | None:
    """The group to work on; None, with a warning, if this process is not in it.

    For functions that users call. Unless the operation is one that `coalescing` collects, those
    that it has collected so far are issued, so that the order stays.
    """
    if group is not None and isinstance(group, NonGroupMember):
        text = f"{operation} does nothing here: this process is not in the group"
        warnings.warn(text, stacklevel=3)
        return None
    members = resolve(group)
    if coalesced_calls.open_contexts and not collected:
        coalesced_calls.issue(members)
    return members


def start(group: ProcessGroup, operation: str, async_op: bool, *arguments: Any) -> Work | None:
    """Calls a @collective of api/syncline.pyi, or its form in the background if `async_op`."""
    if async_op:
        work: Work = getattr(group, f"{operation}_async")(*arguments)
        return work
    waiting[operation](group, *arguments)
    return None


def choose_rank(
    group: ProcessGroup,
    rank: int | None,
    group_rank: int | None,
    argument: str,
    default: int | None = None,
) -> int:
    """The rank in `group` that is meant by a world's `rank` or a `group_rank`.

    `argument` is the name of the former, of which `default` is the default; without one, one of
    the two must be given. A ValueError says what is wrong.
    """
    if group_rank is not None:
        if rank is not None:
            raise DistValueError(f"give either {argument} or group_{argument}, not both")
        if not 0 <= group_rank < group.size():
            raise DistValueError(
                f"group_{argument} must be a rank in group '{group.name()}', "
                f"0 to {group.size() - 1}, not {group_rank!r}"
            )
        return group_rank
    if rank is None:
        if default is None:
            raise DistValueError(f"{argument} or group_{argument} is needed")
        rank = default
    return rank_in(group, rank, argument)
