"""Parameters whose gradients are averaged in one go when another parameter's gradient has come."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from syncline._syncline import ProcessGroup, ReduceOp, Work
from syncline.torch.ddp import autograd_graph


class DelayedGradients:
    """Averages the gradients of `parameters` while the rest of the backward pass runs.

    It starts when `trigger` has its gradient. Gradients are views of one buffer for each element
    type and device.
    """

    def __init__(
        self,
        group: ProcessGroup,
        parameters: Sequence[torch.nn.Parameter],
        trigger: torch.nn.Parameter,
    ):
        self.parameters = list(parameters)
        self.waits_itself = True  # At the end of the backward pass, as nobody else calls finish.
        self._group = group
        self.synchronizes = False  # Whether coming backward passes average.
        self._buffers: list[torch.Tensor] = []
        self._views: list[torch.Tensor] = [torch.empty(0)] * len(self.parameters)
        self._works: list[Work] = []
        for kind in dict.fromkeys((p.dtype, p.device) for p in self.parameters):
            self._make_buffer(*kind)
        self._hook = trigger.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            self._start
        )

    def prepare(self, *, synchronizes: bool) -> None:
        """Before a backward pass, which averages or not: gradients are to come to the buffers.

        What they hold stays, unless it was set to None.
        """
        self.synchronizes = synchronizes
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self._views, strict=True):
                if parameter.grad is view:
                    continue
                if parameter.grad is None:
                    view.zero_()
                else:
                    view.copy_(parameter.grad)
                parameter.grad = view

    def finish(self) -> None:
        """Waits for the averages, if they were started."""
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def replace_group(self, group: ProcessGroup) -> None:
        """Goes on in another group."""
        self._works.clear()
        self._group = group

    def remove_hooks(self) -> None:
        """Gradients are no longer averaged."""
        self._hook.remove()

    def _start(self, trigger: torch.Tensor) -> None:
        del trigger
        if not self.synchronizes:
            return
        for buffer in self._buffers:
            self._works.append(self._group.all_reduce_async(buffer, ReduceOp.AVG))
        if self.waits_itself:
            autograd_graph.at_end_of_backward(self.finish)

    def _make_buffer(self, dtype: torch.dtype, device: torch.device) -> None:
        kind = dtype, device
        members = [i for i, p in enumerate(self.parameters) if (p.dtype, p.device) == kind]
        counts = [self.parameters[i].numel() for i in members]
        buffer = torch.zeros(sum(counts), dtype=dtype, device=device)
        self._buffers.append(buffer)
        for i, part in zip(members, torch.split(buffer, counts), strict=True):
            self._views[i] = part.view(self.parameters[i].shape)
