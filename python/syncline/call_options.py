"""The options of torch's process groups: what their methods take in place of arguments.

    options = syncline.AllreduceOptions()
    options.reduceOp = syncline.ReduceOp.MAX
    group.allreduce([tensor], options).wait()

A timeout that is not positive stands for the group's own. Without `asyncOp` a method returns once
the operation has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from syncline._syncline import ReduceOp
from syncline.reduce_ops import Op

_UNSET = timedelta(milliseconds=-1)


@dataclass
class CallOptions:
    """What all of them have."""

    timeout: timedelta = _UNSET
    asyncOp: bool = True


@dataclass
class AllgatherOptions(CallOptions):
    """Of allgather."""


@dataclass
class AllToAllOptions(CallOptions):
    """Of alltoall and alltoall_base."""


@dataclass
class BarrierOptions(CallOptions):
    """Of barrier, which needs no device."""

    device_ids: list[int] = field(default_factory=list)
    device: Any = None


@dataclass
class AllreduceOptions(CallOptions):
    """Of allreduce."""

    reduceOp: Op = ReduceOp.SUM
    sparseIndices: Any = None


@dataclass
class AllreduceCoalescedOptions(AllreduceOptions):
    """Of allreduce_coalesced."""


@dataclass
class ReduceScatterOptions(CallOptions):
    """Of reduce_scatter."""

    reduceOp: Op = ReduceOp.SUM


@dataclass
class GatherOptions(CallOptions):
    """Of gather."""

    rootRank: int = 0


@dataclass
class ScatterOptions(CallOptions):
    """Of scatter."""

    rootRank: int = 0


@dataclass
class BroadcastOptions(CallOptions):
    """Of broadcast; `rootTensor` is the place of the root's tensor among those of its process."""

    rootRank: int = 0
    rootTensor: int = 0


@dataclass
class ReduceOptions(CallOptions):
    """Of reduce; `rootTensor` is the place of the root's tensor among those of its process."""

    reduceOp: Op = ReduceOp.SUM
    rootRank: int = 0
    rootTensor: int = 0
