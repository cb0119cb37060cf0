"""What torch's profiler sees of an operation: "syncline:all_reduce", as "gloo:all_reduce"."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_NAMES = {
    "all_gather_coalesced": "all_gather",
    "all_gather_multi": "all_gather",
    "all_gather_single": "_all_gather_base",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_multi": "all_reduce",
    "all_to_all_single": "all_to_all",
    "broadcast_multi": "broadcast",
    "reduce_multi": "reduce",
    "reduce_scatter_coalesced": "reduce_scatter",
    "reduce_scatter_single": "_reduce_scatter_base",
}
"""Those of gloo and NCCL, where they differ from that of Syncline's function."""

is_on = torch.autograd._profiler_enabled
"""Whether a profiler runs."""


class Record:
    """One operation, from its construction to `end`, which any thread may call."""

    def __init__(self, function: str, tensors: list[Tensor]):
        name = f"syncline:{_NAMES.get(function, function)}"
        self._record: Any = torch._C._profiler._RecordFunctionFast(name, tensors)
        self._record.__enter__()

    def end(self) -> None:
        """The operation is over, or has failed. Idempotent."""
        record, self._record = self._record, None
        if record is not None:
            record.__exit__(None, None, None)
