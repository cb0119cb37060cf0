"""Syncline: tensors between processes.

    import numpy
    import syncline as dist

    dist.init_process_group()  # Under a launcher, which sets the environment; or alone.
    x = numpy.full(4, dist.get_rank(), numpy.float32)
    dist.all_reduce(x)
    dist.destroy_process_group()

The names and parameters are those of torch.distributed, for arrays of any library that share their
memory. What is here, by the module that says more:

    process_groups  joining, groups, leaving      subgroups   groups made from groups
    collectives     operations of all ranks       coalesced   several tensors at once
    p2p             from one rank to another      objects     Python objects
    functional      from array to array (JAX)     futures     results to come; Work can be awaited
    backends        names, and one's own          stores      how processes find each other
    reduce_ops      ReduceOp.PREMUL_SUM(factor)   errors      what is raised
    shared_memory   arrays that peers can map     elastic     the job, to and from its launcher
    preemption      stopping all ranks together   comm_hooks  how a reducer averages
    gradient_reducer  training in NumPy           jax         trees of arrays: import syncline.jax
    tensor_queue    arrays between processes, as those of a data loader
    debugging       breakpoint(rank)
    group_methods   torch's methods of groups     call_options    and the options that they take
    rendezvous      init methods of one's own     torch_names     names that scripts import
    streams         behind which stream of a CUDA device calls are enqueued

Ranks that are threads use World objects, and pass their groups to functions.
"""

from syncline import comm_hooks, elastic, functional, preemption
from syncline._syncline import (
    CommHook,
    GradBucket,
    Info,
    Message,
    ParameterAverager,
    ProcessGroup,
    ReduceOp,
    Reducer,
    Store,
    Work,
    World,
)
from syncline._syncline import Work as _Work  # noqa: F401 - torch has it by this name.
from syncline.backends import (
    Backend,
    BackendConfig,
    DistributedBackendOptions,
    get_backend_config,
    get_default_backend_for_device,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_ucc_available,
    is_xccl_available,
)
from syncline.call_options import (
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
from syncline.coalesced import (
    _coalescing_manager as _coalescing_manager,
)
from syncline.coalesced import (
    all_gather_coalesced,
    all_gather_multigpu,
    all_reduce_coalesced,
    all_reduce_multigpu,
    broadcast_coalesced,
    broadcast_multigpu,
    coalescing,
    reduce_multigpu,
    reduce_scatter_coalesced,
    reduce_scatter_multigpu,
)
from syncline.codec import get_object_codec, set_object_codec
from syncline.collectives import (
    _all_gather_base as _all_gather_base,
)
from syncline.collectives import (
    _reduce_scatter_base as _reduce_scatter_base,
)
from syncline.collectives import (
    all_gather,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    exscan,
    gather,
    gather_into_tensor,
    gather_single,
    monitored_barrier,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scan,
    scatter,
)
from syncline.debugging import breakpoint
from syncline.device_memory import empty
from syncline.errors import (
    DistBackendError,
    DistError,
    DistMismatchError,
    DistNetworkError,
    DistStoreError,
    DistStoreTimeoutError,
    DistTimeoutError,
    DistTypeError,
    DistUsageError,
    DistValueError,
    ObjectRefusedError,
    QueueEmptyError,
)
from syncline.futures import Future
from syncline.gradient_reducer import GradientReducer
from syncline.group_methods import add_to_process_group as _add_to_process_group
from syncline.job import GroupMember, group
from syncline.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from syncline.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from syncline.process_groups import (
    default_pg_timeout,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_pg_count,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    is_torchelastic_launched,
    new_group,
)
from syncline.reduce_ops import PremulSum, reduce_op, supports_complex
from syncline.reduce_ops import _make_nccl_premul_sum as _make_nccl_premul_sum
from syncline.reducer_stats import add_to_reducer_stats as _add_to_reducer_stats
from syncline.rendezvous import register_rendezvous_handler, rendezvous
from syncline.shared_memory import empty_shared, open_shared, shared_handle
from syncline.stores import FileStore, HashStore, PrefixStore, TCPStore
from syncline.stores import add_to_stores as _add_to_stores
from syncline.streams import stream
from syncline.subgroups import (
    SHRINK_ABORT,
    SHRINK_DEFAULT,
    new_subgroups,
    new_subgroups_by_enumeration,
    shrink_group,
    split_group,
)
from syncline.tensor_queue import EndOfQueue, TensorMessage, TensorQueue
from syncline.torch_names import _DEFAULT_FIRST_BUCKET_BYTES as _DEFAULT_FIRST_BUCKET_BYTES
from syncline.torch_names import (
    BuiltinCommHookType,
    DebugLevel,
    GroupName,
    ProcessGroupGloo,
    ProcessGroupMPI,
    ProcessGroupNCCL,
    default_pg_nccl_timeout,
    get_debug_level,
    get_default_group,
    record_comm,
    set_debug_level,
    set_debug_level_from_env,
)
from syncline.torch_names import _broadcast_coalesced as _broadcast_coalesced
from syncline.torch_names import (
    _compute_bucket_assignment_by_size as _compute_bucket_assignment_by_size,
)
from syncline.torch_names import _get_default_group as _get_default_group
from syncline.torch_names import _get_default_store as _get_default_store
from syncline.torch_names import _get_global_rank as _get_global_rank
from syncline.torch_names import _get_group_rank as _get_group_rank
from syncline.torch_names import _get_process_group_name as _get_process_group_name
from syncline.torch_names import _rank_not_in_group as _rank_not_in_group
from syncline.torch_names import _verify_params_across_processes as _verify_params_across_processes
from syncline.torch_names import dist_backend as dist_backend
from syncline.work import add_to_work as _add_to_work

__version__ = Info.version()

_add_to_reducer_stats()
_add_to_stores()
_add_to_work()
_add_to_process_group()

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "Backend",
    "BackendConfig",
    "BarrierOptions",
    "BroadcastOptions",
    "BuiltinCommHookType",
    "CommHook",
    "DebugLevel",
    "DistBackendError",
    "DistError",
    "DistMismatchError",
    "DistNetworkError",
    "DistStoreError",
    "DistStoreTimeoutError",
    "DistTimeoutError",
    "DistTypeError",
    "DistUsageError",
    "DistValueError",
    "DistributedBackendOptions",
    "EndOfQueue",
    "FileStore",
    "Future",
    "GatherOptions",
    "GradBucket",
    "GradientReducer",
    "GroupMember",
    "GroupName",
    "HashStore",
    "Info",
    "Message",
    "ObjectRefusedError",
    "P2POp",
    "ParameterAverager",
    "PrefixStore",
    "PremulSum",
    "ProcessGroup",
    "ProcessGroupGloo",
    "ProcessGroupMPI",
    "ProcessGroupNCCL",
    "QueueEmptyError",
    "ReduceOp",
    "ReduceOptions",
    "ReduceScatterOptions",
    "Reducer",
    "SHRINK_ABORT",
    "SHRINK_DEFAULT",
    "ScatterOptions",
    "Store",
    "TCPStore",
    "TensorMessage",
    "TensorQueue",
    "Work",
    "World",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_multigpu",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_reduce_multigpu",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "breakpoint",
    "broadcast",
    "broadcast_coalesced",
    "broadcast_multigpu",
    "broadcast_object_list",
    "coalescing",
    "comm_hooks",
    "default_pg_nccl_timeout",
    "default_pg_timeout",
    "destroy_process_group",
    "elastic",
    "empty",
    "empty_shared",
    "exscan",
    "functional",
    "gather",
    "gather_into_tensor",
    "gather_object",
    "gather_single",
    "get_backend",
    "get_backend_config",
    "get_debug_level",
    "get_default_backend_for_device",
    "get_default_group",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_object_codec",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "open_shared",
    "preemption",
    "record_comm",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_multigpu",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_coalesced",
    "reduce_scatter_multigpu",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "register_rendezvous_handler",
    "rendezvous",
    "scan",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_debug_level",
    "set_debug_level_from_env",
    "set_object_codec",
    "shared_handle",
    "shrink_group",
    "split_group",
    "stream",
    "supports_complex",
]

from syncline import distributed_c10d as distributed_c10d  # noqa: E402 - it has all of the above.
