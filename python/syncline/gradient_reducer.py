"""Data-parallel training for loops written in NumPy."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from syncline._syncline import ProcessGroup, Reducer
from syncline.errors import DistError
from syncline.job import resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from syncline._syncline import CommHook, ReducerStats, Tensor

_MEBIBYTE = 1 << 20
_CUDA = 2  # As DLPack numbers devices.


class Rows(NamedTuple):
    """A sparse gradient: `values[k]`, of shape (n, columns...), belongs to row `indices[k]`."""

    indices: NDArray[Any]  # int64 [n]; a row may come several times.
    values: NDArray[Any]


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
    same number of steps, except under `join`. Different gradients may be written and marked by
    different threads.

    Parameters may be arrays of one CUDA device, and their gradients then are: see docs/cuda.md. A
    gradient counts as ready behind the current stream of the thread that marks it, buckets are
    averaged beside what computes the others, and after `finish` the current stream waits for the
    averages, not the host.

    The views in `gradients` are replaced when the buckets are: after the first step, in the order
    in which rank 0's gradients came, and by replace_group. So ask `gradients` in each step, or take
    what `finish` returns.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        names: Sequence[str] | None = None,
        bucket_cap_mb: float = 25,
        first_bucket_mb: float = 1,
        bucket_caps_mb: Sequence[float] = (),
        sparse: Sequence[int] = (),
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        rebuild_buckets: bool = True,
        hook: CommHook | None = None,
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
          bucket_caps_mb: the same for each bucket, in the order of reduction; the last one is that
            of all further ones. Replaces the two above.
          sparse: the indices of parameters whose gradients are rows; see ready_rows.
          find_unused_parameters: steps may leave out parameters, which count as zeros on that rank;
            costs a small all-reduce in each step. See is_used.
          static_graph: as find_unused_parameters, but those that the first step leaves out are
            those of all steps.
          rebuild_buckets: as the class says, after the first step.
          hook: how buckets are averaged, of syncline.comm_hooks; None for all-reduce.
          group: the ranks to average over, also one of a syncline.World; None for all.

        Raises:
          DistMismatchError: ranks gave different parameters or options; it names the first.
          ValueError: as many names as parameters are needed; an index or a cap makes no sense.
        """
        self._group = resolve(None) if group is None else group
        self._reducer = Reducer.create(
            self._group,
            list(parameters),
            names=list(names or []),
            bucket_cap_bytes=int(bucket_cap_mb * _MEBIBYTE),
            first_bucket_cap_bytes=int(first_bucket_mb * _MEBIBYTE),
            bucket_caps_bytes=[int(cap * _MEBIBYTE) for cap in bucket_caps_mb],
            sparse=list(sparse),
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            rebuild_buckets=rebuild_buckets,
        )
        self._view = _viewer(parameters)
        self._sparse = frozenset(sparse)
        self._count = len(parameters)
        self._may_lack = find_unused_parameters or static_graph
        self._generation = -1
        self._gradients: list[NDArray[Any]] = []
        self._synchronize = True
        self._join: _Join | None = None
        self._begun = False
        self._has_failed = False  # The last finish; its step may still be under way.
        self._beginning = threading.Lock()
        if hook is not None:
            self.set_hook(hook)
        self._refresh()

    @property
    def gradients(self) -> list[NDArray[Any]]:
        """The place of each gradient, of its parameter's shape: views into the buckets.

        That of a sparse parameter is empty: see ready_rows and rows. On a device they are tensors
        of PyTorch or arrays of CuPy where the parameters are, and else what DLPack takes.
        """
        return self._gradients

    @property
    def buckets(self) -> list[list[int]]:
        """The indices of each bucket's parameters, in the order in which buckets are reduced."""
        return self._reducer.buckets

    @property
    def generation(self) -> int:
        """How often the buckets have been made; when it changes, so have the views."""
        return self._reducer.generation

    def begin_step(self, unused: Sequence[int] = ()) -> None:
        """Begins a step in which the parameters `unused` get no gradient, which is good to know.

        Their buckets need not wait for the end of the step. Only with find_unused_parameters or
        static_graph; without a call, the first gradient begins the step. ValueError in mid-step.
        """
        with self._beginning:
            self._begin(unused)

    def mark_ready(self, index: int) -> None:
        """Says that gradients[index] has been written; it is then not to be touched until finish.

        Raises ValueError if it has been marked in this step.
        """
        if not self._begun:
            self._begin_once()
        self._reducer.mark_ready(index)

    def ready(self, index: int, value: Tensor) -> None:
        """Copies `value`, of the parameter's type and shape, to gradients[index] and marks it.

        After steps of no_sync it is added instead. On a device the value is kept until it has been
        copied: do not write to it before `finish`.
        """
        if not self._begun:
            self._begin_once()
        self._reducer.copy_ready(index, _contiguous(value))

    def ready_rows(self, index: int, indices: Tensor, values: Tensor) -> None:
        """Gives the gradient of a sparse parameter: `values[k]`, of row `indices[k]`.

        `indices` is int64 [n], `values` of the parameter's type and of shape (n, columns...); n may
        differ between ranks. Both are copied.
        """
        if not self._begun:
            self._begin_once()
        self._reducer.mark_ready_sparse(index, indices, values)

    def finish(self) -> list[NDArray[Any]]:
        """Waits until all gradients are averaged; returns `gradients`, which now hold the averages.

        On a device the current stream waits in place of the host, which waits only for the other
        ranks' calls, or for the flags of find_unused_parameters where the group's backend serves
        devices alone.

        Raises ValueError, on all ranks, if ranks have not marked all gradients ready; it names them
        and their parameters. That step is void and over: the next one can begin. Where another
        thread keeps the step from its end, as one that is still copying a gradient at the group's
        timeout, the step stays under way, and finish can be called again.
        """
        if not self._begun:
            self._begin_once()
        try:
            self._reducer.finish()
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._begun = False
        if self._reducer.generation != self._generation:
            self._refresh()
        return self._gradients

    def is_used(self, index: int) -> bool:
        """Whether any rank had a gradient for this parameter in the last step."""
        return self._reducer.is_used(index)

    def rows(self, index: int) -> Rows:
        """All ranks' rows of a sparse parameter in the last step, by rank; values are divided."""
        import numpy

        return Rows(
            numpy.asarray(self._reducer.sparse_indices(index)),
            numpy.asarray(self._reducer.sparse_values(index)),
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Steps inside stay this rank's own, and are part of the first one after it.

        `ready` adds to what is there; who writes in place must do so, too (`+=`), in all but the
        first step. What `finish` returns inside are this rank's sums so far.
        """
        before, self._synchronize = self._synchronize, False
        try:
            yield
        finally:
            self._synchronize = before

    @contextmanager
    def join(
        self,
        *,
        divide_by_initial_world_size: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Lets ranks have different numbers of steps inside, on all ranks with the same arguments.

        A rank that leaves it takes part in the others' steps with zeros, until all have left. So
        every rank must do the same inside, and nothing else that others wait for.

        Args:
          divide_by_initial_world_size: sums are divided by the number of all ranks, so that each
            input weighs the same; otherwise by the number of those that still have input.
          throw_on_early_termination: as soon as a rank leaves while others have input, all of them,
            it included, get a DistError that names the ranks that have left.
        """
        if self._join is not None:
            raise ValueError("join cannot be used inside join")
        self._join = _Join(divide_by_initial_world_size, throw_on_early_termination)
        try:
            yield
            while active := self._reducer.count_active(False):
                self._join.check(self._group, active, is_active=False)
                self._reducer.shadow_step(self._join.divisor(self._group, active))
                if self._reducer.generation != self._generation:
                    self._refresh()
        finally:
            self._join = None

    def set_hook(self, hook: CommHook | None) -> None:
        """Averages buckets by `hook`, None for all-reduce, from the next step on; on all ranks."""
        self._reducer.set_hook(hook)

    def replace_group(self, group: ProcessGroup | None = None) -> None:
        """Goes on in another group, None for that of all ranks, after a failure.

        All its ranks must call it, with equal parameters. A step under way is dropped.
        """
        self._group = resolve(None) if group is None else group
        self._begun = self._has_failed = False
        self._reducer.replace_group(self._group)
        self._refresh()

    def stats(self) -> ReducerStats:
        """When the buckets of the last step were ready, reduced and done; print(stats().table)."""
        return self._reducer.stats()

    def _begin_once(self) -> None:
        with self._beginning:
            if self._begun:
                return
            try:
                self._begin(())
            except ValueError:
                if not self._has_failed:
                    raise
                self._begun = True  # The step of the finish that has failed goes on.

    def _begin(self, unused: Sequence[int]) -> None:
        unused = list(unused)
        self._check_unused(unused)  # Before the other ranks are waited for.
        divisor = 0
        if self._join is not None and self._synchronize and not self._begun:
            active = self._reducer.count_active(True)
            self._join.check(self._group, active, is_active=True)
            divisor = self._join.divisor(self._group, active)
        self._reducer.begin_step(self._synchronize, unused, divisor)
        self._begun, self._has_failed = True, False

    def _check_unused(self, unused: Sequence[int]) -> None:
        if unused and not self._may_lack:
            raise ValueError(
                "parameters were said to be unused, but this reducer refuses steps without all "
                "gradients: make it with find_unused_parameters"
            )
        for index in unused:
            if not 0 <= index < self._count:
                raise ValueError(f"there is no parameter {index}, only 0 to {self._count - 1}")

    def _refresh(self) -> None:
        import numpy

        self._generation = self._reducer.generation
        self._gradients = [
            numpy.empty(0) if i in self._sparse else self._view(self._reducer.gradient(i))
            for i in range(self._count)
        ]


def _is_on_device(array: Any) -> bool:
    kind = getattr(array, "__dlpack_device__", None)
    if kind is not None:
        return int(kind()[0]) == _CUDA
    return hasattr(array, "__cuda_array_interface__")


def _contiguous(value: Tensor) -> Any:
    if _is_on_device(value):
        return value.contiguous() if hasattr(value, "contiguous") else value
    import numpy

    return numpy.ascontiguousarray(value)


def _viewer(parameters: Sequence[Tensor]) -> Callable[[Any], Any]:
    """What makes arrays like `parameters` of the reducer's views."""
    if not parameters or not _is_on_device(parameters[0]):
        import numpy

        return numpy.asarray
    for library, kind in (("torch", "Tensor"), ("cupy", "ndarray")):
        module = sys.modules.get(library)
        if module is not None and isinstance(parameters[0], getattr(module, kind)):
            from_dlpack: Callable[[Any], Any] = module.from_dlpack
            return from_dlpack
    return lambda view: view


class _Join:
    """The arguments of `join`."""

    def __init__(self, divide_by_all: bool, throw: bool):
        self._divide_by_all = divide_by_all
        self._throw = throw

    def divisor(self, group: ProcessGroup, active: int) -> int:
        return group.size() if self._divide_by_all else active

    def check(self, group: ProcessGroup, active: int, *, is_active: bool) -> None:
        """With throw_on_early_termination: DistError if not all ranks of the group are active."""
        if not self._throw or active == group.size():
            return
        states = group.all_gather_bytes(b"active" if is_active else b"left")
        left = [rank for rank, state in enumerate(states) if state == b"left"]
        ranks = f"rank {left[0]} has" if len(left) == 1 else f"ranks {left} have"
        raise DistError(
            f"{ranks} no more input, others have, and join was told to throw_on_early_termination: "
            "give all ranks as many batches, or leave that out"
        )
