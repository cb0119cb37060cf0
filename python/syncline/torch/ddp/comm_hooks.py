"""Communication hooks in the form of torch's: functions of a state and a bucket."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_origin, get_type_hints

import torch
import torch.distributed
from torch.utils.dlpack import from_dlpack

from syncline import _syncline
from syncline.futures import Future
from syncline.torch.ddp.layout import Layout, place_of_buckets

Hook = Callable[[Any, Any], torch.futures.Future[Any] | Future]


class GradBucket:
    """A bucket with the methods of torch.distributed.GradBucket."""

    def __init__(self, bucket: _syncline.GradBucket, parameters: Sequence[torch.Tensor]):
        self._bucket = bucket
        self._parameters = [parameters[index] for index in bucket.parameters]
        self._buffer = from_dlpack(bucket.buffer)

    def index(self) -> int:
        """The bucket's place in the order of reduction."""
        return self._bucket.index

    def buffer(self) -> torch.Tensor:
        """The gradients of this rank, flat; not divided by anything."""
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        """The parts of the buffer, of the parameters' shapes."""
        layouts = [Layout.of(parameter) for parameter in self._parameters]
        parts = torch.split(self._buffer, [parameter.numel() for parameter in self._parameters])
        return [
            layout.restore(part.view(layout.shape))
            for layout, part in zip(layouts, parts, strict=True)
        ]

    def parameters(self) -> list[torch.Tensor]:
        """The parameters whose gradients these are."""
        return self._parameters

    def is_last(self) -> bool:
        """Whether it is the last one of a step."""
        return self._bucket.is_last

    def set_buffer(self, tensor: torch.Tensor) -> None:
        """Replaces the buffer by `tensor`, of the same number of elements."""
        self._buffer = tensor


def from_torch(state: Any, hook: Hook, parameters: Sequence[torch.Tensor]) -> _syncline.CommHook:
    """What a reducer of `parameters` calls for hook(state, bucket), which returns a Future.

    The Future is torch's, or Syncline's: collectives of the hook are those of torch.distributed, or
    those of Syncline. Its value is the bucket's average, or a list with it.
    """
    from syncline import comm_hooks
    from syncline.torch.backend.process_group import as_hook

    name = getattr(hook, "__qualname__", type(hook).__name__)
    marked = as_hook(hook)
    on_device = place_of_buckets(parameters).type == "cuda"

    own_streams: dict[torch.device, Any] = {}

    def start(bucket: _syncline.GradBucket) -> Any:
        if not on_device:
            return begin(bucket)
        # Beside what comes on the current stream next, but behind what has computed the gradients
        # and behind what callbacks of the step before have done to the hook's state.
        current = torch.cuda.current_stream(parameters[0].device)
        if current.device not in own_streams:
            own_streams[current.device] = torch.cuda.Stream(current.device)
        own = own_streams[current.device]
        own.wait_stream(current)
        with torch.cuda.stream(own):
            return begin(bucket)

    def begin(bucket: _syncline.GradBucket) -> Any:
        given = GradBucket(bucket, parameters)
        place = given.buffer()

        def take(done: Any) -> None:
            value = done.value()
            average = value[0] if isinstance(value, (list, tuple)) else value
            if average.data_ptr() != place.data_ptr() or average.dtype != place.dtype:
                place.copy_(average.view(-1))
            if on_device and not isinstance(done, torch._C.Future):
                # Torch's futures know on which streams their values are computed.
                torch.cuda.current_stream(place.device).synchronize()

        future = marked(state, given)
        if not isinstance(future, (torch._C.Future, Future)):
            raise TypeError(
                f"communication hook {name} must return a torch.futures.Future or a "
                f"syncline.futures.Future of the average, not {type(future).__name__}"
            )
        return future.then(take)

    return comm_hooks.from_starter(start, name)


def _check_annotations(hook: Hook) -> None:
    """As torch's DistributedDataParallel does; what cannot be resolved is not looked at."""
    function: Any = hook
    if not inspect.isroutine(hook):
        function = function.__call__
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return
    bucket = hints.get("bucket", Any)
    ours = (GradBucket, _syncline.GradBucket)
    if bucket not in (Any, *ours, getattr(torch.distributed, "GradBucket", GradBucket)):
        raise ValueError(
            f"a communication hook's bucket is a torch.distributed.GradBucket: its "
            f"annotation must say so, not {bucket}"
        )
    returned = hints.get("return", Any)
    if (get_origin(returned) or returned) not in (Any, torch.futures.Future, Future):
        raise ValueError(
            f"a communication hook returns a torch.futures.Future[torch.Tensor]: its "
            f"annotation must say so, not {returned}"
        )


def make(state: Any, hook: Any, parameters: Sequence[torch.Tensor]) -> _syncline.CommHook:
    """`hook` as a reducer takes it: Syncline's as it is, a function of torch's kind wrapped."""
    check(hook)
    if isinstance(hook, _syncline.CommHook):
        return hook
    return from_torch(state, hook, parameters)


def check(hook: Any) -> None:
    """Raises TypeError if it is neither, ValueError if its annotations say otherwise."""
    if isinstance(hook, _syncline.CommHook):
        return
    if not callable(hook):
        raise TypeError(
            "hook must be a syncline.CommHook or a function of a state and a bucket, not "
            f"{type(hook).__name__}"
        )
    _check_annotations(hook)
