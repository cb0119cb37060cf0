"""Stores of Syncline's where torch wants its own.

    store = syncline.TCPStore("node1", 29500, is_master=rank == 0)
    torch.distributed.init_process_group(
        "gloo", store=to_torch_store(store), rank=rank, world_size=2
    )

The other way round nothing is needed: syncline.init_process_group takes torch's stores as they are.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

from syncline._syncline import Store
from syncline.errors import QueueEmptyError

_TorchQueueEmptyError = getattr(torch.distributed, "QueueEmptyError", QueueEmptyError)


class TorchStore(torch.distributed.Store):  # type: ignore[misc, name-defined]
    """A store of torch.distributed whose contents are those of `store`, which it keeps alive."""

    def __init__(self, store: Store):
        super().__init__()
        super().set_timeout(store.timeout)
        self.underlying_store = store

    @property
    def timeout(self) -> timedelta:
        return self.underlying_store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self.underlying_store.set_timeout(timeout)

    def clone(self) -> TorchStore:
        return TorchStore(self.underlying_store.clone())

    def set(self, key: str, value: Any) -> None:
        self.underlying_store.set(key, value)

    def get(self, key: str) -> bytes:
        return self.underlying_store.get(key)

    def compare_set(self, key: str, expected_value: Any, desired_value: Any) -> bytes:
        return self.underlying_store.compare_set(key, expected_value, desired_value)

    def add(self, key: str, value: int) -> int:
        return self.underlying_store.add(key, value)

    def num_keys(self) -> int:
        return self.underlying_store.num_keys()

    def delete_key(self, key: str) -> bool:
        return self.underlying_store.delete_key(key)

    def check(self, keys: list[str]) -> bool:
        return self.underlying_store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self.underlying_store.wait(keys, timeout)

    def list_keys(self) -> list[str]:
        return self.underlying_store.list_keys()

    def append(self, key: str, value: Any) -> None:
        self.underlying_store.append(key, value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self.underlying_store.multi_get(keys)

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        self.underlying_store.multi_set(keys, values)

    def has_extended_api(self) -> bool:
        return True

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        self.underlying_store.barrier(key, world_size, timeout)

    def queue_push(self, key: str, value: Any) -> None:
        self.underlying_store.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        try:
            return self.underlying_store.queue_pop(key, block)
        except QueueEmptyError as error:
            raise _TorchQueueEmptyError(str(error)) from None

    def queue_len(self, key: str) -> int:
        return self.underlying_store.queue_len(key)


def to_torch_store(store: Store) -> TorchStore:
    """A torch.distributed.Store that is `store`."""
    if not isinstance(store, Store):
        raise TypeError(f"store must be a syncline.Store, not {type(store).__name__}")
    return TorchStore(store)
