"""The logging data of torch's DistributedDataParallel, for this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from syncline.torch.ddp.distributed_data_parallel import DistributedDataParallel


def of(module: DistributedDataParallel) -> dict[str, Any]:
    """The keys of torch's DDPLoggingData that have a meaning here; times are in nanoseconds."""
    gradients = module._gradients
    parameters = [] if gradients is None else gradients.parameters
    data: dict[str, Any] = {
        "backend_name": module.syncline_group.backend,
        "bucket_cap_bytes": module.bucket_bytes_cap,
        "broadcast_buffers": int(module.forward_sync_buffers),
        "comm_hook": "" if gradients is None else gradients.reducer.stats().hook,
        "device_ids": ", ".join(map(str, module.device_ids or [])),
        "dtypes": ", ".join(dict.fromkeys(_name(p.dtype) for p in parameters)),
        "find_unused_parameters": int(module.find_unused_parameters),
        "gradient_as_bucket_view": int(module.gradient_as_bucket_view),
        "has_sync_bn": int(
            any(isinstance(layer, torch.nn.SyncBatchNorm) for layer in module.module.modules())
        ),
        "is_multi_device_module": int(module.is_multi_device_module),
        "module_name": type(module.module).__name__,
        "num_parameter_tensors": len(parameters),
        "output_device": -1 if module.output_device is None else module.output_device,
        "rank": module.syncline_group.rank(),
        "static_graph": int(module.static_graph),
        "total_parameter_size_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "world_size": module.syncline_group.size(),
    }
    if gradients is not None:
        data.update(_of_steps(gradients))
    return data


def _of_steps(gradients: Any) -> dict[str, Any]:
    stats = gradients.reducer.stats()
    sizes = ", ".join(map(str, stats.bucket_bytes))
    rebuilt = gradients.reducer.generation > 1
    return {
        "backward_comm_time": stats.communication_time,
        "backward_compute_comm_overlap_time": stats.hidden_time,
        "backward_compute_time": stats.backward_end,
        "bucket_sizes": sizes,
        "can_set_static_graph": gradients.unused_never_changed,
        "has_rebuilt_buckets": int(rebuilt),
        "initial_bucket_size_limits": gradients.options.first_bucket_cap_bytes,
        "iteration": stats.steps,
        "rebuilt_bucket_sizes": sizes if rebuilt else "",
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
