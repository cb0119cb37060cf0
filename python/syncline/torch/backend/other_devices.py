"""Tensors that are not on the CPU: they go to the backends of torch that the user has named."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from syncline.torch.backend.process_group import ProcessGroup


class OtherDevices:
    """The backends of torch beside Syncline in a group, made when they are first needed."""

    def __init__(self, group: ProcessGroup, store: Any, backend_options: Any):
        self._group = group
        self._store = store
        self._options = backend_options
        self._timeout: timedelta | None = None
        self._backends: dict[str, Any] = {}

    def call(self, method: str, tensor: Tensor, *arguments: Any) -> Any:
        """Calls torch's backend for the device of `tensor`.

        Raises NotImplementedError if the user has named none, or this torch has it not.
        """
        return getattr(self.backend(tensor.device), method)(*arguments)

    def backend(self, device: torch.device) -> Any:
        """torch's backend for `device`, which is made if need be; as `call`."""
        made = self._backends.get(device.type)
        if made is None:
            made = self._make(device)
            self._backends[device.type] = made
        return made

    def set_timeout(self, timeout: timedelta | None) -> None:
        self._timeout = timeout
        for backend in self._backends.values():
            backend.set_timeout(self._limit)

    def shutdown(self) -> None:
        for backend in self._backends.values():
            backend.shutdown()

    def abort(self) -> None:
        for backend in self._backends.values():
            backend.abort()

    def _make(self, device: torch.device) -> Any:
        name = self._name_of(device.type)
        if name == "nccl" and torch_dist.is_nccl_available():
            made = self._make_nccl()
            kind = torch_dist.ProcessGroup.BackendType.NCCL
        elif name == "gloo" and torch_dist.is_gloo_available():
            made = self._make_gloo(device.type)
            kind = torch_dist.ProcessGroup.BackendType.GLOO
        else:
            raise NotImplementedError(
                f"a tensor is on device '{device}', and backend 'syncline' serves the CPU: use "
                f'init_process_group("cpu:syncline,{device.type}:...") with a backend of torch for '
                f"'{device.type}' that this torch has, such as nccl for cuda"
            )
        self._group._register_backend(torch.device(device.type), kind, made)
        return made

    @property
    def _limit(self) -> timedelta:
        return self._group._group.timeout if self._timeout is None else self._timeout

    def _name_of(self, device_type: str) -> str:
        """The backend that the user has named for `device_type`; empty if none."""
        config = distributed_c10d._world.pg_backend_config.get(self._group)
        if config is None:  # init_process_group has not come so far, but has a `device_id`.
            return str(torch_dist.Backend.default_device_backend_map.get(device_type, ""))
        pairs = (entry.partition(":") for entry in str(config).split(","))
        return next((name for device, _, name in pairs if device == device_type), "")

    def _make_nccl(self) -> Any:
        options = self._options
        if not isinstance(options, torch_dist.ProcessGroupNCCL.Options):
            options = torch_dist.ProcessGroupNCCL.Options()
        options._timeout = self._limit
        options.global_ranks_in_group = self._group._ranks
        options.group_name = self._group.group_name
        store = torch_dist.PrefixStore("syncline/nccl/", self._store)
        return torch_dist.ProcessGroupNCCL(store, self._group.rank(), self._group.size(), options)

    def _make_gloo(self, device_type: str) -> Any:
        store = torch_dist.PrefixStore(f"syncline/gloo/{device_type}/", self._store)
        return torch_dist.ProcessGroupGloo(
            store, self._group.rank(), self._group.size(), timeout=self._limit
        )
