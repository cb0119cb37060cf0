"""What travels as shared memory, and by which strategy."""

from __future__ import annotations

import sys
from typing import Any

from syncline import _syncline
from syncline.multiprocessing import named_segments

_STRATEGIES = frozenset({"file_descriptor", "file_system"})
_strategy = "file_descriptor"

_DEFAULT_THRESHOLD = 128 << 10
_threshold = _DEFAULT_THRESHOLD


def get_all_sharing_strategies() -> set[str]:
    """The names of the strategies that this system has."""
    return set(_STRATEGIES)


def get_sharing_strategy() -> str:
    """The name of the strategy by which this process shares memory."""
    return _strategy


def set_sharing_strategy(new_strategy: str) -> None:
    """Chooses the strategy for what this process sends from now on, and those that it starts.

    "file_descriptor": memory without a name, whose descriptor travels in the message.
    "file_system": files in /dev/shm, whose names do; a process that frees them is started, once for
    each job.
    Whatever has been sent is received, whichever strategy the receiver has chosen.

    Raises ValueError for a name that get_all_sharing_strategies does not return, RuntimeError if
    the process cannot be started.
    """
    global _strategy
    if new_strategy not in _STRATEGIES:
        raise ValueError(
            f"there is no sharing strategy {new_strategy!r}: choose one of"
            f" {', '.join(sorted(_STRATEGIES))}"
        )
    if new_strategy == "file_system":
        named_segments.use_manager()
    _strategy = new_strategy


def new_memory(nbytes: int) -> Any:
    """Memory of the chosen strategy, all zeros: a _syncline.TensorView of bytes."""
    if _strategy == "file_system":
        return named_segments.make(nbytes)
    return _syncline._empty_shared([nbytes], "uint8")


def get_sharing_threshold() -> int:
    """From how many bytes on an array that is not shared yet travels as shared memory."""
    return _threshold


def set_sharing_threshold(nbytes: int) -> None:
    """Sets from how many bytes on an array that is not shared yet travels as shared memory.

    Smaller ones travel by value: a copy through the pipe costs less than memory of their own. Those
    that are shared already travel as shared memory, whatever their size.
    """
    global _threshold
    if nbytes < 0:
        raise ValueError(f"a threshold is a number of bytes, not {nbytes}")
    _threshold = nbytes


def is_shared(x: Any) -> bool:
    """Whether the elements of an array lie in memory that other processes can map.

    That is memory of `empty_shared`, of `share_memory_`, and of arrays that were received as shared
    memory. Their views are shared, too. False for arrays without elements, and other objects.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from syncline.multiprocessing import torch_tensors

        return torch_tensors.is_shared(x)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        from syncline.multiprocessing import jax_arrays

        if not jax_arrays.is_sharable(x):
            return False
        x = numpy.asarray(x)
    if not isinstance(x, numpy.ndarray) or x.size == 0:
        return False
    from syncline.multiprocessing import numpy_arrays

    low, high = numpy_arrays.byte_bounds(x)
    return _syncline._shared_place(low, high - low) is not None


def share_memory_(x: Any) -> Any:
    """Moves the elements of an array to shared memory, and returns the shared array.

    A torch tensor on the CPU is moved in place, with all views of its storage; of a torch.nn.Module
    all parameters and buffers are. NumPy arrays cannot
    be moved: the result is a shared copy, or `x` itself if it is shared. So write
    `x = share_memory_(x)`.
    """
    if is_shared(x):
        return x
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, (torch.Tensor, torch.nn.Module)):
        from syncline.multiprocessing import torch_tensors

        return torch_tensors.share_memory_(x)
    import numpy

    if isinstance(x, numpy.ndarray):
        from syncline.multiprocessing import numpy_arrays

        return numpy_arrays.shared_copy(x)
    raise TypeError(
        f"share_memory_ takes arrays of NumPy and tensors of torch, not {type(x).__name__}"
    )
