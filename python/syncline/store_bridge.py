"""Stores that are written in Python, as the C++ core calls them.

A store of Python is an instance of a class derived from syncline.Store, or any object with the
methods of torch.distributed's stores: those of torch itself, say. It needs `set`, `get`, `add`,
`check` and `compare_set`; the others are made of these where it lacks them, except `delete_key`,
`append`, `list_keys`, `clone` and queues, whose absence is a NotImplementedError.
"""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from syncline._syncline import Store
from syncline.errors import DistTimeoutError, QueueEmptyError

_NEEDED = ("set", "get", "add", "check", "compare_set")
_SLICE = timedelta(seconds=1)  # Of a wait of a class's own, which Ctrl-C may not end.
_LONGEST = timedelta(days=365)  # What every store can count.
_SHORT_PAUSE, _LONG_PAUSE = 0.001, 0.02
_DEFAULT_TIMEOUT = timedelta(seconds=300)


def bridge_to(value: Any) -> StoreBridge | None:
    """What the core calls in place of `value`, and keeps it alive; None if it is no store."""
    if isinstance(value, Store) or all(callable(getattr(value, name, None)) for name in _NEEDED):
        return StoreBridge(lambda: value)
    return None


def weak_bridge_to(store: Store) -> StoreBridge:
    """The same for what `store` itself holds."""
    return StoreBridge(weakref.ref(store))


class StoreBridge:
    """The methods of `PythonStore` in python/extension/python_store.h, over an object's own."""

    def __init__(self, target: Callable[[], Any]):
        self._target = target

    def target(self) -> Any:
        target = self._target()
        if target is None:
            raise ReferenceError("the store's object of Python is gone")
        return target

    def describe(self) -> str:
        return f"{type(self.target()).__name__} of Python"

    def set(self, key: str, value: bytes) -> None:
        self._needed("set")(key, value)

    def get(self, key: str, timeout: timedelta) -> bytes:
        get = self._needed("get")
        if self._own("check") or self._own("wait"):
            self.wait([key], timeout)
        return _octets(get(key))

    def add(self, key: str, amount: int) -> int:
        return int(self._needed("add")(key, amount))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        value = _octets(self._needed("compare_set")(key, expected, desired))
        # Torch's stores say what was expected where the key is absent. Ours say that it is absent.
        if expected and value == expected != desired and not self.check([key]):
            return b""
        return value

    def check(self, keys: list[str]) -> bool:
        return bool(self._needed("check")(keys))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        limit = min(timeout, _LONGEST)
        end = time.monotonic() + limit.total_seconds()
        # Torch's wait holds up the other threads of its client, and warns on stderr at its end.
        own_wait = self._own("wait") if isinstance(self.target(), Store) else None
        pause = _SHORT_PAUSE
        while True:
            left = timedelta(seconds=end - time.monotonic())
            # To some stores no time at all is no limit.
            if own_wait is None or left <= timedelta(milliseconds=1):
                if self.check(keys):
                    return
                if left <= timedelta():
                    raise DistTimeoutError(f"{_named(keys)} not set after {_spelled(timeout)}")
                time.sleep(min(pause, left.total_seconds()))
                pause = min(2 * pause, _LONG_PAUSE)
                continue
            began = time.monotonic()
            part = min(left, _SLICE)
            try:
                own_wait(keys, part)
                return
            except Exception:
                if self.check(keys):
                    return
                if time.monotonic() - began < part.total_seconds() / 2:
                    raise  # Something else than time has ended it.

    def delete_key(self, key: str) -> bool:
        return bool(self._needed("delete_key")(key))

    def list_keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._needed("list_keys")() if key.startswith(prefix))

    def append(self, key: str, value: bytes) -> None:
        self._needed("append")(key, value)

    def multi_get(self, keys: list[str], timeout: timedelta) -> list[bytes]:
        self.wait(keys, timeout)
        multi_get = self._own("multi_get") if self._is_extended() else None
        if multi_get is not None:
            return [_octets(value) for value in multi_get(keys)]
        get = self._needed("get")
        return [_octets(get(key)) for key in keys]

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys but {len(values)} values")
        multi_set = self._own("multi_set") if self._is_extended() else None
        if multi_set is not None:
            multi_set(keys, values)
            return
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def timeout(self) -> timedelta:
        timeout = self._own("timeout")
        if callable(timeout):
            timeout = timeout()
        return timeout if isinstance(timeout, timedelta) else _DEFAULT_TIMEOUT

    def set_timeout(self, timeout: timedelta) -> None:
        self._needed("set_timeout")(timeout)

    def clone(self) -> Any:
        return self._needed("clone")()

    def queue_push(self, key: str, value: bytes) -> None:
        self._needed("queue_push")(key, value)

    def queue_pop(self, key: str, timeout: timedelta) -> bytes:
        end = time.monotonic() + min(timeout, _LONGEST).total_seconds()
        pause = _SHORT_PAUSE
        while (value := self.queue_try_pop(key)) is None:
            left = end - time.monotonic()
            if left <= 0:
                raise DistTimeoutError(f"queue {key!r} empty for {_spelled(timeout)}")
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONG_PAUSE)
        return value

    def queue_try_pop(self, key: str) -> bytes | None:
        if self.queue_len(key) == 0:
            return None
        try:
            return _octets(self._needed("queue_pop")(key, False))
        except QueueEmptyError:
            return None
        except Exception:
            # Torch's QueueEmptyError, after another has been faster.
            if self.queue_len(key) == 0:
                return None
            raise

    def queue_len(self, key: str) -> int:
        return int(self._needed("queue_len")(key))

    def _own(self, name: str) -> Any:
        """The attribute of the object; None if it lacks it, or has only what Store gives it."""
        target = self.target()
        if isinstance(target, Store):
            theirs = inspect.getattr_static(type(target), name, None)
            if theirs is inspect.getattr_static(Store, name, None):
                return None
        return getattr(target, name, None)

    def _needed(self, name: str) -> Any:
        method = self._own(name)
        if method is None:
            raise NotImplementedError(f"{type(self.target()).__name__} does not define {name}")
        return method

    def _is_extended(self) -> bool:
        has_extended_api = self._own("has_extended_api")
        return has_extended_api is None or bool(has_extended_api())


def _octets(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _named(keys: list[str]) -> str:
    shown = ", ".join(repr(key) for key in keys[:8])
    rest = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    return f"{'key' if len(keys) == 1 else 'keys'} {shown}{rest}"


def _spelled(timeout: timedelta) -> str:
    return f"{timeout.total_seconds():g}s"
