"""What DistributedDataParallel makes of its arguments, and which it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from syncline.torch.ddp import groups

_MEBIBYTE = 1 << 20
_DEFAULT_CAP_MB = 25
FIRST_CAP_BYTES = _MEBIBYTE  # Communication starts early.


def choose_group(module: torch.nn.Module, process_group: Any, device_mesh: Any) -> Any:
    """The group as users know it: that given, that of the mesh, or that of all ranks."""
    if process_group is not None and device_mesh is not None:
        raise RuntimeError("process_group and device_mesh are given: give one of them")
    if device_mesh is None:
        return groups.default_group() if process_group is None else process_group
    if device_mesh.ndim != 1:
        raise RuntimeError(f"device_mesh must have one dimension, but it is {device_mesh}")
    if device_mesh._get_root_mesh() != device_mesh:
        # The parameters are DTensors on the other dimensions of the mesh.
        from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

        _pre_dp_module_transform(module)
    return device_mesh.get_group(mesh_dim=0)


def check_parameters(
    module: torch.nn.Module, parameters: Sequence[torch.Tensor], delayed: Sequence[torch.Tensor]
) -> None:
    """Refuses modules without anything to train, with lazy parameters or on several devices."""
    if not any(p.requires_grad for p in parameters) and not delayed:
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that "
            "requires a gradient"
        )
    if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in parameters):
        raise RuntimeError(
            "the module has uninitialized parameters: run a forward pass before it is wrapped"
        )
    kinds = sorted({p.device.type for p in [*parameters, *delayed]})
    if len(kinds) > 1:
        raise ValueError(f"the module's parameters must be on devices of one type, not {kinds}")
    if kinds == ["cpu"]:
        check_sync_batch_norm(module)


def check_sync_batch_norm(module: torch.nn.Module) -> None:
    """Refuses torch's SyncBatchNorm in a `module` on the CPU."""
    for name, layer in module.named_modules():
        if type(layer) is torch.nn.SyncBatchNorm:
            raise ValueError(
                f"'{name}' is torch's SyncBatchNorm, which works on GPUs only: use "
                "syncline.torch.SyncBatchNorm.convert_sync_batchnorm(module)"
            )


def choose_devices(
    device_ids: Sequence[int | torch.device] | None,
    output_device: int | torch.device | None,
    parameters: Sequence[torch.Tensor],
) -> tuple[list[int] | None, int | None]:
    """The indices of the device that inputs are moved to and of that of outputs; None on CPUs."""
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError("device_ids must be None or have one element")
    devices = {p.device for p in parameters}
    if not device_ids or len(devices) > 1 or next(iter(devices)).type == "cpu":
        if device_ids or output_device:  # 0 is accepted: torch does so, and scripts have it.
            raise ValueError(
                "device_ids and output_device are for modules on one GPU, not for one on "
                f"{', '.join(sorted(map(str, devices)))}"
            )
        return None, None
    indices = [torch.device(d).index if not isinstance(d, int) else d for d in device_ids]
    output = indices[0] if output_device is None else output_device
    return indices, output if isinstance(output, int) else torch.device(output).index


def check_delayed(delayed: Iterable[Any] | None, trigger: torch.nn.Parameter | None) -> None:
    """One comes with the other."""
    if (delayed is None) != (trigger is None):
        raise ValueError(
            "delay_all_reduce_named_params and param_to_hook_all_reduce need to be set at the same "
            "time"
        )


def choose_buffer_sync(broadcast: bool | None, forward_sync: bool | None) -> tuple[bool, bool]:
    """Whether buffers are broadcast in forward passes, and whether at construction."""
    if forward_sync is None:
        return broadcast is not False, broadcast is not False
    if broadcast is not None:
        warnings.warn(
            "broadcast_buffers does not count, as forward_sync_buffers is given too",
            FutureWarning,
            stacklevel=3,
        )
    return forward_sync, True


def bucket_caps(
    cap_mb: float | None, each_mb: Sequence[float] | None
) -> tuple[int, int, list[int]]:
    """In bytes: of the first bucket, of the others, of each one (none if these two count)."""
    if each_mb:
        each = [int(cap * _MEBIBYTE) for cap in each_mb]
        return each[0], max(each), each
    if cap_mb is None:
        return FIRST_CAP_BYTES, _DEFAULT_CAP_MB * _MEBIBYTE, []
    cap = int(cap_mb * _MEBIBYTE)
    return cap, cap, []


def sparse_parameters(module: torch.nn.Module) -> set[torch.Tensor]:
    """Those whose gradients are sparse tensors."""
    return {
        layer.weight
        for layer in module.modules()
        if isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and layer.sparse
    }


def still_frozen(frozen: dict[str, torch.nn.Parameter]) -> None:
    """Raises RuntimeError if a parameter that had no gradients at construction is to get some."""
    for name, parameter in frozen.items():
        if parameter.requires_grad:
            raise RuntimeError(
                f"'{name}' did not require a gradient when DistributedDataParallel was made, and "
                "does now: its gradients would differ between ranks; make a new module"
            )


class MissingGradientError(ValueError, RuntimeError):
    """A parameter has no gradient at the end of a step: torch's is a RuntimeError."""


# How torch begins what it says of these faults: programs look for it.
_NOT_FINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one."
)
_TWICE = "Expected to mark a variable ready only once."


def as_torchs(error: ValueError) -> ValueError:
    """What a reducer raises, as what torch's raises if a gradient is missing."""
    text = str(error)
    if " produced no gradient for " not in text and " produced a gradient for " not in text:
        return error
    return MissingGradientError(f"{_NOT_FINISHED} {text}")


def marked_twice(name: str, *, was_unused: bool) -> RuntimeError:
    """A second gradient in one step, or one for a parameter that was not to get any."""
    if was_unused:
        return RuntimeError(
            f"{_TWICE} '{name}' has received a gradient, but the outputs of forward do not depend "
            "on it: with find_unused_parameters=True, use parameters in forward only"
        )
    return RuntimeError(
        f"{_TWICE} '{name}' has received its gradient twice in one step: is it in two blocks "
        "that are checkpointed with use_reentrant=True? Pass use_reentrant=False to "
        "checkpoint, or static_graph=True to DistributedDataParallel. Or do two outputs, on each "
        "of which backward is called, depend on it? Call backward on their sum"
    )
