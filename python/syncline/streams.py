"""The streams of CUDA devices behind which calls on their arrays are enqueued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from syncline._syncline import _chosen_streams

_ANY_DEVICE = -1


@contextmanager
def stream(stream: Any, device: Any = None) -> Iterator[None]:
    """Makes `stream` the one behind which calls on a device's arrays are enqueued, inside of it.

        with syncline.stream(torch.cuda.Stream()):
            work = syncline.all_reduce(x, async_op=True)  # After what is on that stream so far.
            work.wait()  # What comes on that stream after this sees the result.

    Without it, that is the current stream of the array's library: torch.cuda.current_stream() for
    PyTorch, cupy.cuda.get_current_stream() for CuPy, and the default stream for others. It counts
    for the calls of this thread, or of this task of asyncio, and the innermost one of a device
    does. The stream must live until the work on it has ended.

    Args:
      stream: torch.cuda.Stream, cupy.cuda.Stream, whatever has `__cuda_stream__`, or the number of
        a cudaStream_t, of which 0 and 1 are the default stream.
      device: the number of the device, or what has one as its `index`; None is that of `stream`,
        and all devices if it does not say.

    Raises:
      TypeError: it is no stream, or no device.
      ValueError: a number is negative.
    """
    handle = _handle_of(stream)
    if handle < 0:
        raise ValueError(f"the number of a stream must not be negative, not {handle}")
    place = (_device_of(stream, device), handle)
    token = _chosen_streams.set((place, *_chosen_streams.get(())))
    try:
        yield
    finally:
        _chosen_streams.reset(token)


def _handle_of(stream: Any) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    for name in ("cuda_stream", "ptr"):  # PyTorch's, CuPy's.
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    pair = protocol() if callable(protocol) else protocol
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], int):
        if pair[0] != 0:
            raise TypeError(f"version {pair[0]} of __cuda_stream__ is not known, only 0 is")
        return pair[1]
    raise TypeError(
        f"stream must be a torch.cuda.Stream, a cupy.cuda.Stream, an int or have __cuda_stream__, "
        f"not {type(stream).__name__}"
    )


def _device_of(stream: Any, device: Any) -> int:
    if device is None:
        index = getattr(getattr(stream, "device", None), "index", None)  # PyTorch's.
        if index is None:
            index = getattr(stream, "device_id", None)  # CuPy's, -1 if it does not know.
        return index if isinstance(index, int) and index >= 0 else _ANY_DEVICE
    kind, _, number = str(getattr(device, "type", "cuda")).partition(":")
    index = getattr(device, "index", device)
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        index = int(number) if number.isdecimal() else None
    if kind != "cuda" or not isinstance(index, int) or isinstance(index, bool):
        raise TypeError(f"device must be the number of a CUDA device, not {device!r}")
    if index < 0:
        raise ValueError(f"the number of a device must not be negative, not {index}")
    return index
