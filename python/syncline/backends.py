"""Names of backends, which there are, and backends written in Python."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from syncline._syncline import (
    Info,
    ProcessGroup,
    Store,
    _operations,
    _register_backend,
    _set_nccl_search_path,
)
from syncline.errors import DistError
from syncline.job import resolve

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)


@dataclass
class DistributedBackendOptions:
    """What a backend's function gets if it is registered with `extended_api`.

    `group_id` is "default" for the group of all ranks and may be empty for others;
    `global_ranks_in_group` are the world's ranks of the members.
    """

    store: Store
    group_rank: int
    group_size: int
    timeout: timedelta
    group_id: str = ""
    global_ranks_in_group: list[int] = field(default_factory=list)


class Backend(str):
    """The name of a backend, in lower case: Backend("GLOO") == Backend.GLOO == "gloo".

    One for each device is a backend too: "cpu:gloo,cuda:nccl". A ValueError says why a name is
    none, and which there are. Names of backends that this build lacks are names all the same.
    """

    UNDEFINED: ClassVar[str] = "undefined"
    AUTO: ClassVar[str] = "auto"
    GLOO: ClassVar[str] = "gloo"
    LOCAL: ClassVar[str] = "local"
    MPI: ClassVar[str] = "mpi"
    NCCL: ClassVar[str] = "nccl"
    SHM: ClassVar[str] = "shm"
    TCP: ClassVar[str] = "tcp"
    UCC: ClassVar[str] = "ucc"
    XCCL: ClassVar[str] = "xccl"

    backend_list: ClassVar[list[str]] = [
        UNDEFINED, AUTO, GLOO, LOCAL, MPI, NCCL, SHM, TCP, UCC, XCCL,
    ]  # fmt: skip
    backend_capability: ClassVar[dict[str, list[str]]] = {
        GLOO: ["cpu", "cuda"],
        MPI: ["cpu", "cuda"],
        NCCL: ["cuda"],
        UCC: ["cpu", "cuda"],
        XCCL: ["xpu"],
    }
    default_device_backend_map: ClassVar[dict[str, str]] = {"cpu": AUTO, "cuda": NCCL}

    def __new__(cls, name: str) -> Backend:
        if not isinstance(name, str):
            raise ValueError(f"backend must be a str, not {type(name).__name__}")
        lower = name.lower().replace(" ", "")
        for part in lower.split(","):
            cls._check(part.split(":", 1)[-1], name)
        return super().__new__(cls, lower)

    @classmethod
    def register_backend(
        cls,
        name: str,
        func: Callable[..., Any],
        extended_api: bool = False,
        devices: str | Sequence[str] | None = None,
        *,
        operations: Sequence[str] | None = None,
        dtypes: Sequence[str] = DTYPES,
    ) -> None:
        """Makes `name` a backend that is written in Python; sets Backend.<NAME>.

        `func(store, rank, size, timeout)` is called on all ranks of each group made with it, and
        returns an object with these methods, or some of them, each with `timeout`, a timedelta, as
        a further keyword argument:

            broadcast(tensor, root)      all_gather(outputs, input)         barrier()
            all_reduce(tensor, op)       gather(outputs, input, root)       send(tensor, dst, tag)
            reduce(tensor, op, root)     scatter(output, inputs, root)      recv(tensor, src, tag)
            all_to_all(outputs, inputs)  reduce_scatter(output, inputs, op)

        and `abort(reason)`, after which all calls must end soon. What each does is said in
        include/syncline/collective.h. Tensors are views for numpy.asarray, memoryview or
        torch.from_dlpack; arguments have been checked; `outputs` is empty where a rank gets
        nothing; recv returns the rank that sent, `src` is -1 for any. Of tensors on "cuda" a method
        waits itself: for the device before it reads them, and until they are written before it
        returns. The other operations are made of these. Methods are called by one thread at a time,
        but send, recv and abort beside each other. What they raise fails the operation and breaks
        the group; NotImplementedError refuses it.

        Args:
          name: lower-case letters, digits and underscores, in any case.
          func: as above; with `extended_api`, func(options, backend_options): a
            DistributedBackendOptions, and what was passed as pg_options.
          devices: "cpu", "cuda" or a list of them; None is "cpu", with a warning.
          operations: which operations it serves; None is all whose methods `func`, if it is a
            class, has, else all.
          dtypes: names of the element types it serves; those of eight bits are moved only.

        Raises ValueError if the name is taken or a word is unknown, TypeError if `func` cannot be
        called.
        """
        if devices is None:
            text = f"backend '{name}' is registered for cpu only: say which devices it serves"
            warnings.warn(text, stacklevel=2)
        served = ["cpu"] if devices is None else [devices] if isinstance(devices, str) else devices
        if operations is None:
            is_class = isinstance(func, type)
            operations = [o for o in _operations if not is_class or hasattr(func, o)]
        if not callable(func):
            raise TypeError(f"func must be callable, not {type(func).__name__}")
        lower = name.lower()

        def factory(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
            made = _make(func, extended_api, store, rank, size, timeout)
            try:
                _objects.add(made)
            except TypeError:  # It cannot be referred to weakly.
                pass
            return made

        _register_backend(lower, factory, list(served), list(operations), list(dtypes))
        setattr(cls, lower.upper(), lower)
        cls.backend_list.append(lower)
        cls.backend_capability[lower] = list(served)
        for device in served:
            cls.default_device_backend_map.setdefault(device, lower)

    @classmethod
    def _check(cls, name: str, given: str) -> None:
        if name == cls.UNDEFINED or name not in {*cls.backend_list, *Info.backends()}:
            raise ValueError(
                f"unknown backend '{given}'; choose one of: {', '.join(Info.backends())}"
            )


class BackendConfig:
    """Which backend serves which device, from "gloo" or "cpu:gloo,cuda:nccl"."""

    def __init__(self, backend: str):
        self._by_device: dict[str, str] = {}
        for part in Backend(backend).split(","):
            device, colon, name = part.rpartition(":")
            for served in [device] if colon else _devices(name):
                if served in self._by_device:
                    raise ValueError(f"device {served} is named twice in '{backend}'")
                self._by_device[served] = name

    @property
    def device_backend_map(self) -> dict[str, str]:
        """As get_device_backend_map."""
        return self._by_device

    def get_device_backend_map(self) -> dict[str, str]:
        """The name of the backend of each device."""
        return self._by_device

    def __repr__(self) -> str:
        return ",".join(f"{device}:{name}" for device, name in self._by_device.items())


def _devices(name: str) -> list[str]:
    """What a backend serves; of one that is not in this build, nothing is known."""
    devices = ["cpu", "cuda"]
    if not is_backend_available(name):
        return devices
    return [device for device in devices if Info.operations(name, device)]


def is_available() -> bool:
    """Whether this build can join processes: always."""
    return True


def is_backend_available(backend: str) -> bool:
    """Whether this build has the backend, or it has been registered."""
    return backend.lower() in Info.backends()


def is_gloo_available() -> bool:
    """Whether this build has the backend gloo."""
    return is_backend_available("gloo")


def is_mpi_available() -> bool:
    """Whether groups of backend mpi can be made here: whether an MPI library can be loaded.

    Loads it, and does not initialise MPI. Where the answer is False, the log says why
    (SYNCLINE_LOG_LEVEL=info), and Info.check_backend("mpi") raises an error that does.
    """
    return _is_usable("mpi")


def is_nccl_available() -> bool:
    """Whether groups of backend nccl can be made here: with CUDA's driver, a GPU and NCCL.

    Loads both libraries. Where the answer is False, Info.check_backend("nccl") raises an error that
    says why.
    """
    find_nccl()
    return _is_usable("nccl")


def find_nccl() -> None:
    """Has NCCL looked for where Python finds its packages: wheels have it in nvidia/nccl/lib."""
    _set_nccl_search_path([folder for folder in sys.path if isinstance(folder, str) and folder])


def _is_usable(backend: str) -> bool:
    try:
        Info.check_backend(backend)
    except (DistError, NotImplementedError, ValueError):
        return False
    return True


def is_ucc_available() -> bool:
    """Whether this build has the backend ucc."""
    return is_backend_available("ucc")


def is_xccl_available() -> bool:
    """Whether this build has the backend xccl."""
    return is_backend_available("xccl")


def get_backend_config(group: ProcessGroup | None = None) -> str:
    """Which backend serves which device of `group` (None: all ranks): "cpu:gloo,cuda:gloo"."""
    return repr(BackendConfig(resolve(group).backend))


def get_default_backend_for_device(device: Any) -> str:
    """The backend that is taken for `device`: "cpu", "cuda:0" or what PyTorch or JAX calls it.

    Raises ValueError if there is none.
    """
    name = str(getattr(device, "type", device)).split(":", 1)[0].lower()
    if name not in Backend.default_device_backend_map:
        known = ", ".join(Backend.default_device_backend_map)
        raise ValueError(f"no backend is known for device {device!r}; devices are: {known}")
    return Backend.default_device_backend_map[name]


def backend_name(backend: str | None) -> str | None:
    """The checked name, if there is one. ValueError if this build lacks the backend."""
    if backend is None:
        return None
    if not isinstance(backend, str):
        raise TypeError(f"backend must be a str, not {type(backend).__name__}")
    name = Backend(backend)
    for part in name.split(","):
        if not is_backend_available(part.rpartition(":")[2]):
            raise ValueError(
                f"backend '{part}' is not in this build; choose one of: "
                f"{', '.join(Info.backends())}"
            )
    return str(name)


# ---- Backends written in Python ----


@dataclass
class _Making:
    """The group that is being made, as far as C++ does not tell its backend."""

    group_id: str
    ranks: list[int]
    options: Any


_making: ContextVar[_Making | None] = ContextVar("_making", default=None)
_objects: weakref.WeakSet[Any] = weakref.WeakSet()


@contextmanager
def making(group_id: str, ranks: Sequence[int], options: Any) -> Iterator[None]:
    """Lets backends written in Python know more of the group that is made inside."""
    token = _making.set(_Making(group_id, list(ranks), options))
    try:
        yield
    finally:
        _making.reset(token)


def _make(
    func: Callable[..., Any],
    extended_api: bool,
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
) -> Any:
    if not extended_api:
        return func(store, rank, size, timeout)
    known = _making.get() or _Making("", list(range(size)), None)
    options = DistributedBackendOptions(store, rank, size, timeout, known.group_id, known.ranks)
    return func(options, known.options)


def _abort_at_exit() -> None:
    """Python cannot exit while one of them is at work."""
    if os.getpid() != _pid:
        return
    for made in list(_objects):
        if hasattr(made, "abort"):
            made.abort("Python is exiting")


find_nccl()
_pid = os.getpid()
atexit.register(_abort_at_exit)
