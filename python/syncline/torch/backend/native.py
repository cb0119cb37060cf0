"""Loads the native backend, if its library is there, and its kind of ProcessGroup."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import pathlib
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from syncline import _syncline, torch_native
from syncline.torch.backend import process_group
from syncline.torch.backend.process_group import Operations, ProcessGroup, PythonProcessGroup


def load(path: pathlib.Path) -> Any:
    """The module in the library at `path`. ImportError if it does not fit after all."""
    name = torch_native.MODULE
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@functools.cache
def group_class() -> Callable[..., ProcessGroup]:
    """The class of new groups: of the native backend, or PythonProcessGroup.

    Warns if there is a library that cannot be loaded; raises ImportError if SYNCLINE_TORCH_NATIVE
    names one that cannot.
    """
    library = torch_native.find(_syncline.Info.version())
    if library.path is None:
        return PythonProcessGroup
    try:
        return _native_class(load(library.path))
    except ImportError as error:
        if torch_native.setting() != "on":
            raise
        warnings.warn(
            f"syncline: the native backend is not used, since {library.path} cannot be loaded "
            f"({error}): run python -m syncline.torch.build --force",
            RuntimeWarning,
            stacklevel=2,
        )
        return PythonProcessGroup


def is_native() -> bool:
    """Whether new groups are of the native backend."""
    return group_class() is not PythonProcessGroup


def _native_class(module: Any) -> Callable[..., ProcessGroup]:
    process_group.hook_listeners.append(module._enter_hook)

    class NativeProcessGroup(ProcessGroup, module.ProcessGroup, Operations):  # type: ignore[misc]
        """A ProcessGroup whose operations on tensors of the CPU never come to Python.

        Those of other tensors do: to the functions of Operations.
        """

        def __init__(
            self,
            world: _syncline.World,
            group: _syncline.ProcessGroup,
            ranks: Sequence[int],
            store: Any,
            backend_options: Any = None,
        ):
            """Of `group`, whose members are `ranks` of `world`; `store` is torch's."""
            in_python = functools.partial(_call, weakref.ref(self))
            module.ProcessGroup.__init__(self, store, group.rank(), group.size(), group, in_python)
            self._set_up(world, group, ranks, store, backend_options)

        def set_timeout(self, timeout: Any) -> None:
            super().set_timeout(timeout)
            self._set_native_timeout(self._timeout)

        def _start_collecting(self, device: torch.device) -> None:
            module.ProcessGroup._start_coalescing(self, device)

        def _end_collecting(self, device: torch.device) -> Any:
            return module.ProcessGroup._end_coalescing(self, device)

    return NativeProcessGroup


def _call(group: weakref.ref[Any], method: str, *arguments: Any) -> Any:
    """How C++ calls a method in Python."""
    self = group()
    if self is None:
        raise RuntimeError("the process group has been destroyed")
    function = getattr(Operations, method, None) or getattr(ProcessGroup, method)
    return function(self, *arguments)
