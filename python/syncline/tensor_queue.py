"""TensorQueue: a queue of arrays between the processes of this host, bounded by bytes."""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import queue
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from syncline import _syncline
from syncline.errors import DistBackendError
from syncline.process_groups import default_pg_timeout


class EndOfQueue(EOFError):  # noqa: N818 The word of the field, like StopIteration.
    """The queue is closed, and all its messages were received."""


class TensorMessage(NamedTuple):
    """A message as C++ and Java have it: arrays, and a byte string of the program's own.

    `put` sends one as that; what C++ and Java have put, `get` returns as one, with NumPy arrays.
    A note that begins with the byte 0xFF, which no UTF-8 text has, is Python's: see
    docs/internals/tensor_queue.md.
    """

    arrays: Sequence[Any]
    note: bytes = b""


class TensorQueue:
    """A first-in, first-out queue with any number of producers and consumers, bounded by bytes.

        batches = TensorQueue(256 << 20)
        Process(target=load, args=(batches,)).start()    # batches.put((images, labels)); close()
        for images, labels in batches:
            train(images, labels)

    A message is any object that pickle takes. The arrays in it (NumPy's, PyTorch's on the CPU,
    JAX's, and what has __dlpack__) are copied into a ring of memory that the processes share, and
    from there into new memory: they are not pickled, and neither are lists and tuples of arrays.
    NumPy's order, strides apart, is kept; arrays come back writable, and tensors of PyTorch that
    require gradients do so as leaves. Arrays of a type that has only __dlpack__ arrive as NumPy's.

    It is passed to processes of `multiprocessing` as an argument, whatever the start method, or in
    a message of a pipe or queue of theirs; all of them may put and get. Other processes of this
    user and host, also in C++ and Java, open it by its `handle`. The memory is freed with the last
    process that has the queue.

    Any process may be killed at any time. A message is received at most once, whole, and those of
    one producer's thread in order. If a producer is killed while it copies a message, one `get`
    raises a DistNetworkError that names its pid, and the next one goes on; if a consumer is killed
    while it receives a message, that is lost. `stats()` counts both.

    Args:
      capacity: bytes that the queue holds at most; a message cannot be larger. All of this memory
        is taken at once.
      max_messages: messages that it holds at most; 0: as many as fit, up to one for each KiB.
      timeout: how long `put` and `get` wait at most, in seconds, where they are not told; by
        default as long as operations of groups, 30 minutes.

    Raises:
      ValueError: `capacity` or `max_messages` is impossible.
      DistBackendError: there is not so much memory; says how much there is.
    """

    def __init__(
        self, capacity: int = 64 << 20, max_messages: int = 0, timeout: float | None = None
    ) -> None:
        self._queue = _syncline._TensorQueue.create(capacity, max_messages)
        self._timeout = default_pg_timeout.total_seconds() if timeout is None else timeout

    @staticmethod
    def open(handle: str, timeout: float | None = None) -> TensorQueue:
        """The queue of a handle that another process has made, which still has the queue.

        Raises:
          ValueError: it is no handle.
          DistBackendError: that process has ended, or is of another host, pid namespace or user;
            names its pid.
        """
        return _made(_syncline._TensorQueue.open_handle(handle), timeout)

    @property
    def handle(self) -> str:
        """A short text by which others `open` the queue, as long as this process has it."""
        return self._queue.handle()

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Puts a message; its arrays are copied before this returns.

        Waits for room for at most `timeout` seconds, or not at all unless `block`; then raises
        queue.Full. Puts are served in turn, so that large messages are not overtaken for ever.

        Raises:
          queue.Full: there was no room in time.
          ValueError: the message is larger than the capacity, or the queue is closed.
        """
        arrays, note = _encode(obj)
        try:
            has_put = self._queue.put(arrays, note, self._seconds(block, timeout))
        except DistBackendError:
            if not self.closed:
                raise
            raise ValueError(f"{self!r} is closed") from None
        if not has_put:
            raise queue.Full(f"no room in time in {self!r}")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Takes the oldest message, its arrays in new memory.

        Waits for one for at most `timeout` seconds, or not at all unless `block`.

        Raises:
          queue.Empty: there was none in time.
          EndOfQueue: the queue is closed and empty.
          DistNetworkError: the producer of the oldest message was killed while it put it. The
            message is lost, and the next call goes on.
        """
        message = self._queue.get(self._seconds(block, timeout))
        if not isinstance(message, tuple):
            raise self._nothing(message)
        return _decode(*message)

    def get_into(self, arrays: Any, block: bool = True, timeout: float | None = None) -> Any:
        """Takes the oldest message into memory that is there: an array, or a sequence of them.

        They are those of the message in its order, and must have their types and shapes, and be
        contiguous. Returns the message, made of these arrays. Waits and raises as `get`.

        Raises:
          ValueError: the arrays do not fit the message, which stays in the queue.
        """
        targets = list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]
        note = self._queue.get_into(targets, self._seconds(block, timeout))
        if not isinstance(note, bytes):
            raise self._nothing(note)
        return _decode(targets, note)

    def put_nowait(self, obj: Any) -> None:
        """`put` that raises queue.Full at once."""
        self.put(obj, block=False)

    def get_nowait(self) -> Any:
        """`get` that raises queue.Empty at once."""
        return self.get(block=False)

    def __iter__(self) -> TensorQueue:
        """The messages up to the end of the queue; raises as `get` does."""
        return self

    def __next__(self) -> Any:
        try:
            return self.get()
        except EndOfQueue:
            raise StopIteration from None

    def close(self) -> None:
        """Ends the queue for all processes: `put` raises from now on; `get` takes what is left."""
        self._queue.close()

    @property
    def closed(self) -> bool:
        """Whether any process has closed the queue."""
        return self._queue.closed

    @property
    def capacity(self) -> int:
        """Bytes that the queue holds at most."""
        return self._queue.capacity

    @property
    def max_messages(self) -> int:
        """Messages that it holds at most."""
        return self._queue.max_messages

    def qsize(self) -> int:
        """How many messages there are, those that are being put included. May be out of date."""
        return self._queue.stats()[0]

    def nbytes(self) -> int:
        """How many bytes of the capacity are taken. May be out of date."""
        return self._queue.stats()[1]

    def empty(self) -> bool:
        """Whether there is no message. May be out of date."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether `max_messages`, or all bytes, are taken. May be out of date."""
        messages, taken, _, _ = self._queue.stats()
        return messages >= self.max_messages or taken >= self.capacity

    def stats(self) -> dict[str, int]:
        """Messages, bytes, lost_puts and lost_gets: see the class for what a kill loses."""
        names = ("messages", "bytes", "lost_puts", "lost_gets")
        return dict(zip(names, self._queue.stats(), strict=True))

    def __repr__(self) -> str:
        return f"<TensorQueue {self._describe()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing import reduction

        return _open, (reduction.DupFd(self._queue.descriptor), self._timeout)

    def _seconds(self, block: bool, timeout: float | None) -> float:
        if not block:
            return 0.0
        return self._timeout if timeout is None else max(timeout, 0.0)

    def _describe(self) -> str:
        messages, taken, _, _ = self._queue.stats()
        return f"of {messages} messages, {taken} of {self.capacity} bytes"

    def _nothing(self, result: Any) -> Exception:
        """What to raise: None is a timeout, False the end."""
        if result is None:
            return queue.Empty("no message has come in time")
        return EndOfQueue("the queue is closed, and all its messages were received")


def _open(descriptor: Any, timeout: float) -> TensorQueue:
    """The queue of a descriptor that has come from another process: see __reduce__."""
    return _of_descriptor(descriptor.detach(), timeout)


def _of_descriptor(descriptor: int, timeout: float) -> TensorQueue:
    """The same where the descriptor came with the message. Takes it over."""
    return _made(_syncline._TensorQueue.open(descriptor), timeout)


def _made(native: _syncline._TensorQueue, timeout: float | None) -> TensorQueue:
    result = TensorQueue.__new__(TensorQueue)
    result._queue = native
    result._timeout = default_pg_timeout.total_seconds() if timeout is None else timeout
    return result


# How a message is written: a tuple of arrays, and a note, whose second byte says what it is.
#
#   n, t, j    one array of NumPy, PyTorch, JAX
#   (, [       a tuple or list of arrays; a letter for each follows
#   p          a pickle, in which arrays are persistent ids: see _Pickler
#
# A note that does not begin with _OURS is the program's own, in a TensorMessage.
_OURS = b"\xff"
_LISTS = {b"("[0]: tuple, b"["[0]: list}
_TAKEN_CHARS = frozenset("?bhilqBHILQefdFD")  # numpy.dtype.char of the types below.
_TAKEN = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64"
    " complex128".split()
)
_BY_ML_DTYPES = frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2"))  # In NumPy.


def _encode(obj: Any) -> tuple[Sequence[Any], bytes]:
    letter = _letter(obj)
    if letter is not None:
        return (obj,), _OURS + letter
    if type(obj) is TensorMessage:
        if obj.note.startswith(_OURS):
            raise ValueError("the note of a TensorMessage begins with 0xFF, as Python's own do")
        return [_contiguous(x) for x in obj.arrays], obj.note
    if type(obj) in (tuple, list):
        letters = [_letter(item) for item in obj]
        if None not in letters:
            begin = _OURS + (b"(" if type(obj) is tuple else b"[")
            return obj, begin + b"".join(letters)  # type: ignore[arg-type]
    file = io.BytesIO()
    pickler = _Pickler(file)
    file.write(_OURS + b"p")
    pickler.dump(obj)
    return pickler.arrays, file.getvalue()


def _decode(arrays: Sequence[Any], note: bytes) -> Any:
    if not note.startswith(_OURS):
        return TensorMessage([_numpy(x) for x in arrays], note)
    kind, letters = note[1], note[2:]
    if kind in _LISTS:
        return _LISTS[kind](_array(x, letter) for x, letter in zip(arrays, letters, strict=True))
    if kind != b"p"[0]:
        return _array(arrays[0], kind)
    return _Unpickler(io.BytesIO(memoryview(note)[2:]), arrays).load()


def _contiguous(x: Any) -> Any:
    """A copy of a strided array of NumPy or PyTorch; other arrays as they are."""
    if _is_array(x, "numpy", "ndarray"):
        import numpy

        return numpy.asarray(x, order="C")
    return x.detach().contiguous() if _is_array(x, "torch", "Tensor") else x


def _numpy(source: Any) -> Any:
    """As an array of NumPy; as it is, for torch.from_dlpack, where NumPy lacks the type."""
    import numpy

    if isinstance(source, numpy.ndarray):
        return source
    try:
        return numpy.asarray(source)
    except ImportError:  # bfloat16 or float8 without ml_dtypes.
        return source


def _type(library: str, name: str) -> Any:
    """A type of a library; None unless that is imported, which another thread may be doing."""
    return getattr(sys.modules.get(library), name, None)


def _is_array(obj: Any, library: str, name: str) -> bool:
    """Whether it is one of the library's arrays, or of a subclass."""
    kind = _type(library, name)
    return kind is not None and isinstance(obj, kind)


def _letter(obj: Any) -> bytes | None:
    """That of an array which goes as it is; None for others."""
    if type(obj) is _type("numpy", "ndarray"):
        dtype = obj.dtype
        plain = dtype.char in _TAKEN_CHARS and dtype.isnative and obj.flags.c_contiguous
        return b"n" if plain else None
    if type(obj) is _type("torch", "Tensor"):
        return b"t" if _is_plain(obj) and obj.is_contiguous() and not obj.requires_grad else None
    if _is_array(obj, "jax", "Array"):
        return b"j" if _is_plain_jax(obj) else None
    return None


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor of PyTorch is an ordinary one in main memory."""
    torch = sys.modules["torch"]
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and _is_taken(tensor.dtype)
        and not (tensor.is_conj() or tensor.is_neg())
    )


@functools.cache
def _is_taken(dtype: Any) -> bool:
    return str(dtype).removeprefix("torch.") in _TAKEN | _BY_ML_DTYPES


def _is_plain_jax(array: Any) -> bool:
    return (
        array.dtype.name in _TAKEN | _BY_ML_DTYPES
        and array.is_fully_addressable
        and len(array.devices()) == 1
        and next(iter(array.devices())).platform == "cpu"
    )


def _array(source: Any, letter: int) -> Any:
    """The array of the library of `letter`, over the memory of `source`, itself if it is one."""
    if letter == b"n"[0]:
        import numpy

        return source if isinstance(source, numpy.ndarray) else numpy.asarray(source)
    if letter == b"t"[0]:
        torch = importlib.import_module("torch")
        return source if isinstance(source, torch.Tensor) else torch.from_dlpack(source)
    import numpy

    jax = importlib.import_module("jax")

    return jax.numpy.asarray(numpy.asarray(source))


class _Pickler(pickle.Pickler):
    """Keeps arrays out of the pickle. An array that occurs twice goes once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.arrays: list[Any] = []
        self._known: dict[int, Any] = {}  # Ids by id(); `_objects` keeps these from coming again.
        self._objects: list[Any] = []

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) in _NO_ARRAYS:
            return None
        known = self._known.get(id(obj))
        if known is not None:
            return known
        how = self._describe(obj)
        if how is not None:
            self._known[id(obj)] = how
            self._objects.append(obj)
        return how

    def _describe(self, obj: Any) -> Any:
        """Appends the elements of `obj` to `arrays`, and says how to make `obj` of them."""
        index = len(self.arrays)
        letter = _letter(obj)
        if letter is not None:
            self.arrays.append(obj)
            return letter, index
        if type(obj) is _type("numpy", "ndarray"):
            import numpy

            if obj.dtype.hasobject or obj.dtype.itemsize == 0:
                return None
            order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
            flat = obj.reshape(-1, order=order)
            self.arrays.append(numpy.ascontiguousarray(flat).view(numpy.uint8))
            return b"N", index, obj.dtype, obj.shape, order
        if type(obj) is _type("torch", "Tensor"):
            if not _is_plain(obj):
                return None
            if obj.requires_grad and not obj.is_leaf:
                raise ValueError(
                    "a tensor that requires gradients and is no leaf cannot be put, since autograd "
                    "does not cross processes: put x.detach()"
                )
            self.arrays.append(obj.detach().contiguous())
            return b"T", index, obj.requires_grad
        # Subclasses are pickled as they wish. A type has the method too; its objects are arrays.
        if (
            hasattr(obj, "__dlpack__")
            and not isinstance(obj, type)
            and not _is_array(obj, "numpy", "ndarray")
            and not _is_array(obj, "torch", "Tensor")
            and not _is_array(obj, "jax", "Array")
        ):
            self.arrays.append(obj)
            return b"n", index
        return None


# What messages are made of besides arrays; a look at these is all that they need.
_NO_ARRAYS = frozenset((dict, list, tuple, str, int, float, bool, bytes, type(None)))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arrays: Sequence[Any]) -> None:
        super().__init__(file)
        self._arrays = arrays
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        index = pid[1]
        if index not in self._made:
            self._made[index] = self._make(*pid)
        return self._made[index]

    def _make(self, letter: bytes, index: int, *rest: Any) -> Any:
        source = self._arrays[index]
        if letter == b"N":
            import numpy

            dtype, shape, order = rest
            return numpy.ndarray(shape, dtype, numpy.asarray(source), order=order)
        if letter == b"T":
            return _array(source, b"t"[0]).requires_grad_(rest[0])
        return _array(source, letter[0])
