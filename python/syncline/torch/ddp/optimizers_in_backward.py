"""Optimizers that torch runs within backward, parameter by parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class OptimizersInBackward:
    """Those of torch.distributed.optim._apply_optimizer_in_backward, run on averages instead."""

    def __init__(self, parameters: Sequence[torch.Tensor]):
        self._parameters = parameters
        self._stepped: list[torch.Tensor] | None = None  # None: not looked for yet.

    def take_over(self) -> None:
        """Before the first forward pass: torch is no longer to run them."""
        if self._stepped is not None:
            return
        self._stepped = [p for p in self._parameters if hasattr(p, "_in_backward_optimizers")]
        if not self._stepped:
            return
        from torch.distributed.optim import apply_optimizer_in_backward as torchs

        handles: Any = torchs.param_to_optim_hook_handle_map
        for parameter in self._stepped:
            for handle in handles.get(parameter, []):
                handle.remove()

    def step(self) -> None:
        """Runs them, and clears their gradients."""
        for parameter in self._stepped or ():
            for optimizer in getattr(parameter, "_in_backward_optimizers", ()):
                optimizer.step()
            parameter.grad = None
