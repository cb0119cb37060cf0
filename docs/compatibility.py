"""Where Syncline differs from torch.distributed, as tables.

    python3 docs/compatibility.py > docs/compatibility.md

What is not in the table is the same: docs/compatibility_test.py walks over torch's public names,
and fails for one that Syncline lacks, or has with other parameters, unless the table says why.
"""

from __future__ import annotations

TORCH = "2.13"

# ---- torch.distributed itself: what is missing, or differs ----

DIFFERENCES = {
    "init_process_group": "`backend` None is `auto`, on any device. Without a rank, a size and a "
    "launcher's variables it is a world of one. `store` beside `init_method` is a ValueError, not "
    "an AssertionError. `group_name` separates jobs that share a store, and may be used again. "
    "`_ranks` has no effect; `comm` takes a communicator of mpi4py. "
    "`pg_options` are for backends that are registered. `timeout` holds for joining, too. env:// "
    "needs MASTER_ADDR on rank 0 too, as torch 2, in 0.4 not",
    "new_group": "returns once all members have joined. A `timeout` of None is that of the world; "
    "`device_id` is a text in `bound_device_id`",
    "new_subgroups": "without `group_size` the ranks of this host, as LOCAL_WORLD_SIZE says, on "
    "any device",
    "split_group": "works on the CPU too, and keeps the parent's backend; `pg_options` has no "
    "effect",
    "shrink_group": "works with every backend, and takes a `timeout`; operations in flight are "
    "aborted whatever `shrink_flags` says, and the group's name changes",
    "destroy_process_group": "waits up to 10 seconds for operations in flight, then aborts them",
    "get_backend": "of a group for several devices the whole text, `cpu:gloo,cuda:nccl`",
    "get_backend_config": "names all devices that the backends serve",
    "get_default_backend_for_device": "`auto` for the CPU",
    "get_node_local_rank": "needs no LOCAL_RANK under srun or mpirun, or once the job was joined",
    "is_available": "always True",
    "is_mpi_available": "loads the MPI library of the machine, if there is one",
    "is_nccl_available": "loads CUDA's driver and NCCL, if they are there",
    "is_torchelastic_launched": "also of workers of Syncline's launcher",
    "monitored_barrier": "with every backend, and on all ranks an error that names all that are "
    "missing; torch's words name the first, or all with `wait_all_ranks`",
    "barrier": "needs no device: `device_ids` has no effect on tensors of the host",
    "reduce": "leaves the tensors of the other ranks as they were",
    "all_gather": "sizes may differ between ranks. An array with one more dimension serves as the "
    "list",
    "all_gather_object": "takes a `codec`. Objects travel by the safe codec unless it, "
    "`set_object_codec` or SYNCLINE_OBJECT_CODEC says pickle. Where one rank cannot carry an "
    "object, the others get an ObjectRefusedError at once. So it is with the other five",
    "broadcast_object_list": "takes a `codec`; `device` has no effect",
    "gather_object": "takes a `codec`",
    "scatter_object_list": "takes a `codec`; item 0 of the output is replaced, as in torch",
    "send_object_list": "takes a `codec`; `device` and `use_batch` have no effect",
    "recv_object_list": "takes a `codec`; `device` and `use_batch` have no effect",
    "breakpoint": "the others wait for a day where no `timeout_s` is given, in torch for an hour; "
    "the timeouts of groups stay as they are",
    "record_comm": "no effect: operations have the same names in messages and logs as outside",
    "get_debug_level": "what TORCH_DISTRIBUTED_DEBUG says, without effect: calls are always "
    "compared, see SYNCLINE_DEBUG",
    "set_debug_level": "no effect but on get_debug_level",
    "default_pg_nccl_timeout": "a number alone: `default_pg_timeout` holds for all backends",
    "GroupName": "str",
    "RankType": "missing: an annotation of torch's own",
    "Backend": "a name that is none is a ValueError, as in torch 1; torch 2 takes it",
    "Backend.backend_type_map": "missing: there are no types of backends but their names",
    "Backend.register_backend": "takes `operations` and `dtypes`; without `devices` the CPU alone, "
    "with a warning",
    "BackendConfig.__init__": "takes the text of a backend, not None",
    "GroupMember": "NON_GROUP_MEMBER equals -100, with a type of its own",
    "ReduceOp": "an Enum of Python: `ReduceOp.SUM.name`, `.value`. `ReduceOp.RedOpType` is itself",
    "ReduceOp.factor": "missing: of `ReduceOp.PREMUL_SUM(f)`, a PremulSum, `factor` is",
    "ReduceOp.op": "missing: a member is its own operation",
    "reduce_op": "has all of ReduceOp's members; the warning is a FutureWarning",
    "GradBucket": "what hooks of GradientReducer get has properties; hooks of "
    "`syncline.torch.DistributedDataParallel` get one with torch's methods",
    "Reducer": "made by `Reducer.create(group, parameters, ...)`, for any array library; see "
    "include/syncline/reducer.h",
    "Logger": "missing: `DistributedDataParallel._get_ddp_logging_data()` has what it tells",
    "BuiltinCommHookType": "for `DistributedDataParallel._register_builtin_comm_hook`",
    "DeviceMesh": "torch's own, over backend `syncline`: "
    '`torch.distributed.init_device_mesh("cpu", ...)`',
    "init_device_mesh": "as DeviceMesh",
    "DistError": "of Syncline's own, a RuntimeError. Over backend `syncline` errors are of torch's "
    "classes too",
    "ProcessGroup": "what `new_group` returns. Its operations take arrays of any library; those "
    "that wait have torch's names too, and which form is meant is seen from the arguments",
    "ProcessGroup.__init__": "not to be called: see init_process_group, new_group, and "
    "`ProcessGroupGloo(store, rank, size, timeout)` for a group without a job",
    "ProcessGroup.get_group_store": "of a group of the job a part of the job's store",
    "ProcessGroup.abort": "takes a reason, which the peers' errors quote",
    "ProcessGroup.split_group": "missing: `syncline.split_group`, and `split(lists)` of the group",
    "ProcessGroup.merge_remote_group": "missing",
    "ProcessGroup.BackendType": "missing: `group.backend` is a name",
    "ProcessGroup.boxed": "missing: for torch's compiler",
    "ProcessGroup.unbox": "missing: for torch's compiler",
    "ProcessGroup.use_pg_for_symm_mem_rendezvous": "missing: there is no symmetric memory",
    "ProcessGroupGloo": "a function in the shape of a class, for isinstance too. No Options, no "
    "devices: see SYNCLINE_SOCKET_IFNAME",
    "_DistributedBackendOptions": "without `process_group` and `split_from`; also "
    "`DistributedBackendOptions`",
    "Work.boxed": "missing: for torch's compiler",
    "Work.unbox": "missing: for torch's compiler",
    "Work.synchronize": "takes a `timeout`, and waits on the host also where the operation is on a "
    "device",
    "Work.result": "the arrays that were written to, for each operation",
    "Work.get_future_result": "missing: `get_future`, whose error is the operation's",
    "Work.get_future": "a concurrent.futures.Future, that asyncio awaits; `then`, `wait`, `value` "
    "as torch's",
}

# Methods that begin with an underscore, of torch's own parts, which are not here.
PRIVATE_METHODS = {
    "ProcessGroup": (
        "_backend_id",
        "_device_types",
        "_enable_collectives_timing",
        "_end_coalescing",
        "_get_sequence_number_for_group",
        "_id",
        "_register_backend",
        "_register_on_completion_hook",
        "_set_default_backend",
        "_set_group_desc",
        "_set_group_name",
        "_start_coalescing",
    ),
    "Work": ("_get_duration", "_get_op_type"),
}

# Names that begin with an underscore, of torch's own parts, which are not here.
_GROUPS = "torch's own account of its groups"
_SHRINKS = "a step of torch's shrink_group"
_URLS = "a step of torch's rendezvous"
_TENSORS = "a check or a conversion of torch's tensors"
_TAGS = "torch's functional collectives"
PRIVATE = {
    "_Backend": "the C++ interface of torch's backends; ours is in include/syncline/backend.h",
    "_ControlCollectives": "collectives over a store: `all_gather_bytes` of a group, and "
    "`store.barrier`",
    "_StoreCollectives": "as _ControlCollectives",
    "_time_estimator": "NCCL's simulation of times",
    "_create_process_group_wrapper": "calls are always compared",
    "_remote_device": "of torch's RPC",
    "_register_comm_hook": "a method of DistributedDataParallel",
    "_register_builtin_comm_hook": "a method of DistributedDataParallel",
    "_test_python_store": "a test of torch's",
    "_create_store_from_options": _URLS,
    "_rendezvous_error": _URLS,
    "_rendezvous_helper": _URLS,
    "_query_to_dict": _URLS,
    "_make_distributed_pdb": "a step of torch's breakpoint",
    "_is_spmd_types_available": "of torch's own",
    "_use_torchcomms_enabled": "of torch's own",
    "_export_c_types": "of torch's own",
    "_parse_backend_string": "BackendConfig",
    "_get_default_timeout": "default_pg_timeout, for all backends",
    "_check_valid_timeout": _TENSORS,
    "_get_object_coll_device": "objects travel by the CPU",
    "_get_pg_default_device": "groups serve all devices of their backends",
    "_device_capability": "BackendConfig",
    "_store_based_barrier": "ranks meet in init_process_group, and the missing ones are named",
    "_is_barrier_after_init": "as _store_based_barrier",
    "_get_group_size_by_name": _TAGS,
    "_resolve_group_name_by_ranks_and_tag": _TAGS,
    "_find_pg_by_ranks_and_tag": _TAGS,
    "_find_or_create_pg_by_ranks_and_tag": _TAGS,
    "_get_group_tag": _TAGS,
    "_new_group_with_tag": _TAGS,
    "_new_group_via_split_group": _GROUPS,
    "_check_single_tensor": _TENSORS,
    "_check_tensor_list": _TENSORS,
    "_check_not_self_rank": _TENSORS,
    "_as_iterable": _TENSORS,
    "_ensure_all_tensors_same_dtype": _TENSORS,
    "_check_op": _TENSORS,
    "_check_p2p_op_list": _TENSORS,
    "_is_fp8": _TENSORS,
    "_object_to_tensor": _TENSORS,
    "_tensor_to_object": _TENSORS,
    "_validate_output_list_for_rank": _TENSORS,
    "_check_single_backend_availability": "is_backend_available",
    "_update_default_pg": _GROUPS,
    "_get_process_group_uid": _GROUPS,
    "_get_split_source": _GROUPS,
    "_new_process_group_helper": _GROUPS,
    "_hash_ranks_to_str": _GROUPS,
    "_process_group_color": _GROUPS,
    "_process_group_name": _GROUPS,
    "_get_backend_from_str": _GROUPS,
    "_is_safe_to_split": _GROUPS,
    "_cleanup_process_group_global_state": _GROUPS,
    "_register_pg_in_world": _GROUPS,
    "_destroy_all_other_groups": _SHRINKS,
    "_validate_shrink_inputs": _SHRINKS,
    "_prepare_shrink_target_group": _SHRINKS,
    "_validate_shrink_backend_requirements": _SHRINKS,
    "_validate_and_process_excluded_ranks": _SHRINKS,
    "_finalize_shrunk_group": _SHRINKS,
    "_extract_group_metadata": _SHRINKS,
    "_cleanup_original_group": _SHRINKS,
    "_create_shrunk_process_group": _SHRINKS,
}

# Calls of early versions, each of which works as it stands.
EARLIER = {
    "0.4": """
init_process_group(backend, init_method, *, world_size, rank, group_name)
get_rank()
get_world_size()
new_group(ranks)
send(tensor, dst)
recv(tensor, src)
isend(tensor, dst)
irecv(tensor, src)
broadcast(tensor, src, group)
all_reduce(tensor, op, group)
reduce(tensor, dst, op, group)
all_gather(tensor_list, tensor, group)
gather(tensor, *, dst, gather_list, group)
scatter(tensor, *, src, scatter_list, group)
barrier(group)
broadcast_multigpu(tensor_list, src, group)
all_reduce_multigpu(tensor_list, op, group)
reduce_multigpu(tensor_list, dst, op, group)
all_gather_multigpu(output_tensor_lists, input_tensor_list, group)
get_default_group()
""",
    "1.5": """
init_process_group(backend, init_method, timeout, world_size, rank, store, group_name)
is_mpi_available()
is_nccl_available()
is_initialized()
get_backend(group)
get_rank(group)
get_world_size(group)
new_group(ranks, timeout, backend)
destroy_process_group(group)
isend(tensor, dst, group, tag)
irecv(tensor, src, group, tag)
send(tensor, dst, group, tag)
recv(tensor, src, group, tag)
broadcast_multigpu(tensor_list, src, group, async_op, src_tensor)
broadcast(tensor, src, group, async_op)
all_reduce_multigpu(tensor_list, op, group, async_op)
all_reduce(tensor, op, group, async_op)
all_reduce_coalesced(tensors, op, group, async_op)
reduce_multigpu(tensor_list, dst, op, group, async_op, dst_tensor)
reduce(tensor, dst, op, group, async_op)
all_gather_multigpu(output_tensor_lists, input_tensor_list, group, async_op)
all_gather(tensor_list, tensor, group, async_op)
all_gather_coalesced(output_tensor_lists, input_tensor_list, group, async_op)
gather(tensor, gather_list, dst, group, async_op)
scatter(tensor, scatter_list, src, group, async_op)
reduce_scatter_multigpu(output_tensor_list, input_tensor_lists, op, group, async_op)
reduce_scatter(output, input_list, op, group, async_op)
barrier(group, async_op)
rendezvous(url)
register_rendezvous_handler(scheme, handler)
dist_backend(name)
_get_default_group()
_get_default_store()
_check_default_pg()
_get_group_rank(group, rank)
_get_global_rank(group, rank)
_get_group_size(group)
_rank_not_in_group(group)
_broadcast_coalesced(process_group, tensors, buffer_size)
_compute_bucket_assignment_by_size(tensors, bucket_size_limits)
""",
    "1.9": """
init_process_group(backend, init_method, timeout, world_size, rank, store, group_name, pg_options)
new_group(ranks, timeout, backend, pg_options)
new_subgroups(group_size, group, timeout, backend, pg_options)
new_subgroups_by_enumeration(ranks_per_subgroup_list, timeout, backend, pg_options)
P2POp(op, tensor, peer, group, tag)
batch_isend_irecv(p2p_op_list)
all_to_all(output_tensor_list, input_tensor_list, group, async_op)
all_to_all_single(output, input, output_split_sizes, input_split_sizes, group, async_op)
all_gather_object(object_list, obj, group)
gather_object(obj, object_gather_list, dst, group)
broadcast_object_list(object_list, src, group, device)
scatter_object_list(scatter_object_output_list, scatter_object_input_list, src, group)
barrier(group, async_op, device_ids)
monitored_barrier(group, timeout, wait_all_ranks)
is_gloo_available()
_all_gather_base(output_tensor, input_tensor, group, async_op)
_get_debug_mode()
_verify_model_across_ranks(process_group, params)
""",
}

# What scripts compare with the texts of errors, and who says it here: ours follows.
WORDS = {
    "Default process group has not been initialized, please make sure to call "
    "init_process_group.": "DistUsageError, a ValueError and RuntimeError",
    "trying to initialize the default process group twice!": "DistUsageError",
    "Invalid process group specified": "DistValueError, a ValueError and RuntimeError",
    "Timed out": "DistTimeoutError, a RuntimeError and TimeoutError; also `wait` of a Work",
    "Wait timeout": "DistStoreTimeoutError, of stores",
    "Timed out after N seconds waiting for clients. M/N clients joined.": "DistStoreTimeoutError",
    "Rank N failed to pass monitoredBarrier in N ms": "DistTimeoutError, on all ranks",
    "Ranks N, M failed to pass monitoredBarrier in N ms": "the same with `wait_all_ranks`, "
    "`Ranks N` for one",
    "Expected to mark a variable ready only once": "DistValueError, of reducers",
    "Rendezvous handler for S:// already registered": "RuntimeError",
    "No rendezvous handler for S://": "RuntimeError of `rendezvous`",
    "environment variable N expected, but not set": "DistValueError of `rendezvous`",
}

# Modules of torch.distributed that are not in MODULES.
SUBMODULES = {
    "algorithms": "`ddp_comm_hooks`: `syncline.comm_hooks`, and torch's own by "
    "`register_comm_hook`; `join`: `DistributedDataParallel.join`; `model_averaging`: "
    "ParameterAverager",
    "argparse_util": "missing: the launcher reads PET_ variables itself",
    "autograd": "torch's own, of its RPC",
    "c10d_logger": "missing: SYNCLINE_LOG_LEVEL, [monitoring.md](monitoring.md)",
    "checkpoint": "torch's own, over backend `syncline`",
    "collective_utils": "torch's own, over backend `syncline`",
    "config": "missing: of torch's own",
    "constants": "`syncline.constants`",
    "debug": "missing: the launcher's `status`, [monitoring.md](monitoring.md)",
    "device_mesh": "torch's own, over backend `syncline`",
    "distributed_c10d": "`syncline.distributed_c10d`",
    "elastic": "`syncline.elastic`: see below",
    "flight_recorder": "missing: errors name the ranks, their operations and numbers",
    "fsdp": "torch's own, over backend `syncline`",
    "launch": "see below",
    "launcher": "`syncline.elastic.launcher`: see below",
    "logging_handlers": "missing: of torch's own",
    "nn": "`syncline.nn`, `syncline.nn.functional`; RemoteModule is of torch's RPC",
    "optim": "torch's own, over backend `syncline`: ZeroRedundancyOptimizer, PostLocalSGDOptimizer",
    "pipelining": "torch's own, over backend `syncline`",
    "remote_device": "missing: of torch's RPC",
    "rendezvous": "`syncline.rendezvous`",
    "rpc": "missing: torch's RPC has a transport of its own",
    "run": "see below",
    "tensor": "torch's own, over backend `syncline`: DTensor",
    "utils": "missing: of torch's own",
}

# What else asks torch.distributed for its default group, and what to do about it.
ASKS_TORCH = {
    "torch.utils.data.DistributedSampler": "`syncline.torch.DistributedSampler`: the same class, "
    "which asks Syncline's job first",
    "torch.nn.SyncBatchNorm": "`syncline.torch.SyncBatchNorm`, on CPUs too",
    "torch.nn.parallel.DistributedDataParallel": "`syncline.torch.DistributedDataParallel`",
    "torch.distributed.nn.functional": "`syncline.nn.functional`",
    "torch.distributed.optim, .checkpoint, .fsdp, .tensor, .pipelining": "backend `syncline` of "
    "torch.distributed",
    "torch.utils.data.DataLoader": "nothing: its workers ask nobody. Seeds by `dist.get_rank()` "
    "are Syncline's with `import syncline as dist`",
    "Lightning, accelerate, transformers, torchmetrics, DeepSpeed": "backend `syncline` of "
    "torch.distributed: they call its functions by name",
}

# torch.nn.parallel.DistributedDataParallel, and that of version 1.5 where it was another.
DDP_DIFFERENCES = {
    "register_comm_hook": "a hook may return a future of Syncline's collectives, too: "
    "`dist.all_reduce(bucket.buffer(), async_op=True).get_future()`. Those of "
    "`torch.distributed.algorithms` call torch.distributed, which must be initialised for them, "
    "with backend `syncline` or another",
    "DistributedDataParallel": "`syncline.torch.DistributedDataParallel`, a subclass of torch's, "
    "with the arguments of torch 2.13 and `forward_sync_buffers`. What torch's reducer alone can "
    "do is a NotImplementedError",
    "device_ids": "one device, to which inputs are moved, as in torch 2; several, with replicas, "
    "as in 1.5, are a ValueError. None leaves inputs where they are; in 1.5 it was all GPUs",
    "output_device": "kept, without effect, as in torch 2: outputs are gathered in 1.5 alone",
    "dim": "for the methods `scatter` and `gather` alone, as in torch 2",
    "init_sync": "stands before `process_group`, as in torch 2: in 1.5 give that by its name",
    "bucket_cap_mb": "the first bucket has 1 MiB if it is not given, as in torch 2; in 1.5 always",
    "broadcast_buffers": "False leaves buffers as they are at construction too, as in torch 2; "
    "`forward_sync_buffers=False` is what it meant in 1.5",
    "find_unused_parameters": "without it a parameter that has no gradient is an error of that "
    "backward pass, on all ranks, with its name; torch finds out one step later",
    "skip_all_reduce_unused_params": "accepted: unused parameters travel as zeros",
    "batched_grad_copy": "accepted: gradients are copied at little cost in any case",
    "check_reduction": "accepted, with a FutureWarning",
    "parallel_apply": "missing: there is one replica in a process, as in torch 2",
    "is_cuda, modules_params, _module_copies, modules_buffers as a list of lists": "missing: of "
    "replicas, which torch 2 has not either",
    "_set_ddp_runtime_logging_sample_rate, _set_sparse_metadata, _set_ddp_sink_clone": "no effect",
    "_get_ddp_logging_data": "26 of torch's keys",
    "python_reducer": "missing: compiled autograd",
    "nothing to train, arguments that do not go together": "RuntimeError and ValueError, as in "
    "torch 2; 1.5 had AssertionErrors",
    "modules on several GPUs": "gradients go over main memory",
}

MULTIPROCESSING_DIFFERENCES = {
    "init_reductions": "nothing to do: contexts have a pickler of their own",
}

# ---- Stores ----

# Torch's stores, and ours. Of each, methods of which something differs.
STORES = ("Store", "HashStore", "FileStore", "TCPStore", "PrefixStore")

STORE_DIFFERENCES = {
    "Store.add": "a value that is no number is a DistStoreError; torch's stores that serve "
    "themselves end with ValueError, and its TCPStore's server with the connection",
    "Store.append": "on every store. The key's value and the new part are one atomic step",
    "Store.barrier": "the same key can be used again, by as many callers",
    "Store.clone": "of a HashStore another object over the same contents, with a timeout of its "
    "own",
    "Store.get": "takes a `timeout` too",
    "Store.has_extended_api": "true of every store; torch's FileStore says no",
    "Store.list_keys": "takes a `prefix` too, and is sorted; a FileStore's counter is not among "
    "them",
    "Store.multi_get": "takes a `timeout` too",
    "Store.multi_set": "lists of different lengths are a ValueError with every store",
    "Store.num_keys": "of a TCPStore that was made with a `world_size`, one more than were set, as "
    "in torch; of a FileStore those that were set, without torch's counter. Of a PrefixStore its "
    "own; torch's counts all of the store below",
    "Store.queue_len": "a FileStore has no queues, as in torch",
    "Store.queue_pop": "takes a `timeout` too. Pops that wait are served in the order of their "
    "coming",
    "Store.queue_push": "a wait for a queue's key ends for all that wait, not for one",
    "Store.delete_key": "works with every store, and says of a FileStore's key that is gone that "
    "it "
    "was not there",
    "Store.set": "an empty key is a ValueError",
    "Store.set_timeout": "a time that is not positive is a ValueError. Of a PrefixStore it changes "
    "the prefix's own, not that of the store below",
    "Store.timeout": "of a FileStore and a HashStore also a parameter of the constructor",
    "Store.wait": "`timeout` may be None. The error is a DistStoreTimeoutError, which is a "
    "DistStoreError and a TimeoutError with every store, and begins with `Wait timeout: `",
    "HashStore.__init__": "takes a `timeout` too",
    "FileStore.__init__": "takes a `timeout` too. `world_size` has no effect: the last process to "
    "leave removes the file",
    "TCPStore.__init__": "`use_libuv` has no effect: gRPC serves. The server listens at "
    "`host_name` "
    "alone, not at all addresses. Workers that are missing are a DistStoreTimeoutError",
    "TCPStore.libuvBackend": "False",
    "PrefixStore._underlying_non_prefix_store": "missing; `underlying_store` leads there",
}

# Torch's modules, and those of ours that have the same names.
MODULES = {
    "torch.distributed.launcher.api": "syncline.elastic.launcher",
    "torch.distributed.elastic.agent.server.api": "syncline.elastic.agent",
    "torch.distributed.elastic.agent.server.local_elastic_agent": "syncline.elastic.agent",
    "torch.distributed.elastic.events": "syncline.elastic.events",
    "torch.distributed.elastic.metrics": "syncline.elastic.metrics",
    "torch.distributed.elastic.multiprocessing": "syncline.elastic.multiprocessing",
    "torch.distributed.elastic.multiprocessing.errors": "syncline.elastic.multiprocessing.errors",
    "torch.distributed.elastic.rendezvous": "syncline.elastic.rendezvous",
    "torch.distributed.elastic.rendezvous.registry": "syncline.elastic.rendezvous",
    "torch.distributed.elastic.timer": "syncline.elastic.timer",
    "torch.distributed.elastic.timer.api": "syncline.elastic.timer",
}

_ONE_AGENT = (
    "the agent is the launcher, a program in C++, whose insides no class of Python is; a "
    "LocalElasticAgent starts it"
)
_NO_PROCESSES = "the launcher starts workers; processes without it are syncline.multiprocessing's"

ELASTIC_DIFFERENCES = {
    "agent.ElasticAgent": _ONE_AGENT,
    "agent.SimpleElasticAgent": _ONE_AGENT,
    "agent.Worker": _ONE_AGENT,
    "agent.WorkerGroup": _ONE_AGENT,
    "agent.LocalElasticAgent": "has `run` alone. `start_method` and `exit_barrier_timeout` have no "
    "effect: workers are programs of their own, and launchers leave together. "
    "A rendezvous handler of one's own goes by LaunchConfig's `rdzv_backend`",
    "launcher.LaunchConfig": "`start_method`, `monitor_interval` and `metrics_cfg` have no effect; "
    "no NUMA binding is chosen by itself",
    "launcher.elastic_launch": "the job is a process of its own, and one that is stopped by a "
    "signal "
    "raises SignalException. `health_check_server` is refused: see --metrics-port. A rendezvous "
    "handler written in Python is asked once; nodes that come later do not join",
    "events.get_logging_handler": "a name that is not known is a ValueError. `register_handler` "
    "adds "
    "names",
    "multiprocessing.DefaultLogsSpecs": "has no `reify`: the launcher names the files, see "
    "docs/launcher.md",
    "multiprocessing.LogsSpecs": "as DefaultLogsSpecs; deriving from it changes nothing",
    "multiprocessing.LogsDest": "the launcher names the files",
    "multiprocessing.MultiprocessContext": _NO_PROCESSES,
    "multiprocessing.PContext": _NO_PROCESSES,
    "multiprocessing.SubprocessContext": _NO_PROCESSES,
    "multiprocessing.start_processes": _NO_PROCESSES,
    "errors.ErrorHandler": "has no `override_error_code_in_rootcause_data`: the launcher's exit "
    "code "
    "is the worker's",
    "timer.FileTimerServer": "a worker that is late gets the signal of its client; torch's server "
    "ends its own process too",
    "timer.expires": "without `configure` it finds the server by TORCHELASTIC_TIMER_FILE",
}

# What versions after TORCH have, by its name there.
NEWER = {
    "ProcessGroup.new_window": "missing: there are no one-sided operations",
    "ProcessGroup.supports_reconfigure": "missing: ranks that come and go are a new round of the "
    "launcher's, or `shrink_group`",
    "ProcessGroup.get_reconfigure_handle": "as supports_reconfigure",
    "ProcessGroup.reconfigure": "as supports_reconfigure",
    "ProcessGroup.register_pre_hook": "missing: what runs is in the metrics, "
    "[monitoring.md](monitoring.md), and in the records of torch's profiler",
    "ProcessGroup.register_post_hook": "as register_pre_hook",
    "ProcessGroup.register_abort_hook": "missing: the error of each call says why",
    "ReduceOp.UNUSED": "missing: `ReduceOp` has the reductions alone",
}

# What scripts do with torch.distributed apart from calling its functions.
BESIDES = {
    "torch._C._distributed_c10d": "missing. Its classes that scripts name are in `syncline`; "
    "`ErrorType`, `PythonCallbackWork`, `WorkInfo`, `WorkResult`, `OpType`, `DDPLoggingData`, "
    "`FakeProcessGroup`, `FakeWork` and `_WorkerServer` are not",
    "backends in C++, as extensions that torch loads": "a class of `include/syncline/backend.h` "
    "that is linked in, or one in Python by `Backend.register_backend`; no library is opened at "
    "run time. Extensions of torch's go on under torch.distributed, beside backend `syncline`",
    "float8 tensors": "are moved by every backend, and reduced by none that works on the host; see "
    "[capabilities.md](capabilities.md)",
    "quantized tensors": "are not served, over backend `syncline` neither: send `int_repr()`",
    "stores of etcd": '`init_method="etcd://..."` and `--rdzv-backend=etcd`; no class in Python',
    "versions of torch": "`syncline` itself needs none. Backend `syncline` and "
    "`syncline.torch` are for torch 2.13: what pip installs beside them is not checked",
}

# What other libraries have, where a script of theirs has no counterpart here.
OTHERS = {
    "Horovod: operations that ranks call in different orders, matched by name": "missing: all "
    "ranks call the operations of a group in one order, and another order is a DistMismatchError "
    "with both calls. Operations that may overtake each other go on groups of their own",
    "Horovod: autotune, Adasum, timeline": "missing: `bucket_cap_mb` is given, a communication "
    "hook may combine gradients in another way, and torch's profiler has each operation",
    "Horovod: elastic State, discovery of hosts, lists of bad hosts": "missing: a new round starts "
    "the script again, which loads its checkpoint, and hosts come by starting the launcher there",
    "torchft, PCCL: steps that go on without a lost rank, with state from its peers": "missing: a "
    "lost rank breaks its groups, since the others may hold parts of the result. `shrink_group` "
    "makes one of those that remain; or the launcher starts a round",
    "torchcomms, UCC: persistent operations": "missing: there is nothing to save, a call in C++ "
    "takes less than a microsecond within a host",
    "torchcomms: operations with sizes for each rank": "the operations of the usual names take "
    "sizes that differ: lists of tensors, and splits",
    "oneCCL: priorities": "missing: operations of one group run in the order of their calls, "
    "those of several groups at the same time",
    "etcd, ZooKeeper: watches, leases and barriers of a store": "a `wait`, or a `get`, ends when "
    "its key is set, without polling except of files; a tcp store sets a key when a client's "
    "connection ends (`SetOnDisconnect`, C++), contents of an etcd store have a ttl; `add` counts, "
    "so that the last to come sets the key for which the others `wait`. A key that changes again "
    "and again is no message: queues are",
    "Ray: create_collective_group by the driver": "missing: each process joins by itself, with "
    "`rank`, `world_size` and a store that all reach",
    "MLX: --hosts, by ssh": "missing: srun, mpirun, Kubernetes or a shell start the launcher on "
    "each host",
    "Bagua, KungFu: quantized messages, groups that change while they run": "communication hooks, "
    "and rounds of the launcher",
    "JAX: operations within jit": "`all_reduce`, `average_gradients` and `broadcast_tree` of "
    "`syncline.jax`; the others outside of it: they take arrays, which a program that is being "
    "traced has not",
    "Java: collectives of objects, backends written in Java, Spark's barrier": "missing: objects "
    "are serialised by the program, whose classes only it can name, and sent as bytes; executors "
    "join with a rank, a size and an init method",
}

LAUNCH = {
    "--nproc-per-node": "`xpu` and names of devices of plug-ins are refused, since the launcher "
    "asks no torch how many there are: give the number",
    "MASTER_ADDR": "the address of rank 0's host, as the others reach it, where torchrun has the "
    "host's name in full (FQDN), which need not resolve everywhere; on one node 127.0.0.1. "
    "`--master-addr` says another, or a name, on one node and with `static`",
    "MASTER_PORT": "a port that was free when the launcher looked, at which nobody listens yet: "
    "TORCHELASTIC_USE_AGENT_STORE is `False`, so `env://` of torch makes rank 0 serve there",
    "--start-method, --monitor-interval": "no effect: workers are programs of their own, and the "
    "launcher is told at once when one ends",
    "--logs-specs": "`default` alone: see `--log-dir`, `--redirects`, `--tee` and the filters",
    "--event-log-handler": "`null` and `console`; `--event-log` writes a file",
    "--rdzv-backend": "without it `c10d` with `--standalone`, and on several nodes where there is "
    "an endpoint and no node rank or MIN < MAX, and `static` elsewhere; torchrun's default is "
    "`static`, with node rank 0 on all nodes",
    "TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_HEALTH_CHECK_PORT, "
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "no effect: `--health-timeout` and `--metrics-port` take "
    "the places of the first two, and workers have no store of the launcher's to share",
    "--rdzv-conf": "a key that is not known is an error",
    "torch.distributed.run": "`syncline-run`, `python -m syncline.run`: all of its options, and "
    "what "
    "each means here is in [launcher.md](launcher.md). Lines have a prefix with their rank; "
    "`--no-prefix` shows them as torchrun does",
    "torch.distributed.launch": "`python -m syncline.launch`: the same with `--use-env`, without "
    "which scripts get `--local-rank=N` (SYNCLINE_LOCAL_RANK_ARGUMENT=--local_rank: as torch 1)",
    "torch.distributed.breakpoint": "`syncline.breakpoint(rank)` begins where it was called, on "
    "the "
    "launcher's terminal, and lets the other ranks wait for a day. `--interactive RANK` gives a "
    "worker the whole terminal",
}


def _rows(differences: dict[str, str], head: str = "name | what differs") -> str:
    lines = [f"| {head} |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in sorted(differences.items())]
    return "\n".join(lines)


def earlier_calls(version: str) -> list[str]:
    return EARLIER[version].split("\n")[1:-1]


def _private_methods() -> str:
    names = [f"`{kind}.{name}`" for kind, names in PRIVATE_METHODS.items() for name in names]
    return ", ".join(names)


def _earlier() -> str:
    blocks = [f"torch {version}:\n\n" + _code(earlier_calls(version)) for version in EARLIER]
    return "\n\n".join(blocks)


def _code(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def document() -> str:
    modules = "\n".join(f"| `{theirs}` | `{ours}` |" for theirs, ours in sorted(MODULES.items()))
    return f"""# What differs from torch

Names, parameters, defaults and errors of `torch.distributed`, version {TORCH}, and what differs
here. Made by `docs/compatibility.py`; a test walks over torch's names and compares them.

    import syncline as dist  # In place of: import torch.distributed as dist

## Functions, groups, operations

What `torch.distributed` has is here, with the same names, parameters and defaults, except:

{_rows(DIFFERENCES)}

Methods of groups and Works are as torch's, too: `group.allreduce([x], opts).wait()` with
`AllreduceOptions` and the like, `group.rank()`, `group.set_timeout(...)`. Of those that are named
alike in torch and here, `barrier`, `broadcast`, `reduce`, `all_gather_single`,
`reduce_scatter_single`, `all_to_all_single`, `send` and `recv`, torch's form is known by a list or
by options: `group.broadcast(x, 1)` and `group.barrier()` wait, and return a Work that is done.

Tensors must be contiguous, in the order of their dimensions: transposed ones, ones in the memory
format channels_last, and every second element of another are a ValueError, where torch's Gloo takes
some of them. Sparse tensors are a TypeError.

A timeout is a `datetime.timedelta`. Torch's classes in C++ take a float as seconds; here
`ProcessGroupGloo` and `ProcessGroupNCCL` do, and elsewhere it is a TypeError.

### Names of torch's own parts

Of those that begin with an underscore, which change from version to version,
`syncline.distributed_c10d` has what libraries call: `_get_default_group`, `_get_default_store`,
`_rank_not_in_group`, `_get_pg_config`, `_set_pg_timeout`, `_abort_process_group`, `_world`,
`_pg_map` and others. These are not there:

{_rows(PRIVATE, "name | what it is, or what serves")}

Nor are these methods: {_private_methods()}. `coalescing` takes the place of the two that begin and
end it.

### Modules

{_rows(SUBMODULES, "torch.distributed. | here")}

### Earlier versions

These calls of torch 0.4, 1.5 and 1.9 work as they stand, by position and by name; with
`reduce_op.SUM`, `group.WORLD` as a parameter's default, `dist_backend` and `Backend` in any case.
What was there then, and works otherwise today, works as today:

{_earlier()}

The seed of version 1.5 has RuntimeError where later ones have ValueError or TypeError: errors of
arguments are of both types.

### Words of errors

Scripts look for these; our own words follow.

{_rows(WORDS, "the text begins with | it is a")}

### Objects

Objects travel by a codec that runs no code: numbers, texts, containers, dates, ranges, paths,
`argparse.Namespace`, arrays and tensors, `torch.Size`, and objects of dataclasses that both sides
have imported. An OrderedDict keeps its attributes, as `state_dict()._metadata`, and a tensor its
`requires_grad`, but not its graph. Objects of derived types are refused with a TypeError, and so
are `nn.Parameter` (send `parameter.detach()`), namedtuples, members of an Enum, `Counter`,
`defaultdict`, `deque`, exceptions, functions and classes. For all others, where ranks trust each
other, choose pickle: `codec="pickle"` for a call, `syncline.set_object_codec("pickle")` for a
process, or SYNCLINE_OBJECT_CODEC=pickle in the environment.

### What else asks torch.distributed

After `syncline.init_process_group`, torch's own default group does not exist.

{_rows(ASKS_TORCH, "what asks | instead")}

### DistributedDataParallel

{_rows(DDP_DIFFERENCES)}

[training.md](training.md) says what it does besides.

### torch.multiprocessing

`syncline.multiprocessing` ([multiprocessing.md](multiprocessing.md)) has its public names, except:

{_rows(MULTIPROCESSING_DIFFERENCES)}

### Besides

{_rows(BESIDES, "what scripts use | what differs")}

### Other libraries

{_rows(OTHERS, "what they have | here")}

### Versions after {TORCH}

{_rows(NEWER)}

## Stores

`syncline.Store`, `HashStore`, `FileStore`, `TCPStore` and `PrefixStore` have the methods,
parameters, defaults and results of torch's classes of these names, except:

{_rows(STORE_DIFFERENCES)}

A class can be derived from `Store`, with `set`, `get`, `add`, `check` and `compare_set` of its
own: `init_process_group` takes its objects, and those of torch's stores as they are. In the other
direction `syncline.torch.to_torch_store(store)` is a store for
`torch.distributed.init_process_group`.

## Elastic

| torch | Syncline |
|---|---|
{modules}

What is public there is here, with the same parameters and defaults, except:

{_rows(ELASTIC_DIFFERENCES)}

`syncline.elastic.run(function, nprocs)` calls a function of a notebook in workers of this host.

## Launchers

{_rows(LAUNCH)}
"""


if __name__ == "__main__":
    print(document(), end="")
