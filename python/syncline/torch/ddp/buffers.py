"""A module's buffers, which forward passes begin with as one rank has them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel.distributed import _BufferCommHookLocation as BufferCommHookLocation

from syncline._syncline import ProcessGroup
from syncline.torch.ddp import module_state

__all__ = ["BufferCommHookLocation", "BufferHook", "Buffers"]


@dataclass(frozen=True)
class BufferHook:
    """What is called in place of a broadcast: hook(state, buffers by name)."""

    hook: Callable[[Any, dict[str, torch.Tensor]], Any]
    state: Any
    location: BufferCommHookLocation

    @property
    def buffer_comm_hook(self) -> Callable[[Any, dict[str, torch.Tensor]], Any]:
        """torch's name of `hook`."""
        return self.hook

    @property
    def buffer_comm_hook_state(self) -> Any:
        """torch's name of `state`."""
        return self.state

    @property
    def buffer_comm_hook_location(self) -> BufferCommHookLocation:
        """torch's name of `location`."""
        return self.location


class Buffers:
    """The buffers of `module` whose names are not `ignored`."""

    def __init__(self, module: torch.nn.Module, ignored: Collection[str]):
        self.hook: BufferHook | None = None
        # Their owners' dictionaries: buffers themselves may be replaced.
        self._places: list[tuple[str, dict[str, Any], str]] = []
        found: set[int] = set()
        for prefix, layer in module.named_modules():
            for key, buffer in layer._buffers.items():
                name = f"{prefix}.{key}" if prefix else key
                if buffer is not None and name not in ignored and id(buffer) not in found:
                    found.add(id(buffer))
                    self._places.append((name, layer._buffers, key))

    def by_name(self) -> dict[str, torch.Tensor]:
        """The buffers as they are now."""
        return {name: place[key] for name, place, key in self._places if place[key] is not None}

    def __len__(self) -> int:
        return len(self._places)

    def is_hooked_at(self, location: BufferCommHookLocation) -> bool:
        """Whether buffers are to be synchronised there: without a hook, before forward passes."""
        if self.hook is None:
            return location is BufferCommHookLocation.PRE_FORWARD
        return self.hook.location is location

    def synchronize(self, group: ProcessGroup, root: int, at_once: int) -> list[Any]:
        """Broadcasts `root`'s, or calls the hook; returns the futures to be waited for."""
        if self.hook is None:
            module_state.broadcast(self.by_name().values(), group, root, at_once)
            return []
        with torch.no_grad():
            futures = self.hook.hook(self.hook.state, self.by_name())
        return list(futures or [])
