"""Communication hooks: how a reducer averages its buckets.

Those that come with Syncline are made by CommHook: CommHook.power_sgd(rank=4). One's own is a
function in Python:

    def halved(bucket, group):
        values = numpy.asarray(bucket.buffer)
        half = values.astype(numpy.float16) / bucket.divisor
        group.all_reduce(half)
        values[:] = half

    reducer.set_hook(comm_hooks.from_function(halved))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from syncline._syncline import (
    CommHook,
    GradBucket,
    ParameterAverager,
    ProcessGroup,
    Work,
    _comm_hook_from_function,
    _comm_hook_from_starter,
)

__all__ = [
    "CommHook",
    "FutureLike",
    "GradBucket",
    "ParameterAverager",
    "from_function",
    "from_starter",
]


class FutureLike(Protocol):
    """What syncline.Future, concurrent.futures.Future, asyncio.Future and torch's Future share."""

    def add_done_callback(self, callback: Callable[[Any], None], /) -> Any:
        """Calls `callback` with the future: when it is done, or at once if it is."""


def from_function(
    function: Callable[[GradBucket, ProcessGroup], object], name: str | None = None
) -> CommHook:
    """A hook that averages each bucket by a call of `function`, in the background.

    Args:
      function: function(bucket, group) must leave the sum of all ranks' `bucket.buffer`, divided by
        `bucket.divisor`, in its place; what it returns is ignored. It is called on a thread of the
        hook's own, for one bucket after another, in the same order on all ranks. `group` has the
        ranks of the reducer's, and is for this hook only. Make NumPy arrays of the tensors by
        numpy.asarray, PyTorch's by torch.from_dlpack: they share their memory. On a device
        it need not wait for what it has queued on PyTorch's or CuPy's current stream.
      name: for messages and statistics, equal on all ranks; None is that of the function.

    What `function` raises is the error of the reducer's `finish`, on all ranks: the others' calls
    in `group` fail and quote it. It ends the reducer's group, too.

    Raises TypeError if `function` cannot be called.
    """
    return _comm_hook_from_function(_name(function, name), function)


def from_starter(
    function: Callable[[GradBucket], FutureLike | Work], name: str | None = None
) -> CommHook:
    """A hook that begins to average each bucket by a call of `function`.

    Args:
      function: function(bucket) begins to average `bucket.buffer` and returns a Work, or a future
        that is done when the average is there; its value is ignored. It is called in the same order
        on all ranks, on whichever thread marked the bucket's last gradient, which it should not
        hold up. The future may be completed on any thread. Operations that `function` starts
        before it returns may go by the reducer's group, later ones by a group of their own.
      name: for messages and statistics; None is that of the function.

    On a device, a Work has the streams wait for it, and no thread; a future is waited for.

    What `function` or the future raises is the error of the reducer's `finish`, and ends the
    reducer's group, so that no other rank waits for this one in it.

    Raises TypeError if `function` cannot be called.
    """

    def start(bucket: GradBucket, done: Callable[[BaseException | None], None]) -> Work | None:
        begun = function(bucket)
        if isinstance(begun, Work):
            work = begun
            work._on_complete(lambda: done(work.exception()))
            return work
        if hasattr(begun, "add_done_callback"):
            begun.add_done_callback(lambda future: done(_error_of(future)))
        else:
            raise TypeError(
                "a starter must return a Work or a future with add_done_callback, not "
                f"{type(begun).__name__}"
            )
        return None

    return _comm_hook_from_starter(_name(function, name), start)


def _name(function: Callable[..., object], name: str | None) -> str:
    if not callable(function):
        raise TypeError(f"function must be callable, not {type(function).__name__}")
    return name or str(getattr(function, "__name__", type(function).__name__))


def _error_of(future: Any) -> BaseException | None:
    """The error of a future that is done."""
    try:
        # PyTorch's futures have value() for this, and no result().
        future.result() if hasattr(future, "result") else future.value()
    except BaseException as error:
        return error
    return None
