"""The options of torch's process groups: what their methods take in place of arguments.

    options = syncline.AllreduceOptions()
    options.reduceOp = syncline.ReduceOp.MAX
    group.allreduce([tensor], options).wait()

A timeout that is not positive stands for the group's own. Without `asyncOp` a method returns once
the operation has ended. A method takes the options of its operation alone, and options have no
other attributes than these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from syncline._syncline import ReduceOp
from syncline.reduce_ops import Op

_UNSET = timedelta(milliseconds=-1)


@dataclass(slots=True)
class CallOptions:
    """What all of them have."""

    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass(slots=True)
class AllgatherOptions(CallOptions):
    """Of allgather."""


@dataclass(slots=True)
class AllToAllOptions(CallOptions):
    """Of alltoall and alltoall_base."""


@dataclass(slots=True)
class BarrierOptions(CallOptions):
    """Of barrier, which needs no device."""

    device_ids: list[int] = field(default_factory=list)
    device: Any = None


@dataclass(slots=True)
class AllreduceOptions(CallOptions):
    """Of allreduce."""

    reduceOp: Op = ReduceOp.SUM
    sparseIndices: Any = None


@dataclass(slots=True)
class AllreduceCoalescedOptions(AllreduceOptions):
    """Of allreduce_coalesced."""


@dataclass(slots=True)
class ReduceScatterOptions(CallOptions):
    """Of reduce_scatter."""

    reduceOp: Op = ReduceOp.SUM


@dataclass(slots=True)
class GatherOptions(CallOptions):
    """Of gather."""

    rootRank: int = 0


@dataclass(slots=True)
class ScatterOptions(CallOptions):
    """Of scatter."""

    rootRank: int = 0


@dataclass(slots=True)
class BroadcastOptions(CallOptions):
    """Of broadcast; `rootTensor` is the place of the root's tensor among those of its process."""

    rootRank: int = 0
    rootTensor: int = 0


@dataclass(slots=True)
class ReduceOptions(CallOptions):
    """Of reduce; `rootTensor` is the place of the root's tensor among those of its process."""

    reduceOp: Op = ReduceOp.SUM
    rootRank: int = 0
    rootTensor: int = 0
