"""The methods that torch's DistributedDataParallel has under names of its own use.

Libraries over torch call them, so they are here, each with what it means for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.parallel import scatter_gather
from torch.utils._pytree import tree_map

from syncline import _syncline
from syncline.torch.ddp import groups, logging_data
from syncline.torch.ddp.buffers import BufferCommHookLocation, BufferHook, Buffers
from syncline.torch.ddp.delayed_gradients import DelayedGradients
from syncline.torch.ddp.gradients import Gradients


class TorchNames:
    """A part of DistributedDataParallel, which has what is declared here."""

    device: torch.device
    require_forward_param_sync: bool
    static_graph: bool
    device_type: str
    dim: int
    forward_sync_buffers: bool
    process_group: Any
    _buffers_of_module: Buffers
    _caps: tuple[int, int, list[int]]
    _comm_hooks: list[tuple[Any, Any]]
    _delayed: DelayedGradients | None
    _gradients: Gradients | None
    _syncline_group: _syncline.ProcessGroup

    if TYPE_CHECKING:

        def register_comm_hook(self, state: Any, hook: Any) -> None: ...
        def _register(self) -> None: ...

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: torch.nn.Module, params_and_buffers_to_ignore: Collection[str]
    ) -> None:
        """Has a DistributedDataParallel that is made later leave those of these names alone."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore  # type: ignore
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name in params_and_buffers_to_ignore:
                tensor._ddp_ignored = True  # type: ignore

    @staticmethod
    def _get_data_parallel_params(
        module: torch.nn.Module, named_params: bool = False
    ) -> Iterator[Any]:
        """The parameters, or (name, parameter), that are not ignored."""
        for name, parameter in module.named_parameters():
            if not hasattr(parameter, "_ddp_ignored"):
                yield (name, parameter) if named_params else parameter

    def will_sync_module_buffers(self) -> bool:
        """Whether the next forward pass begins with one rank's buffers on all."""
        return (
            self.require_forward_param_sync
            and self.forward_sync_buffers
            and len(self._buffers_of_module) > 0
        )

    @property
    def join_device(self) -> torch.device:
        """Where torch's Join makes its tensors."""
        return self.device

    def _register_buffer_comm_hook(
        self,
        state: Any,
        hook: Callable[[Any, dict[str, torch.Tensor]], Any],
        comm_hook_location: BufferCommHookLocation = BufferCommHookLocation.POST_FORWARD,
    ) -> None:
        """Has hook(state, buffers by name) synchronise buffers, instead of a broadcast.

        It may return futures, which are waited for at the end of the backward pass.
        """
        if not callable(hook):
            raise TypeError(f"hook must be callable, not {type(hook).__name__}")
        self._buffers_of_module.hook = BufferHook(hook, state, comm_hook_location)

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        """As register_comm_hook, with one of torch.distributed.BuiltinCommHookType."""
        hooks = _syncline.CommHook
        known = {"ALLREDUCE": hooks.all_reduce, "FP16_COMPRESS": hooks.float16_compress}
        name = getattr(comm_hook_type, "name", str(comm_hook_type))
        if name not in known:
            raise ValueError(f"the built-in hooks are {' and '.join(known)}, not {name}")
        self.register_comm_hook(None, known[name]())

    def _register_fused_optim(
        self,
        optim: type,
        *args: Any,
        optim_params: Any = None,
        **kwargs: Any,
    ) -> None:
        """Has an optimizer of class `optim` run when a bucket is averaged, by a hook of torch's."""
        from torch.distributed.algorithms._optimizer_overlap import (  # type: ignore[attr-defined]
            _as_overlapped_optim,
        )

        overlapped = _as_overlapped_optim(optim, optim_params, *args, **kwargs)
        try:
            overlapped.register_ddp(self)
        except NotImplementedError as error:
            raise RuntimeError(f"{optim} has no form that overlaps with backward") from error

    def _set_static_graph(self) -> None:
        """As static_graph=True at construction. Collective, before the first forward pass.

        Raises RuntimeError later: graphs of earlier forward passes would no longer be averaged.
        """
        if self.static_graph:
            return
        if self._gradients is not None and self._gradients.has_run:
            raise RuntimeError(
                "_set_static_graph() should be called before training loop starts and after "
                "DistributedDataParallel is constructed"
            )
        if self._comm_hooks:
            raise RuntimeError("call _set_static_graph before register_comm_hook")
        if self._gradients is not None:
            self._gradients.remove_hooks()
        self.static_graph = True
        self._register()

    def _update_process_group(self, new_process_group: Any) -> None:
        """Goes on in another group, after a failure. Collective over the new group.

        A step under way is dropped. Parameters are not broadcast. Hooks of torch's kind have
        groups of their own, to be replaced by whoever made them.
        """
        self._syncline_group = groups.syncline_group(new_process_group)
        self.process_group = new_process_group
        if self._gradients is not None:
            self._gradients.replace_group(self._syncline_group)
        if self._delayed is not None:
            self._delayed.replace_group(self._syncline_group)

    def _check_reducer_finalized(self) -> None:
        """Raises RuntimeError if a backward pass has not been ended, as it failed."""
        if self._gradients is not None and self._gradients.is_under_way:
            lacking = self._gradients.unfinished()
            raise RuntimeError(
                f"rank {self._syncline_group.rank()}: the last backward pass did not end; "
                f"{len(lacking)} parameters have no gradient: {', '.join(lacking[:10])}"
            )

    def _remove_autograd_hooks(self) -> None:
        """Gradients are no longer averaged."""
        if self._gradients is not None:
            self._gradients.remove_hooks()
        if self._delayed is not None:
            self._delayed.remove_hooks()

    def _check_default_group(self) -> None:
        if self.process_group is not groups.default_group():
            raise RuntimeError(
                "a DistributedDataParallel can be pickled or copied only if it has the default "
                "process group: pickle its `module`, or its state_dict"
            )

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """What this module is and how its last step went, as words and numbers; see stats()."""
        return logging_data.of(cast(Any, self))

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """Checked only: every step is timed."""
        if sample_rate < 1:
            raise ValueError(f"sample_rate must be positive, not {sample_rate}")

    def _set_sparse_metadata(self, global_unique_ids: Any) -> None:
        """Without effect: rows are exchanged with their indices."""

    def _set_ddp_sink_clone(self, val: bool) -> None:
        """Without effect: outputs are passed on as they are."""

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Sequence[Any]) -> Any:
        """Splits inputs over GPUs along `dim`."""
        return scatter_gather.scatter_kwargs(inputs, kwargs, list(device_ids), dim=self.dim)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Collects outputs from GPUs along `dim`."""
        return scatter_gather.gather(outputs, output_device, dim=self.dim)

    def to_kwargs(self, inputs: Any, kwargs: Any, device_id: int) -> tuple[Any, Any]:
        """Moves inputs to a device."""
        device = torch.device(self.device_type, device_id)
        return (to_device(inputs, device),), (to_device(kwargs, device),)

    @property
    def reducer(self) -> _syncline.Reducer | None:
        """Syncline's reducer; None if all gradients are delayed."""
        return None if self._gradients is None else self._gradients.reducer

    @property
    def broadcast_buffers(self) -> bool:
        """Another name of forward_sync_buffers."""
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value: bool) -> None:
        self.forward_sync_buffers = value

    @property
    def modules_buffers(self) -> list[torch.Tensor]:
        """The buffers that are synchronised."""
        return list(self._buffers_of_module.by_name().values())

    @property
    def named_module_buffers(self) -> dict[str, torch.Tensor]:
        """The same by name."""
        return self._buffers_of_module.by_name()

    @property
    def bucket_bytes_cap(self) -> int:
        """At how many bytes a bucket is full."""
        return self._caps[1]

    @property
    def bucket_bytes_cap_list(self) -> list[int]:
        """The same for each bucket, if that was asked for."""
        return self._caps[2]

    @property
    def _distributed_rank(self) -> int:
        return self._syncline_group.rank()


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with all tensors in it, at any depth, on `device`."""
    return tree_map(
        lambda x: x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x, value
    )
