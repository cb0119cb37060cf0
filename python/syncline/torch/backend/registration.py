"""Makes "syncline" a backend of torch.distributed.

torch calls `create_group` on each rank of a new group.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo
import torch.distributed as torch_dist

from syncline import _syncline, failures, job
from syncline.errors import DistError
from syncline.torch.backend import native, requests
from syncline.torch.backend.errors import translated
from syncline.torch.backend.joining import join
from syncline.torch.backend.other_devices import SERVED
from syncline.torch.backend.process_group import (
    BACKEND_NAME,
    Options,
    ProcessGroup,
    PythonProcessGroup,
    as_hook,
    backend_below,
    open_groups,
)
from syncline.torch.backend.work import lasting

__all__ = ["Options", "create_group", "register"]

_EXIT_TIMEOUT = timedelta(seconds=2)
_PROBE_TIMEOUT = timedelta(seconds=5)
_is_registered = False
_library = torch.library.Library("_c10d_functional", "IMPL")  # As long as the process lasts.


def register() -> None:
    """Makes torch.distributed know the backend. Idempotent."""
    global _is_registered
    if not torch_dist.is_available() or _is_registered:
        return
    _is_registered = True
    torch_dist.Backend.register_backend(
        BACKEND_NAME, _create_group, extended_api=True, devices=list(SERVED)
    )
    requests.follow(BACKEND_NAME)
    _serve_monitored_barrier()
    _mark_hooks()
    _hand_over_lasting_works()
    _serve_compression_in_cpp()
    _end_coalescing_that_fails()
    _keep_out_of_compilers()
    atexit.register(_close_all)


def _serve_monitored_barrier() -> None:
    """torch.distributed.monitored_barrier refuses all backends but gloo by name: not ours, now."""
    of_torch = torch_dist.monitored_barrier

    @functools.wraps(of_torch)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
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


def _hand_over_lasting_works() -> None:
    """torch's DistributedDataParallel gives its reducer a Work, in `join`, and drops it."""
    reducer: Any = torch_dist.Reducer
    of_torch = reducer._set_forward_pass_work_handle

    @functools.wraps(of_torch)
    def set_forward_pass_work_handle(self: Any, work: Any, use_static_world_size: bool) -> None:
        of_torch(self, lasting(work), use_static_world_size)

    reducer._set_forward_pass_work_handle = set_forward_pass_work_handle


def _serve_compression_in_cpp() -> None:
    """torch's built-in FP16_COMPRESS takes futures of backends in C++ only: lists of tensors.

    Python code can make no such future. For groups in Python the same hook in Python takes its
    place.
    """
    module: Any = torch.nn.parallel.DistributedDataParallel
    of_torch = module._register_builtin_comm_hook

    @functools.wraps(of_torch)
    def register_builtin_comm_hook(self: Any, kind: Any) -> None:
        compresses = kind == torch_dist.BuiltinCommHookType.FP16_COMPRESS
        if compresses and isinstance(self.process_group, PythonProcessGroup):
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            self.register_comm_hook(self.process_group, default_hooks.fp16_compress_hook)
        else:
            of_torch(self, kind)

    module._register_builtin_comm_hook = register_builtin_comm_hook


def _keep_out_of_compilers() -> None:
    """torch.compile is to run Syncline's code as it is, and not to look into it."""
    torch._dynamo.trace_rules.add("syncline")


def _end_coalescing_that_fails() -> None:
    """An exception within torch's coalescing manager leaves the group coalescing: not ours, now."""
    module: Any = torch_dist.distributed_c10d
    of_torch = module._coalescing_manager

    @contextlib.contextmanager
    def coalescing_manager(
        group: Any = None, device: torch.device | None = None, async_ops: bool = False
    ) -> Iterator[Any]:
        members = group or torch_dist.group.WORLD
        is_open = False
        try:
            with of_torch(group, device, async_ops) as manager:
                is_open = True
                yield manager
        except BaseException:
            if is_open and isinstance(members, ProcessGroup):
                members._forget_coalescing(device)
            raise

    replacement: Any = functools.update_wrapper(coalescing_manager, of_torch)
    for each in (torch_dist, module):
        each._coalescing_manager = replacement


@functools.cache
def _serve_gathering_to_a_tensor() -> None:
    """The one functional collective that asks a group for a backend in C++.

    Those in Python lack one. Not before there is such a group: it has all calls go through Python.
    """
    if not hasattr(torch.ops._c10d_functional, "all_gather_into_tensor_out"):
        return
    of_torch = torch.ops._c10d_functional.all_gather_into_tensor_out.default

    def all_gather_into_tensor_out(
        given: torch.Tensor, group_size: int, group_name: Any, *, out: torch.Tensor
    ) -> torch.Tensor:
        group = group_name
        if isinstance(group, str):
            group = torch_dist.distributed_c10d._resolve_process_group(group)
        if not isinstance(group, PythonProcessGroup):
            key = torch._C.DispatchKey.CompositeExplicitAutograd
            return of_torch._op_dk(key, given, group_size, group_name, out=out)
        work = group._allgather_base(out, given)
        torch._C._distributed_c10d._register_work(out, work)
        return out

    for key in ("CPU", "CUDA"):
        _library.impl("all_gather_into_tensor_out", all_gather_into_tensor_out, key)


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
    ranks have called it; a DistTimeoutError names those that have not within `timeout`. With the
    device_id that torch has been given, the group's communicator is made at once.

    Once the process of rank 0 has ended, the members meet through `store`, as a job of their own.
    """
    backend = backend_below(backend_options)
    make = native.group_class()
    if not native.is_native():
        _serve_gathering_to_a_tensor()
    request = requests.current()
    all_ranks = torch_dist.group.WORLD
    if global_ranks and isinstance(all_ranks, ProcessGroup) and _has_store(all_ranks._world):
        world = all_ranks._world
        # torch has all ranks take part in a split, those outside by perform_nocolor_split.
        splits = all_ranks.supports_splitting and request.device and not request.is_local
        group = world.new_group(global_ranks, backend, timeout, not splits, request.device)
        assert group is not None  # torch asks only the members.
        return make(world, group, global_ranks, store, backend_options)
    world = join(store, rank, size, timeout, backend or "auto", request.device)
    return make(world, world.group, range(size), store, backend_options)


def _has_store(world: _syncline.World) -> bool:
    """Whether the store of `world` is there still: rank 0's process hosts it, and may have ended.

    The members of a new group find it so alike, unless the process ends just then.
    """
    if world.size == 1:
        return True
    store = world.store
    before = store.timeout
    store.set_timeout(_PROBE_TIMEOUT)
    try:
        store.num_keys()
    except DistError:
        return False
    finally:
        store.set_timeout(before)
    return True


def _abort_all(failure: str) -> None:
    """Lets the peers know at once why this process ends."""
    for group in list(open_groups):
        group.abort(f"rank {group.rank()} failed: {failure}")


def _close_all() -> None:
    """Without it, a rank that forgets destroy_process_group could hold up its peers."""
    for group in list(open_groups):
        group.close(_EXIT_TIMEOUT)
