"""Makes "syncline" a backend of torch.distributed.

torch calls `create_group` on each rank of a new group.
"""

from __future__ import annotations

import atexit
import functools
from datetime import timedelta
from typing import Any

import torch.distributed as torch_dist

from syncline import failures, job
from syncline.errors import DistError
from syncline.torch.errors import translated
from syncline.torch.meeting import meet
from syncline.torch.process_group import (
    BACKEND_NAME,
    Options,
    ProcessGroup,
    as_hook,
    backend_below,
    open_groups,
)

__all__ = ["Options", "create_group", "register"]

_EXIT_TIMEOUT = timedelta(seconds=2)


def register() -> None:
    """Makes torch.distributed know the backend. Idempotent."""
    if not torch_dist.is_available() or hasattr(torch_dist.Backend, BACKEND_NAME.upper()):
        return
    torch_dist.Backend.register_backend(
        BACKEND_NAME, _create_group, extended_api=True, devices=["cpu"]
    )
    _serve_monitored_barrier()
    _mark_hooks()
    atexit.register(_close_all)


def _serve_monitored_barrier() -> None:
    """torch.distributed.monitored_barrier refuses all backends but gloo by name: not ours, now."""
    of_torch = torch_dist.monitored_barrier

    @functools.wraps(of_torch)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        members = torch_dist.group.WORLD if group is None else group
        if isinstance(members, ProcessGroup):
            members.monitored_barrier(timeout, wait_all_ranks)
        else:
            of_torch(group, timeout, wait_all_ranks)

    for module in (torch_dist, torch_dist.distributed_c10d):
        module.monitored_barrier = monitored_barrier


def _mark_hooks() -> None:
    """Lets operations know when torch's reducer calls a communication hook in Python."""
    module: Any = torch_dist
    of_torch = module._register_comm_hook

    @functools.wraps(of_torch)
    def register_comm_hook(reducer: Any, state: Any, hook: Any) -> None:
        of_torch(reducer, state, as_hook(hook))

    module._register_comm_hook = register_comm_hook


def _create_group(given: Any, backend_options: Any = None) -> ProcessGroup:
    """Called by torch, with its _DistributedBackendOptions and what the user passed."""
    try:
        made = create_group(
            given.store,
            given.group_rank,
            given.group_size,
            given.timeout,
            list(given.global_ranks_in_group),
            backend_options,
        )
    except DistError as error:
        raise translated(error) from None
    if not job.is_joined():
        failures.watch(_abort_all)
    return made


def create_group(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    global_ranks: list[int] | None = None,
    backend_options: Any = None,
) -> ProcessGroup:
    """This rank's end of a group whose ranks share `store`, a torch.distributed.Store.

    With `global_ranks`, made from the default group if that is Syncline's, too. Returns once all
    ranks have called it; a DistTimeoutError names those that have not within `timeout`.
    """
    backend = backend_below(backend_options)
    all_ranks = torch_dist.group.WORLD
    if global_ranks and isinstance(all_ranks, ProcessGroup):
        world = all_ranks._world
        group = world.new_group(global_ranks, backend, timeout, True)
        assert group is not None  # torch asks only the members.
        return ProcessGroup(world, group, global_ranks, store, backend_options)
    world = meet(store, rank, size, timeout, backend or "auto")
    return ProcessGroup(world, world.group, range(size), store, backend_options)


def _abort_all(failure: str) -> None:
    """Lets the peers know at once why this process ends."""
    for group in list(open_groups):
        group.abort(f"rank {group.rank()} failed: {failure}")


def _close_all() -> None:
    """Without it, a rank that forgets destroy_process_group could hold up its peers."""
    for group in list(open_groups):
        group.close(_EXIT_TIMEOUT)
