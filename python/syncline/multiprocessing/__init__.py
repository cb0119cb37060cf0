"""The module multiprocessing, in which arrays travel between processes as shared memory.

Every name of the standard module is here, and does the same:

    import syncline.multiprocessing as mp

    queue = mp.Queue()
    worker = mp.Process(target=work, args=(queue,))

NumPy arrays, torch tensors on the CPU and JAX arrays on the CPU are copied to shared memory when
they are sent, not at all where they lie in it already, and never when they are received. See
docs/multiprocessing.md. Importing this changes nothing for multiprocessing, torch or joblib.

In which order to read: sharing.py (what is shared), pickling.py (a message) over numpy_arrays.py,
torch_tensors.py and jax_arrays.py, connection.py (how it travels), queues.py, context.py
(processes), pool.py, managers.py, executor.py; spawning.py.
"""

# What the standard module has inside has no types.
# mypy: disable-error-code="has-type"

from __future__ import annotations

import importlib
from multiprocessing import process, reduction
from typing import Any

from syncline.multiprocessing import connection, context, pool, queues
from syncline.multiprocessing.context import _default_context
from syncline.multiprocessing.executor import ProcessPoolExecutor
from syncline.multiprocessing.pickling import Pickler
from syncline.multiprocessing.sharing import (
    get_all_sharing_strategies,
    get_sharing_strategy,
    get_sharing_threshold,
    is_shared,
    set_sharing_strategy,
    set_sharing_threshold,
    share_memory_,
)
from syncline.multiprocessing.spawning import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    spawn,
    start_processes,
)
from syncline.shared_memory import empty_shared, open_shared, shared_handle
from syncline.tensor_queue import EndOfQueue, TensorMessage, TensorQueue

# Methods of the default context, as in the standard module.
Array = _default_context.Array
AuthenticationError = _default_context.AuthenticationError
Barrier = _default_context.Barrier
BoundedSemaphore = _default_context.BoundedSemaphore
BufferTooShort = _default_context.BufferTooShort
Condition = _default_context.Condition
Event = _default_context.Event
JoinableQueue = _default_context.JoinableQueue
Lock = _default_context.Lock
Manager = _default_context.Manager
Pipe = _default_context.Pipe
Pool = _default_context.Pool
Process = _default_context.Process
ProcessError = _default_context.ProcessError
Queue = _default_context.Queue
RLock = _default_context.RLock
RawArray = _default_context.RawArray
RawValue = _default_context.RawValue
Semaphore = _default_context.Semaphore
SimpleQueue = _default_context.SimpleQueue
TimeoutError = _default_context.TimeoutError
Value = _default_context.Value
active_children = _default_context.active_children
allow_connection_pickling = _default_context.allow_connection_pickling
cpu_count = _default_context.cpu_count
current_process = _default_context.current_process
freeze_support = _default_context.freeze_support
get_all_start_methods = _default_context.get_all_start_methods
get_context = _default_context.get_context
get_logger = _default_context.get_logger
get_start_method = _default_context.get_start_method
log_to_stderr = _default_context.log_to_stderr
parent_process = _default_context.parent_process
set_executable = _default_context.set_executable
set_forkserver_preload = _default_context.set_forkserver_preload
set_start_method = _default_context.set_start_method
reducer = reduction

# What users of the standard module find below it. Nothing in them carries arrays.
_STANDARD_MODULES = (
    "dummy",
    "forkserver",
    "heap",
    "resource_sharer",
    "resource_tracker",
    "shared_memory",
    "synchronize",
    "util",
)


# Imported when they are used: the standard modules below them register reducers.
_MODULES = ("managers", "sharedctypes")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _STANDARD_MODULES:
        return importlib.import_module(f"multiprocessing.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Array",
    "AuthenticationError",
    "Barrier",
    "BoundedSemaphore",
    "BufferTooShort",
    "Condition",
    "EndOfQueue",
    "Event",
    "JoinableQueue",
    "Lock",
    "Manager",
    "Pickler",
    "Pipe",
    "Pool",
    "Process",
    "ProcessContext",
    "ProcessError",
    "ProcessException",
    "ProcessExitedException",
    "ProcessPoolExecutor",
    "ProcessRaisedException",
    "Queue",
    "RLock",
    "RawArray",
    "RawValue",
    "Semaphore",
    "SimpleQueue",
    "SpawnContext",
    "TensorMessage",
    "TensorQueue",
    "TimeoutError",
    "Value",
    "active_children",
    "allow_connection_pickling",
    "connection",
    "context",
    "cpu_count",
    "current_process",
    "empty_shared",
    "freeze_support",
    "get_all_sharing_strategies",
    "get_all_start_methods",
    "get_context",
    "get_logger",
    "get_sharing_strategy",
    "get_sharing_threshold",
    "get_start_method",
    "is_shared",
    "log_to_stderr",
    "open_shared",
    "parent_process",
    "pool",
    "process",
    "queues",
    "reducer",
    "reduction",
    "set_executable",
    "set_forkserver_preload",
    "set_sharing_strategy",
    "set_sharing_threshold",
    "set_start_method",
    "share_memory_",
    "shared_handle",
    "spawn",
    "start_processes",
]
