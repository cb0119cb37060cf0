"""Tensors that are not on the CPU, where the user has named another backend of torch for them.

With "syncline" for CUDA, they are served as those of the CPU are: see device_work.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from syncline.torch.backend.process_group import ProcessGroup


SERVED = ("cpu", "cuda")
"""The types of devices whose tensors Syncline serves."""


class OtherDevices:
    """The backends of torch beside Syncline in a group, made when they are first needed."""

    def __init__(self, group: ProcessGroup, store: Any, backend_options: Any):
        self._group: Any = group  # Which is a torch.distributed.ProcessGroup, too.
        self._store = store
        self._options = backend_options
        self._timeout: timedelta | None = None
        self.inherited: str | None = None  # Of a group that was split off, what its parent has.
        self._backends: dict[str, Any] = {}
        self._serve: dict[str, bool] = {}

    def serve(self, tensor: Tensor) -> bool:
        """Whether `tensor` goes to a backend of torch, and not to Syncline."""
        kind = tensor.device.type
        serve = self._serve.get(kind)
        return self.are_for(kind) if serve is None else serve

    def are_for(self, device_type: str) -> bool:
        """As serve, for tensors of `device_type`."""
        if device_type in self._serve:
            return self._serve[device_type]
        serve = device_type not in SERVED or self._name_of(device_type) != "syncline"
        if self.are_named:
            self._serve[device_type] = serve
        return serve

    @property
    def are_named(self) -> bool:
        """Whether torch has told which backend the user has named for which device.

        It does at the end of init_process_group. A group that torch does not know, made by
        split_group or by hand, is like its parent, or serves what Syncline serves.
        """
        return self.config() is not None

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
                f"a tensor is on device '{device}', and backend 'syncline' serves the CPU and "
                f'CUDA: use init_process_group("cpu:syncline,{device.type}:...") with a backend '
                f"of torch for '{device.type}' that this torch has"
            )
        self._group._register_backend(torch.device(device.type), kind, made)
        return made

    @property
    def _limit(self) -> timedelta:
        return self._group._group.timeout if self._timeout is None else self._timeout

    def _name_of(self, device_type: str) -> str:
        """The backend that the user has named for `device_type`; empty if none."""
        config = self.config()
        if config is None:
            return "syncline"
        pairs = (entry.partition(":") for entry in config.split(","))
        return next((name for device, _, name in pairs if device == device_type), "")

    def config(self) -> str | None:
        """The backend of each device, as torch writes it: "cpu:syncline,cuda:nccl"."""
        config = distributed_c10d._world.pg_backend_config.get(self._group)
        return self.inherited if config is None else str(config)

    def _make_nccl(self) -> Any:
        options = self._options
        if not isinstance(options, torch_dist.ProcessGroupNCCL.Options):
            options = torch_dist.ProcessGroupNCCL.Options()
        options._timeout = self._limit
        options.global_ranks_in_group = self._group._ranks
        options.group_name = self._group.group_name
        store = torch_dist.PrefixStore("syncline/nccl/", self._store)
        made = torch_dist.ProcessGroupNCCL(store, self._group.rank(), self._group.size(), options)
        if self._group.device_id is not None:
            made.eager_connect_single_device(self._group.device_id)
        return made

    def _make_gloo(self, device_type: str) -> Any:
        store = torch_dist.PrefixStore(f"syncline/gloo/{device_type}/", self._store)
        return torch_dist.ProcessGroupGloo(
            store, self._group.rank(), self._group.size(), timeout=self._limit
        )
