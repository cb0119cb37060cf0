"""The pickler of this package: arrays in an object travel as shared memory, beside its bytes.

`dumps` makes a Message of an object: its pickled bytes, and the descriptors of the memory that
holds its arrays. What is to be copied has been copied when it returns. `loads` makes the object of
what has arrived. The bytes are those of pickle, protocol 5, in which each array stands for a
buffer out of band.
"""

# What the standard module has inside has no types.
# mypy: disable-error-code="attr-defined,call-arg,assignment,no-any-return,return-value"

from __future__ import annotations

import copyreg
import functools
import io
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from typing import Any, ClassVar

from syncline import _syncline
from syncline.multiprocessing import limits, named_segments, sharing

# Regions of less than this share a segment: a descriptor and a mapping cost more than their bytes.
_SMALL = 256 << 10
_LARGEST_COMMON = 1 << 20
_LINE = 64

# The header of the table: how many descriptors, names and buffers there are. Then the size of each
# descriptor's segment, with a bit if it has a lease (core/tensor/segment_pool.h). Then each named
# segment: its size, the sender's number and pid, the length of the name, and the name. Then where
# each buffer is: its kind, which segment, offset and size.
_COUNTS = struct.Struct("<III")
_SIZE = struct.Struct("<Q")
_NAMED = struct.Struct("<QQII")
_BUFFER = struct.Struct("<IIQQ")

_LEASED = 1 << 63
# Of the number of a segment: which of those with a name.
_HAS_NAME = 1 << 31

# What a message with a table begins with where only bytes travel. No pickle begins so.
_MAGIC = b"\x93syncline"

_BYTES, _ARRAY, _DESCRIPTOR = range(3)


class Message:
    """A pickled object, and what travels with it: here nothing."""

    __slots__ = ("body", "descriptors", "is_sent", "table")

    def __init__(self, body: Any) -> None:
        self.body = body
        self.table = b""
        self.descriptors: list[int] = []
        self.is_sent = False

    def close(self) -> None:
        """Frees what travels with it. It cannot be sent afterwards."""


class SharingMessage(Message):
    """A message with which memory travels. Closes the descriptors that it owns."""

    __slots__ = ("_keep", "_owned", "_pid", "names")

    def __init__(self, body: Any) -> None:
        super().__init__(body)
        self._owned: list[int] = []
        self._keep: list[Any] = []
        # Of named segments: size, name, the number by which their manager knows this process.
        self.names: list[tuple[int, str, int]] = []
        # When it is sent, the names are the receiver's.
        self._pid = -1

    def carry(self, size: int, name: str, sender: int) -> int:
        """Adds a named segment that this message carries. Returns its index."""
        self._pid = os.getpid()
        self.names.append((size, name, sender))
        return _HAS_NAME | (len(self.names) - 1)

    def own(self, descriptor: int) -> int:
        """Adds a descriptor, and returns its index. It is closed with the message."""
        self._owned.append(descriptor)
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1

    def borrow(self, descriptor: int, owner: Any) -> int:
        """Adds a descriptor that `owner` keeps open, and returns its index."""
        self._keep.append(owner)
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1

    def close(self, _close: Any = os.close) -> None:
        """Closes what the message owns. It cannot be sent afterwards."""
        owned, self._owned = self._owned, []
        for descriptor in owned:
            _close(descriptor)
        self._keep.clear()
        if self.names and not self.is_sent and self._pid == os.getpid():
            self.is_sent = True
            for _, name, sender in self.names:
                _syncline._drop_named(name, sender)

    def __del__(self) -> None:
        self.close()


class Copied:
    """Bytes from address `low` to `high` that the message gets a copy of.

    `source` is a buffer of exactly these bytes, or None where they have gaps: then `copy_to(view,
    offset)` writes them to a segment, which `view` (a _syncline.TensorView) keeps. `move_to(view,
    offset)`, if there is one, makes the sender use the copy from then on.
    """

    __slots__ = ("copy_to", "high", "low", "move_to", "source")

    def __init__(
        self, low: int, high: int, source: Any, copy_to: Any = None, move_to: Any = None
    ) -> None:
        self.low = low
        self.high = high
        self.source = source
        self.copy_to: Callable[[Any, int], None] = copy_to
        self.move_to: Callable[[Any, int], None] | None = move_to


class Shared:
    """Bytes of a segment: its descriptor or name, where they are, and an object that keeps it."""

    __slots__ = ("handle", "offset", "owner", "segment_size", "size")

    def __init__(
        self, handle: int | str, offset: int, size: int, segment_size: int, owner: Any
    ) -> None:
        self.handle = handle
        self.offset = offset
        self.size = size
        self.segment_size = segment_size
        self.owner = owner


# The stand-in of an array among the arguments of what rebuilds it.
_STAND_IN = pickle.PickleBuffer(bytearray(1))

Reduction = tuple[Any, ...]
Reduce = Callable[["Collector", Any], Reduction]


class Pickler(reduction.ForkingPickler):
    """Pickles for another process of this host, arrays by value.

    Types that were registered with multiprocessing.reduction.register are pickled as there, those
    that were registered here, by `register`, are pickled so by this package alone.
    """

    _registered: ClassVar[dict[type, Callable[[Any], Any]]] = {}
    # Types of arrays, and of what else travels beside the bytes.
    _reductions: ClassVar[dict[type, Reduce]] = {}

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        super().__init__(file, 5 if protocol is None else protocol)
        self.dispatch_table = _Reducers()

    @classmethod
    def register(cls, type: type, reduce: Callable[[Any], Any]) -> None:  # noqa: A002
        """Registers a function that reduces objects of a type, for this pickler alone."""
        cls._registered[type] = reduce


class Collector:
    """What travels out of band with a message that is being pickled, in its order.

    It is the pickler's buffer_callback, and an argument of the functions that reduce arrays.
    """

    __slots__ = ("buffers", "carries_descriptors", "keep", "next")

    def __init__(self, carries_descriptors: bool) -> None:
        self.carries_descriptors = carries_descriptors
        self.keep: list[Any] = []  # What must live until the object has been pickled.
        self.buffers: list[Copied | Shared | _Raw | int] = []
        self.next: Any = None

    def __call__(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether a buffer travels among the pickled bytes."""
        if buffer is _STAND_IN:
            self.buffers.append(self.next)
            self.next = None
            return False
        view = buffer.raw()
        if view.nbytes < max(sharing._threshold, 1):
            return True
        self.buffers.append(_Raw(view))
        return False

    def stand_in(self, buffer: Copied | Shared | int) -> pickle.PickleBuffer:
        """What stands for `buffer` in the arguments of a reduction, as the first one.

        The function that rebuilds the object gets a tuple in its place, of a _syncline.TensorView
        with the segment's bytes and an offset; or a descriptor, which it then owns.
        """
        self.next = buffer
        return _STAND_IN

    def place(self, address: int, nbytes: int) -> tuple[int | str, int, int] | None:
        """Where these bytes are in shared memory: its descriptor or name, offset, and its size.

        None if they are not, or if the descriptor cannot travel.
        """
        place: Any = _syncline._shared_place(address, nbytes)
        if place is None or isinstance(place[0], str):
            return place
        if not self.carries_descriptors:
            return None
        _syncline._keep_contents(address)
        return place

    def by_default(self, value: Any) -> Reduction:
        """The reduction of a value that does not travel as shared memory."""
        try:
            reduce = _Reducers()[type(value)]
        except KeyError:
            return value.__reduce_ex__(5)
        return reduce(value)


class _Reducers(dict[type, Callable[[Any], Any]]):
    """The functions that reduce objects of a type: of this pickler, then of those above it."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        for table in (
            Pickler._registered,
            reduction.ForkingPickler._extra_reducers,
            copyreg.dispatch_table,
        ):
            if kind in table:
                return table[kind]
        raise KeyError(kind)


class _Raw:
    """A buffer of some other type, such as those that pickle's protocol 5 knows."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view


_LIBRARIES = ("numpy", "torch", "jax")
_found: set[str] = set()


def _find_libraries() -> None:
    """Adds the reductions of the array libraries that have been imported meanwhile."""
    if len(_found) == len(_LIBRARIES):
        return
    for library in _LIBRARIES:
        if library in _found or library not in sys.modules:
            continue
        if library == "numpy":
            from syncline.multiprocessing import numpy_arrays

            added = numpy_arrays.reductions()
        elif library == "torch":
            from syncline.multiprocessing import torch_tensors

            added = torch_tensors.reductions()
        else:
            from syncline.multiprocessing import jax_arrays

            added = jax_arrays.reductions()
        if added:  # Empty while the library is being imported.
            Pickler._reductions.update(added)
            _found.add(library)


class _Session:
    """A pickler and what belongs to it, for one message after another: making it takes time."""

    __slots__ = ("_file", "_kinds", "_pickler", "_table", "collector")

    def __init__(self, carries_descriptors: bool) -> None:
        self._file = io.BytesIO()
        self.collector = Collector(carries_descriptors)
        # Not of class ForkingPickler: Python looks through its tables for each object.
        self._pickler = pickle.Pickler(self._file, 5, buffer_callback=self.collector)
        self._pickler.dispatch_table = self._table = _Reducers()
        self._kinds = 0

    def dump(self, value: Any) -> tuple[bytes, list[Any]]:
        """The pickled bytes, and what travels beside them."""
        if self._kinds != len(Pickler._reductions):
            for kind, reduce in Pickler._reductions.items():
                self._table[kind] = functools.partial(reduce, self.collector)
            self._kinds = len(Pickler._reductions)
        self._pickler.dump(value)
        buffers = self.collector.buffers
        if buffers:
            self.collector.buffers = []
        return self._file.getvalue(), buffers

    def reset(self) -> None:
        """After a message whose buffers have been copied."""
        self._pickler.clear_memo()
        if self.collector.keep:
            self.collector.keep.clear()
        self._file.seek(0)
        self._file.truncate()


# Those that nobody uses now. A pickler may use another one, in a reduction.
_sessions: list[_Session] = []
_MOST_SESSIONS = 4


def dumps(value: Any, shares: bool = True, carries_descriptors: bool = True) -> Message:
    """Pickles `value`. Arrays that are to be copied are copied when it returns.

    Arrays travel by value unless `shares`, and without descriptors unless `carries_descriptors`.
    """
    if not shares:
        file = io.BytesIO()
        Pickler(file).dump(value)
        return Message(file.getbuffer())
    _find_libraries()
    try:
        session = _sessions.pop() if carries_descriptors else _Session(False)
    except IndexError:
        session = _Session(True)
    try:
        body, buffers = session.dump(value)
    except BaseException:
        for buffer in session.collector.buffers:
            if isinstance(buffer, int):
                os.close(buffer)
        raise
    if buffers:
        sharing_message = SharingMessage(body)
        limits.raise_descriptor_limit()
        _attach(sharing_message, buffers)
        message: Message = sharing_message
    else:
        message = Message(body)
    session.reset()
    if carries_descriptors and len(_sessions) < _MOST_SESSIONS:
        _sessions.append(session)
    return message


def to_bytes(message: Message) -> Any:
    """A message without descriptors, as bytes."""
    if not message.table:
        return message.body
    return b"".join((_MAGIC, _SIZE.pack(len(message.table)), message.table, message.body))


def from_bytes(data: Any) -> tuple[Any, bytes]:
    """The body and the table of a message that was made bytes."""
    if data[: len(_MAGIC)] != _MAGIC:
        return data, b""
    start = len(_MAGIC) + _SIZE.size
    (size,) = _SIZE.unpack_from(data, len(_MAGIC))
    return data[start + size :], bytes(data[start : start + size])


def discard(table: bytes) -> None:
    """Frees the named segments of a message whose object nobody wants."""
    for _, name, sender, _ in _names(table)[0]:
        _syncline._discard_named(name, sender)


def _names(table: bytes) -> tuple[list[tuple[int, str, int, int]], int]:
    """The named segments of a table: size, name, sender's number and pid; and where they end."""
    count, names, _ = _COUNTS.unpack_from(table)
    at = _COUNTS.size + _SIZE.size * count
    found = []
    for _ in range(names):
        size, sender, pid, length = _NAMED.unpack_from(table, at)
        at += _NAMED.size
        found.append((size, table[at : at + length].decode(), sender, pid))
        at += length
    return found, at


def shared_copy(size: int, parts: list[tuple[int, Any]]) -> Any:
    """New memory of the chosen strategy that holds these parts: a _syncline.TensorView."""
    if sharing._strategy != "file_system":
        return _syncline._map_shared(_syncline._write_segment(size, parts), size)
    view = named_segments.make(size)
    with memoryview(view) as bytes_of_view:
        for offset, part in parts:
            with memoryview(part) as source:
                bytes_of_view[offset : offset + source.nbytes] = source.cast("B")
    return view


def loads(body: Any, table: bytes = b"", descriptors: list[int] | None = None) -> Any:
    """The object of a message. Takes over the descriptors."""
    if not table:
        return pickle.loads(body)
    return pickle.loads(body, buffers=_received(table, descriptors or []))


def _received(table: bytes, descriptors: list[int]) -> Iterator[Any]:
    """The buffers of a message, in their order."""
    limits.raise_descriptor_limit()
    left = dict(enumerate(descriptors))
    buffers: list[Any] = []
    try:
        count, name_count, length = _COUNTS.unpack_from(table)
        if count != len(descriptors):
            raise pickle.UnpicklingError(
                f"a message of {count} descriptors arrived with {len(descriptors)}"
            )
        start = _COUNTS.size
        sizes = [_SIZE.unpack_from(table, start + 8 * index)[0] for index in range(count)]
        segments: list[Any] = [None] * count
        start += 8 * count
        named: list[Any] = []
        if name_count > 0:
            entries, start = _names(table)
            named_segments.leave_at_exit()
            for at, (size, name, sender, pid) in enumerate(entries):
                try:
                    named.append(_syncline._map_named(name, sender, pid, size))
                except BaseException:
                    for _, unwanted, its_sender, _ in entries[at + 1 :]:
                        _syncline._discard_named(unwanted, its_sender)
                    raise
        for index, size in enumerate(sizes):
            if size > 0:
                leased = size & _LEASED != 0
                segments[index] = _syncline._map_shared(left.pop(index), size & ~_LEASED, leased)
        for at in range(start, start + _BUFFER.size * length, _BUFFER.size):
            kind, index, offset, size = _BUFFER.unpack_from(table, at)
            if kind == _DESCRIPTOR:
                buffers.append(left.pop(index))
                continue
            segment = named[index ^ _HAS_NAME] if index & _HAS_NAME else segments[index]
            if kind == _ARRAY:
                buffers.append((segment, offset))
            else:
                buffers.append(memoryview(segment)[offset : offset + size])
    finally:
        for descriptor in left.values():
            os.close(descriptor)
    return iter(buffers)


def _attach(message: SharingMessage, buffers: list[Any]) -> None:
    """Puts the buffers into segments, whose descriptors go with the message."""
    places: list[Any] = [None] * len(buffers)
    sizes: list[int] = []
    copied: list[tuple[int, Copied]] = []
    borrowed: dict[int | str, int] = {}
    for number, buffer in enumerate(buffers):
        if isinstance(buffer, int):
            places[number] = (_DESCRIPTOR, message.own(buffer), 0, 0)
            sizes.append(0)
    for number, buffer in enumerate(buffers):
        if isinstance(buffer, Shared):
            index = borrowed.get(buffer.handle)
            if index is None:
                if isinstance(buffer.handle, str):
                    index = message.carry(buffer.segment_size, *named_segments.carry(buffer.handle))
                else:
                    index = message.borrow(buffer.handle, buffer.owner)
                    sizes.append(buffer.segment_size)
                borrowed[buffer.handle] = index
            places[number] = (_ARRAY, index, buffer.offset, buffer.size)
        elif isinstance(buffer, Copied):
            copied.append((number, buffer))
        elif isinstance(buffer, _Raw):
            low = _syncline._address(buffer.view)
            copied.append((number, Copied(low, low + buffer.view.nbytes, buffer.view)))
    for segment in _lay_out(copied):
        index = segment.add_to(message)
        if not index & _HAS_NAME:
            sizes.append(segment.size | (_LEASED if segment.leased else 0))
        for number, offset, size in segment.places:
            kind = _BYTES if isinstance(buffers[number], _Raw) else _ARRAY
            places[number] = (kind, index, offset, size)
    table = [_COUNTS.pack(len(message.descriptors), len(message.names), len(buffers))]
    table += [_SIZE.pack(size) for size in sizes]
    for size, name, sender in message.names:
        encoded = name.encode()
        table += [_NAMED.pack(size, sender, os.getpid(), len(encoded)), encoded]
    table += [_BUFFER.pack(*place) for place in places]
    message.table = b"".join(table)


class _Segment:
    """A segment to be made, of copies."""

    def __init__(self) -> None:
        self.size = 0
        self.leased = False  # Whether this process may use it again.
        self.places: list[tuple[int, int, int]] = []  # The buffer's number, offset and size.
        self._copies: list[tuple[int, Copied]] = []

    def add(self, region: list[tuple[int, Copied]]) -> None:
        """Adds copies whose bytes overlap, or one, so that they overlap in the segment as well."""
        low = region[0][1].low
        start = -(-self.size // _LINE) * _LINE + low % 16
        for number, copy in region:
            offset = start + copy.low - low
            self.places.append((number, offset, copy.high - copy.low))
            self._copies.append((offset, copy))
            self.size = max(self.size, offset + copy.high - copy.low)

    def add_to(self, message: SharingMessage) -> int:
        """Makes the segment. Returns its index."""
        if any(copy.source is None for _, copy in self._copies):
            return self._copy_to(message)
        parts = []
        written = 0
        for offset, copy in self._copies:  # In the order of addresses in each region.
            end = offset + copy.high - copy.low
            if end > written:
                start = max(offset, written)
                parts.append((start, memoryview(copy.source).cast("B")[start - offset :]))
                written = end
        moved = [(offset, copy) for offset, copy in self._copies if copy.move_to is not None]
        if sharing._strategy == "file_system":
            return self._add_named(message, parts, moved)
        self.leased = not moved
        index = message.own(_syncline._write_segment(self.size, parts, self.leased))
        if moved:
            view = _syncline._map_shared(os.dup(message.descriptors[index]), self.size)
            for offset, copy in moved:
                if copy.move_to is not None:
                    copy.move_to(view, offset)
        return index

    def _add_named(
        self, message: SharingMessage, parts: list[Any], moved: list[tuple[int, Copied]]
    ) -> int:
        if not moved:
            return message.carry(self.size, *named_segments.write(self.size, parts))
        view = shared_copy(self.size, parts)
        index = message.carry(self.size, *named_segments.carry(_name_of(view, self.size)))
        for offset, copy in moved:
            if copy.move_to is not None:
                copy.move_to(view, offset)
        return index

    def _copy_to(self, message: SharingMessage) -> int:
        """Makes a segment of which parts have gaps, in a mapping."""
        view = sharing.new_memory(self.size)
        for offset, copy in self._copies:
            if copy.source is not None:
                size = copy.high - copy.low
                memoryview(view)[offset : offset + size] = memoryview(copy.source).cast("B")
            else:
                copy.copy_to(view, offset)
        # What moves is last, since its bytes are gone from where they were.
        for offset, copy in self._copies:
            if copy.move_to is not None:
                copy.move_to(view, offset)
        if sharing._strategy == "file_system":
            return message.carry(self.size, *named_segments.carry(_name_of(view, self.size)))
        address = _syncline._address(view)
        descriptor, _, size = _syncline._shared_place(address, self.size)
        _syncline._keep_contents(address)
        self.size = size
        return message.borrow(descriptor, view)


def _name_of(view: Any, size: int) -> str:
    place: Any = _syncline._shared_place(_syncline._address(view), size)
    name: str = place[0]
    return name


def _lay_out(copied: list[tuple[int, Copied]]) -> list[_Segment]:
    """Which copies go to which segment."""
    segments = []
    common: _Segment | None = None
    for region in _regions(copied):
        size = max(copy.high for _, copy in region) - region[0][1].low
        if size >= _SMALL:
            segment = _Segment()
            segments.append(segment)
        else:
            if common is None or common.size + size > _LARGEST_COMMON:
                common = _Segment()
                segments.append(common)
            segment = common
        segment.add(region)
    return segments


def _regions(copied: list[tuple[int, Copied]]) -> list[list[tuple[int, Copied]]]:
    """Copies grouped by whether their bytes overlap, each group in the order of addresses."""
    if len(copied) == 1:
        return [copied]
    copied.sort(key=lambda entry: (entry[1].low, -entry[1].high))
    regions: list[list[tuple[int, Copied]]] = []
    end = 0
    for entry in copied:
        if regions and entry[1].low < end:
            regions[-1].append(entry)
        else:
            regions.append([entry])
        end = max(end, entry[1].high)
    return regions
