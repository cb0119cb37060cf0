"""torch.distributed's process group over one of Syncline's.

torch's C++ code (its reducer, functional collectives) calls those methods here that its own
PyProcessGroup knows by name; the functions of torch.distributed call all of them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import BarrierOptions

from syncline import _syncline
from syncline.collectives import words_of_monitored_barrier
from syncline.errors import DistError, DistTimeoutError, with_words
from syncline.torch.backend import profiling, requests
from syncline.torch.backend.arguments import as_timeout, movable, only, options, timeout_of
from syncline.torch.backend.collectives import Collectives, Forms, both_forms
from syncline.torch.backend.device_work import DeviceWork, Waiter
from syncline.torch.backend.errors import translated
from syncline.torch.backend.other_devices import SERVED, OtherDevices
from syncline.torch.backend.staging import Copies, contiguous, copy_back, staged
from syncline.torch.backend.work import AllWork, FinishedWork, RunningWork, runs_callback_of

BACKEND_NAME = "syncline"

open_groups: WeakSet[ProcessGroup] = WeakSet()
"""The groups of this process that have not been shut down."""


_thread = threading.local()  # Its `is_in_hook` says whether a communication hook runs on it.

_in_call = Waiter(None, blocks=False)

_BARRIER = both_forms("barrier")
_RECV = both_forms("recv")
_SEND = both_forms("send")


class ProcessGroup:
    """One rank's end of a group, as torch.distributed.init_process_group("syncline") makes it.

    Has the methods of torch.distributed.ProcessGroup, in all their forms; users call the functions
    of torch.distributed. Tensors are on the CPU or on a CUDA device, where operations are work of
    torch's current stream; on others, or with "cpu:syncline,cuda:nccl", they go to backends of
    torch. Those that are not contiguous are copied. Operations whose options say so, or which have
    none, run in the background. Raises Syncline's errors that
    are torch's, too (syncline.torch.backend.errors); bad arguments are ValueError or TypeError, and
    break nothing.

    It is a torch.distributed.ProcessGroup. This class has what is not an operation:
    PythonProcessGroup has those in Python, and the class of native.py those in C++.
    """

    def _set_up(
        self,
        world: _syncline.World,
        group: _syncline.ProcessGroup,
        ranks: Sequence[int],
        store: Any,
        backend_options: Any = None,
    ) -> None:
        """Of `group`, whose members are `ranks` of `world`; `store` is torch's."""
        self._world = world
        self._group = group
        self._ranks = list(ranks)
        self._store = store
        self._timeout: timedelta | None = None  # The group's own.
        self._options = backend_options
        self._others = OtherDevices(self, store, backend_options)
        self._collected: list[Any] | None = None  # Inside a coalescing manager.
        self._waiter = Waiter(self, blocks=not _enqueues(group.backend))
        self.device_id: torch.device | None = None  # That of init_process_group.
        self._split_count = 0
        open_groups.add(self)

    if TYPE_CHECKING:  # Of torch's.

        @property
        def group_name(self) -> str: ...
        @property
        def group_desc(self) -> str: ...
        def rank(self) -> int: ...
        def _set_group_name(self, name: str) -> None: ...
        def _set_group_desc(self, description: str) -> None: ...

    # --- The group itself.

    def getBackendName(self) -> str:
        return BACKEND_NAME

    _get_backend_name = getBackendName
    name = getBackendName

    @property
    def syncline_group(self) -> _syncline.ProcessGroup:
        """Syncline's own, for its functions and modules."""
        return self._group

    def get_group_store(self) -> Any:
        return self._store

    def _get_backend(self, device: torch.device) -> Any:
        """torch's backend beside Syncline for `device`, or this group if it serves that itself."""
        device = torch.device(device)
        if device.type == "cpu":
            return self
        if not self._others.are_named:
            return _Unnamed(self)
        return self._others.backend(device) if self._others.are_for(device.type) else self

    @property
    def bound_device_id(self) -> torch.device | None:
        """The `device_id` of init_process_group, if Syncline serves that device."""
        device = self.device_id
        return None if device is None or self._others.are_for(device.type) else device

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self.device_id = device

    @property
    def options(self) -> Any:
        """What was given as `pg_options`."""
        return self._options

    # What torch asks a backend for.
    @property
    def supports_splitting(self) -> bool:
        """Whether torch may call split_group: with a `device_id`, as for ProcessGroupNCCL."""
        return self.bound_device_id is not None

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        """Nothing: with a device_id, ranks have connected on the device when the group was made."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Takes part in the making of a group that this rank is not in, which is split off."""
        request = requests.current()
        if request.device is None or not request.ranks or request.is_local:
            return
        backend = backend_below(request.options)
        limit = as_timeout(request.timeout, self._timeout)
        try:
            self._world.new_group(request.ranks, backend, limit, False, request.device)
        except DistError as error:
            raise translated(error) from None

    def comm_split_count(self) -> int:
        """How many groups have been split off."""
        return self._split_count

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """False: torch allocates."""
        return False

    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def set_timeout(self, timeout: timedelta | float | None) -> None:
        """How long operations may take from now on where no timeout is given.

        None stands for the group's first one.
        """
        self._timeout = as_timeout(timeout, None)
        self._others.set_timeout(self._timeout)

    def _set_sequence_number_for_group(self) -> None:
        pass  # Syncline's group counts its operations itself.

    def shutdown(self) -> None:
        """Waits up to 10 seconds for operations in flight, then aborts them. Idempotent."""
        self.close(timedelta(seconds=10))

    def close(self, timeout: timedelta) -> None:
        """As shutdown, with another time."""
        open_groups.discard(self)
        self._others.shutdown()
        if self._group is self._world.group:
            self._world.close(timeout)
        else:
            self._group.close(timeout)

    def abort(self, reason: str = "the group was aborted by its user") -> None:
        """Ends the group at once: operations in flight fail, here and on the peers."""
        self._others.abort()
        self._group.abort(reason)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | float | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """A group of `ranks` of this one; None on ranks that are not among them.

        Its members must call it, in the same order where they make several of the same ranks. In
        torch.distributed.split_group all ranks do: communicators are then split off this group's.
        `opts` are Options, whose backend moves the bytes, or those of a backend beside Syncline.
        """
        members = [self._ranks[rank] for rank in ranks]
        limit = as_timeout(timeout, self._timeout)
        backend = backend_below(opts)
        parts = requests.current().split_ranks
        is_like_this = backend in (None, backend_below(self._options))
        try:
            if parts is not None and self.supports_splitting and is_like_this:
                group = self._group.split(parts, limit)
            elif self._group.rank() not in ranks:
                return None
            else:
                group = self._world.new_group(members, backend, limit, True)
        except DistError as error:
            raise translated(error) from None
        if group is None:
            return None
        name = group_name or f"{self.group_name}:{group.name()}"
        store = torch_dist.PrefixStore(f"{name}/", self._store)
        kind: Any = type(self)
        made: ProcessGroup = kind(self._world, group, members, store, opts)
        made._others.inherited = self._others.config()
        self._split_count += 1
        made._set_group_name(name)
        made._set_group_desc(group_desc or f"{self.group_desc}:split")
        return made

    splitGroup = split_group

    def _start_coalescing(self, device: torch.device) -> None:
        if device.type != "cpu" and self._others.are_for(device.type):
            self._others.backend(device)._start_coalescing()
        else:
            self._start_collecting(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        if device.type != "cpu" and self._others.are_for(device.type):
            return self._others.backend(device)._end_coalescing()
        return self._end_collecting(device)

    def _forget_coalescing(self, device: torch.device | None) -> None:
        """After an exception within a coalescing manager: operations are each their own again.

        Those that have begun go on, and nobody waits for them.
        """
        distributed_c10d._world.pg_coalesce_state.pop(self, None)
        if device is not None:
            self._end_coalescing(device)

    def _start_collecting(self, device: torch.device) -> None:
        """What is called from now on, on tensors that Syncline serves, is one operation."""
        raise NotImplementedError

    def _end_collecting(self, device: torch.device) -> Any:
        """That operation."""
        raise NotImplementedError

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """As barrier, through the store; a DistTimeoutError names every rank that is missing.

        Without a `timeout`, within the group's. Zero is a ValueError.
        """
        limit = as_timeout(timeout, self._timeout)
        try:
            self._group.monitored_barrier(limit)
        except DistTimeoutError as error:
            words = words_of_monitored_barrier(error, limit, self._group, wait_all_ranks)
            with_words(error, words)
            raise translated(error) from None
        except DistError as error:
            raise translated(error) from None


class Operations(Collectives):
    """The operations of a ProcessGroup in Python."""

    _collected: list[Any] | None
    _waiter: Waiter

    def _run(
        self,
        forms: Forms,
        opts: Any,
        written: list[Tensor],
        *arguments: Any,
        copies: Copies | None = None,
        read: Tensor | None = None,
    ) -> Any:
        in_background = getattr(opts, "asyncOp", True)
        if read is None and written:
            read = written[0]
        if read is not None and not read.is_cpu:
            return self._start_on_device(forms, in_background, read, written, arguments, copies)
        in_background = in_background and not _is_in_hook()
        return self._start(forms, in_background, written, *arguments, copies=copies)

    def _start_on_device(
        self,
        forms: Forms,
        in_background: bool,
        tensor: Tensor,
        written: list[Tensor],
        arguments: tuple[Any, ...],
        copies: Copies | None = None,
    ) -> Any:
        """Enqueues an operation on the device of `tensor`; the current stream waits, or a Work."""
        self._check_callback()
        copies = [] if copies is None else copies
        given = staged(arguments, copies)
        record = profiling.Record(forms[0].__name__, written) if profiling.is_on() else None
        try:
            started = forms[1](self._group, *given)
        except DistError as error:
            raise translated(error) from None
        finally:
            if record is not None:  # The device's part is in the device's own records.
                record.end()
        # What a hook chains to a future runs in the order of the hooks' calls: see as_hook.
        waiter = _in_call if _is_in_hook() else self._waiter
        work = DeviceWork(started, written, copies, tensor.device, waiter)
        if self._collected is not None:
            self._collected.append(work)
            return FinishedWork(written)
        if not in_background:
            work.wait()
        return work

    def _start(
        self,
        forms: Forms,
        in_background: bool,
        written: list[Tensor],
        *arguments: Any,
        copies: Copies | None = None,
    ) -> Any:
        self._check_callback()
        copies = [] if copies is None else copies
        given = staged(arguments, copies)
        record = profiling.Record(forms[0].__name__, written) if profiling.is_on() else None
        try:
            if not in_background and self._collected is None:
                forms[0](self._group, *given)
                copy_back(copies)
                return FinishedWork(written)
            started = forms[1](self._group, *given)
            work = RunningWork(self._group, started, written, copies)
            if record is not None:
                started._on_complete(record.end)
                record = None
        except DistError as error:
            raise translated(error) from None
        finally:
            if record is not None:
                record.end()
        if self._collected is None:
            return work
        self._collected.append(work)
        return FinishedWork(written)  # Whoever collects waits for all of them.

    def _check_callback(self) -> None:
        if runs_callback_of(self._group):
            raise RuntimeError(
                "a callback of a future calls an operation of the same group, whose operations "
                "wait for the callback: wait for the future, and call it then"
            )

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        opts = options(BarrierOptions, opts, timeout)
        if opts.device is not None and opts.device.type == "cuda":
            # As that of ProcessGroupNCCL: what was enqueued before it has been done on all ranks.
            torch.cuda.current_stream(opts.device).synchronize()
        return self._run(_BARRIER, opts, [], timeout_of(opts, self._timeout))

    # --- Between two ranks: always in the background.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        tensor = only(tensors)
        if not tensor.is_cpu and self._others.serve(tensor):
            return self._others.call("send", tensor, [tensor], dst, tag)
        moved = contiguous(movable(tensor))
        if not tensor.is_cpu:
            arguments = moved, dst, tag, self._timeout
            return self._start_on_device(_SEND, True, tensor, [tensor], arguments)
        return self._start(_SEND, True, [tensor], moved, dst, tag, self._timeout)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        tensor = only(tensors)
        if not tensor.is_cpu:
            if self._others.serve(tensor):
                return self._others.call("recv", tensor, [tensor], src, tag)
            arguments = movable(tensor), src, tag, self._timeout
            return self._start_on_device(_RECV, True, tensor, [tensor], arguments)
        return self._start(_RECV, True, [tensor], movable(tensor), src, tag, self._timeout)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """As recv, from whichever rank sends first; the Work's source_rank says which."""
        return self.recv(tensors, -1, tag)


class PythonProcessGroup(ProcessGroup, Operations, torch_dist.ProcessGroup):  # type: ignore[misc]
    """A ProcessGroup whose operations are those in Python."""

    def __init__(
        self,
        world: _syncline.World,
        group: _syncline.ProcessGroup,
        ranks: Sequence[int],
        store: Any,
        backend_options: Any = None,
    ):
        """Of `group`, whose members are `ranks` of `world`; `store` is torch's."""
        super().__init__(group.rank(), group.size())
        self._name = ""
        self._description = "undefined"
        self._set_up(world, group, ranks, store, backend_options)

    def getRank(self) -> int:
        return self._group.rank()

    def getSize(self) -> int:
        return self._group.size()

    rank = getRank
    size = getSize

    @property
    def _device_types(self) -> list[torch.device]:
        """The kinds of devices that the group serves; torch asks groups in C++ for backends."""
        return [torch.device(kind) for kind in SERVED]

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def _start_collecting(self, device: torch.device) -> None:
        self._collected = []

    def _end_collecting(self, device: torch.device) -> Any:
        works, self._collected = self._collected or [], None
        return AllWork(works)


@dataclass(frozen=True)
class Options:
    """What init_process_group and new_group take as `pg_options`.

    Attributes:
      backend: the backend of Syncline that moves the bytes; see `python -m syncline.info`. "nccl"
        is that of CUDA, beside "auto" for the CPU, where torch keeps sizes and objects.
    """

    backend: str = "auto"


class _Unnamed:
    """What init_process_group finds for its `device_id`, before it says whose that device is."""

    supports_splitting = True

    def __init__(self, group: ProcessGroup):
        self._group = group

    def eager_connect_single_device(self, device: torch.device) -> None:
        self._group.device_id = device


def _enqueues(backend: str) -> bool:
    """Whether operations on CUDA tensors are surely enqueued when their call returns."""
    return "cuda:nccl" in backend.split(",")


def backend_below(given: Any) -> str | None:
    """The backend of Syncline that `given` names if it is Options; None leaves the choice."""
    if not isinstance(given, Options):
        return None
    return "cpu:auto,cuda:nccl" if given.backend == "nccl" else given.backend


def as_hook(hook: Callable[..., Any]) -> Callable[..., Any]:
    """`hook`, a communication hook in Python; what it calls is over when the call returns.

    What hooks chain to futures may call operations, too (torch's PowerSGD does). Their order would
    depend on timing, and differ between ranks, if the first were not over when its call returns.
    """

    @functools.wraps(hook)
    def call(*arguments: Any) -> Any:
        before = _is_in_hook()
        _enter_hook(True)
        try:
            return hook(*arguments)
        finally:
            _enter_hook(before)

    return call


hook_listeners: list[Callable[[bool], Any]] = []
"""Called with whether a communication hook runs on this thread, when that changes."""


def _enter_hook(is_inside: bool) -> None:
    _thread.is_in_hook = is_inside
    for listener in hook_listeners:
        listener(is_inside)


def _is_in_hook() -> bool:
    return getattr(_thread, "is_in_hook", False)
