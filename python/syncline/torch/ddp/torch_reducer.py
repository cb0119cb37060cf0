"""The methods of torch's Reducer, for libraries that call them on `model.reducer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

if TYPE_CHECKING:
    from syncline.torch.ddp.distributed_data_parallel import DistributedDataParallel
    from syncline.torch.ddp.gradients import Gradients


class TorchReducer:
    """What a DistributedDataParallel has as its `reducer`.

    All that is not a method of torch's is looked up in Syncline's own reducer: `buckets`, `stats`,
    `gradient` and so on. A method of torch's that has no counterpart raises NotImplementedError.
    """

    def __init__(self, module: DistributedDataParallel, gradients: Gradients):
        self._gradients = gradients
        self._delayed = module._delayed  # Its hooks hold it anyway; the module would be a cycle.
        self._has_told_of_rebuilding = False

    def prepare_for_forward(self) -> None:
        """Nothing: a forward pass does what is to be done."""

    def prepare_for_backward(self, output: Iterable[torch.Tensor]) -> None:
        """The coming backward pass, from `output`, averages; whatever the forward pass was told.

        With find_unused_parameters, `output` says which parameters will have gradients.
        """
        self._gradients.after_forward(list(output), synchronizes=True)
        if self._delayed is not None:
            self._delayed.prepare(synchronizes=True)

    def _rebuild_buckets(self) -> bool:
        """Whether buckets have been rebuilt since the last call; the first step does so itself."""
        has_rebuilt = self._gradients.reducer.generation > 1
        is_news = has_rebuilt and not self._has_told_of_rebuilding
        self._has_told_of_rebuilding = has_rebuilt
        return is_news

    def _delay_all_reduce(self) -> None:
        """Nothing: the end of the backward pass averages what a static graph's first step has."""

    def _push_all_rebuilt_params(self) -> None:
        """Nothing: ranks agree on buckets at the end of the first step."""

    def _install_post_backward_futures(self, futures: Iterable[Any]) -> None:
        """Has the end of the next step wait for `futures`."""
        self._gradients.futures += futures

    def get_backward_stats(self) -> list[int]:
        """When each bucket of the last step was ready, in nanoseconds; torch has parameters."""
        return list(self._gradients.reducer.stats().ready)

    def set_logger(self, logger: Any) -> None:
        """Nothing: the module's _get_ddp_logging_data needs none."""

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """Nothing: every step is timed."""

    def _set_sparse_metadata(self, global_unique_ids: Any) -> None:
        """Nothing: rows are exchanged with their indices."""

    def _set_optimizer_in_backward(self) -> None:
        """Nothing: such optimizers are found by themselves."""

    def _set_grads_to_none(self) -> None:
        """Drops all gradients."""
        for parameter in self._gradients.parameters:
            parameter.grad = None

    def _ddp_graph_static(self) -> bool:
        """Whether all steps so far have used the same parameters."""
        return self._gradients.unused_never_changed

    def _remove_autograd_hooks(self) -> None:
        """Gradients are no longer averaged."""
        self._gradients.remove_hooks()

    def _check_reducer_finalized(self) -> None:
        """Raises RuntimeError if a backward pass has left its step open."""
        self._gradients.check_finished()

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.distributed.Reducer, name):  # type: ignore[attr-defined]
            return refused(name)
        return getattr(self._gradients.reducer, name)


def refused(name: str) -> Callable[..., Any]:
    """A method that says that `name` is one of torch's reducer alone."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"{name} is a part of how torch's own reducer works, which "
            "syncline.torch.DistributedDataParallel does not have: with "
            'torch.distributed.init_process_group("syncline") torch\'s DistributedDataParallel '
            "runs over Syncline"
        )

    refuse.__name__ = name
    return refuse
