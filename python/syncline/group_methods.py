"""The methods that torch's process groups have, and the extension's class has not.

Torch's methods start an operation and return a Work. They take lists with one tensor and options,
or a tensor, a reduction or a root, and a timeout: `group.allreduce([tensor], options)`,
`group.allreduce(tensor, ReduceOp.MAX)`. Where the extension has a method of the same name, as
broadcast, that one waits; torch's form of it is known by its lists or options. Both return a Work,
on which `wait()` may be called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from syncline import job
from syncline._syncline import ProcessGroup, ReduceOp, Store, Work
from syncline.call_options import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    CallOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from syncline.errors import DistTypeError, DistValueError
from syncline.reduce_ops import PremulSum, split_op
from syncline.stores import PrefixStore
from syncline.work import FinishedWork

# ---- Operations that the extension has by other names ----


def allreduce(
    self: ProcessGroup, tensors: Any, op: Any = None, timeout: Any = None, *, opts: Any = None
) -> Work:
    """Starts all_reduce of a tensor, or of a list of one; of several, all_reduce_multi."""
    call = _Call(AllreduceOptions, opts, op, timeout)
    several = _listed(tensors)
    if len(several) != 1:
        return call.start(self.all_reduce_multi_async, several, *call.reduction())
    return call.start(self.all_reduce_async, several[0], *call.reduction())


def allreduce_coalesced(self: ProcessGroup, tensors: Sequence[Any], opts: Any = None) -> Work:
    """Starts all_reduce_coalesced."""
    call = _Call(AllreduceOptions, opts)
    return call.start(self.all_reduce_coalesced_async, list(tensors), *call.reduction())


def allgather(
    self: ProcessGroup,
    output_tensors: Sequence[Any],
    input_tensors: Any,
    timeout: Any = None,
    *,
    opts: Any = None,
) -> Work:
    """Starts all_gather of a tensor to a list, or of lists of one; of several, all_gather_multi."""
    call = _Call(AllgatherOptions, opts, None, timeout)
    if not isinstance(input_tensors, (list, tuple)):
        return call.start(self.all_gather_async, list(output_tensors), input_tensors, call.timeout)
    outputs = [output for outputs in output_tensors for output in outputs]
    if len(input_tensors) != 1:
        return call.start(self.all_gather_multi_async, outputs, list(input_tensors), call.timeout)
    return call.start(self.all_gather_async, outputs, input_tensors[0], call.timeout)


def _allgather_base(self: ProcessGroup, output: Any, input: Any, opts: Any = None) -> Work:
    """Starts all_gather_single."""
    call = _Call(AllgatherOptions, opts)
    return call.start(self.all_gather_single_async, output, input, call.timeout)


def allgather_coalesced(
    self: ProcessGroup,
    output_lists: Sequence[Sequence[Any]],
    input_list: Sequence[Any],
    opts: Any = None,
) -> Work:
    """Starts all_gather_coalesced: output_lists[r][i] receives input_list[i] of rank r."""
    call = _Call(AllgatherOptions, opts)
    outputs = [output_lists[r][i] for i in range(len(input_list)) for r in range(self.size())]
    return call.start(self.all_gather_coalesced_async, outputs, list(input_list), call.timeout)


def allgather_into_tensor_coalesced(
    self: ProcessGroup, output_lists: Sequence[Any], input_list: Sequence[Any], opts: Any = None
) -> Work:
    """Starts all_gather_coalesced: each output has all ranks' inputs one after another."""
    call = _Call(AllgatherOptions, opts)
    outputs = _parts(output_lists, self.size())
    return call.start(self.all_gather_coalesced_async, outputs, list(input_list), call.timeout)


def _reduce_scatter_base(
    self: ProcessGroup, outputTensor: Any, inputTensor: Any, opts: Any = None
) -> Work:
    """Starts reduce_scatter_single."""
    call = _Call(ReduceScatterOptions, opts)
    return call.start(
        self.reduce_scatter_single_async, outputTensor, inputTensor, *call.reduction()
    )


def reduce_scatter_tensor_coalesced(
    self: ProcessGroup, outputTensors: Sequence[Any], inputTensors: Sequence[Any], opts: Any = None
) -> Work:
    """Starts reduce_scatter_coalesced: each input has the ranks' parts one after another."""
    call = _Call(ReduceScatterOptions, opts)
    return call.start(
        self.reduce_scatter_coalesced_async,
        list(outputTensors),
        _parts(inputTensors, self.size()),
        *call.reduction(),
    )


def alltoall(
    self: ProcessGroup, output: Sequence[Any], input: Sequence[Any], opts: Any = None
) -> Work:
    """Starts all_to_all; `opts` may be a timeout."""
    call = _Call(AllToAllOptions, opts)
    return call.start(self.all_to_all_async, list(output), list(input), call.timeout)


def alltoall_base(
    self: ProcessGroup,
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] = (),
    input_split_sizes: Sequence[int] = (),
    opts: Any = None,
) -> Work:
    """Starts all_to_all_single; `opts` may be a timeout."""
    call = _Call(AllToAllOptions, opts)
    splits = list(output_split_sizes), list(input_split_sizes)
    return call.start(self.all_to_all_single_async, output, input, *splits, call.timeout)


def recv_anysource(self: ProcessGroup, tensors: Any, tag: int = 0) -> Work:
    """Starts a receive from whichever rank sends first; the Work's source_rank says which."""
    return self.recv_async(_only(tensors), -1, tag)


# ---- Operations that it has by the same name: torch's forms of them ----


def _broadcast(self: ProcessGroup, tensors: Any, opts: Any = None) -> Work:
    call = _Call(BroadcastOptions, opts)
    several = _listed(tensors)
    if len(several) != 1:
        places = call.get("rootRank", 0), call.get("rootTensor", 0)
        return call.start(self.broadcast_multi_async, several, *places, call.timeout)
    return call.start(self.broadcast_async, several[0], call.get("rootRank", 0), call.timeout)


def _reduce(self: ProcessGroup, tensors: Any, opts: Any = None) -> Work:
    call = _Call(ReduceOptions, opts)
    several = _listed(tensors)
    op, timeout, factor = call.reduction()
    root = call.get("rootRank", 0)
    if len(several) != 1:
        place = call.get("rootTensor", 0)
        return call.start(self.reduce_multi_async, several, root, op, place, timeout, factor)
    return call.start(self.reduce_async, several[0], root, op, timeout, factor)


def _gather(
    self: ProcessGroup, output_tensors: Sequence[Any], input_tensors: Any, opts: Any = None
) -> Work:
    call = _Call(GatherOptions, opts)
    outputs = [output for outputs in output_tensors for output in outputs]
    root = call.get("rootRank", 0)
    return call.start(self.gather_async, outputs, _only(input_tensors), root, call.timeout)


def _scatter(
    self: ProcessGroup, output_tensors: Any, input_tensors: Sequence[Any], opts: Any = None
) -> Work:
    call = _Call(ScatterOptions, opts)
    inputs = [input for inputs in input_tensors for input in inputs]
    root = call.get("rootRank", 0)
    return call.start(self.scatter_async, _only(output_tensors), inputs, root, call.timeout)


def _reduce_scatter(
    self: ProcessGroup, output_tensors: Any, input_tensors: Sequence[Any], opts: Any = None
) -> Work:
    call = _Call(ReduceScatterOptions, opts)
    inputs = [input for inputs in input_tensors for input in inputs]
    return call.start(self.reduce_scatter_async, _only(output_tensors), inputs, *call.reduction())


def _barrier(self: ProcessGroup, opts: Any = None) -> Work:
    call = _Call(BarrierOptions, opts)
    return call.start(self.barrier_async, call.timeout)


def _send(self: ProcessGroup, tensors: Any, dstRank: int, tag: int = 0) -> Work:
    return self.send_async(_only(tensors), dstRank, tag)


def _recv(self: ProcessGroup, tensors: Any, srcRank: int, tag: int = 0) -> Work:
    return self.recv_async(_only(tensors), srcRank, tag)


# Of each: torch's form, and the place of the argument that is a list in that alone.
_FORMS: dict[str, tuple[Callable[..., Work], int | None]] = {
    "broadcast": (_broadcast, 0),
    "reduce": (_reduce, 0),
    "gather": (_gather, 1),
    "scatter": (_scatter, 0),
    "reduce_scatter": (_reduce_scatter, 0),
    "all_gather_single": (_allgather_base, None),
    "reduce_scatter_single": (_reduce_scatter_base, None),
    "all_to_all_single": (alltoall_base, None),
    "barrier": (_barrier, None),
    "send": (_send, 0),
    "recv": (_recv, 0),
}
_TORCHS = frozenset(
    "tensors opts output_tensors input_tensors input_tensor output_tensor dstRank srcRank "
    "outputTensor inputTensor".split()
)


def _with_both_forms(name: str) -> Callable[..., Any]:
    waits: Callable[..., Any] = getattr(ProcessGroup, name)
    starts, place = _FORMS[name]

    def is_torchs(arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
        return (
            place is not None
            and len(arguments) > place + 1  # The first one is the group.
            and isinstance(arguments[place + 1], (list, tuple))
            or any(isinstance(argument, CallOptions) for argument in arguments)
            or not _TORCHS.isdisjoint(named)
        )

    # The extension's form is tried first, as a call takes few microseconds: it checks its arguments
    # before it begins, and takes none of those by which torch's form is known.
    @functools.wraps(waits)
    def method(*arguments: Any, **named: Any) -> Any:
        try:
            result = waits(*arguments, **named)
        except TypeError:
            if not is_torchs(arguments, named):
                raise
        else:
            return _FINISHED if result is None else result
        return starts(*arguments, **named)

    return method


_FINISHED = FinishedWork()


class _Call:
    """What options, or the arguments in their place, say."""

    def __init__(
        self, kind: type[CallOptions], opts: Any = None, op: Any = None, timeout: Any = None
    ):
        if isinstance(op, CallOptions):
            opts, op = op, None
        if isinstance(timeout, CallOptions):
            opts, timeout = timeout, None
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        elif isinstance(opts, (ReduceOp, PremulSum)):
            opts, op = None, opts
        if isinstance(opts, CallOptions) and not isinstance(opts, kind):
            raise DistTypeError(f"options must be {kind.__name__}, not {type(opts).__name__}")
        self._options = opts
        self._op = op
        given = self.get("timeout", None) if timeout is None else timeout
        unset = isinstance(given, timedelta) and given <= timedelta()
        self.timeout: timedelta | None = None if unset else given

    def get(self, name: str, default: Any) -> Any:
        return getattr(self._options, name, default)

    def reduction(self) -> tuple[ReduceOp, timedelta | None, float]:
        """As the last three arguments of operations that reduce."""
        op = self.get("reduceOp", ReduceOp.SUM) if self._op is None else self._op
        reduce_op, factor = split_op(op)
        return reduce_op, self.timeout, factor

    def start(self, method: Callable[..., Work], *arguments: Any) -> Work:
        work = method(*arguments)
        if not self.get("asyncOp", True):
            work.wait()
        return work


def _listed(tensors: Any) -> list[Any]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def _only(tensors: Any) -> Any:
    several = _listed(tensors)
    if len(several) != 1:
        raise DistValueError(f"a list with one tensor is needed, not with {len(several)}")
    return several[0]


def _parts(arrays: Sequence[Any], size: int) -> list[Any]:
    from syncline.coalesced_calls import parts

    return [part for array in arrays for part in parts(array, size)]


# ---- The group itself ----


def shutdown(self: ProcessGroup) -> None:
    """Waits up to 10 seconds for operations in flight, then aborts them. Idempotent."""
    self.close()


def get_group_store(self: ProcessGroup) -> Store:
    """The group's part of the store through which the ranks of the job met."""
    return PrefixStore(f"group_store/{self.name()}", job.joined().store)


def _get_backend(self: ProcessGroup, device: Any) -> ProcessGroup:
    """The group itself, which serves all devices that its backends do."""
    return self


def _get_backend_name(self: ProcessGroup) -> str:
    return self.backend


def _group_name(self: ProcessGroup) -> str:
    """As name()."""
    return self.name()


def _group_desc(self: ProcessGroup) -> str:
    """What new_group was given as `group_desc`; "default_pg" for the group of all ranks."""
    return job.description_of(self)


def _bound_device_id(self: ProcessGroup) -> str | None:
    """The `device_id` that the group was made with."""
    return job.device_of(self)


def _has_hooks(self: ProcessGroup) -> bool:
    return False


def _nothing(self: ProcessGroup) -> None:
    """Torch's groups are told to do what these do by themselves."""


def add_to_process_group() -> None:
    """Adds them to the class. To be called once."""
    additions: dict[str, Any] = {
        "allreduce": allreduce,
        "allreduce_coalesced": allreduce_coalesced,
        "allgather": allgather,
        "_allgather_base": _allgather_base,
        "allgather_coalesced": allgather_coalesced,
        "allgather_into_tensor_coalesced": allgather_into_tensor_coalesced,
        "all_gather_single_coalesced": allgather_into_tensor_coalesced,
        "_reduce_scatter_base": _reduce_scatter_base,
        "reduce_scatter_tensor_coalesced": reduce_scatter_tensor_coalesced,
        "reduce_scatter_single_coalesced": reduce_scatter_tensor_coalesced,
        "alltoall": alltoall,
        "alltoall_base": alltoall_base,
        "recv_anysource": recv_anysource,
        "shutdown": shutdown,
        "get_group_store": get_group_store,
        "_get_backend": _get_backend,
        "_get_backend_name": _get_backend_name,
        "group_name": property(_group_name),
        "group_desc": property(_group_desc),
        "bound_device_id": property(_bound_device_id),
        "_set_default_timeout": ProcessGroup.set_timeout,
        "_has_hooks": _has_hooks,
        "_wait_for_pending_works": _nothing,
        "_set_sequence_number_for_group": _nothing,
    }
    for name, addition in additions.items():
        setattr(ProcessGroup, name, addition)
    for name in _FORMS:
        setattr(ProcessGroup, name, _with_both_forms(name))
