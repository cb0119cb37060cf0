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

from __future__ import annotations

import multiprocessing as _standard
from multiprocessing import process, reduction
from typing import TYPE_CHECKING

from syncline.multiprocessing import connection, context, queues
from syncline.multiprocessing.context import _default_context
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
from syncline.shared_memory import empty_shared

if TYPE_CHECKING:
    from multiprocessing import *

_names = [name for name in _standard.__all__ if name != "reducer"]
globals().update({name: getattr(_default_context, name) for name in _names})
reducer = reduction

__all__ = [
    *_names,
    "Pickler",
    "connection",
    "context",
    "empty_shared",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "get_sharing_threshold",
    "is_shared",
    "process",
    "queues",
    "reducer",
    "set_sharing_strategy",
    "set_sharing_threshold",
    "share_memory_",
]
