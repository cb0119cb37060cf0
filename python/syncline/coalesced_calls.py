"""Operations that wait to be issued as one; what `syncline.coalescing` works with."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from syncline import _syncline
from syncline._syncline import ProcessGroup, Work

if TYPE_CHECKING:
    from syncline._syncline import Tensor

# The `count` equal parts of a contiguous array, as one-dimensional views.
parts: Callable[[Tensor, int], list[Any]] = vars(_syncline)["_parts"]

# The contexts that are open, by the thread that opened them and the group.
open_contexts: dict[tuple[int, ProcessGroup], Coalescing] = {}


class Coalescing:
    """What `with coalescing(group) as cm` gives: the operations that were called inside."""

    def __init__(self, group: ProcessGroup | None):
        self._group = group
        self._kind: tuple[str, Hashable] = ("", None)  # Of what waits: the operation, and its
        self._waiting: list[tuple[Tensor, ...]] = []  # arguments besides the arrays.
        self._works: list[Work] = []

    @property
    def works(self) -> list[Work]:
        """What has been issued so far."""
        return self._works

    def wait(self) -> None:
        """Waits until all operations have finished; raises the error of the first that failed."""
        for work in self._works:
            work.wait()

    def add(self, operation: str, arguments: Hashable, *arrays: Tensor) -> None:
        """Collects a call. Calls of another kind that wait already are issued first."""
        kind = (operation, arguments)
        if kind != self._kind:
            self.issue()
            self._kind = kind
        self._waiting.append(arrays)

    def issue(self) -> None:
        """Issues what waits, as one operation or as one for each element type."""
        calls, self._waiting = self._waiting, []
        if not calls or self._group is None:
            return
        operation, arguments = self._kind
        for same in _batches(operation, calls):
            self._works.append(_START[operation](self._group, arguments, same))


def issue(group: ProcessGroup) -> None:
    """Issues what the context of this thread and `group`, if there is one, has collected."""
    context = open_contexts.get((get_ident(), group))
    if context is not None:
        context.issue()


def collect(group: ProcessGroup, operation: str, arguments: Hashable, *arrays: Tensor) -> bool:
    """Leaves a call to the context of this thread and `group`; False if there is none."""
    context = open_contexts.get((get_ident(), group))
    if context is None:
        return False
    context.add(operation, arguments, *arrays)
    return True


def _batches(operation: str, calls: list[tuple[Tensor, ...]]) -> list[list[tuple[Tensor, ...]]]:
    """What can go together: operations that reduce take one element type at a time."""
    if "reduce" not in operation:
        return [calls]
    by_type: dict[str, list[tuple[Tensor, ...]]] = {}
    for arrays in calls:
        by_type.setdefault(parts(arrays[0], 1)[0].dtype, []).append(arrays)
    return list(by_type.values())


def _broadcast(group: ProcessGroup, root: Any, calls: list[tuple[Tensor, ...]]) -> Work:
    return group.broadcast_coalesced_async([tensor for (tensor,) in calls], root)


def _all_reduce(group: ProcessGroup, op: Any, calls: list[tuple[Tensor, ...]]) -> Work:
    reduce_op, factor = op
    tensors = [tensor for (tensor,) in calls]
    return group.all_reduce_coalesced_async(tensors, reduce_op, None, factor)


def _all_gather_single(group: ProcessGroup, _: Any, calls: list[tuple[Tensor, ...]]) -> Work:
    outputs = [part for output, _ in calls for part in parts(output, group.size())]
    return group.all_gather_coalesced_async(outputs, [input for _, input in calls])


def _reduce_scatter_single(group: ProcessGroup, op: Any, calls: list[tuple[Tensor, ...]]) -> Work:
    reduce_op, factor = op
    inputs = [part for _, input in calls for part in parts(input, group.size())]
    outputs = [output for output, _ in calls]
    return group.reduce_scatter_coalesced_async(outputs, inputs, reduce_op, None, factor)


_START: dict[str, Callable[[ProcessGroup, Any, list[tuple[Tensor, ...]]], Work]] = {
    "broadcast": _broadcast,
    "all_reduce": _all_reduce,
    "all_gather_single": _all_gather_single,
    "reduce_scatter_single": _reduce_scatter_single,
}
