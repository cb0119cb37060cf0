"""Data-parallel training for loops written in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from syncline._syncline import ProcessGroup, Reducer
from syncline.job import resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from syncline._syncline import Tensor

_MEBIBYTE = 1 << 20


class GradientReducer:
    """Averages gradients over all ranks, in the background of the backward pass.

    Gradients lie in buckets, flat buffers that are all-reduced as soon as their last gradient is
    ready. Write each gradient in place and mark it, last layer first; then finish the step:

        reducer = syncline.GradientReducer(parameters)
        for batch in batches:
            ...
            numpy.matmul(x.T, error, out=reducer.gradients[i])
            reducer.mark_ready(i)
            ...
            for parameter, gradient in zip(parameters, reducer.finish()):
                parameter -= learning_rate * gradient

    All ranks must make the reducer with parameters of the same types and shapes, and finish the
    same number of steps.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        names: Sequence[str] | None = None,
        bucket_cap_mb: float = 25,
        first_bucket_mb: float = 1,
        group: ProcessGroup | None = None,
    ):
        """Plans the buckets; waits for all ranks.

        Args:
          parameters: arrays of the gradients' element types and shapes, in the order of the forward
            pass. Only their types and shapes matter.
          names: one for each parameter, for messages.
          bucket_cap_mb: a bucket is full at so many MiB.
          first_bucket_mb: the same for the first bucket to be reduced, which is smaller so that
            communication starts early.
          group: the ranks to average over, also one of a syncline.World; None for all.

        Raises:
          DistMismatchError: ranks gave different parameters; it names the first.
          ValueError: as many names as parameters are needed.
        """
        import numpy

        self._reducer = Reducer.create(
            resolve(None) if group is None else group,
            list(parameters),
            names=list(names or []),
            bucket_cap_bytes=int(bucket_cap_mb * _MEBIBYTE),
            first_bucket_cap_bytes=int(first_bucket_mb * _MEBIBYTE),
        )
        self._gradients = [numpy.asarray(self._reducer.gradient(i)) for i in range(len(parameters))]

    @property
    def gradients(self) -> list[NDArray[Any]]:
        """The place of each gradient, of its parameter's shape: views into the buckets."""
        return self._gradients

    @property
    def buckets(self) -> list[list[int]]:
        """The indices of each bucket's parameters, in the order in which buckets are reduced."""
        return self._reducer.buckets

    def mark_ready(self, index: int) -> None:
        """Says that gradients[index] has been written; it is then not to be touched until finish.

        Raises ValueError if it has been marked in this step.
        """
        self._reducer.mark_ready(index)

    def ready(self, index: int, value: Tensor) -> None:
        """Copies `value`, of the parameter's type and shape, to gradients[index] and marks it."""
        import numpy

        self._reducer.copy_ready(index, numpy.ascontiguousarray(value))

    def finish(self) -> list[NDArray[Any]]:
        """Waits until all gradients are averaged; returns `gradients`, which now hold the averages.

        Raises ValueError if gradients have not been marked ready; it names them, and the step goes
        on.
        """
        self._reducer.finish()
        return self._gradients
