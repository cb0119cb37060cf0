"""Training with ranks that have different numbers of batches."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.algorithms.join import Join as TorchJoin
from torch.distributed.algorithms.join import JoinHook

from syncline._syncline import ProcessGroup

if TYPE_CHECKING:
    from syncline.torch.ddp.distributed_data_parallel import DistributedDataParallel


@dataclass(frozen=True)
class Agreement:
    """What the ranks are about to do: take part in a step, with averages or without."""

    active: list[int]  # The ranks that have input.
    synchronizes: bool  # Whether these will average gradients.


def agree(group: ProcessGroup, *, is_active: bool, synchronizes: bool) -> Agreement:
    """Called by all ranks before each step: by those without input until none is active."""
    mine = torch.tensor([is_active, synchronizes], dtype=torch.int64)
    everyones = torch.empty((group.size(), 2), dtype=torch.int64)
    group.all_gather_single(everyones, mine)
    return Agreement(
        [rank for rank, (active, _) in enumerate(everyones.tolist()) if active],
        bool(everyones[:, 1].any()),
    )


@dataclass(frozen=True)
class Config:
    """How a module takes part in steps on uneven inputs."""

    divide_by_initial_world_size: bool
    throw_on_early_termination: bool
    in_torchs_join: bool = False  # Not this module's own, but torch.distributed.algorithms.Join.

    def divisor(self, agreement: Agreement) -> int:
        """What gradients are divided by; 0: the number of ranks."""
        return 0 if self.divide_by_initial_world_size else len(agreement.active)


class Join:
    """The context of DistributedDataParallel.join: its end is where input has run out."""

    def __init__(self, module: DistributedDataParallel, config: Config, *, enable: bool):
        self._module = module
        self._config = config
        self._enable = enable

    def __enter__(self) -> None:
        if self._enable:
            self._module._uneven = self._config

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._enable:
            return
        try:
            if kind is None:
                self._shadow_until_all_have_joined()
        finally:
            self._module._uneven = None

    def _shadow_until_all_have_joined(self) -> None:
        module, group = self._module, self._module.syncline_group
        is_last = True
        while True:
            agreement = agree(group, is_active=False, synchronizes=False)
            if not agreement.active:
                break
            if self._config.throw_on_early_termination:
                raise RuntimeError(
                    f"rank {group.rank()} has exhausted its inputs, while "
                    f"{ranks(agreement.active)} still had some"
                )
            module._shadow(agreement)
            is_last = False
        module._take_final_state(is_last=is_last)


def before_forward(module: DistributedDataParallel, config: Config) -> Agreement | None:
    """On a rank that has input: tells the others. None if the context is not enabled.

    Raises RuntimeError if a rank has run out and that is to end training.
    """
    if config.in_torchs_join:
        if not module._join_config.enable:
            return None
        TorchJoin.notify_join_context(module)
    group = module.syncline_group
    synchronizes = torch.is_grad_enabled() and module.require_backward_grad_sync
    agreement = agree(group, is_active=True, synchronizes=synchronizes)
    if config.throw_on_early_termination and len(agreement.active) < group.size():
        without = [rank for rank in range(group.size()) if rank not in agreement.active]
        raise RuntimeError(
            f"{ranks(without)} exhausted all inputs, and throw_on_early_termination is set: this "
            f"ends training on rank {group.rank()} too"
        )
    return agreement


class TorchJoinHook(JoinHook):
    """For torch's own Join, which other objects than modules can take part in too."""

    def __init__(self, module: DistributedDataParallel, config: Config):
        self._module = module
        module._uneven = config

    def main_hook(self) -> None:
        """Takes part in a step of the ranks that have input."""
        agreement = agree(self._module.syncline_group, is_active=False, synchronizes=False)
        self._module._shadow(agreement)

    def post_hook(self, is_last_joiner: bool) -> None:
        """Becomes equal to a rank that has joined last."""
        self._module._take_final_state(is_last=is_last_joiner)
        self._module._uneven = None


def ranks(numbers: list[int]) -> str:
    """ "rank 1", "ranks 1, 2"."""
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def join_kwargs(kwargs: dict[str, Any]) -> Config:
    """What torch's Join passes on."""
    by_all = bool(kwargs.get("divide_by_initial_world_size", True))
    return Config(by_all, throw_on_early_termination=False, in_torchs_join=True)
