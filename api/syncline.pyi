"""The public API of Syncline: the one description from which every binding is generated.

Ordinary Python stub syntax. It becomes the type stub of the Python module `syncline._syncline`, and
gives the Java classes their names, Javadoc and signatures. Each class stands for the C++ class of
the same name in namespace syncline, `all_reduce` for its method AllReduce. Only the vocabulary of
api/stub.py may appear in a signature; api/description.py has the decorators, by which a method says
what its signature does not, and some types. What begins with an underscore is the Python package's
own, written by hand.

Errors are typed: bad arguments raise ValueError or TypeError before anything happens, everything
else a subclass of DistError (see syncline.errors), which also tells the ranks at fault and the
operation as data.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from enum import Enum
from typing import Any, TypeAlias

from description import (
    BytesOrStr,
    InputTensor,
    Int32,
    OutputTensor,
    Rank,
    accessor,
    adapted,
    collective,
    field,
    java_arrays,
    java_base,
    nonblocking,
    on_streams,
    python_only,
    true_in_python,
)
from syncline.call_options import CallOptions
from syncline.futures import Future
from syncline.reduce_ops import PremulSum

Tensor: TypeAlias = Any
"""Any array that shares its memory through the buffer protocol or DLPack: NumPy, PyTorch, JAX,
CuPy, array.array, ctypes. Never copied; must be contiguous, and writable where it is written. On a
CUDA device it may also have __cuda_array_interface__ (Numba); see syncline.stream."""

class ReduceOp(Enum):
    """How elements of all ranks are combined.

    Integers allow all but PREMUL_SUM, floats all but BAND, BOR and BXOR, complex numbers SUM, AVG
    and PREMUL_SUM, bool SUM (which is or), PRODUCT, MIN, MAX, BAND, BOR and BXOR. float16 and
    bfloat16 are computed in float32; AVG of integers rounds towards zero; MIN and MAX propagate
    NaN. PREMUL_SUM adds the ranks' elements, each rank's multiplied by a factor of its own first.
    """

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8

    def __call__(self, factor: float) -> PremulSum: ...

class Store:
    """A small key-value store shared by all processes of a job: how they find each other.

    Keys are non-empty strings, values are bytes. Every operation is atomic. Thread-safe; a call
    that waits never holds up another thread's call. Raises DistStoreError, DistNetworkError or
    DistTimeoutError, each naming the key and the store. A `timeout` of None means the store's own.
    """

    def __init__(self) -> None: ...
    def set(self, key: str, value: BytesOrStr) -> None:
        """Sets `key`, replacing any earlier value."""

    @adapted
    def get(self, key: str, timeout: timedelta | None = None) -> bytes:
        """Waits until `key` is set and returns its value."""

    def add(self, key: str, amount: int) -> int:
        """Adds `amount` to the decimal number that `key` holds (0 if absent); returns the sum."""

    @adapted
    def compare_set(self, key: str, expected: BytesOrStr, desired: BytesOrStr) -> bytes:
        """Sets `key` to `desired` if it holds `expected` (empty: if it is absent).

        Returns the value after the call; if the key is still absent, in Python `expected` and in
        other languages nothing.
        """

    @adapted
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits until all `keys` are set; a DistTimeoutError lists those that are not."""

    def check(self, keys: list[str]) -> bool:
        """Whether all `keys` are set now."""

    @adapted
    def delete_key(self, key: str) -> bool:
        """Removes `key`; returns whether it was set."""

    @adapted
    def list_keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, sorted."""

    @adapted
    def num_keys(self) -> int:
        """How many keys are set."""

    def append(self, key: str, value: BytesOrStr) -> None:
        """Appends to the value of `key`, which is created if it is absent."""

    @adapted
    def multi_get(self, keys: list[str], timeout: timedelta | None = None) -> list[bytes]:
        """Waits until all `keys` are set; returns their values in the same order."""

    def multi_set(self, keys: list[str], values: list[BytesOrStr]) -> None:
        """Sets keys[i] to values[i] for all i in one step."""

    @property
    def timeout(self) -> timedelta:
        """How long waits last where no timeout is given; 5 minutes unless made with another."""

    @python_only
    def set_timeout(self, timeout: timedelta) -> None:
        """Changes how long calls of this object wait where they are given no timeout."""

    @python_only
    def clone(self) -> Store:
        """Another client of the same store, with a timeout of its own."""

    @python_only
    def has_extended_api(self) -> bool:
        """Whether there are append, multi_get and multi_set."""

    @python_only
    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Waits until `world_size` callers have called it with this key; it can be used again."""

    @python_only
    def queue_push(self, key: str, value: BytesOrStr) -> None:
        """Adds a value to the end of the queue `key`."""

    @python_only
    def queue_pop(self, key: str, block: bool = True, timeout: timedelta | None = None) -> bytes:
        """Takes the oldest value of the queue `key`, which is waited for.

        If `block` is false, raises QueueEmptyError where the queue is empty.
        """

    @python_only
    def queue_len(self, key: str) -> int:
        """How many values the queue `key` has."""

class HashStore(Store):
    """A store inside one process, for ranks that are threads."""

    @staticmethod
    @adapted
    def create(timeout: timedelta = timedelta(seconds=300)) -> HashStore:
        """Makes an empty store."""

class FileStore(Store):
    """A store in a file that all processes reach, guarded by fcntl locks.

    It lives as long as a process has it open: the last one to leave removes the file, and a file
    that crashed processes left behind is started anew.
    """

    @staticmethod
    @adapted
    def create(path: str, timeout: timedelta = timedelta(seconds=300)) -> FileStore:
        """Opens the store at `path`, whose folder must exist; creates the file if needed."""

    @property
    def path(self) -> str:
        """The file."""

class TCPStore(Store):
    """A store in a server process that clients reach over TCP (gRPC).

    If the environment variable SYNCLINE_SECRET_FILE names a file, both sides must prove that they
    know its contents.
    """

    @staticmethod
    @adapted
    def create(
        host: str,
        port: Int32,
        is_master: bool = False,
        timeout: timedelta = timedelta(seconds=300),
    ) -> TCPStore:
        """Connects to the server at `host`:`port`; with `is_master`, starts it there first.

        Port 0 lets the system choose; `port` tells which. The server listens on `host` only.
        """

    @property
    def host(self) -> str:
        """The server's host, as given."""

    @property
    def port(self) -> Int32:
        """The server's port."""

    @python_only
    @property
    def libuvBackend(self) -> bool:
        """False: gRPC serves."""

class PrefixStore(Store):
    """A part of another store: every key is preceded by a prefix and a slash."""

    @staticmethod
    @adapted
    def create(prefix: str, store: Store) -> PrefixStore:
        """The keys of `store` that begin with `prefix`/."""

    @property
    def underlying_store(self) -> Store:
        """The store that holds the keys."""

@java_base("WorkBase")
class Work:
    """An operation in flight. Its tensors must stay untouched until it has completed."""

    @adapted
    @on_streams
    @true_in_python
    def wait(self, timeout: timedelta | None = None) -> None:
        """Waits until the operation has finished; raises its error.

        After `timeout` raises DistTimeoutError; the operation goes on until its own timeout.

        Of an operation on tensors of a device, wait without a `timeout` does not block: it makes
        the current stream wait, so that work which is enqueued there from now on sees the result,
        and raises what is known to have gone wrong. With a `timeout` this thread waits.
        """

    @adapted
    def synchronize(self, timeout: timedelta | None = None) -> None:
        """Waits until the operation has finished, on a device too; raises its error.

        When it returns, the host may use the result. Otherwise as wait with a `timeout`; None is as
        long as the operation's own.
        """

    @nonblocking
    def is_completed(self) -> bool:
        """Whether the operation has finished, well or not. Asks the device, where it is on one."""

    @accessor
    def source_rank(self) -> Rank:
        """Of a receive that has succeeded: the rank in the group that sent; else -1."""

    @python_only
    def is_success(self) -> bool:
        """Whether the operation has finished without an error."""

    @python_only
    def exception(self) -> BaseException | None:
        """The error of the operation; None if it is in flight or has succeeded."""

    @python_only
    def block_current_stream(self) -> None:
        """As wait: of an operation on a device the current stream waits, else this thread."""

    @python_only
    def result(self) -> list[Any]:
        """The arrays that the operation was given to write to, in its order of arguments."""

    @python_only
    def get_future(self) -> Future:
        """A future that is done when the operation is; its value is that of `result`.

        The operation is, also where it is on a device, once the host knows its outcome.
        """

    def __await__(self) -> Generator[Any, None, list[Any]]:
        """`await work` under asyncio: waits without blocking the event loop; as `result`."""

    def _on_complete(self, callback: Callable[[], None]) -> None: ...
    @property
    def description(self) -> str:
        """What it is: "all_reduce #1580 (float32[4096] on cpu, sum)"."""

class Message:
    """What recv_bytes received."""

    @property
    def value(self) -> bytes:
        """The bytes."""

    @property
    def source_rank(self) -> Rank:
        """The rank in the group that sent them."""

class ProcessGroup:
    """One rank's end of a group of ranks that communicate.

    Thread-safe: operations take effect in the order in which each rank issues them, and all ranks
    must issue the same collectives in the same order. A bad argument raises ValueError, TypeError
    or NotImplementedError before any byte moves, and the group goes on; any other error breaks the
    group: later calls fail at once and quote it. A `timeout` of None means the group's own.
    The `_async` form of an operation takes the same arguments, and returns at once.
    """

    @accessor
    def rank(self) -> Rank:
        """This rank's number in the group."""

    @accessor
    def size(self) -> Rank:
        """The number of ranks."""

    @accessor
    def name(self) -> str:
        """The group's name, for messages."""

    @property
    def backend(self) -> str:
        """The backend that moves the bytes, or one for each device: "cpu:gloo,cuda:nccl"."""

    @property
    def ranks(self) -> list[Rank]:
        """The world's rank of each member, in the order of their ranks in this group."""

    @property
    def timeout(self) -> timedelta:
        """How long an operation may take where no timeout is given."""

    @nonblocking
    def set_timeout(self, timeout: timedelta) -> None:
        """Changes `timeout` for the operations that this rank calls from now on."""

    @collective
    @java_arrays
    def broadcast(self, tensor: Tensor, root: Rank, timeout: timedelta | None = None) -> None:
        """Copies `root`'s tensor over every other rank's, of the same type and size."""

    @collective
    @java_arrays
    def all_reduce(
        self,
        tensor: Tensor,
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """Replaces `tensor` by its elementwise reduction over all ranks, bitwise equal on all.

        `factor`, here and below, is for ReduceOp.PREMUL_SUM only; it may differ between ranks.
        """

    @collective
    @java_arrays
    def reduce(
        self,
        tensor: Tensor,
        root: Rank,
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """As all_reduce on rank `root`; the other ranks' tensors keep their elements."""

    @collective
    def all_gather(
        self, outputs: list[OutputTensor], input: InputTensor, timeout: timedelta | None = None
    ) -> None:
        """Copies every rank's `input` to outputs[its rank] on every rank.

        outputs[r] has the type and size of rank r's input; sizes may differ between ranks.
        outputs[own rank] may be the input itself.
        """

    @collective
    def all_gather_single(
        self, output: OutputTensor, input: InputTensor, timeout: timedelta | None = None
    ) -> None:
        """As all_gather into one tensor of `size` times the input's elements, rank by rank."""

    @collective
    def gather(
        self,
        outputs: list[OutputTensor],
        input: InputTensor,
        root: Rank,
        timeout: timedelta | None = None,
    ) -> None:
        """Copies every rank's `input` to outputs[its rank] of rank `root`.

        All inputs have one type and size; the other ranks pass no outputs.
        """

    @collective
    def scatter(
        self,
        output: OutputTensor,
        inputs: list[InputTensor],
        root: Rank,
        timeout: timedelta | None = None,
    ) -> None:
        """Copies inputs[r] of rank `root` to rank r's `output`, for every r.

        All have one type and size; the other ranks pass no inputs.
        """

    @collective
    def reduce_scatter(
        self,
        output: OutputTensor,
        inputs: list[InputTensor],
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """Reduces inputs[r] of all ranks to rank r's `output`, for every r.

        The sizes of inputs[r] may differ with r. Inputs keep their elements; `output` may be
        inputs[own rank].
        """

    @collective
    def reduce_scatter_single(
        self,
        output: OutputTensor,
        input: InputTensor,
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """As reduce_scatter of one tensor of `size` times the output's elements, rank by rank."""

    @collective
    def scan(
        self,
        tensor: Tensor,
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """Replaces `tensor` on rank r by the reduction over the ranks 0 to r, in that order.

        As MPI_Scan. Raises ValueError for an average, whose divisor would differ from rank to rank.
        """

    @collective
    def exscan(
        self,
        tensor: Tensor,
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """As scan over the ranks 0 to r - 1, as MPI_Exscan; rank 0's tensor keeps its elements."""

    @collective
    def all_to_all(
        self,
        outputs: list[OutputTensor],
        inputs: list[InputTensor],
        timeout: timedelta | None = None,
    ) -> None:
        """Copies inputs[r] to outputs[own rank] of rank r, for every r and on every rank.

        Each pair of ranks may have a size of its own.
        """

    @collective
    def all_to_all_single(
        self,
        output: OutputTensor,
        input: InputTensor,
        output_splits: list[int] = [],
        input_splits: list[int] = [],
        timeout: timedelta | None = None,
    ) -> None:
        """As all_to_all between parts of two tensors, split along the first dimension.

        Splits have one number of rows for each rank; without them the parts are equal.
        """

    @collective
    def broadcast_coalesced(
        self, tensors: list[Tensor], root: Rank, timeout: timedelta | None = None
    ) -> None:
        """Broadcasts several tensors, of any types, in one transfer."""

    @collective
    def all_reduce_coalesced(
        self,
        tensors: list[Tensor],
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """Reduces several tensors of one type in one transfer."""

    @collective
    def all_gather_coalesced(
        self,
        outputs: list[OutputTensor],
        inputs: list[InputTensor],
        timeout: timedelta | None = None,
    ) -> None:
        """Gathers several tensors, of any types, in one transfer.

        outputs[i * size + r] receives inputs[i] of rank r; all ranks pass equal types and sizes.
        """

    @collective
    def reduce_scatter_coalesced(
        self,
        outputs: list[OutputTensor],
        inputs: list[InputTensor],
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """Reduces and scatters several tensors of one type in one transfer.

        The reduction of inputs[i * size + r] over all ranks goes to outputs[i] of rank r.
        """

    @collective
    def broadcast_multi(
        self,
        tensors: list[Tensor],
        root: Rank,
        root_tensor: Int32 = 0,
        timeout: timedelta | None = None,
    ) -> None:
        """Copies tensors[root_tensor] of rank `root` over all tensors of all ranks.

        This and the next four treat the n tensors of each process, of one type and size, as if
        each were a rank's own: rank r has the places r * n to r * n + n - 1.
        """

    @collective
    def all_reduce_multi(
        self,
        tensors: list[Tensor],
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """Replaces all tensors of all ranks by their elementwise reduction."""

    @collective
    def reduce_multi(
        self,
        tensors: list[Tensor],
        root: Rank,
        op: ReduceOp = ReduceOp.SUM,
        root_tensor: Int32 = 0,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """As all_reduce_multi into tensors[root_tensor] of rank `root` only."""

    @collective
    def all_gather_multi(
        self,
        outputs: list[OutputTensor],
        inputs: list[InputTensor],
        timeout: timedelta | None = None,
    ) -> None:
        """outputs[i * n * size + p] receives, for tensor i, that of place p; on every rank."""

    @collective
    def reduce_scatter_multi(
        self,
        outputs: list[OutputTensor],
        inputs: list[InputTensor],
        op: ReduceOp = ReduceOp.SUM,
        timeout: timedelta | None = None,
        factor: float = 1.0,
    ) -> None:
        """outputs[i] is reduced from what all tensors of all ranks have for its place p.

        The i-th tensor of a rank has it in inputs[i * n * size + p].
        """

    @collective
    def barrier(self, timeout: timedelta | None = None) -> None:
        """Returns once every rank has called it."""

    def monitored_barrier(self, timeout: timedelta | None = None) -> None:
        """As barrier, by way of the store alone: for finding out who is missing.

        If not all ranks have come within `timeout`, all that have, and those that come later, get
        a DistTimeoutError that names every one that had not.
        """

    @collective
    @java_arrays
    def send(
        self, tensor: InputTensor, dst: Rank, tag: int = 0, timeout: timedelta | None = None
    ) -> None:
        """Sends `tensor` to rank `dst`; may return before it has been received."""

    @collective
    @java_arrays
    def recv(
        self, tensor: Tensor, src: Rank, tag: int = 0, timeout: timedelta | None = None
    ) -> Rank:
        """Receives into `tensor`, of the type and size that rank `src` sends with `tag`.

        With -1 as `src`, from whichever rank sends first. Returns the rank that sent; in the
        background, the Work's source_rank tells it.
        """

    @adapted
    def all_gather_bytes(self, value: bytes, timeout: timedelta | None = None) -> list[bytes]:
        """Every rank's `value`, of any size, in the order of ranks."""

    @adapted
    def broadcast_bytes(self, value: bytes, root: Rank, timeout: timedelta | None = None) -> bytes:
        """The value that rank `root` passes; what the others pass is ignored."""

    @adapted
    def gather_bytes(
        self, value: bytes, root: Rank, timeout: timedelta | None = None
    ) -> list[bytes]:
        """Every rank's `value` on rank `root`; an empty list on the others."""

    @adapted
    def scatter_bytes(
        self, values: list[bytes], root: Rank, timeout: timedelta | None = None
    ) -> bytes:
        """values[r] of rank `root`, on rank r. The others pass none."""

    @adapted
    def send_bytes(
        self, value: bytes, dst: Rank, tag: int = 0, timeout: timedelta | None = None
    ) -> None:
        """Sends `value`, of any size, to rank `dst`."""

    @adapted
    def recv_bytes(self, src: Rank, tag: int = 0, timeout: timedelta | None = None) -> Message:
        """Receives what send_bytes sent; with -1 as `src`, from whichever rank sends first."""

    @adapted
    def split(
        self, groups: list[list[Rank]], timeout: timedelta | None = None
    ) -> ProcessGroup | None:
        """Divides this group: the new group that has this rank, or None if none has it.

        All ranks must call it with equal arguments: lists of ranks of this group, each rank in at
        most one; ranks of a new group are numbered in the order of its list.
        """

    @adapted
    def shrink(
        self, ranks_to_exclude: list[Rank], timeout: timedelta | None = None
    ) -> ProcessGroup:
        """A new group without `ranks_to_exclude`, also of one that has lost these ranks.

        Only the survivors call it, with equal arguments; they keep their order and are numbered
        anew. They meet through the store, which must have survived too; this group is aborted.
        A DistTimeoutError names survivors that did not come.
        """

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Waits up to `timeout` for operations in flight, then aborts them. Idempotent."""

    @nonblocking
    def abort(self, reason: str = "the group was aborted by its user") -> None:
        """Ends the group at once: operations in flight fail, here and on the peers."""

    # Torch's names, for torch's arguments: see syncline.group_methods.
    @python_only
    @property
    def group_name(self) -> str:
        """As name()."""

    @python_only
    @property
    def group_desc(self) -> str:
        """What new_group was given as `group_desc`; "default_pg" for the group of all ranks."""

    @python_only
    @property
    def bound_device_id(self) -> str | None:
        """The `device_id` that the group was made with."""

    @python_only
    def get_group_store(self) -> Store:
        """The store through which the ranks of the job met."""

    @python_only
    def shutdown(self) -> None:
        """As close()."""

    @python_only
    def allreduce(
        self,
        tensors: Tensor | Sequence[Tensor],
        op: ReduceOp | PremulSum | CallOptions | None = None,
        timeout: timedelta | None = None,
        *,
        opts: CallOptions | None = None,
    ) -> Work:
        """Starts all_reduce of a tensor, or of a list of one; of several, all_reduce_multi."""

    @python_only
    def allreduce_coalesced(
        self, tensors: Sequence[Tensor], opts: CallOptions | None = None
    ) -> Work:
        """Starts all_reduce_coalesced."""

    @python_only
    def allgather(
        self,
        output_tensors: Sequence[Any],
        input_tensors: Tensor | Sequence[Tensor],
        timeout: timedelta | CallOptions | None = None,
        *,
        opts: CallOptions | None = None,
    ) -> Work:
        """Starts all_gather of a tensor to a list, or of lists of one; of several, of all."""

    @python_only
    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[Tensor]],
        input_list: Sequence[Tensor],
        opts: CallOptions | None = None,
    ) -> Work:
        """Starts all_gather_coalesced: output_lists[r][i] receives input_list[i] of rank r."""

    @python_only
    def allgather_into_tensor_coalesced(
        self,
        output_lists: Sequence[Tensor],
        input_list: Sequence[Tensor],
        opts: CallOptions | None = None,
    ) -> Work:
        """Starts all_gather_coalesced: each output has all ranks' inputs one after another."""

    @python_only
    def all_gather_single_coalesced(
        self,
        output_lists: Sequence[Tensor],
        input_list: Sequence[Tensor],
        opts: CallOptions | None = None,
    ) -> Work:
        """As allgather_into_tensor_coalesced."""

    @python_only
    def reduce_scatter_tensor_coalesced(
        self,
        outputTensors: Sequence[Tensor],
        inputTensors: Sequence[Tensor],
        opts: CallOptions | None = None,
    ) -> Work:
        """Starts reduce_scatter_coalesced: each input has the ranks' parts one after another."""

    @python_only
    def reduce_scatter_single_coalesced(
        self,
        outputTensors: Sequence[Tensor],
        inputTensors: Sequence[Tensor],
        opts: CallOptions | None = None,
    ) -> Work:
        """As reduce_scatter_tensor_coalesced."""

    @python_only
    def alltoall(
        self,
        output: Sequence[Tensor],
        input: Sequence[Tensor],
        opts: CallOptions | timedelta | None = None,
    ) -> Work:
        """Starts all_to_all."""

    @python_only
    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: CallOptions | timedelta | None = None,
    ) -> Work:
        """Starts all_to_all_single."""

    @python_only
    def recv_anysource(self, tensors: Tensor | Sequence[Tensor], tag: int = 0) -> Work:
        """Starts a receive from whichever rank sends first; the Work's source_rank says which."""

class World:
    """One process's membership of a job."""

    @staticmethod
    @adapted
    def init(
        backend: str = "auto",
        init_method: str = "",
        store: Store | None = None,
        rank: Rank = -1,
        world_size: Rank = -1,
        timeout: timedelta = timedelta(seconds=1800),
        group_name: str = "",
        device_id: str | None = None,
    ) -> World:
        """Joins; returns once all ranks have.

        Either `store` with `rank` and `world_size`, or `init_method`:
        env:// (the default), as launchers set it; tcp://host:port, where rank 0 hosts the store;
        tcp://239.x.y.z:port, a multicast address on which the processes of `group_name` find each
        other; file:///path; etcd://host:port/prefix; mpi://, where MPI knows rank and size. tcp://,
        file:// and etcd:// take rank, world_size and group_name as arguments or as
        ?rank=R&world_size=N&group_name=G. Without a rank they assign one: the process that hosts
        the store is rank 0, the others follow in order of arrival; ranks that are given are kept.
        What launchers' variables do not say is taken from srun, mpirun, PALS or Flux, if one of
        them has started this process. With no argument and nothing in the environment, a world of
        one, which opens no socket and says so in the log.

        `device_id`, such as "cuda:0", is the device whose tensors this rank will pass: backend nccl
        then makes its communicator at once, and those of new groups from that one; other backends
        ignore it. All ranks give one, or none does, or else it is a DistMismatchError.

        A DistTimeoutError names the ranks that have not joined. A rank that is taken, a world_size
        on which ranks disagree, and more processes than world_size are ValueErrors.
        """

    @staticmethod
    @adapted
    def from_mpi(
        family: str,
        handle: int,
        backend: str,
        timeout: timedelta = timedelta(seconds=1800),
        device_id: str | None = None,
    ) -> World:
        """The world of the processes of an MPI communicator, with MPI's ranks.

        `family` is "Open MPI", "MPICH" or "MPI 5 ABI", and `handle` the MPI_Comm as an integer.
        init_process_group(comm=...) takes both from a communicator of mpi4py. `device_id` is that
        of `init`. Collective.
        """

    @property
    def rank(self) -> Rank:
        """This process's rank."""

    @property
    def size(self) -> Rank:
        """The number of ranks."""

    @property
    def local_rank(self) -> Rank:
        """This rank's place among the ranks of its host, in order of rank."""

    @property
    def group(self) -> ProcessGroup:
        """The group of all ranks."""

    @property
    def store(self) -> Store:
        """The store through which the ranks met."""

    @adapted
    def new_group(
        self,
        ranks: list[Rank],
        backend: str | None = None,
        timeout: timedelta | None = None,
        local_synchronization: bool = False,
        device_id: str | None = None,
    ) -> ProcessGroup | None:
        """A group of `ranks`, numbered in that order; None on ranks that are not in it.

        All ranks of the world must call it, with equal arguments and in the same order; with
        `local_synchronization` only the members, each equally often for one list of ranks.
        `device_id` takes the place of the world's for this group: all members give one, or none
        does. Backend nccl splits the group's communicator off that of the world if it is the same.
        """

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Closes the group of all ranks; groups made by new_group live on."""

class GradBucket:
    """Gradients of one element type that are averaged together: what a communication hook gets."""

    @property
    @field
    def index(self) -> Int32:
        """Its place in the order in which buckets are reduced."""

    @property
    @field
    def count(self) -> int:
        """How many buckets a step has."""

    @property
    @field
    def step(self) -> int:
        """How many steps of the reducer have communicated before this one."""

    @property
    @field
    def divisor(self) -> int:
        """What the sum over the ranks is divided by: most often their number."""

    @property
    def is_last(self) -> bool:
        """Whether it is the last bucket of its step."""

    @property
    @field
    def buffer(self) -> Tensor:
        """This rank's gradients, one behind the other; the average is to take their place."""

    @property
    @field
    def gradients(self) -> list[Tensor]:
        """The parts of `buffer`: views of the parameters' shapes."""

    @property
    @field
    def parameters(self) -> list[Int32]:
        """Whose gradients these are: indices among the reducer's parameters."""

@java_base("CommHookBase")
class CommHook:
    """How a reducer averages its buckets; each hook belongs to one reducer.

    All ranks must use the same hook, with equal arguments. Gradients of float32 and float64 are
    compressed, others averaged as they are. Results are bitwise equal on all ranks, except
    those of `post_local_sgd`. Hooks of one's own: `comm_hooks.from_function` in Python,
    `CommHook.of` in Java.
    """

    @property
    def name(self) -> str:
        """What kind of hook it is: "power_sgd"."""

    @staticmethod
    @adapted
    @nonblocking
    def all_reduce() -> CommHook:
        """One all-reduce: what a reducer without a hook does."""

    @staticmethod
    @adapted
    @nonblocking
    def float16_compress() -> CommHook:
        """All-reduces in float16: half the bytes of float32, and errors of about 0.05 %.

        Gradients above 65504 become infinite, and those below 6e-8 zero.
        """

    @staticmethod
    @adapted
    @nonblocking
    def bfloat16_compress() -> CommHook:
        """All-reduces in bfloat16: half the bytes of float32, its range, errors of about 0.4 %."""

    @staticmethod
    @adapted
    @nonblocking
    def power_sgd(
        rank: Int32 = 1,
        start_step: int = 1000,
        min_compression_rate: float = 2.0,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0.0,
        seed: int = 0,
    ) -> CommHook:
        """PowerSGD: the gradient of each matrix as a product of two thin ones.

        Method: T. Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
        Optimization", NeurIPS 2019, algorithms 1 and 2. The thin matrices have `rank` columns.
        Steps before `start_step` are all-reduced, and so are parameters with one dimension and
        those that would not shrink to less than 1 / `min_compression_rate`. What is lost is added
        to the next gradients with `use_error_feedback`, which takes as much memory as they do;
        `warm_start` begins with the thin matrices of the step before, not with random ones.
        """

    @staticmethod
    @adapted
    @nonblocking
    def batched_power_sgd(
        rank: Int32 = 1,
        start_step: int = 1000,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0.0,
        seed: int = 0,
    ) -> CommHook:
        """PowerSGD on each bucket as one square matrix: faster, and less exact."""

    @staticmethod
    @adapted
    @nonblocking
    def quantize_per_tensor() -> CommHook:
        """Gathers 8 bits for each element, with a scale and a zero point for each bucket.

        Errors are at most the mean of the ranks' scales, (largest - smallest gradient) / 255. Each
        rank receives a byte for each element of every other rank, so few ranks gain most. Method:
        B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference", CVPR 2018, section 2.1.
        """

    @staticmethod
    @adapted
    @nonblocking
    def quantize_per_channel(block_size: Int32 = 512) -> CommHook:
        """The same with a scale and a zero point for each `block_size` elements in a row."""

    @staticmethod
    @adapted
    @nonblocking
    def top_k(fraction: float = 0.01) -> CommHook:
        """Gathers the `fraction` of elements that is largest; the others are added to the next.

        Method: S. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018, algorithm 1; Y. Lin et
        al., "Deep Gradient Compression", ICLR 2018, section 3.1. Takes as much memory as gradients.
        """

    @staticmethod
    @adapted
    @nonblocking
    def post_local_sgd(start_step: int, subgroup: ProcessGroup | None = None) -> CommHook:
        """Averages over all ranks before `start_step`, then over those of `subgroup` only.

        None stands for the ranks of the same host. Parameters must then be averaged from time to
        time: see ParameterAverager. Method: T. Lin et al., "Don't Use Large Mini-Batches, Use Local
        SGD", ICLR 2020, section 3.
        """

class ParameterAverager:
    """Averages parameters over all ranks in every so many steps: local and post-local SGD."""

    @staticmethod
    @nonblocking
    def create(group: ProcessGroup, period: int, warmup_steps: int = 0) -> ParameterAverager:
        """The first average is in step `warmup_steps`, from 0, then in each `period`th step."""

    def average(self, parameters: list[Tensor]) -> bool:
        """To be called after each step, with all parameters.

        If it is time, replaces them by their averages, for which all ranks must call it. Returns
        whether it did.
        """

class ReducerStats:
    """When the buckets of the last step that communicated were ready, reduced and done.

    Times are nanoseconds from the step's begin. Lists are by bucket, in the order of reduction;
    those of sparse parameters come last.
    """

    @property
    @field
    def steps(self) -> int:
        """How many steps have communicated without an error, this one included."""

    @property
    @field
    def hook(self) -> str:
        """The name of the communication hook; "all_reduce" if there is none."""

    @property
    @field
    def bucket_bytes(self) -> list[int]:
        """The size of each bucket."""

    @property
    @field
    def bucket_parameters(self) -> list[Int32]:
        """How many parameters each bucket has."""

    @property
    @field
    def ready(self) -> list[int]:
        """When the last gradient of each bucket was there."""

    @property
    @field
    def start(self) -> list[int]:
        """When each bucket was handed to the group."""

    @property
    @field
    def end(self) -> list[int]:
        """When the average of each bucket was there."""

    @property
    @field
    def backward_end(self) -> int:
        """When `finish` was called, or `await_bucket` before it."""

    @property
    @field
    def step_end(self) -> int:
        """When `finish` returned."""

    @property
    @field
    def own_time(self) -> int:
        """Spent in the reducer itself: without waiting, without copying, without the hook."""

    @property
    @field
    def copy_time(self) -> int:
        """Spent in copying gradients to their buckets."""

    @property
    def communication_time(self) -> int:
        """How long communication was in flight."""

    @property
    def hidden_time(self) -> int:
        """How much of that was before `backward_end`."""

    @property
    def overlap_share(self) -> float:
        """hidden_time / communication_time; 1 if there was no communication."""

    @property
    @field
    def total_overlap_share(self) -> float:
        """The same over all steps."""

    @property
    @adapted
    def table(self) -> str:
        """All of it as text, a line for each bucket."""

class Reducer:
    """Averages the gradients of data-parallel training, overlapped with the backward pass.

    Gradients are gathered in buckets, flat buffers in the order in which backward passes make
    them. A bucket is all-reduced in the background as soon as its last gradient is ready. After the
    first step that communicated buckets are made anew, in the order in which the gradients came:
    `generation` changes, and `gradient` is elsewhere. Method: S. Li et al., "PyTorch Distributed:
    Experiences on Accelerating Data Parallel Training", VLDB 2020, section 3.2.

    A step: for each parameter write `gradient(i)` and then `mark_ready(i)`, or `copy_ready`; at the
    end `finish`. Thread-safe as far as threads mark different parameters.
    """

    @staticmethod
    @adapted
    def create(
        group: ProcessGroup,
        parameters: list[InputTensor],
        names: list[str] = [],
        bucket_cap_bytes: int = 26214400,
        first_bucket_cap_bytes: int = 1048576,
        bucket_caps_bytes: list[int] = [],
        sparse: list[Int32] = [],
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        rebuild_buckets: bool = True,
    ) -> Reducer:
        """Plans the buckets for gradients of the types and shapes of `parameters`.

        `names`, if given, has one name for each parameter, for messages. A bucket is closed at its
        cap, of which `bucket_caps_bytes`, if given, has one for each bucket; its last one goes on.
        The gradients of the parameters in `sparse` are rows: see `mark_ready_sparse`. Parameters
        without a gradient are an error on all ranks, unless they are to be found in each step, or
        in the first one for all steps (`static_graph`). `rebuild_buckets` is about the order of
        arrival, after the first step; it does not apply where unused ones are found in each step.

        Collective. A DistMismatchError on all ranks names the first parameter or option that
        differs, and the ranks.
        """

    @on_streams
    @adapted
    @nonblocking
    def begin_step(
        self, synchronize: bool = True, unused: list[Int32] = [], divisor: int = 0
    ) -> None:
        """Begins a step, where something is to be said; the first gradient begins one too.

        Without `synchronize` gradients stay this rank's own, and `copy_ready` of later steps adds
        to them, up to and with the next step that synchronizes. `unused` are parameters known to
        get no gradient in this step, so that their buckets can start earlier. Sums are divided by
        `divisor`; 0: by the number of ranks. A ValueError if a step is under way.
        """

    @adapted
    @nonblocking
    def gradient(self, index: Int32) -> Tensor:
        """The place of parameter `index`'s gradient in its bucket: a view, of its shape.

        Write the gradient there before `mark_ready(index)`; after `finish` it holds the average.
        """

    @on_streams
    @nonblocking
    def mark_ready(self, index: Int32) -> None:
        """The gradient of parameter `index` has been written; once for each before `finish`."""

    @nonblocking
    def copy_ready(self, index: Int32, value: InputTensor) -> None:
        """Copies `value` to `gradient(index)` and marks it ready."""

    @adapted
    @nonblocking
    def mark_ready_sparse(self, index: Int32, indices: InputTensor, values: InputTensor) -> None:
        """The gradient of a sparse parameter: `values[k]` belongs to row `indices[k]`.

        `indices` are int64 of shape [n] and may repeat; `values` have the shape [n, columns...].
        Both are copied.
        """

    @on_streams
    def await_bucket(self, bucket: int) -> bool:
        """Waits until the average of a bucket is there, for who has a use for it before `finish`.

        `finish` is to follow. False, at once, if gradients of the buckets up to it are not ready,
        and if averaging has failed or is up to `finish`, which says why.
        """

    @on_streams
    def finish(self) -> None:
        """Waits until all gradients are averaged and ends the step.

        A ValueError on all ranks names the ranks and parameters without a gradient, and ends the
        step, nothing else. Errors of the group end the group: see `replace_group`.
        """

    @adapted
    @nonblocking
    def is_used(self, index: Int32) -> bool:
        """Whether any rank had a gradient for it in the last step; if not, it is zeros."""

    @adapted
    @nonblocking
    def sparse_indices(self, index: Int32) -> Tensor:
        """The rows of the last step, of all ranks in their order: int64 of shape [n]."""

    @adapted
    @nonblocking
    def sparse_values(self, index: Int32) -> Tensor:
        """What belongs to `sparse_indices`, divided: of shape [n, columns...]."""

    @adapted
    def count_active(self, is_active: bool) -> Int32:
        """How many ranks say that they still have input. Collective, between steps.

        For inputs that end at different times: a rank that has input calls it before each step and
        may pass the result to `begin_step` as divisor. A rank that has run out repeats it, and
        `shadow_step` unless it is 0.
        """

    @on_streams
    def shadow_step(self, divisor: int = 0) -> None:
        """Takes part in a step of the other ranks with zeros."""

    def set_hook(self, hook: CommHook | None) -> None:
        """How buckets are averaged from the next step on; None: by one all-reduce.

        All ranks must call it, between steps, with the same hook; a hook belongs to one reducer.
        """

    @on_streams
    def replace_group(self, group: ProcessGroup) -> None:
        """Goes on in another group, after a failure; a step under way is dropped.

        Collective over the new group. A DistMismatchError if its ranks have different parameters.
        """

    @adapted
    @nonblocking
    def stats(self) -> ReducerStats:
        """Of the last step that communicated."""

    @property
    def buckets(self) -> list[list[Int32]]:
        """The parameters of each bucket, in the order in which the buckets are reduced."""

    @property
    def generation(self) -> int:
        """How often the buckets have been made. When it changes, ask for `gradient` again."""

class Preemption:
    """Stops all ranks of a job at the same step, so that they can save and be started again later.

    Every rank makes one, and calls `reached` at the beginning of each step, with the same numbers
    as the others. A notice is given by any rank, or by whoever sets the key "preempt/notice" in the
    store, whatever its value.
    """

    @staticmethod
    @adapted
    @nonblocking
    def create(
        store: Store, rank: Rank, world_size: Rank, timeout: timedelta = timedelta(seconds=60)
    ) -> Preemption:
        """Begins to look for a notice, in the background.

        `store` is one that all ranks share, and that has not served an agreement before. `timeout`
        is how long the ranks have to agree, once there is a notice.
        """

    @nonblocking
    def give_notice(self) -> None:
        """Asks all ranks to stop. Returns at once."""

    def reached(self, step: int) -> bool:
        """Whether to save and stop, instead of beginning `step`; steps count up from 0.

        True from the same step on all ranks, the first that none had begun when they agreed. Waits
        only between a notice and the agreement; a DistTimeoutError names the ranks that take no
        part in it.
        """

    @property
    def agreed_step(self) -> int:
        """The step agreed on; -1 while there is none."""

class Heartbeat:
    """Says to the launcher that this process makes progress.

    By the time of the last modification of the file that SYNCLINE_HEARTBEAT_FILE names; without it,
    it does nothing.
    """

    @staticmethod
    @nonblocking
    def create() -> Heartbeat:
        """One for the file that is named now."""

    @nonblocking
    def beat(self) -> None:
        """Touches the file, at most ten times a second; cheap enough for every step."""

class Info:
    """What this build of Syncline has."""

    @staticmethod
    def version() -> str:
        """The version: "0.1.0"."""

    @staticmethod
    def backends() -> list[str]:
        """The names of the backends, sorted."""

    @staticmethod
    def stores() -> list[str]:
        """The schemes of the stores, sorted."""

    @staticmethod
    def check_backend(backend: str) -> None:
        """Returns if groups of `backend` can be made on this machine.

        If not, raises a DistError that says why: for mpi, which libraries were looked for. It may
        load the backend's library, and initialises none.
        """

    @staticmethod
    def describe_backend(backend: str) -> str:
        """What this machine lets `backend` do, in a line; "" if there is nothing to say.

        Of shm: whether ranks can read each other's memory (Cross Memory Attach), or why not, as far
        as this process can tell by itself.
        """

    @staticmethod
    def operations(backend: str, device: str = "cpu") -> list[str]:
        """The operations that `backend` serves on `device` ("cpu" or "cuda")."""

    @staticmethod
    def dtypes(backend: str, operation: str) -> list[str]:
        """The element types on which `backend` serves `operation`."""

    @staticmethod
    def capability_table() -> str:
        """What each backend serves on which device, as a table in Markdown."""

_operations: tuple[str, ...]
_chosen_streams: ContextVar[tuple[tuple[int, int], ...]]

def _register_backend(
    name: str,
    factory: Callable[..., Any],
    devices: list[str],
    operations: list[str],
    dtypes: list[str],
) -> None: ...
def _set_nccl_search_path(folders: list[str]) -> None: ...
def _comm_hook_from_function(
    name: str, function: Callable[[GradBucket, ProcessGroup], object]
) -> CommHook: ...
def _comm_hook_from_starter(
    name: str,
    function: Callable[[GradBucket, Callable[[BaseException | None], None]], Work | None],
) -> CommHook: ...
def _gradient_hook(
    reducer: Reducer,
    index: int,
    is_open: bytearray,
    came: bytearray,
    views: list[Any] | None,
    otherwise: Callable[[Any], None],
) -> Callable[[Any], None]: ...

class _TensorQueue:
    @staticmethod
    def create(capacity: int, max_messages: int) -> _TensorQueue: ...
    @staticmethod
    def open(descriptor: int) -> _TensorQueue: ...
    @staticmethod
    def open_handle(handle: str) -> _TensorQueue: ...
    def put(self, arrays: Sequence[Any], note: bytes, seconds: float) -> bool: ...
    def get(self, seconds: float) -> tuple[list[Any], bytes] | bool | None: ...
    def get_into(self, arrays: Sequence[Any], seconds: float) -> bytes | bool | None: ...
    def close(self) -> None: ...
    def handle(self) -> str: ...
    def stats(self) -> tuple[int, int, int, int]: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def max_messages(self) -> int: ...
    @property
    def closed(self) -> bool: ...

def _empty_shared(shape: list[int], dtype: str) -> Tensor: ...
def _empty_on_device(shape: list[int], dtype: str, index: int, registered: bool) -> Tensor: ...
def _copy_to_device(to: Any, array: Any) -> None: ...
def _write_segment(size: int, parts: list[tuple[int, Any]], leased: bool = ...) -> int: ...
def _address(buffer: Any) -> int: ...
def _shared_place(address: int, size: int) -> Any: ...
def _keep_contents(address: int) -> None: ...
def _map_shared(descriptor: int, size: int, leased: bool = ...) -> Any: ...
def _idle_mappings() -> int: ...
def _use_segment_manager(manager: str) -> None: ...
def _segment_manager() -> str: ...
def _chosen_interface_address() -> str | None: ...
def _write_named(size: int, parts: list[tuple[int, Any]]) -> tuple[str, int]: ...
def _make_named(size: int) -> Any: ...
def _carry_named(name: str) -> tuple[str, int]: ...
def _drop_named(name: str, sender: int) -> None: ...
def _discard_named(name: str, sender: int) -> None: ...
def _map_named(name: str, sender: int, pid: int, size: int) -> Any: ...
def _leave_segments() -> None: ...
def _shared_handle(tensor: Any) -> str: ...
def _open_shared(handle: str) -> Any: ...
def _part_of(whole: Any, offset: int, dtype: str, shape: list[int]) -> Any: ...
def _create_tcp_store(
    host: str,
    port: int,
    is_master: bool,
    timeout: timedelta,
    listen_fd: int | None,
    multi_tenant: bool,
) -> TCPStore: ...
def _store_set_timeout(store: Store, timeout: timedelta) -> None: ...
def _store_clone(store: Store) -> Store: ...
def _queue_push(store: Store, key: str, value: bytes) -> None: ...
def _queue_pop(store: Store, key: str, timeout: timedelta | None) -> bytes: ...
def _queue_try_pop(store: Store, key: str) -> bytes | None: ...
def _queue_len(store: Store, key: str) -> int: ...
