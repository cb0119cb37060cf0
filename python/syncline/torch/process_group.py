"""torch.distributed's process group over one of Syncline's.

torch's C++ code (its reducer, functional collectives) calls those methods here that its own
PyProcessGroup knows by name; the functions of torch.distributed call all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from syncline import _syncline
from syncline.errors import DistError
from syncline.torch import sparse
from syncline.torch.arguments import (
    all_movable,
    chunks,
    flat,
    movable,
    only,
    options,
    reduction,
    timeout_of,
)
from syncline.torch.errors import translated
from syncline.torch.other_devices import OtherDevices
from syncline.torch.work import AllWork, FinishedWork, RunningWork, runs_callback_of

BACKEND_NAME = "syncline"


def _both_forms(name: str) -> tuple[Callable[..., Any], Callable[..., _syncline.Work]]:
    """The blocking and the background form of an operation, which need not remember results."""
    in_background = getattr(_syncline.ProcessGroup, f"{name}_async")
    return (
        getattr(_syncline.ProcessGroup, name),
        getattr(in_background, "__wrapped__", in_background),
    )


_ALL_GATHER = _both_forms("all_gather")
_ALL_GATHER_COALESCED = _both_forms("all_gather_coalesced")
_ALL_GATHER_SINGLE = _both_forms("all_gather_single")
_ALL_REDUCE = _both_forms("all_reduce")
_ALL_REDUCE_COALESCED = _both_forms("all_reduce_coalesced")
_ALL_TO_ALL = _both_forms("all_to_all")
_ALL_TO_ALL_SINGLE = _both_forms("all_to_all_single")
_BARRIER = _both_forms("barrier")
_BROADCAST = _both_forms("broadcast")
_GATHER = _both_forms("gather")
_RECV = _both_forms("recv")
_REDUCE = _both_forms("reduce")
_REDUCE_SCATTER = _both_forms("reduce_scatter")
_REDUCE_SCATTER_COALESCED = _both_forms("reduce_scatter_coalesced")
_REDUCE_SCATTER_SINGLE = _both_forms("reduce_scatter_single")
_SCATTER = _both_forms("scatter")
_SEND = _both_forms("send")
_Forms = tuple[Callable[..., Any], Callable[..., _syncline.Work]]


class ProcessGroup(torch_dist.ProcessGroup):  # type: ignore[misc, unused-ignore]
    """One rank's end of a group, as torch.distributed.init_process_group("syncline") makes it.

    Has the methods of torch.distributed.ProcessGroup, in all their forms; users call the functions
    of torch.distributed. Tensors must be contiguous, and on the CPU unless the group was made with
    backends for other devices ("cpu:syncline,cuda:nccl"). Operations whose options say so, or
    which have none, run in the background. Raises Syncline's errors that are torch's, too
    (syncline.torch.errors); bad arguments are ValueError or TypeError, and break nothing.
    """

    def __init__(
        self,
        world: _syncline.World,
        group: _syncline.ProcessGroup,
        ranks: Sequence[int],
        store: Any,
        backend_options: Any = None,
    ):
        """Of `group`, whose members are `ranks` of `world`; `store` is torch's."""
        super().__init__(group.rank, group.size)
        self._world = world
        self._group = group
        self._ranks = list(ranks)
        self._store = store
        self._timeout: timedelta | None = None  # The group's own.
        self._others = OtherDevices(self, store, backend_options)
        self._collected: list[Any] | None = None  # Inside a coalescing manager.
        self._name = ""
        self._description = "undefined"

    # --- The group itself.

    def getBackendName(self) -> str:
        return BACKEND_NAME

    _get_backend_name = getBackendName
    name = getBackendName

    @property
    def syncline_group(self) -> _syncline.ProcessGroup:
        """Syncline's own, for its functions and modules."""
        return self._group

    def getRank(self) -> int:
        return self._group.rank

    def getSize(self) -> int:
        return self._group.size

    rank = getRank
    size = getSize

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """How long operations may take from now on where no timeout is given."""
        self._timeout = timeout
        self._others.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        pass  # Syncline's group counts its operations itself.

    def shutdown(self) -> None:
        """Waits up to 10 seconds for operations in flight, then aborts them. Idempotent."""
        self.close(timedelta(seconds=10))

    def close(self, timeout: timedelta) -> None:
        """As shutdown, with another time."""
        self._others.shutdown()
        if self._group is self._world.group:
            self._world.close(timeout)
        else:
            self._group.close(timeout)

    def abort(self, reason: str = "the group was aborted by its user") -> None:
        """Ends the group at once: operations in flight fail, here and on the peers."""
        self._others.abort()
        self._group.abort(reason)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """A group of `ranks` of this one; None on ranks that are not among them.

        Its members must call it, in the same order where they make several of the same ranks.
        """
        members = [self._ranks[rank] for rank in ranks]
        if self._group.rank not in ranks:
            return None
        group = self._world.new_group(members, None, timeout or self._timeout, True)
        assert group is not None  # This rank is in it.
        name = group_name or f"{self._name}:{group.name}"
        store = torch_dist.PrefixStore(f"{name}/", self._store)
        made = type(self)(self._world, group, members, store, opts)
        made._set_group_name(name)
        made._set_group_desc(group_desc or f"{self._description}:split")
        return made

    splitGroup = split_group

    # --- How operations run.

    def _run(self, forms: _Forms, opts: Any, written: list[Tensor], *arguments: Any) -> Any:
        """Runs an operation, here or in the background; `written` is what it writes to."""
        in_background = getattr(opts, "asyncOp", True) and not _is_called_by_hook()
        return self._start(forms, in_background, written, *arguments)

    def _start(
        self, forms: _Forms, in_background: bool, written: list[Tensor], *arguments: Any
    ) -> Any:
        if runs_callback_of(self._group):
            raise RuntimeError(
                "a callback of a future calls an operation of the same group, whose operations "
                "wait for the callback: wait for the future, and call it then"
            )
        try:
            if not in_background and self._collected is None:
                forms[0](self._group, *arguments)
                return FinishedWork(written)
            work = RunningWork(self._group, forms[1](self._group, *arguments), written)
        except DistError as error:
            raise translated(error) from None
        if self._collected is None:
            return work
        self._collected.append(work)
        return FinishedWork(written)  # Whoever collects waits for all of them.

    def _start_coalescing(self, device: torch.device) -> None:
        self._collected = []

    def _end_coalescing(self, device: torch.device) -> AllWork:
        works, self._collected = self._collected or [], None
        return AllWork(works)

    # --- Collectives. Each takes torch's struct of options, or the arguments of the other overloads.

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, op: Any = None
    ) -> Any:
        opts = options(AllreduceOptions, opts, timeout, reduceOp=op)
        tensor = only(tensors)
        if not tensor.is_cpu:
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
        if not tensors[0].is_cpu:
            return self._others.call("allreduce_coalesced", tensors[0], tensors, opts)
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        return self._run(_ALL_REDUCE_COALESCED, opts, tensors, tensors, kind, limit, factor)

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Any:
        opts = options(ReduceOptions, opts, timeout, reduceOp=op, rootRank=root)
        tensor = only(tensors)
        if not tensor.is_cpu:
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
        tensor = only(tensors)
        if not tensor.is_cpu:
            return self._others.call("broadcast", tensor, [tensor], opts)
        limit = timeout_of(opts, self._timeout)
        return self._run(_BROADCAST, opts, [tensor], movable(tensor), opts.rootRank, limit)

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        opts = options(AllgatherOptions, opts, timeout)
        tensor = only(input_tensors, "input_tensors")
        outputs = _list_of(output_tensors, "output_tensors")
        if not tensor.is_cpu:
            return self._others.call("allgather", tensor, [outputs], [tensor], opts)
        limit = timeout_of(opts, self._timeout)
        return self._run(
            _ALL_GATHER, opts, outputs, all_movable(outputs), movable(tensor), limit
        )

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], input_list: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """output_lists[r] receives the tensors of rank r."""
        opts = options(AllgatherOptions, opts)
        limit = timeout_of(opts, self._timeout)
        inputs = all_movable(input_list)
        written = [tensor for tensors in output_lists for tensor in tensors]
        outputs = [movable(tensors[i]) for i in range(len(inputs)) for tensors in output_lists]
        return self._run(_ALL_GATHER_COALESCED, opts, written, outputs, inputs, limit)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        opts = options(AllgatherOptions, opts)
        if not input.is_cpu:
            return self._others.call("_allgather_base", input, output, input, opts)
        limit = timeout_of(opts, self._timeout)
        return self._run(
            _ALL_GATHER_SINGLE, opts, [output], movable(output), movable(input), limit
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """As all_gather_single of each, in one transfer."""
        opts = options(AllgatherOptions, opts)
        outputs, inputs = list(outputs), list(inputs)
        if not inputs:
            return FinishedWork([])
        if not inputs[0].is_cpu:
            name = "allgather_into_tensor_coalesced"
            return self._others.call(name, inputs[0], outputs, inputs, opts)
        size = self._group.size
        parts = [part for output in outputs for part in chunks(movable(output), size)]
        limit = timeout_of(opts, self._timeout)
        flat_inputs = [flat(movable(tensor)) for tensor in inputs]
        return self._run(_ALL_GATHER_COALESCED, opts, outputs, parts, flat_inputs, limit)

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
        if not tensor.is_cpu:
            lists = [outputs] if outputs else []
            return self._others.call("gather", tensor, lists, [tensor], opts)
        limit = timeout_of(opts, self._timeout)
        moved = all_movable(outputs)
        return self._run(_GATHER, opts, outputs, moved, movable(tensor), opts.rootRank, limit)

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
        if not tensor.is_cpu:
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
        if not output.is_cpu:
            return self._others.call("reduce_scatter", output, [output], [inputs], opts)
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        return self._run(_REDUCE_SCATTER, opts, [output], output, inputs, kind, limit, factor)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        opts = options(ReduceScatterOptions, opts)
        if not input.is_cpu:
            return self._others.call("_reduce_scatter_base", input, output, input, opts)
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        return self._run(
            _REDUCE_SCATTER_SINGLE, opts, [output], output, input, kind, limit, factor
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """As reduce_scatter_single of each; in one transfer if they are of one type."""
        opts = options(ReduceScatterOptions, opts)
        outputs, inputs = list(outputs), list(inputs)
        if not outputs:
            return FinishedWork([])
        if not inputs[0].is_cpu:
            name = "reduce_scatter_tensor_coalesced"
            return self._others.call(name, inputs[0], outputs, inputs, opts)
        if any(tensor.dtype != inputs[0].dtype for tensor in inputs):
            pairs = zip(outputs, inputs, strict=True)
            return AllWork([self.reduce_scatter_single(*pair, opts) for pair in pairs])
        kind, factor = reduction(opts.reduceOp)
        limit = timeout_of(opts, self._timeout)
        parts = [part for tensor in inputs for part in chunks(tensor, self._group.size)]
        flat_outputs = [flat(tensor) for tensor in outputs]
        return self._run(
            _REDUCE_SCATTER_COALESCED, opts, outputs, flat_outputs, parts, kind, limit, factor
        )

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
        if inputs and not inputs[0].is_cpu:
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
        if not input.is_cpu:
            return self._others.call("alltoall_base", input, output, input, *splits, opts)
        limit = timeout_of(opts, self._timeout)
        return self._run(
            _ALL_TO_ALL_SINGLE, opts, [output], movable(output), movable(input), *splits, limit
        )

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        opts = options(BarrierOptions, opts, timeout)
        return self._run(_BARRIER, opts, [], timeout_of(opts, self._timeout))

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """As barrier, through the store; a DistTimeoutError names every rank that is missing."""
        try:
            self._group.monitored_barrier(timeout or self._timeout)
        except DistError as error:
            raise translated(error) from None

    # --- Between two ranks: always in the background.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        tensor = only(tensors)
        if not tensor.is_cpu:
            return self._others.call("send", tensor, [tensor], dst, tag)
        return self._start(_SEND, True, [tensor], movable(tensor), dst, tag, self._timeout)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        tensor = only(tensors)
        if not tensor.is_cpu:
            return self._others.call("recv", tensor, [tensor], src, tag)
        return self._start(_RECV, True, [tensor], movable(tensor), src, tag, self._timeout)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """As recv, from whichever rank sends first; the Work's source_rank says which."""
        return self.recv(tensors, -1, tag)


def _is_called_by_hook() -> bool:
    """Whether Python code calls an operation during a backward pass: a communication hook.

    What hooks chain to futures may call operations, too (torch's PowerSGD does). Their order would
    depend on timing, and differ between ranks, if the first were not over when its call returns.
    torch's C++ code chains nothing of the kind. To be called by a method that calls `_run`.
    """
    if torch._C._current_graph_task_id() < 0:
        return False
    depth = 3  # Of the method's caller.
    caller = sys._getframe(depth)
    return not str(caller.f_globals.get("__name__", "")).startswith("torch.autograd")


def _list_of(lists: Any, argument: str) -> list[Tensor]:
    """The one list of tensors in torch's list of lists, which may be empty or left away."""
    if not lists or isinstance(lists[0], Tensor):
        return list(lists)
    return list(only(lists, argument))
