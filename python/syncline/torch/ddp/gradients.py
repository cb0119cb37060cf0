"""Carries gradients from autograd to a reducer and the averages back to the parameters."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.dlpack import from_dlpack

from syncline._syncline import ProcessGroup, Reducer, _gradient_hook
from syncline.torch.ddp import autograd_graph, checks
from syncline.torch.ddp.gradient_options import Options
from syncline.torch.ddp.layout import Layout, place_of_buckets
from syncline.torch.ddp.optimizers_in_backward import OptimizersInBackward

_CPU = torch.device("cpu")
_CAME, _UNUSED = 1, 2  # What is noted of a parameter in a step; 0: nothing yet.
_ONLY_CAME = bytes(int(noted == _CAME) for noted in range(256))


class Gradients:
    """Averages the gradients of `parameters` at the end of each backward pass.

    Which passes do is decided by the forward passes before them: see after_forward. Gradients that
    a parameter already had are part of what is averaged.

    All calls come from one thread at a time: the one that runs backward, or, for parameters on a
    CUDA device, autograd's thread of that device. There a gradient is handed over with the current
    stream, behind which it is ready, and the averages are enqueued: no thread waits for the device.
    """

    def __init__(
        self,
        group: ProcessGroup,
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        options: Options,
    ):
        """Collective: raises DistMismatchError, on all ranks, if they have other parameters."""
        self.parameters = list(parameters)
        self.names = list(names)
        self.options = options
        self.finders: list[Callable[[], Any]] = []  # Called before the averages are waited for.
        self.futures: list[Any] = []  # Waited for at the end of the next step, once.
        self.divisor = 0  # What the next step divides by; 0: the number of ranks.
        self._group = group
        self._all_alike = not options.sparse and not options.gradient_as_bucket_view
        self._layouts = [Layout.of(parameter) for parameter in self.parameters]
        # Sparse gradients are exchanged in main memory alone.
        self._place = _CPU if options.sparse else place_of_buckets(self.parameters)
        self.reducer = Reducer.create(
            group,
            [layout.stand_in(self._place) for layout in self._layouts],
            names=self.names,
            bucket_cap_bytes=options.bucket_cap_bytes,
            first_bucket_cap_bytes=options.first_bucket_cap_bytes,
            bucket_caps_bytes=options.bucket_caps_bytes,
            sparse=sorted(options.sparse),
            find_unused_parameters=options.find_unused_parameters and not options.static_graph,
            static_graph=options.static_graph,
        )
        self.has_run = False  # Whether there was a forward pass that is to average.
        self.unused_never_changed = True
        self._first_came: bytes | None = None  # Which parameters had a gradient in the first step.
        self._optimizers = OptimizersInBackward(self.parameters)
        self.synchronizes = False  # Whether gradients of coming backward passes are averaged.
        # Whether a step has begun that the end of a running backward pass will end, by _finish;
        # read by the hooks.
        self._is_open = bytearray(1)
        # The backward pass, of those that run within each other (reentrant checkpoints), whose end
        # ends the step: that of the module's outputs. None: it is not known.
        self._own_pass: int | None = None
        self._left_open = False  # By a pass, for an outer or a later one to go on with.
        # The outputs of the last forward pass that no backward pass has come to, by number; and
        # whether a step is left open for passes that begin there.
        self._outputs_left: set[int] = set()
        self._awaits_outputs = False
        self._marked = bytearray(len(self.parameters))  # Those the reducer has in this step.
        self._alone: set[int] = set()  # Those with gradients that were not averaged (no_sync).
        self._unused: set[int] | None = None  # Those that no output since the last step depends on.
        self._fired: dict[int, int] = {}  # Static graph: how often each came in this step,
        self._recorded: dict[int, int] | None = None  # and in the first one, and all others.
        self._absent: list[int] = []  # Static graph: those that only other ranks have.
        self._accumulators = [autograd_graph.accumulator(p) for p in self.parameters]
        self._views: list[Any] = [None] * len(self.parameters)
        self._read_views()
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._hook_for(index)
            )
            for index, parameter in enumerate(self.parameters)
        ]

    @property
    def _queued(self) -> bool:
        return self._is_open[0] != 0

    @_queued.setter
    def _queued(self, value: bool) -> None:
        self._is_open[0] = value

    @property
    def is_under_way(self) -> bool:
        """Whether a step has begun and not ended; if no pass runs, one has failed or is missing."""
        return self._queued or self._left_open

    def check_finished(self) -> None:
        """Raises RuntimeError if a step has begun and not ended."""
        if self.is_under_way:
            lacking = [self.names[i] for i, done in enumerate(self._marked) if not done]
            raise RuntimeError(
                f"rank {self._group.rank()}: the last backward pass did not end; "
                f"{len(lacking)} parameters have no gradient: {', '.join(lacking[:10])}"
            )

    def take_over_optimizers(self) -> None:
        """Runs the optimizers that torch runs within backward, if there are any, on averages."""
        self._optimizers.take_over()

    def before_forward(self) -> None:
        """Ends the step of a backward pass that failed, if there is one.

        Raises MissingGradientError, on all ranks, if gradients of a step have not come.
        """
        self.take_over_optimizers()
        if autograd_graph.is_running():
            return
        self.end_awaiting_step()
        if self._left_open:
            error = self._not_averaged()
            self._abandon()
            raise error
        if self._queued:
            self._abandon()
        self._own_pass = None  # Of a pass without a step that failed.

    def after_forward(self, output: Any, *, synchronizes: bool) -> None:
        """Backward passes from now on average, or leave gradients to this rank (no_sync)."""
        self.synchronizes = synchronizes
        if not synchronizes:
            return
        self.has_run = True
        outputs = list(autograd_graph.find_tensors(output))
        nodes = dict.fromkeys(tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None)
        left = self._outputs_left = set(range(len(nodes)))
        for number, node in enumerate(nodes):
            node.register_prehook(partial(self._on_backward, left, number))
        if self.options.find_unused_parameters and not self.options.static_graph:
            unused = autograd_graph.unreached(outputs, self._accumulators)
            self._unused = unused if self._unused is None else self._unused & unused

    def replace_group(self, group: ProcessGroup) -> None:
        """Goes on in another group; a step under way is dropped. Collective over the new group."""
        self._reset()
        self._group = group
        self.reducer.replace_group(group)
        self._read_views()

    def remove_hooks(self) -> None:
        """Gradients are no longer averaged."""
        for hook in self.hooks:
            hook.remove()

    def end_awaiting_step(self) -> None:
        """Ends a step that is left open for further backward passes: there are none.

        Raises MissingGradientError, on all ranks.
        """
        if self._awaits_outputs:
            self._end_step()

    def _hook_for(self, index: int) -> Callable[[torch.Tensor], None]:
        if self.options.static_graph:
            return partial(self._ready_in_static_graph, index)
        if index in self.options.sparse or not self._layouts[index].is_plain(self._place):
            return partial(self._ready, index)
        views = self._views if self.options.gradient_as_bucket_view else None
        # The collector does not see through the hook.
        ready = partial(_ready_of, weakref.ref(self), index)
        return _gradient_hook(self.reducer, index, self._is_open, self._marked, views, ready)

    def _ready(self, index: int, parameter: torch.Tensor) -> None:
        if not self.synchronizes:
            self._alone.add(index)
            return
        if not self._queued:
            self._begin()
        if self._marked[index]:
            raise checks.marked_twice(self.names[index], was_unused=self._marked[index] == _UNUSED)
        if parameter.grad is not None:
            self._deliver(index, parameter)
            self._marked[index] = _CAME
        elif not self._finds_unused:  # Undefined: it is as if it were zeros, or unused.
            self._deliver_nothing(index)
            self._marked[index] = _UNUSED

    def _ready_in_static_graph(self, index: int, parameter: torch.Tensor) -> None:
        """The first step counts how often each gradient comes, and sends all at its end."""
        if not self.synchronizes:
            self._alone.add(index)
            return
        if not self._queued:
            self._begin()
        if parameter.grad is None:  # Undefined: as if it had not come.
            return
        count = self._fired.pop(index, 0) + 1
        self._fired[index] = count  # The last one that came is the last in the dictionary.
        if self._recorded is None:
            return
        if count > self._recorded.get(index, 0):
            raise RuntimeError(
                f"the graph is not static: in this step '{self.names[index]}' has received a "
                f"gradient {count} times, in the first one {self._recorded.get(index, 0)} times"
            )
        if count == self._recorded[index]:
            self._deliver(index, parameter)
            self._marked[index] = _CAME

    def _deliver(self, index: int, parameter: torch.Tensor) -> None:
        """Hands over the gradient, which may be anything that autograd makes."""
        gradient = parameter.grad
        assert gradient is not None
        if index in self.options.sparse:
            self._deliver_rows(index, gradient)
            return
        view = self._views[index]
        if gradient is not view:
            if gradient.layout != torch.strided:
                raise RuntimeError(
                    f"the gradient of '{self.names[index]}' is sparse, but the parameter is not "
                    "that of an Embedding or EmbeddingBag with sparse=True: such gradients are "
                    "not supported"
                )
            with torch.no_grad():
                view.copy_(gradient)
            if self.options.gradient_as_bucket_view:
                parameter.grad = view
        self.reducer.mark_ready(index)

    def _deliver_rows(self, index: int, gradient: torch.Tensor) -> None:
        if gradient.layout != torch.sparse_coo:
            raise RuntimeError(
                f"the gradient of '{self.names[index]}' is dense, but it is the parameter of an "
                "Embedding with sparse=True: use sparse=False if the parameter has other uses"
            )
        rows = gradient.detach().coalesce()
        self.reducer.mark_ready_sparse(
            index, rows.indices()[0].cpu().contiguous(), rows.values().cpu().contiguous()
        )

    def _deliver_nothing(self, index: int) -> None:
        if index in self.options.sparse:
            parameter = self.parameters[index]
            none = torch.zeros((0, *parameter.shape[1:]), dtype=parameter.dtype)
            self.reducer.mark_ready_sparse(index, torch.zeros(0, dtype=torch.int64), none)
        else:
            self._views[index].zero_()
            self.reducer.mark_ready(index)

    def _on_backward(self, left: set[int], number: int, gradients: Any) -> None:
        """Before a backward pass comes to output `number` of the module: its end ends the step.

        Another pass may run around it, if the module is called in a reentrant checkpoint, and
        others within it, if the module has such checkpoints.
        """
        del gradients
        left.discard(number)
        if not self.synchronizes or self._own_pass is not None:
            return
        self._own_pass = autograd_graph.current_pass()
        autograd_graph.at_end_of_backward(self._finish)
        if not self._queued and autograd_graph.accumulates(self._accumulators[0]):
            self._begin()

    def _begin(self) -> None:
        self._queued = True
        if self._own_pass is None:
            autograd_graph.at_end_of_backward(self._finish)
        if self._left_open:
            self._left_open = self._awaits_outputs = False
            return
        _unfinished.add(self)
        unused: list[int] = []
        if self._unused:
            # What has a gradient from earlier passes is sent, as if it had been used.
            for index in self._unused:
                if self.parameters[index].grad is None:
                    unused.append(index)
        if unused or self.divisor:
            self.reducer.begin_step(unused=unused, divisor=self.divisor)
            for index in unused:
                self._marked[index] = _UNUSED
        for index in self._absent:
            self._deliver_nothing(index)
            self._marked[index] = _UNUSED

    def _finish(self) -> None:
        """At the end of a backward pass: waits for the averages, if it is the one to do so."""
        if self._own_pass is None:
            if autograd_graph.is_nested() and 0 in self._marked:
                self._queued = False
                self._left_open = True  # The outer pass goes on.
                return
        elif self._own_pass != autograd_graph.current_pass():
            return
        if not self._queued:  # No gradient has come, as in torch.autograd.grad.
            self._own_pass = None
            return
        if self._may_get_more():
            self._queued = False
            self._own_pass = None
            self._left_open = self._awaits_outputs = True
            return
        self._end_step()

    def _may_get_more(self) -> bool:
        """Whether a later pass, from another output, may bring the gradients that are missing.

        So it is in `first.backward(); second.backward()` of the outputs of one forward pass. Where
        missing gradients are no error, this pass ends a step, and the later one is another.
        """
        if not self._outputs_left or self._may_lack:
            return False
        return any(not done and index not in self._alone for index, done in enumerate(self._marked))

    def _end_step(self) -> None:
        """Waits for the averages, and gives them to the parameters."""
        try:
            with torch.no_grad():
                is_first = self.options.static_graph and self._recorded is None
                self._deliver_rest()
                for finder in self.finders:
                    finder()
                has_all = self._take_averages_by_bucket()
                try:
                    self.reducer.finish()
                except ValueError as error:
                    raise checks.as_torchs(error) from None
                if is_first:
                    self._record()
                if self.reducer.generation != self._generation:
                    self._read_views()
                if not has_all:
                    self._take_averages()
                self._compare_unused()
                for future in self.futures:
                    future.wait()
        finally:
            self.futures.clear()
            self._reset()
        self._optimizers.step()

    def _deliver_rest(self) -> None:
        """Of what has not come in this pass, what was there before it."""
        if self.options.static_graph and self._recorded is None:
            for index in self._fired:
                self._deliver(index, self.parameters[index])
                self._marked[index] = _CAME
            return
        if 0 not in self._marked:
            return
        for index, parameter in enumerate(self.parameters):
            if self._marked[index] or parameter.grad is None:
                continue
            if self._recorded is not None and index not in self._recorded:
                continue
            if index in self._alone or self._finds_unused:
                self._deliver(index, parameter)
                self._marked[index] = _CAME

    def _record(self) -> None:
        """Of the first step of a static graph, what all steps are to be like."""
        self._recorded = self._fired
        self._absent = [
            index
            for index in range(len(self.parameters))
            if index not in self._recorded and self.reducer.is_used(index)
        ]

    def _compare_unused(self) -> None:
        if self._finds_unused:
            came = bytes(self._marked).translate(_ONLY_CAME)
            if self._first_came is None:
                self._first_came = came
            self.unused_never_changed &= came == self._first_came

    @property
    def _finds_unused(self) -> bool:
        return self.options.find_unused_parameters and not self.options.static_graph

    def _take_averages_by_bucket(self) -> bool:
        """Copies each bucket while later ones travel. Whether that has served all parameters."""
        if not self._all_alike or 0 in self._marked or _UNUSED in self._marked:
            return False
        for bucket, members in enumerate(self._buckets):
            if not self.reducer.await_bucket(bucket):
                return False
            gradients: list[Any] = [self.parameters[index].grad for index in members]
            torch._foreach_copy_(gradients, [self._views[index] for index in members])
        return True

    def _take_averages(self) -> None:
        targets, sources = [], []
        for index, parameter in enumerate(self.parameters):
            gradient, view = parameter.grad, self._views[index]
            if gradient is view:
                continue
            if index in self.options.sparse:
                self._take_rows(index, parameter)
            elif self._marked[index] != _CAME and not self.reducer.is_used(index):
                continue
            elif self.options.gradient_as_bucket_view:
                parameter.grad = view
            elif gradient is None:
                parameter.grad = self._layouts[index].copy_of(view)
            else:
                targets.append(gradient)
                sources.append(view)
        if targets:
            torch._foreach_copy_(targets, sources)

    def _take_rows(self, index: int, parameter: torch.Tensor) -> None:
        if not self.reducer.is_used(index):
            return
        indices = from_dlpack(self.reducer.sparse_indices(index))
        values = from_dlpack(self.reducer.sparse_values(index))
        parameter.grad = torch.sparse_coo_tensor(
            indices.unsqueeze(0), values, parameter.shape, device=parameter.device
        ).coalesce()

    def _read_views(self) -> None:
        """The places of gradients, which move when the reducer rebuilds its buckets."""
        old = self._views.copy()
        self._generation = self.reducer.generation
        self._buckets = self.reducer.buckets
        self._views[:] = [
            None
            if index in self.options.sparse
            else layout.restore(from_dlpack(self.reducer.gradient(index)))
            for index, layout in enumerate(self._layouts)
        ]
        for index, parameter in enumerate(self.parameters):
            if old[index] is not None and parameter.grad is old[index]:
                parameter.grad = self._views[index]

    def _reset(self) -> None:
        _unfinished.discard(self)
        self._queued = False
        self._own_pass = None
        self._left_open = self._awaits_outputs = False
        self._outputs_left = set()
        self._marked[:] = bytes(len(self.parameters))
        self._alone.clear()
        self._unused = None
        self._fired = {}

    def _not_averaged(self) -> RuntimeError:
        return RuntimeError(
            f"rank {self._group.rank()}: the last backward pass has left gradients of "
            f"'{self.names[0]}' and {len(self.names) - 1} other parameters that are not averaged: "
            "it has failed, or it ran in a reentrant checkpoint while the module's outputs are in "
            "an object of a type in which no tensors are found. Return tensors, tuples, "
            "dictionaries or dataclasses, or use checkpoint(..., use_reentrant=False)"
        )

    def _abandon(self) -> None:
        """After a backward pass that raised: peers, who wait for the rest, are to know of it."""
        try:
            if 0 in self._marked and self._may_lack:
                self._group.abort(
                    f"rank {self._group.rank()} has given up a backward pass after an exception, "
                    "and its gradients are not complete: averages with them would be wrong"
                )
            self.reducer.finish()  # Fails, on all ranks, if gradients are missing.
        except (RuntimeError, ValueError):
            pass  # This rank's user has seen the exception that was the cause.
        finally:
            self._reset()

    @property
    def _may_lack(self) -> bool:
        return self.options.find_unused_parameters or self.options.static_graph


_unfinished: weakref.WeakSet[Gradients] = weakref.WeakSet()
"""Those with a step that has begun and not ended."""


def _check_before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Refuses to step with gradients that have not been averaged."""
    if not _unfinished or autograd_graph.is_running():
        return
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for gradients in list(_unfinished):
        if any(id(p) in stepped and p.grad is not None for p in gradients.parameters):
            gradients.end_awaiting_step()
            raise gradients._not_averaged()


register_optimizer_step_pre_hook(_check_before_step)


def _ready_of(gradients: weakref.ref[Gradients], index: int, parameter: torch.Tensor) -> None:
    """Its _ready, while it lives."""
    living = gradients()
    if living is not None:
        living._ready(index, parameter)
