"""What torch is asked for while it makes groups: it hands less than that to the backend.

torch's functions are wrapped, so that the backend finds their arguments on the calling thread.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist
from torch.distributed import device_mesh, distributed_c10d


@dataclass(frozen=True)
class Request:
    """The arguments of the calls of torch's functions in which this thread is.

    Attributes:
      device: of `device_id`, as "cuda:1", if the new group's tensors of that kind of device are
        Syncline's.
      ranks: the members of a new group, of the group of all ranks.
      options: `pg_options`.
      timeout: of the new group.
      is_local: whether only members make it.
      split_ranks: of split_group: the ranks of all parts.
    """

    device: str | None = None
    ranks: list[int] | None = None
    options: Any = None
    timeout: timedelta | None = None
    is_local: bool = False
    split_ranks: list[list[int]] | None = None


_thread = threading.local()


def current() -> Request:
    """The request of this thread; one without anything outside of torch's functions."""
    request: Request = getattr(_thread, "request", Request())
    return request


def follow(backend: str) -> None:
    """Wraps torch's functions; `backend` is the name under which torch knows Syncline."""

    def of_helper(arguments: dict[str, Any]) -> Request:
        return replace(
            current(),
            device=_device(arguments["device_id"], arguments["backend"], backend),
            ranks=list(arguments["global_ranks_in_group"] or ()),
            options=arguments["backend_options"],
            timeout=arguments["timeout"],
        )

    _wrap("_new_process_group_helper", of_helper)
    _wrap("_new_group_with_tag", lambda a: Request(is_local=bool(a["use_local_synchronization"])))
    _wrap("split_group", lambda a: Request(split_ranks=[sorted(each) for each in a["split_ranks"]]))


def _device(device: Any, of_group: Any, backend: str) -> str | None:
    if not isinstance(device, torch.device) or device.index is None:
        return None
    config = distributed_c10d.BackendConfig(torch_dist.Backend(of_group))
    serves = config.get_device_backend_map().get(device.type) == backend
    return f"{device.type}:{device.index}" if serves and device.type == "cuda" else None


def _wrap(name: str, request_of: Callable[[dict[str, Any]], Request]) -> None:
    of_torch = getattr(distributed_c10d, name)
    signature = inspect.signature(of_torch)

    @functools.wraps(of_torch)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*arguments, **named)
            given.apply_defaults()
            request = request_of(given.arguments)
        except (KeyError, TypeError, ValueError):  # torch says what is wrong.
            return of_torch(*arguments, **named)
        before = current()
        _thread.request = request
        try:
            return of_torch(*arguments, **named)
        finally:
            _thread.request = before

    for module in (distributed_c10d, torch_dist, device_mesh):
        if getattr(module, name, None) is of_torch:
            setattr(module, name, wrapped)
