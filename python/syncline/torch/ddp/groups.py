"""Whose ranks a module averages over: Syncline's group behind what users pass as a group."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as torch_dist

from syncline import job
from syncline._syncline import ProcessGroup, World
from syncline.errors import DistError
from syncline.torch.backend import process_group as over_syncline
from syncline.torch.backend.joining import join

_made: WeakKeyDictionary[Any, ProcessGroup] = WeakKeyDictionary()  # For torch's other groups.
_CLOSE_TIMEOUT = timedelta(seconds=2)


def default_group() -> Any:
    """The group of all ranks of the job that this process has joined.

    That of syncline.init_process_group, or else that of torch.distributed.init_process_group.
    Raises DistError if there is neither.
    """
    if job.is_joined():
        return job.resolve(None)
    if torch_dist.is_available() and torch_dist.is_initialized():
        return torch_dist.group.WORLD
    raise DistError(
        "this process has not joined a job: call syncline.init_process_group() first, or "
        'torch.distributed.init_process_group("syncline")'
    )


def syncline_group(group: Any) -> ProcessGroup:
    """The group of Syncline's for `group`, any of: Syncline's, its World's, torch.distributed's.

    For one of torch's whose backend is not "syncline", a group of Syncline's with the same ranks is
    made at the first call, which is then collective. Raises TypeError if it is none of them.
    """
    if isinstance(group, World):
        return group.group
    if isinstance(group, ProcessGroup):
        return job.resolve(group)
    if isinstance(group, over_syncline.ProcessGroup):
        return group.syncline_group
    if torch_dist.is_available() and isinstance(group, torch_dist.ProcessGroup):
        return _beside(group)
    raise TypeError(
        "process_group must be a ProcessGroup or World of syncline or a group of "
        f"torch.distributed, not {type(group).__name__}"
    )


def _beside(group: torch_dist.ProcessGroup) -> ProcessGroup:
    """A group of the same ranks, joined through torch's store; it is closed when `group` ends."""
    made = _made.get(group)
    if made is None:
        ranks = torch_dist.get_process_group_ranks(group)
        store = torch_dist.PrefixStore(  # type: ignore[attr-defined]
            f"syncline.torch/{group.group_name}", torch_dist.distributed_c10d._get_default_store()
        )
        world = join(store, group.rank(), len(ranks), _timeout_of(group))
        weakref.finalize(group, world.close, _CLOSE_TIMEOUT)
        made = world.group
        _made[group] = made
    return made


def _timeout_of(group: Any) -> timedelta:
    """That of operations of `group`; torch's default where it does not tell."""
    timeout: timedelta
    try:
        timeout = group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):
        module: Any = torch_dist.distributed_c10d
        timeout = module.default_pg_timeout
    return timeout
