"""PyTorch over Syncline.

Importing it makes "syncline" a backend of torch.distributed, which init_process_group does by
itself where the wheel is installed (syncline_torch_autoload): after
`torch.distributed.init_process_group("syncline")`, or "cpu:syncline,cuda:nccl", torch's own
functions and DistributedDataParallel, FSDP2 and DTensor work over it, unchanged.

DistributedDataParallel of this module is like torch's, and needs no torch.distributed: a job of
syncline.init_process_group will do. SyncBatchNorm normalises over all ranks, on CPUs too.
DistributedSampler is torch's, for such a job.
"""

from __future__ import annotations

from syncline.torch.backend.process_group import ProcessGroup
from syncline.torch.backend.registration import Options, register
from syncline.torch.ddp.distributed_data_parallel import DistributedDataParallel
from syncline.torch.ddp.mixed_precision import MixedPrecision
from syncline.torch.ddp.sync_batch_norm import SyncBatchNorm
from syncline.torch.sampler import DistributedSampler
from syncline.torch.stores import TorchStore, to_torch_store

register()

__all__ = [
    "DistributedDataParallel",
    "DistributedSampler",
    "MixedPrecision",
    "Options",
    "ProcessGroup",
    "SyncBatchNorm",
    "TorchStore",
    "to_torch_store",
]
