"""DistributedDataParallel: a module whose gradients are averaged over all ranks."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.algorithms.join import Joinable

from syncline import _syncline
from syncline.torch.ddp import checks, comm_hooks, groups, module_state, uneven_inputs
from syncline.torch.ddp import mixed_precision as precision
from syncline.torch.ddp.buffers import Buffers
from syncline.torch.ddp.delayed_gradients import DelayedGradients
from syncline.torch.ddp.gradient_options import Options
from syncline.torch.ddp.gradients import Gradients
from syncline.torch.ddp.mixed_precision import MixedPrecision
from syncline.torch.ddp.torch_names import TorchNames, to_device
from syncline.torch.ddp.torch_reducer import TorchReducer


class DistributedDataParallel(TorchNames, torch.nn.parallel.DistributedDataParallel):
    """Runs `module` on each rank's part of the data and averages the gradients over all ranks.

        model = syncline.torch.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in batches:  # Different ones on each rank.
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()  # Afterwards gradients are averages.
            optimizer.step()

    It is a torch.nn.parallel.DistributedDataParallel, to isinstance as well, with the same
    constructor, methods, attributes and keys of state_dict. What torch's reducer alone can do is a
    NotImplementedError. Gradients are averaged in buckets, while the backward
    pass runs: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
    Training", VLDB 2020. After the first step the buckets are rebuilt in the order in which
    gradients came. Construction, forward and backward must be called on all ranks alike.

    What differs from torch's:
    - Every backward pass after a synchronising forward pass averages, also the second one of two,
      where torch's leaves ranks with different gradients.
    - A parameter without a gradient is an error of that backward pass, on all ranks; it names
      parameters and ranks. Training can go on. If a backward pass has not come to all outputs, the
      error is that of the next forward pass or optimizer step: another backward pass may follow.
    - `stats()` tells when buckets were ready and sent, and how much of that backward has hidden.
    - `process_group` may be one of syncline's or of torch.distributed's.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        param_to_hook_all_reduce: torch.nn.Parameter | None = None,
        mixed_precision: MixedPrecision | None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
    ):
        """Makes all ranks' parameters and buffers equal to rank 0's. Collective.

        Args:
          module: its parameters and buffers must be those of all ranks, in type, shape and order,
            and stay the same objects.
          device_ids: one CUDA device, to which inputs are moved; None for the CPU.
          output_device: as device_ids[0] if None.
          dim: for scatter and gather only.
          broadcast_buffers: whether each forward pass begins with rank 0's buffers on all ranks;
            True if None.
          init_sync: False leaves parameters and buffers as each rank has them.
          process_group: the ranks to average over: a group or World of syncline, or a group of
            torch.distributed. None: all ranks, of syncline's job or else torch.distributed's.
          bucket_cap_mb: a bucket is full at so many MiB; 25 if None, and then 1 for the first one.
          find_unused_parameters: forward passes may leave parameters out, on each rank others.
          check_reduction: deprecated, without effect.
          gradient_as_bucket_view: gradients are views of buckets, which saves memory and a copy.
          static_graph: every step is like the first: unused parameters are found there, once, and
            a parameter may be used in several reentrant checkpoints.
          delay_all_reduce_named_params: parameters that buckets do not have; their gradients are
            averaged in one go when `param_to_hook_all_reduce` has its gradient.
          param_to_hook_all_reduce: see above; one comes with the other.
          mixed_precision: a MixedPrecision, this module's or torch's.
          device_mesh: of one dimension, in place of `process_group`.
          skip_all_reduce_unused_params, batched_grad_copy: accepted; gradients of unused
            parameters are left alone, and are copied at little cost, in any case.
          bucket_cap_mb_list: the cap of each bucket, in MiB; the last one goes on.
          forward_sync_buffers: as `broadcast_buffers`, which then counts no more; at construction
            buffers are broadcast in any case.

        Raises:
          DistMismatchError: ranks gave other parameters or options; names the first.
          ValueError, RuntimeError: as torch's does, for arguments that do not go together.
          DistError: the process has not joined a job.
        """
        torch.nn.Module.__init__(self)  # Not torch's own: it would make its reducer.
        Joinable.__init__(self)
        self.device_mesh = device_mesh
        self.process_group = checks.choose_group(module, process_group, device_mesh)
        self._syncline_group = groups.syncline_group(self.process_group)
        checks.check_delayed(delay_all_reduce_named_params, param_to_hook_all_reduce)
        delayed = list(delay_all_reduce_named_params or [])
        self._delay_all_reduce_params = [parameter for _, parameter in delayed]
        self._trigger = (param_to_hook_all_reduce,)  # In a tuple: not a parameter of this module.
        self.parameters_to_ignore: set[str] = {name for name, _ in delayed}
        self.parameters_to_ignore.update(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        parameters = [p for n, p in module.named_parameters() if n not in self.parameters_to_ignore]
        checks.check_parameters(module, parameters, self._delay_all_reduce_params)
        parameters = parameters or self._delay_all_reduce_params
        self.is_multi_device_module = len({p.device for p in parameters}) > 1
        self.device = parameters[0].device
        self.device_type = self.device.type
        self.device_ids, self.output_device = checks.choose_devices(
            device_ids, output_device, parameters
        )
        self.dim = dim
        self.module = module
        self.forward_sync_buffers, buffers_at_init = checks.choose_buffer_sync(
            broadcast_buffers, forward_sync_buffers
        )
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.batched_grad_copy = batched_grad_copy
        self.skip_all_reduce_unused_params = skip_all_reduce_unused_params
        self.mixed_precision = mixed_precision
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.broadcast_bucket_size = module_state.BROADCAST_BYTES
        self._caps = checks.bucket_caps(bucket_cap_mb, bucket_cap_mb_list)
        if check_reduction:
            warnings.warn("check_reduction has no effect", FutureWarning, stacklevel=2)
        self._register()
        if init_sync:
            self._broadcast_state(0, with_buffers=buffers_at_init)

    # --- Running the module.

    @torch.compiler.disable(recursive=False)  # type: ignore[no-untyped-call, untyped-decorator]
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """module(*inputs, **kwargs), after what ranks do before it, and before its backward."""
        inputs, kwargs = self._pre_forward(*inputs, **kwargs)
        return self._post_forward(self._run_ddp_forward(*inputs, **kwargs))

    @torch.compiler.disable(recursive=False)  # type: ignore[no-untyped-call, untyped-decorator]
    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module alone. torch.compile is told that gradients will be averaged in buckets."""
        with self._inside_ddp_forward():
            if self.mixed_precision is None:
                return self.module(*inputs, **kwargs)
            return precision.run(
                self.module, self._by_name, self.mixed_precision.param_dtype, inputs, kwargs
            )

    @contextlib.contextmanager
    @torch.compiler.disable(recursive=False)  # type: ignore[no-untyped-call, untyped-decorator]
    def _inside_ddp_forward(self) -> Iterator[None]:
        """Within it torch's compiler knows this module as the active one.

        torch has one for the process. What was active is restored by thread: ranks may be threads.
        The compiler refuses modules whose buckets are smaller than torch's first one.
        """
        if self.bucket_bytes_cap < checks.FIRST_CAP_BYTES:
            yield
            return
        kind = torch.nn.parallel.DistributedDataParallel
        outer = getattr(_thread, "active", None)
        _thread.active = kind._active_ddp_module = self
        try:
            yield
        finally:
            _thread.active = kind._active_ddp_module = outer

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes within it leave the gradients of their backward passes to this rank.

        They accumulate, and the first pass after it averages what has been accumulated:

            with model.no_sync():
                for inputs in micro_batches[:-1]:
                    model(inputs).sum().backward()
            model(micro_batches[-1]).sum().backward()
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    # --- Ranks with different numbers of batches.

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> uneven_inputs.Join:
        """A context for loops whose number of batches differs between ranks.

            with model.join():
                for inputs in batches:
                    ...

        A rank that leaves the loop takes part in the others' steps, with zeros, until all have;
        then all have the state of one that was last. Other collectives in the loop, those of
        SyncBatchNorm too, need `throw_on_early_termination`.

        Args:
          divide_by_initial_world_size: whether sums of gradients are divided by the number of all
            ranks, and not of those that still have input.
          enable: False makes the context one that does nothing.
          throw_on_early_termination: a RuntimeError on all ranks, which names who has run out,
            when the first one has.
        """
        if self._delayed is not None:
            raise RuntimeError("join does not go together with delay_all_reduce_named_params")
        config = uneven_inputs.Config(divide_by_initial_world_size, throw_on_early_termination)
        return uneven_inputs.Join(self, config, enable=enable)

    def join_hook(self, **kwargs: Any) -> uneven_inputs.TorchJoinHook:
        """For torch.distributed.algorithms.Join, with `divide_by_initial_world_size` in kwargs."""
        return uneven_inputs.TorchJoinHook(self, uneven_inputs.join_kwargs(kwargs))

    @property
    def join_process_group(self) -> Any:
        """The group in which torch's Join communicates: one of torch.distributed's."""
        if isinstance(self.process_group, _syncline.ProcessGroup):
            raise ValueError(
                "torch's Join needs a module made with a group of torch.distributed: call "
                'torch.distributed.init_process_group("syncline") and leave process_group out, or '
                "use this module's own join()"
            )
        return self.process_group

    # --- How gradients are averaged.

    def register_comm_hook(self, state: Any, hook: _syncline.CommHook | Callable[..., Any]) -> None:
        """From now on `hook` averages the buckets. Collective, once, before the first backward.

        Args:
          state: passed to `hook`, if that is a function.
          hook: a syncline.CommHook, or a function as torch's hooks are: hook(state, bucket), with a
            bucket like torch.distributed.GradBucket, returns a torch.futures.Future of the average.
            The collectives of such functions need torch.distributed to be initialised.

        Raises TypeError if it is neither, RuntimeError if there is a hook already.
        """
        if self._gradients is None:
            raise RuntimeError("all gradients are delayed: there are no buckets to hook")
        if self._comm_hooks or self.mixed_precision is not None:
            raise RuntimeError("a communication hook is registered already: a module has one")
        made = comm_hooks.make(state, hook, self._gradients.parameters)
        self._gradients.reducer.set_hook(made)
        self._comm_hooks.append((hook, state))

    def stats(self) -> _syncline.ReducerStats:
        """When the buckets of the last step were ready, sent and done; see its `table`."""
        if self._gradients is None:
            raise RuntimeError("all gradients are delayed: there are no buckets")
        return self._gradients.reducer.stats()

    @property
    def syncline_group(self) -> _syncline.ProcessGroup:
        """The group in which gradients are averaged."""
        return self._syncline_group

    # --- Pickling.

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process. Raises RuntimeError unless the group is default."""
        self._check_default_group()
        if self._comm_hooks:
            raise RuntimeError(
                "a DistributedDataParallel with a communication hook cannot be pickled or copied: "
                "pickle its `module`, or its state_dict"
            )
        return {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Collective, as construction is; parameters and buffers stay as they are."""
        torch.nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]
        self.process_group = groups.default_group()
        self.device_mesh = None
        self._syncline_group = groups.syncline_group(self.process_group)
        self._register()

    # --- Within.

    def _register(self) -> None:
        """Registers with autograd; what it registers goes when this module goes."""
        self._comm_hooks: list[tuple[Any, Any]] = []
        self._uneven: uneven_inputs.Config | None = None
        self._buffers_of_module = Buffers(self.module, self.parameters_to_ignore)
        self._by_name = {
            name: parameter
            for name, parameter in self.module.named_parameters()
            if name not in self.parameters_to_ignore
        }
        self._frozen = {name: p for name, p in self._by_name.items() if not p.requires_grad}
        self._delayed: DelayedGradients | None = None
        trigger = self._trigger[0]
        if trigger is not None and self._delay_all_reduce_params:
            self._delayed = DelayedGradients(
                self._syncline_group, self._delay_all_reduce_params, trigger
            )
            weakref.finalize(self, self._delayed.remove_hooks).atexit = False
        self._gradients: Gradients | None = None
        self._torch_reducer: TorchReducer | None = None
        if any(parameter.requires_grad for parameter in self._by_name.values()):
            self._make_gradients()
        if self.mixed_precision is not None:
            buffers = self._buffers_of_module.by_name().values()
            precision.cast_buffers(buffers, self.mixed_precision.buffer_dtype)
            hook = precision.reduction_hook(self.mixed_precision)
            if hook is not None and self._gradients is not None:
                self._gradients.reducer.set_hook(hook)

    def _make_gradients(self) -> None:
        trained = {name: p for name, p in self._by_name.items() if p.requires_grad}
        sparse = checks.sparse_parameters(self.module)
        first, others, each = self._caps
        options = Options(
            bucket_cap_bytes=others,
            first_bucket_cap_bytes=first,
            bucket_caps_bytes=each,
            sparse=frozenset(i for i, p in enumerate(trained.values()) if p in sparse),
            find_unused_parameters=self.find_unused_parameters
            or self.skip_all_reduce_unused_params,
            static_graph=self.static_graph,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
        )
        self._gradients = Gradients(
            self._syncline_group, list(trained.values()), list(trained), options
        )
        if self._delayed is not None:
            self._gradients.finders.append(self._delayed.finish)
            self._delayed.waits_itself = False
        self._torch_reducer = TorchReducer(self, self._gradients)
        weakref.finalize(self, self._gradients.remove_hooks).atexit = False

    def _broadcast_state(self, root: int, *, with_buffers: bool) -> None:
        tensors: list[torch.Tensor] = [*self._by_name.values(), *self._delay_all_reduce_params]
        if with_buffers:
            tensors += self._buffers_of_module.by_name().values()
        module_state.broadcast(tensors, self._syncline_group, root, self.broadcast_bucket_size)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What ranks do before the module runs; returns its arguments, moved to its device."""
        checks.still_frozen(self._frozen)
        agreement = None
        if self._gradients is not None:
            self._gradients.before_forward()
            self._gradients.divisor = 0
        if self._uneven is not None:
            agreement = uneven_inputs.before_forward(self, self._uneven)
            if agreement is not None and self._gradients is not None:
                self._gradients.divisor = self._uneven.divisor(agreement)
        if self._check_sync_bufs_pre_fwd():
            self._synchronize_buffers(0 if agreement is None else agreement.active[-1])
        if self.device_ids:
            device = torch.device(self.device_type, self.device_ids[0])
            inputs, kwargs = to_device((inputs, kwargs), device)
        return inputs, kwargs

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _post_forward(self, output: Any) -> Any:
        """What they do afterwards, and before backward; returns `output`."""
        if self._check_sync_bufs_post_fwd():
            self._synchronize_buffers(0)
        synchronizes = torch.is_grad_enabled() and self.require_backward_grad_sync
        self.require_forward_param_sync = synchronizes
        if torch.is_grad_enabled():
            if self._gradients is not None:
                self._gradients.after_forward(output, synchronizes=synchronizes)
            if self._delayed is not None:
                self._delayed.prepare(synchronizes=synchronizes)
        return output

    def _synchronize_buffers(self, root: int) -> None:
        futures = self._buffers_of_module.synchronize(
            self._syncline_group, root, self.broadcast_bucket_size
        )
        if self._gradients is not None:
            self._gradients.futures += futures

    def _shadow(self, agreement: uneven_inputs.Agreement) -> None:
        """Without input: takes part in a step of the `agreement.active` ranks."""
        assert self._uneven is not None and self._gradients is not None
        if self._check_sync_bufs_pre_fwd():
            self._synchronize_buffers(agreement.active[-1])
        self.require_forward_param_sync = agreement.synchronizes
        if agreement.synchronizes:
            self._gradients.reducer.shadow_step(self._uneven.divisor(agreement))

    def _take_final_state(self, *, is_last: bool) -> None:
        """All ranks have joined: becomes equal to one that was last."""
        last = uneven_inputs.agree(self._syncline_group, is_active=is_last, synchronizes=False)
        self._broadcast_state(last.active[-1], with_buffers=self.forward_sync_buffers)


_thread = threading.local()  # Its `active` is the innermost module whose forward runs on it.

_OF_PROCESS = {
    *("process_group", "device_mesh", "_syncline_group", "_uneven", "_join_config"),
    *("_gradients", "_delayed", "_comm_hooks", "_buffers_of_module", "_by_name"),
    *("_frozen", "_torch_reducer"),
}
