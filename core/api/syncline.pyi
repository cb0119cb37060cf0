"""The public API of Syncline: the one description from which every binding is generated.

Ordinary Python stub syntax: it is shipped unchanged as the type stub of the Python module
`syncline._syncline`, and gives the Java classes their names, Javadoc and signatures. Each class
stands for the C++ class of the same name in namespace syncline, `all_reduce` for its method
AllReduce. Only the vocabulary of core/api/stub.py may appear in a signature.

Errors are typed: bad arguments raise ValueError or TypeError before anything happens, everything
else a subclass of DistError (see syncline.errors).
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""Any array that shares its memory through the buffer protocol or DLPack: NumPy, PyTorch, JAX,
CuPy, array.array, ctypes. Never copied; must be contiguous, and writable where it is written."""

class ReduceOp(Enum):
    """How elements of all ranks are combined.

    SUM, AVG, PRODUCT, MIN and MAX are defined on integers and floats, BAND, BOR and BXOR on
    integers. float16 and bfloat16 are computed in float32; AVG of integers rounds towards zero;
    MIN and MAX propagate NaN.
    """

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7

class Store:
    """A small key-value store shared by all processes of a job: how they find each other.

    Keys are non-empty strings, values are bytes. Every operation is atomic. Thread-safe; a call
    that waits never holds up another thread's call. Raises DistStoreError, DistNetworkError or
    DistTimeoutError, each naming the key and the store. A `timeout` of None means the store's own.
    """

    def set(self, key: str, value: bytes) -> None:
        """Sets `key`, replacing any earlier value."""

    def get(self, key: str, timeout: timedelta | None = None) -> bytes:
        """Waits until `key` is set and returns its value."""

    def add(self, key: str, amount: int) -> int:
        """Adds `amount` to the decimal number that `key` holds (0 if absent); returns the sum."""

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Sets `key` to `desired` if it holds `expected` (empty: if it is absent).

        Returns the value after the call, empty if the key is still absent.
        """

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits until all `keys` are set; a DistTimeoutError lists those that are not."""

    def check(self, keys: list[str]) -> bool:
        """Whether all `keys` are set now."""

    def delete_key(self, key: str) -> bool:
        """Removes `key`; returns whether it was set."""

    def list_keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, sorted."""

    def num_keys(self) -> int:
        """How many keys are set."""

    def append(self, key: str, value: bytes) -> None:
        """Appends to the value of `key`, which is created if it is absent."""

    def multi_get(self, keys: list[str], timeout: timedelta | None = None) -> list[bytes]:
        """Waits until all `keys` are set; returns their values in the same order."""

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        """Sets keys[i] to values[i] for all i in one step."""

    @property
    def timeout(self) -> timedelta:
        """How long waits last where no timeout is given; 5 minutes unless made with another."""

class HashStore(Store):
    """A store inside one process, for ranks that are threads."""

    @staticmethod
    def create(timeout: timedelta = timedelta(seconds=300)) -> HashStore:
        """Makes an empty store."""

class FileStore(Store):
    """A store in a file that all processes reach, guarded by fcntl locks.

    It lives as long as a process has it open: the last one to leave removes the file, and a file
    that crashed processes left behind is started anew.
    """

    @staticmethod
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
    def create(
        host: str,
        port: int,
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
    def port(self) -> int:
        """The server's port."""

class PrefixStore(Store):
    """A part of another store: every key is preceded by a prefix and a slash."""

    @staticmethod
    def create(prefix: str, store: Store) -> PrefixStore:
        """The keys of `store` that begin with `prefix`/."""

    @property
    def underlying_store(self) -> Store:
        """The store that holds the keys."""

class Work:
    """An operation in flight. Its tensors must stay untouched until it has completed."""

    def wait(self, timeout: timedelta | None = None) -> None:
        """Waits until the operation has finished; raises its error.

        After `timeout` raises DistTimeoutError; the operation goes on until its own timeout.
        """

    def is_completed(self) -> bool:
        """Whether the operation has finished, well or not."""

    @property
    def description(self) -> str:
        """What it is: "all_reduce #1580 (float32[4096] on cpu, sum)"."""

class ProcessGroup:
    """One rank's end of a group of ranks that communicate.

    Thread-safe: operations take effect in the order in which each rank issues them, and all ranks
    must issue the same collectives in the same order. A bad argument raises ValueError, TypeError
    or NotImplementedError before any byte moves, and the group goes on; any other error breaks the
    group: later calls fail at once and quote it. A `timeout` of None means the group's own.
    The `_async` form of an operation returns at once.
    """

    @property
    def rank(self) -> int:
        """This rank's number in the group."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def name(self) -> str:
        """The group's name, for messages."""

    @property
    def backend(self) -> str:
        """The name of the backend that moves the bytes."""

    @property
    def timeout(self) -> timedelta:
        """How long an operation may take where no timeout is given."""

    def broadcast(self, tensor: Tensor, root: int, timeout: timedelta | None = None) -> None:
        """Copies `root`'s tensor over every other rank's, of the same type and size."""

    def broadcast_async(self, tensor: Tensor, root: int, timeout: timedelta | None = None) -> Work:
        """As broadcast, in the background."""

    def all_reduce(
        self, tensor: Tensor, op: ReduceOp = ReduceOp.SUM, timeout: timedelta | None = None
    ) -> None:
        """Replaces `tensor` by its elementwise reduction over all ranks, bitwise equal on all."""

    def all_reduce_async(
        self, tensor: Tensor, op: ReduceOp = ReduceOp.SUM, timeout: timedelta | None = None
    ) -> Work:
        """As all_reduce, in the background."""

    def all_gather(
        self, outputs: list[Tensor], input: Tensor, timeout: timedelta | None = None
    ) -> None:
        """Copies every rank's `input` to outputs[its rank], each of the input's type and size."""

    def all_gather_async(
        self, outputs: list[Tensor], input: Tensor, timeout: timedelta | None = None
    ) -> Work:
        """As all_gather, in the background."""

    def barrier(self, timeout: timedelta | None = None) -> None:
        """Returns once every rank has called it."""

    def barrier_async(self, timeout: timedelta | None = None) -> Work:
        """As barrier, in the background."""

    def send(
        self, tensor: Tensor, dst: int, tag: int = 0, timeout: timedelta | None = None
    ) -> None:
        """Sends `tensor` to rank `dst`; may return before it has been received."""

    def send_async(
        self, tensor: Tensor, dst: int, tag: int = 0, timeout: timedelta | None = None
    ) -> Work:
        """As send, in the background."""

    def recv(
        self, tensor: Tensor, src: int, tag: int = 0, timeout: timedelta | None = None
    ) -> None:
        """Receives into `tensor`, of the type and size that rank `src` sends with `tag`."""

    def recv_async(
        self, tensor: Tensor, src: int, tag: int = 0, timeout: timedelta | None = None
    ) -> Work:
        """As recv, in the background."""

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Waits up to `timeout` for operations in flight, then aborts them. Idempotent."""

    def abort(self, reason: str) -> None:
        """Ends the group at once: operations in flight fail, here and on the peers."""

class World:
    """One process's membership of a job."""

    @staticmethod
    def init(
        backend: str,
        init_method: str = "",
        store: Store | None = None,
        rank: int = -1,
        world_size: int = -1,
        timeout: timedelta = timedelta(seconds=1800),
        group_name: str = "",
    ) -> World:
        """Joins; returns once all ranks have.

        Either `store` with `rank` and `world_size`, or `init_method`: env:// (the default),
        tcp://host:port or file:///path, the latter two with rank and world_size as arguments or as
        ?rank=R&world_size=N. A timeout names the ranks that have not joined.
        """

    @property
    def rank(self) -> int:
        """This process's rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def group(self) -> ProcessGroup:
        """The group of all ranks."""

    @property
    def store(self) -> Store:
        """The store through which the ranks met."""

    def new_group(
        self, ranks: list[int], backend: str | None = None, timeout: timedelta | None = None
    ) -> ProcessGroup | None:
        """A group of `ranks`, numbered in that order; None on ranks that are not in it.

        All ranks of the world must call it, with equal arguments and in the same order.
        """

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Closes the group of all ranks; groups made by new_group live on."""

class Reducer:
    """Averages the gradients of data-parallel training, overlapped with the backward pass.

    Gradients are gathered in buckets, flat buffers in the order in which backward passes make
    them (last parameter first). A bucket is all-reduced in the background as soon as its last
    gradient is ready. Method: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data
    Parallel Training", VLDB 2020, section 3.2.
    """

    @staticmethod
    def create(
        group: ProcessGroup,
        parameters: list[Tensor],
        names: list[str] = [],
        bucket_cap_bytes: int = 26214400,
        first_bucket_cap_bytes: int = 1048576,
    ) -> Reducer:
        """Plans the buckets for gradients of the types and sizes of `parameters`.

        `names`, if given, has one name for each parameter, for messages. All ranks must pass
        parameters of equal types and sizes, or a DistMismatchError on all ranks names the first
        that differs.
        """

    def gradient(self, index: int) -> Tensor:
        """The place of parameter `index`'s gradient in its bucket: a view, of its shape.

        Write the gradient there before `mark_ready(index)`; after `finish` it holds the average.
        """

    def mark_ready(self, index: int) -> None:
        """The gradient of parameter `index` has been written; once for each before `finish`."""

    def copy_ready(self, index: int, value: Tensor) -> None:
        """Copies `value` to `gradient(index)` and marks it ready."""

    def finish(self) -> None:
        """Waits until all gradients are averaged; the reducer is then ready for the next step.

        A ValueError names parameters that have not been marked ready.
        """

    @property
    def buckets(self) -> list[list[int]]:
        """The parameters of each bucket, in the order in which the buckets are reduced."""
