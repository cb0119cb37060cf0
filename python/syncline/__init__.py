"""Syncline: tensors between processes.

    import numpy
    import syncline as dist

    dist.init_process_group()  # Under a launcher, which sets the environment.
    x = numpy.full(4, dist.get_rank(), numpy.float32)
    dist.all_reduce(x)
    dist.destroy_process_group()

The names and parameters are those of torch.distributed, for arrays of any library. Errors are
in syncline.errors.
"""

from syncline._syncline import ProcessGroup, ReduceOp, Reducer, Store, Work, World
from syncline.collectives import (
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    irecv,
    isend,
    recv,
    send,
)
from syncline.errors import (
    DistBackendError,
    DistError,
    DistMismatchError,
    DistNetworkError,
    DistStoreError,
    DistTimeoutError,
)
from syncline.gradient_reducer import GradientReducer
from syncline.process_groups import (
    GroupMember,
    destroy_process_group,
    get_backend,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_initialized,
    new_group,
)
from syncline.stores import FileStore, HashStore, PrefixStore, TCPStore

__all__ = [
    "DistBackendError",
    "DistError",
    "DistMismatchError",
    "DistNetworkError",
    "DistStoreError",
    "DistTimeoutError",
    "FileStore",
    "GradientReducer",
    "GroupMember",
    "HashStore",
    "PrefixStore",
    "ProcessGroup",
    "ReduceOp",
    "Reducer",
    "Store",
    "TCPStore",
    "Work",
    "World",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "get_backend",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_initialized",
    "isend",
    "new_group",
    "recv",
    "send",
]
