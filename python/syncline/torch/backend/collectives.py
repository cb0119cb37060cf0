"""The collectives of torch's process group over those of Syncline's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from syncline import _syncline
from syncline.calls import waiting
from syncline.errors import DistError
from syncline.torch.backend import sparse
from syncline.torch.backend.arguments import (
    all_movable,
    chunks,
    distinct,
    flat,
    movable,
    only,
    options,
    reduction,
    timeout_of,
)
from syncline.torch.backend.errors import translated
from syncline.torch.backend.other_devices import OtherDevices
from syncline.torch.backend.staging import Copies, contiguous, stand_in
from syncline.torch.backend.work import AllWork, FinishedWork

Forms = tuple[Callable[..., Any], Callable[..., _syncline.Work]]


def both_forms(name: str) -> Forms:
    """The blocking and the background form of an operation, which need not remember results."""
    in_background = getattr(_syncline.ProcessGroup, f"{name}_async")
    return waiting[name], getattr(in_background, "__wrapped__", in_background)


_ALL_GATHER = both_forms("all_gather")
_ALL_GATHER_MULTI = both_forms("all_gather_multi")
_ALL_GATHER_COALESCED = both_forms("all_gather_coalesced")
_ALL_GATHER_SINGLE = both_forms("all_gather_single")
_ALL_REDUCE = both_forms("all_reduce")
_ALL_REDUCE_COALESCED = both_forms("all_reduce_coalesced")
_ALL_REDUCE_MULTI = both_forms("all_reduce_multi")
_ALL_TO_ALL = both_forms("all_to_all")
_ALL_TO_ALL_SINGLE = both_forms("all_to_all_single")
_BROADCAST = both_forms("broadcast")
_BROADCAST_MULTI = both_forms("broadcast_multi")
_GATHER = both_forms("gather")
_REDUCE = both_forms("reduce")
_REDUCE_MULTI = both_forms("reduce_multi")
_REDUCE_SCATTER = both_forms("reduce_scatter")
_REDUCE_SCATTER_COALESCED = both_forms("reduce_scatter_coalesced")
_REDUCE_SCATTER_SINGLE = both_forms("reduce_scatter_single")
_SCATTER = both_forms("scatter")


class Collectives:
    """The methods of ProcessGroup that all ranks call, except barriers.

    Each takes torch's struct of options, or the arguments of torch's other overloads. Lists of
    several tensors on the CPU are treated as gloo does: as if each were that of a rank.
    """

    _group: _syncline.ProcessGroup
    _others: OtherDevices
    _timeout: timedelta | None

    def _run(
        self,
        forms: Forms,
        opts: Any,
        written: list[Tensor],
        *arguments: Any,
        copies: Copies | None = None,
        read: Tensor | None = None,
    ) -> Any:
        """Runs an operation, here or in the background; `written` is what it writes to.

        It writes to the first of `arguments`, too, and reads the others; they may be tensors that
        are not contiguous. `copies` are those that the caller has made of what it writes to. `read`
        is one of its tensors, where it may write to none.
        """
        raise NotImplementedError

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, op: Any = None
    ) -> Any:
        opts = options(AllreduceOptions, opts, timeout, reduceOp=op)
        if are_several(tensors):
            kind, factor = reduction(opts.reduceOp)
            limit = timeout_of(opts, self._timeout)
            several = list(tensors)
            return self._run(_ALL_REDUCE_MULTI, opts, several, several, kind, limit, factor)
        tensor = only(tensors)
        if not tensor.is_cpu and self._others.serve(tensor):
            return self._others.call("allreduce", tensor, [tensor], opts)
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        if tensor.layout is not torch.strided:
            try:
                sparse.all_reduce(self._group, tensor, kind, limit)
            except DistError as error:
                raise translated(error) from None
            return FinishedWork([tensor])
        return self._run(_ALL_REDUCE, opts, [tensor], tensor, kind, limit, factor)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        opts = options(AllreduceCoalescedOptions, opts)
        tensors = list(tensors)
        if not tensors:
            return FinishedWork([])
        if not tensors[0].is_cpu and self._others.serve(tensors[0]):
            return self._others.call("allreduce_coalesced", tensors[0], tensors, opts)
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        once = distinct(tensors)
        return self._run(_ALL_REDUCE_COALESCED, opts, tensors, once, kind, limit, factor)

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Any:
        opts = options(ReduceOptions, opts, timeout, reduceOp=op, rootRank=root)
        if are_several(tensors):
            kind, factor = reduction(opts.reduceOp)
            several = list(tensors)
            where = several, opts.rootRank, kind, opts.rootTensor
            limit = timeout_of(opts, self._timeout)
            return self._run(_REDUCE_MULTI, opts, several, *where, limit, factor)
        tensor = only(tensors)
        if not tensor.is_cpu and self._others.serve(tensor):
            return self._others.call("reduce", tensor, [tensor], opts)
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        return self._run(_REDUCE, opts, [tensor], tensor, opts.rootRank, kind, limit, factor)

    def broadcast(
        self,
        tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Any:
        opts = options(BroadcastOptions, opts, timeout, rootRank=root)
        if are_several(tensors):
            several = list(tensors)
            where = all_movable(several), opts.rootRank, opts.rootTensor
            limit = timeout_of(opts, self._timeout)
            return self._run(_BROADCAST_MULTI, opts, several, *where, limit)
        tensor = only(tensors)
        if not tensor.is_cpu and self._others.serve(tensor):
            return self._others.call("broadcast", tensor, [tensor], opts)
        limit = timeout_of(opts, self._timeout)
        moved = movable(tensor)
        if opts.rootRank == self._group.rank():
            moved = contiguous(moved)  # Only read.
        return self._run(_BROADCAST, opts, [tensor], moved, opts.rootRank, limit)

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        opts = options(AllgatherOptions, opts, timeout)
        if are_several(input_tensors):
            whole = [tensor for outputs in output_tensors for tensor in outputs]
            moved = all_movable(whole), all_movable(input_tensors)
            limit = timeout_of(opts, self._timeout)
            return self._run(_ALL_GATHER_MULTI, opts, whole, *moved, limit)
        tensor = only(input_tensors, "input_tensors")
        outputs = _list_of(output_tensors, "output_tensors")
        if not tensor.is_cpu and self._others.serve(tensor):
            return self._others.call("allgather", tensor, [outputs], [tensor], opts)
        limit = timeout_of(opts, self._timeout)
        return self._run(_ALL_GATHER, opts, outputs, all_movable(outputs), movable(tensor), limit)

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[Tensor]],
        input_list: Sequence[Tensor],
        opts: Any = None,
    ) -> Any:
        """output_lists[r] receives the tensors of rank r."""
        opts = options(AllgatherOptions, opts)
        if not input_list:
            return FinishedWork([])
        if not input_list[0].is_cpu and self._others.serve(input_list[0]):
            name = "allgather_coalesced"
            return self._others.call(name, input_list[0], output_lists, input_list, opts)
        limit = timeout_of(opts, self._timeout)
        inputs = all_movable(input_list)
        written = [tensor for tensors in output_lists for tensor in tensors]
        outputs = [movable(tensors[i]) for i in range(len(inputs)) for tensors in output_lists]
        return self._run(_ALL_GATHER_COALESCED, opts, written, outputs, inputs, limit)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        opts = options(AllgatherOptions, opts)
        if not input.is_cpu and self._others.serve(input):
            return self._others.call("_allgather_base", input, output, input, opts)
        limit = timeout_of(opts, self._timeout)
        return self._run(_ALL_GATHER_SINGLE, opts, [output], movable(output), movable(input), limit)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """As all_gather_single of each, in one transfer."""
        opts = options(AllgatherOptions, opts)
        outputs, inputs = list(outputs), list(inputs)
        if not inputs:
            return FinishedWork([])
        if not inputs[0].is_cpu and self._others.serve(inputs[0]):
            name = "allgather_into_tensor_coalesced"
            return self._others.call(name, inputs[0], outputs, inputs, opts)
        size = self._group.size()
        copies: Copies = []
        whole = [stand_in(movable(output), copies) for output in outputs]
        parts = [part for output in whole for part in chunks(output, size)]
        limit = timeout_of(opts, self._timeout)
        flat_inputs = [flat(contiguous(movable(tensor))) for tensor in inputs]
        return self._run(
            _ALL_GATHER_COALESCED, opts, outputs, parts, flat_inputs, limit, copies=copies
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Any:
        opts = options(GatherOptions, opts, timeout, rootRank=root)
        tensor = only(input_tensors, "input_tensors")
        outputs = _list_of(output_tensors, "output_tensors")
        if not tensor.is_cpu and self._others.serve(tensor):
            lists = [outputs] if outputs else []
            return self._others.call("gather", tensor, lists, [tensor], opts)
        limit = timeout_of(opts, self._timeout)
        moved = all_movable(outputs)
        arguments = moved, movable(tensor), opts.rootRank, limit
        return self._run(_GATHER, opts, outputs, *arguments, read=tensor)

    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Any:
        opts = options(ScatterOptions, opts, timeout, rootRank=root)
        tensor = only(output_tensors, "output_tensors")
        inputs = _list_of(input_tensors, "input_tensors")
        if not tensor.is_cpu and self._others.serve(tensor):
            lists = [inputs] if inputs else []
            return self._others.call("scatter", tensor, [tensor], lists, opts)
        limit = timeout_of(opts, self._timeout)
        moved = all_movable(inputs)
        return self._run(_SCATTER, opts, [tensor], movable(tensor), moved, opts.rootRank, limit)

    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        op: Any = None,
    ) -> Any:
        opts = options(ReduceScatterOptions, opts, timeout, reduceOp=op)
        output = only(output_tensors, "output_tensors")
        inputs = _list_of(input_tensors, "input_tensors")
        if not output.is_cpu and self._others.serve(output):
            return self._others.call("reduce_scatter", output, [output], [inputs], opts)
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        return self._run(_REDUCE_SCATTER, opts, [output], output, inputs, kind, limit, factor)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        opts = options(ReduceScatterOptions, opts)
        if not input.is_cpu and self._others.serve(input):
            return self._others.call("_reduce_scatter_base", input, output, input, opts)
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        return self._run(_REDUCE_SCATTER_SINGLE, opts, [output], output, input, kind, limit, factor)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """As reduce_scatter_single of each; in one transfer if they are of one type."""
        opts = options(ReduceScatterOptions, opts)
        outputs, inputs = list(outputs), list(inputs)
        if not outputs:
            return FinishedWork([])
        if not inputs[0].is_cpu and self._others.serve(inputs[0]):
            name = "reduce_scatter_tensor_coalesced"
            return self._others.call(name, inputs[0], outputs, inputs, opts)
        if any(tensor.dtype != inputs[0].dtype for tensor in inputs):
            pairs = zip(outputs, inputs, strict=True)
            return AllWork([self.reduce_scatter_single(*pair, opts) for pair in pairs])
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        parts = [
            part for tensor in inputs for part in chunks(contiguous(tensor), self._group.size())
        ]
        copies: Copies = []
        flat_outputs = [flat(stand_in(tensor, copies)) for tensor in outputs]
        arguments = flat_outputs, parts, kind, limit, factor
        return self._run(_REDUCE_SCATTER_COALESCED, opts, outputs, *arguments, copies=copies)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        opts = options(AllToAllOptions, opts, timeout)
        outputs, inputs = list(output_tensors), list(input_tensors)
        if inputs and not inputs[0].is_cpu and self._others.serve(inputs[0]):
            return self._others.call("alltoall", inputs[0], outputs, inputs, opts)
        limit = timeout_of(opts, self._timeout)
        return self._run(
            _ALL_TO_ALL, opts, outputs, all_movable(outputs), all_movable(inputs), limit
        )

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        opts = options(AllToAllOptions, opts, timeout)
        splits = list(output_split_sizes), list(input_split_sizes)
        if not input.is_cpu and self._others.serve(input):
            return self._others.call("alltoall_base", input, output, input, *splits, opts)
        limit = timeout_of(opts, self._timeout)
        return self._run(
            _ALL_TO_ALL_SINGLE, opts, [output], movable(output), movable(input), *splits, limit
        )

    alltoall_base = all_to_all_single


def are_several(tensors: Any) -> bool:
    """Whether it is a list of several tensors on the CPU."""
    return not isinstance(tensors, Tensor) and len(tensors) > 1 and tensors[0].is_cpu


def _list_of(lists: Any, argument: str) -> list[Tensor]:
    """The one list of tensors in torch's list of lists, which may be empty or left away."""
    if not lists or isinstance(lists[0], Tensor):
        return list(lists)
    return list(only(lists, argument))
