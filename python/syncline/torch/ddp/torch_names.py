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
from syncline.torch.ddp import checks, comm_hooks, groups, logging_data, module_state
from syncline.torch.ddp.buffers import BufferCommHookLocation, BufferHook, Buffers
from syncline.torch.ddp.delayed_gradients import DelayedGradients
from syncline.torch.ddp.gradients import Gradients
from syncline.torch.ddp.torch_reducer import TorchReducer, refused


class TorchNames:
    """A part of DistributedDataParallel, which has what is declared here."""

    broadcast_bucket_size: int
    device: torch.device
    module: torch.nn.Module
    require_forward_param_sync: bool
    static_graph: bool
    device_type: str
    dim: int
    forward_sync_buffers: bool
    process_group: Any
    _buffers_of_module: Buffers
    _by_name: dict[str, torch.nn.Parameter]
    _caps: tuple[int, int, list[int]]
    _comm_hooks: list[tuple[Any, Any]]
    _delayed: DelayedGradients | None
    _gradients: Gradients | None
    _syncline_group: _syncline.ProcessGroup
    _torch_reducer: TorchReducer | None

    if TYPE_CHECKING:

        def register_comm_hook(self, state: Any, hook: Any) -> None: ...
        def _register(self) -> None: ...
        def _synchronize_buffers(self, root: int) -> None: ...
        def _take_final_state(self, *, is_last: bool) -> None: ...

    # What torch's class has at construction. Libraries read some of them.
    _use_python_reducer = False
    _lazy_init_ran = True
    _ddp_sink_clone = False
    _static_graph_delay_allreduce_enqueued = True
    _divide_by_initial_world_size = True
    _delay_grad_buffer = None
    _delay_grad_views: Sequence[torch.Tensor] = ()
    _accum_grad_hooks: Sequence[Any] = ()
    use_side_stream_for_tensor_copies = False
    logger = None

    # How torch's own reducer is made, and how it takes part in steps.
    _ddp_init_helper = refused("_ddp_init_helper")
    _register_accum_grad_hook = refused("_register_accum_grad_hook")
    _register_delay_all_reduce_hook = refused("_register_delay_all_reduce_hook")
    _delayed_all_reduce_hook = refused("_delayed_all_reduce_hook")
    _fire_reducer_autograd_hook = refused("_fire_reducer_autograd_hook")
    _root_copy_hook = refused("_root_copy_hook")
    _module_wait_for_copy_hook = refused("_module_wait_for_copy_hook")
    _check_global_requires_backward_grad_sync = refused("_check_global_requires_backward_grad_sync")
    _match_all_reduce_for_bwd_pass = refused("_match_all_reduce_for_bwd_pass")
    _match_unused_params_allreduce = refused("_match_unused_params_allreduce")

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
        if self._gradients is not None:
            self._gradients.check_finished()

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

    # --- What forward passes consist of.

    def _setup_in_backward_optimizers(self) -> None:
        """Takes over the optimizers that torch runs within backward; forward does that, too."""
        if self._gradients is not None:
            self._gradients.take_over_optimizers()

    def _clear_grad_buffer(self) -> None:
        """Has delayed gradients come to their buffers; forward does that, too."""
        if self._delayed is not None:
            self._delayed.prepare(synchronizes=self._delayed.synchronizes)

    def _check_sync_bufs_pre_fwd(self) -> bool:
        """Whether the next forward pass synchronises buffers before it runs the module."""
        return self.will_sync_module_buffers() and self._buffers_of_module.is_hooked_at(
            BufferCommHookLocation.PRE_FORWARD
        )

    def _check_sync_bufs_post_fwd(self) -> bool:
        """Whether it does so afterwards."""
        return self.will_sync_module_buffers() and self._buffers_of_module.is_hooked_at(
            BufferCommHookLocation.POST_FORWARD
        )

    def _sync_buffers(self) -> None:
        """Gives all ranks the buffers of rank 0, or calls the hook for buffers. Collective."""
        self._synchronize_buffers(0)

    def _sync_module_buffers(self, authoritative_rank: int) -> None:
        """The same, with those of another rank."""
        self._synchronize_buffers(authoritative_rank)

    def _check_and_sync_module_buffers(self) -> None:
        """As _sync_buffers, if forward would do so, with those of the last rank. Collective."""
        if self._check_sync_bufs_pre_fwd():
            self._synchronize_buffers(self._syncline_group.size() - 1)

    def _default_broadcast_coalesced(
        self,
        bufs: Sequence[torch.Tensor] | None = None,
        bucket_size: int | None = None,
        authoritative_rank: int = 0,
    ) -> None:
        """Broadcasts `bufs`, or the module's buffers. Collective."""
        self._distributed_broadcast_coalesced(
            self.modules_buffers if bufs is None else bufs,
            self.broadcast_bucket_size if bucket_size is None else bucket_size,
            authoritative_rank,
        )

    def _distributed_broadcast_coalesced(
        self, tensors: Sequence[torch.Tensor], buffer_size: int, authoritative_rank: int = 0
    ) -> None:
        """Copies a rank's `tensors` over those of the others. Collective."""
        module_state.broadcast(tensors, self._syncline_group, authoritative_rank, buffer_size)

    def _find_common_rank(self, input_rank: int, rank_cond: bool) -> int:
        """The largest `input_rank` of the ranks that have `rank_cond`. Collective."""
        common = torch.tensor([input_rank if rank_cond else -1])
        self._syncline_group.all_reduce(common, _syncline.ReduceOp.MAX)
        if common.item() < 0:
            raise ValueError("rank_cond must be true on one rank at least")
        return int(common.item())

    def _sync_final_model(self, is_last_joiner: bool) -> None:
        """Gives all ranks the state of one that has `is_last_joiner`. Collective."""
        self._take_final_state(is_last=is_last_joiner)

    def _assign_modules_buffers(self) -> None:
        """Nothing: buffers are looked up whenever they are needed."""

    # --- What it is made of.

    def _build_params_for_reducer(self) -> tuple[list[torch.nn.Parameter], list[bool]]:
        """The parameters whose gradients buckets have, and of each whether they are sparse."""
        parameters = [p for p in self._by_name.values() if p.requires_grad]
        sparse = checks.sparse_parameters(self.module)
        return parameters, [parameter in sparse for parameter in parameters]

    def _build_debug_param_to_name_mapping(
        self, parameters: Sequence[torch.Tensor]
    ) -> dict[int, str]:
        """The name of each of `parameters`, by its index."""
        names = {id(parameter): name for name, parameter in self._by_name.items()}
        return {
            index: names[id(parameter)]
            for index, parameter in enumerate(parameters)
            if id(parameter) in names
        }

    def _passing_sync_batchnorm_handle(self, module: torch.nn.Module) -> None:
        """Refuses torch's SyncBatchNorm in `module` on the CPU, as construction does."""
        if self.device_type == "cpu":
            checks.check_sync_batch_norm(module)

    def _check_comm_hook(self, hook: Any) -> None:
        """Raises TypeError or ValueError if `hook` cannot be a communication hook."""
        comm_hooks.check(hook)

    @property
    def reducer(self) -> TorchReducer | None:
        """torch's methods over Syncline's reducer; None if all gradients are delayed."""
        return self._torch_reducer

    @property
    def _module_parameters(self) -> list[torch.nn.Parameter]:
        return list(self._by_name.values())

    @property
    def _delay_all_reduce_all_params(self) -> bool:
        return self._gradients is None

    @property
    def _has_rebuilt_buckets(self) -> bool:
        return self._gradients is not None and self._gradients.reducer.generation > 1

    @property
    def buffer_hook(self) -> BufferHook:
        """What _register_buffer_comm_hook was given; AttributeError without it, as in torch's."""
        if self._buffers_of_module.hook is None:
            raise AttributeError("no hook for buffers is registered")
        return self._buffers_of_module.hook

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
    def bucket_bytes_cap_default(self) -> bool:
        """Whether the first bucket is smaller than the others."""
        return self._caps[0] < self._caps[1]

    @property
    def _distributed_rank(self) -> int:
        return self._syncline_group.rank()


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with all tensors in it, at any depth, on `device`."""
    return tree_map(
        lambda x: x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x, value
    )
