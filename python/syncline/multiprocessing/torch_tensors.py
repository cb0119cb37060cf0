"""How tensors of torch on the CPU travel: their storage moves into shared memory.

As in torch.multiprocessing, the sender's tensor, and all views of its storage, are in that memory
afterwards, and both sides see each other's writes. All other tensors travel as torch sends them.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

from syncline import _syncline
from syncline.multiprocessing import pickling


def reductions() -> dict[type, pickling.Reduce]:
    """For Pickler."""
    # Torch registers its own functions when it has been imported.
    if not hasattr(torch, "multiprocessing") or not _StorageLayout.get().known:
        return {}
    return {
        torch.Tensor: _reduce_tensor,
        torch.nn.Parameter: _reduce_tensor,
        torch.UntypedStorage: _reduce_storage,
    }


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether its storage is in shared memory, of ours or of torch."""
    if not _is_plain(tensor):
        return False
    storage = tensor.untyped_storage()
    return storage.nbytes() > 0 and (_place(storage) is not None or storage.is_shared())


def share_memory_(x: Any) -> Any:
    """Moves a tensor's storage, or those of a module's parameters and buffers."""
    if isinstance(x, torch.nn.Module):
        for tensor in (*x.parameters(), *x.buffers()):
            share_memory_(tensor)
        return x
    if not _is_plain(x):
        raise TypeError(
            f"only dense tensors on the CPU can be shared, not {x.layout} on {x.device}"
        )
    storage = x.untyped_storage()
    if storage.nbytes() > 0 and not is_shared(x):
        if not _StorageLayout.get().known:
            storage.share_memory_()
        else:
            _move(storage, pickling.shared_copy(storage.nbytes(), [(0, _bytes_of(storage))]), 0)
    return x


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a view of a storage in main memory."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def _place(storage: torch.UntypedStorage) -> Any:
    return _syncline._shared_place(storage.data_ptr(), storage.nbytes())


def _over(view: Any, offset: int, nbytes: int) -> torch.UntypedStorage:
    """A storage over a part of a segment."""
    part = _syncline._part_of(view, offset, "uint8", [nbytes])
    return torch.from_dlpack(part).untyped_storage()


def _bytes_of(storage: torch.UntypedStorage) -> Any:
    return (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())


def _move(storage: torch.UntypedStorage, view: Any, offset: int) -> None:
    """Makes a storage, and all tensors over it, use the copy of its bytes in a segment."""
    _StorageLayout.get().swap_memory(storage, _over(view, offset, storage.nbytes()))


class _StorageLayout:
    """Where torch's StorageImpl has its memory: torch has no function that replaces it.

    Torch's own share_memory_ exchanges the contents of two of them. The three words exchanged here
    are those of a c10::DataPtr: the address, the context and the function that frees it. Where they
    are is found by the address, and tried out once; if that fails, tensors travel as torch sends
    them.
    """

    _WORDS = 3
    _SEARCHED = 8
    _layout: _StorageLayout | None = None

    def __init__(self) -> None:
        self._offset = 0
        self.known = False
        first, second = torch.full((5,), 1.0), torch.full((5,), 2.0)
        storages = [first.untyped_storage(), second.untyped_storage()]
        addresses = [storage.data_ptr() for storage in storages]
        found = [
            8 * word
            for word in range(self._SEARCHED - self._WORDS)
            if all(
                ctypes.c_uint64.from_address(storage._cdata + 8 * word).value == address
                for storage, address in zip(storages, addresses, strict=True)
            )
        ]
        if not found:
            return
        self._offset = found[0]
        self.swap_memory(*storages)
        swapped = [storage.data_ptr() for storage in storages] == addresses[::-1]
        self.known = swapped and first.sum().item() == 10 and second.sum().item() == 5

    @classmethod
    def get(cls) -> _StorageLayout:
        if cls._layout is None:
            cls._layout = cls()
        return cls._layout

    def swap_memory(self, first: torch.UntypedStorage, second: torch.UntypedStorage) -> None:
        words = ctypes.c_uint64 * self._WORDS
        one = words.from_address(first._cdata + self._offset)
        other = words.from_address(second._cdata + self._offset)
        one[:], other[:] = list(other), list(one)


def _reduce_tensor(collector: pickling.Collector, tensor: torch.Tensor) -> pickling.Reduction:
    if not _is_plain(tensor):
        return collector.by_default(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "a tensor that requires grad and is not a leaf cannot be sent, since autograd does not"
            " cross processes: send tensor.detach()"
        )
    torch.utils.hooks.warn_if_has_hooks(tensor)
    storage = tensor.untyped_storage()
    collector.keep.append(storage)  # The same object is pickled once.
    if storage.nbytes() == 0:
        return collector.by_default(tensor)
    bits = (tensor.is_conj(), tensor.is_neg())
    return _rebuild_tensor, (
        storage,
        tensor.storage_offset(),
        tuple(tensor.size()),
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
        type(tensor) is torch.nn.Parameter,
        bits if any(bits) else None,
    )


def _rebuild_tensor(
    storage: torch.UntypedStorage,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    requires_grad: bool,
    is_parameter: bool,
    bits: tuple[bool, bool] | None,
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)
    if bits is not None:
        if bits[0]:
            tensor = tensor.conj()
        if bits[1]:
            tensor = torch._neg_view(tensor)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _reduce_storage(
    collector: pickling.Collector, storage: torch.UntypedStorage
) -> pickling.Reduction:
    nbytes = storage.nbytes()
    if storage.device.type != "cpu" or nbytes == 0:
        return collector.by_default(storage)
    collector.keep.append(storage)
    address = storage.data_ptr()
    place = collector.place(address, nbytes)
    buffer: pickling.Shared | pickling.Copied
    if place is not None:
        handle, offset, size = place
        buffer = pickling.Shared(handle, offset, nbytes, size, storage)
    elif storage.is_shared():
        if (
            not collector.carries_descriptors
            or torch.multiprocessing.get_sharing_strategy() != "file_descriptor"
        ):
            return collector.by_default(storage)
        descriptor, size = storage._share_fd_cpu_()
        return _rebuild_torchs, (collector.stand_in(os.dup(descriptor)), size)
    else:

        def move(view: Any, offset: int) -> None:
            _move(storage, view, offset)

        buffer = pickling.Copied(address, address + nbytes, _bytes_of(storage), None, move)
    return _rebuild_storage, (collector.stand_in(buffer), nbytes)


def _rebuild_storage(place: tuple[Any, int], nbytes: int) -> torch.UntypedStorage:
    return _over(*place, nbytes)


# Storages of torch's own shared memory that were received, by device and inode.
_torchs: dict[tuple[int, int], Any] = {}


def _rebuild_torchs(descriptor: int, size: int) -> torch.UntypedStorage:
    from torch.multiprocessing.reductions import StorageWeakRef

    try:
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        known = _torchs.get(identity)
        if known is not None:
            weak = torch.UntypedStorage._new_with_weak_ptr(known.cdata)
            if weak is not None:
                return weak
        storage = torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)
        for gone in [key for key, reference in _torchs.items() if reference.expired()]:
            del _torchs[gone]
        _torchs[identity] = StorageWeakRef(storage)
        return storage
    finally:
        os.close(descriptor)
