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
import io
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from typing import Any, ClassVar

from syncline import _syncline
from syncline.multiprocessing import limits, sharing

# Regions of less than this share a segment: a descriptor and a mapping cost more than their bytes.
_SMALL = 256 << 10
_LARGEST_COMMON = 1 << 20
_LINE = 64

# The header of the table: the numbers of descriptors and of buffers. Then the size of each
# descriptor's segment, with a bit if it has a lease (core/tensor/segment_pool.h), and where each
# buffer is: its kind, which descriptor, offset and size.
_COUNTS = struct.Struct("<II")
_SIZE = struct.Struct("<Q")
_BUFFER = struct.Struct("<IIQQ")

_LEASED = 1 << 63

_BYTES, _ARRAY, _DESCRIPTOR = range(3)


class Message:
    """A pickled object, and what travels with it. Closes the descriptors that it owns."""

    __slots__ = ("_keep", "_owned", "body", "descriptors", "table")

    def __init__(self, body: Any) -> None:
        self.body = body
        self.table = b""
        self.descriptors: list[int] = []
        self._owned: list[int] = []
        self._keep: list[Any] = []

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
    """Bytes of a segment: where they are, and an object that keeps it."""

    __slots__ = ("descriptor", "offset", "owner", "segment_size", "size")

    def __init__(
        self, descriptor: int, offset: int, size: int, segment_size: int, owner: Any
    ) -> None:
        self.descriptor = descriptor
        self.offset = offset
        self.size = size
        self.segment_size = segment_size
        self.owner = owner


# The stand-in of an array among the arguments of what rebuilds it.
_STAND_IN = pickle.PickleBuffer(bytearray(1))

Reduction = tuple[Any, ...]
Reduce = Callable[["Pickler", Any], Reduction]


class Pickler(reduction.ForkingPickler):
    """Pickles for another process of this host.

    Types that were registered with multiprocessing.reduction.register are pickled as there, those
    that were registered here, by `register`, are pickled so by this class alone. Arrays travel by
    value unless `shares`.
    """

    _registered: ClassVar[dict[type, Callable[[Any], Any]]] = {}
    # Types of arrays, and of what else travels beside the bytes.
    _reductions: ClassVar[dict[type, Reduce]] = {}

    def __init__(self, file: Any, protocol: int | None = None, shares: bool = False) -> None:
        if protocol is None or shares:
            protocol = 5
        self.collected = _Buffers()
        super().__init__(file, protocol, True, self.collected if shares else None)
        self.keep: list[Any] = []  # What must live as long as the pickler.
        table = self.dispatch_table
        table.update(self._registered)
        if not shares:
            return
        _find_libraries()
        for kind, reduce in self._reductions.items():
            table[kind] = _Bound(reduce, self)

    @classmethod
    def register(cls, type: type, reduce: Callable[[Any], Any]) -> None:  # noqa: A002
        """Registers a function that reduces objects of a type, for this pickler alone."""
        cls._registered[type] = reduce

    def stand_in(self, buffer: Copied | Shared | int) -> pickle.PickleBuffer:
        """What stands for `buffer` in the arguments of a reduction, as the first one.

        The function that rebuilds the object gets a tuple in its place, of a _syncline.TensorView
        with the segment's bytes and an offset; or a descriptor, which it then owns.
        """
        self.collected.next = buffer
        return _STAND_IN

    def by_default(self, value: Any) -> Reduction:
        """The reduction of a value that does not travel as shared memory."""
        kind = type(value)
        for table in (self._registered, reduction.ForkingPickler._extra_reducers):
            if kind in table:
                return table[kind](value)
        if kind in copyreg.dispatch_table:
            return copyreg.dispatch_table[kind](value)
        return value.__reduce_ex__(5)


class _Buffers:
    """Collects the buffers out of band, in their order."""

    __slots__ = ("all", "next")

    def __init__(self) -> None:
        self.all: list[
            Any
        ] = []  # Of Copied, Shared, _Raw, int (a descriptor of the message's own).
        self.next: Any = None

    def __call__(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer is _STAND_IN:
            self.all.append(self.next)
            self.next = None
            return False
        view = buffer.raw()
        if view.nbytes < max(sharing._threshold, 1):
            return True  # Among the pickled bytes.
        self.all.append(_Raw(view))
        return False


class _Bound:
    """A reduction of a pickler; without the cycle that a bound method of it would be."""

    __slots__ = ("_pickler", "_reduce")

    def __init__(self, reduce: Reduce, pickler: Pickler) -> None:
        self._reduce = reduce
        self._pickler = pickler

    def __call__(self, value: Any) -> Reduction:
        return self._reduce(self._pickler, value)


class _Raw:
    """A buffer of some other type, such as those that pickle's protocol 5 knows."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view


_found: set[str] = set()


def _find_libraries() -> None:
    """Adds the reductions of the array libraries that have been imported meanwhile."""
    for library in ("numpy", "torch", "jax"):
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


def dumps(value: Any, shares: bool = True) -> Message:
    """Pickles `value`. Arrays that are to be copied are copied when it returns."""
    file = io.BytesIO()
    pickler = Pickler(file, None, shares)
    try:
        pickler.dump(value)
        buffers = pickler.collected.all
    except BaseException:
        for buffer in pickler.collected.all:
            if isinstance(buffer, int):
                os.close(buffer)
        raise
    finally:
        # The table of reductions refers to the pickler.
        pickler.dispatch_table = {}
    message = Message(file.getbuffer())
    if buffers:
        limits.raise_descriptor_limit()
        _attach(message, buffers)
    return message


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
        count, length = _COUNTS.unpack_from(table)
        if count != len(descriptors):
            raise pickle.UnpicklingError(
                f"a message of {count} descriptors arrived with {len(descriptors)}"
            )
        sizes = [_SIZE.unpack_from(table, 8 + 8 * index)[0] for index in range(count)]
        segments: list[Any] = [None] * count
        for index, size in enumerate(sizes):
            if size > 0:
                leased = size & _LEASED != 0
                segments[index] = _syncline._map_shared(left.pop(index), size & ~_LEASED, leased)
        start = 8 + 8 * count
        for at in range(start, start + _BUFFER.size * length, _BUFFER.size):
            kind, index, offset, size = _BUFFER.unpack_from(table, at)
            if kind == _DESCRIPTOR:
                buffers.append(left.pop(index))
            elif kind == _ARRAY:
                buffers.append((segments[index], offset))
            else:
                buffers.append(memoryview(segments[index])[offset : offset + size])
    finally:
        for descriptor in left.values():
            os.close(descriptor)
    return iter(buffers)


def _attach(message: Message, buffers: list[Any]) -> None:
    """Puts the buffers into segments, whose descriptors go with the message."""
    places: list[Any] = [None] * len(buffers)
    sizes: list[int] = []
    copied: list[tuple[int, Copied]] = []
    borrowed: dict[int, int] = {}
    for number, buffer in enumerate(buffers):
        if isinstance(buffer, int):
            places[number] = (_DESCRIPTOR, message.own(buffer), 0, 0)
            sizes.append(0)
    for number, buffer in enumerate(buffers):
        if isinstance(buffer, Shared):
            index = borrowed.get(buffer.descriptor)
            if index is None:
                index = message.borrow(buffer.descriptor, buffer.owner)
                borrowed[buffer.descriptor] = index
                sizes.append(buffer.segment_size)
            places[number] = (_ARRAY, index, buffer.offset, buffer.size)
        elif isinstance(buffer, Copied):
            copied.append((number, buffer))
        elif isinstance(buffer, _Raw):
            low = _syncline._address(buffer.view)
            copied.append((number, Copied(low, low + buffer.view.nbytes, buffer.view)))
    for segment in _lay_out(copied):
        index = segment.add_to(message)
        sizes.append(segment.size | (_LEASED if segment.leased else 0))
        for number, offset, size in segment.places:
            kind = _BYTES if isinstance(buffers[number], _Raw) else _ARRAY
            places[number] = (kind, index, offset, size)
    table = [_COUNTS.pack(len(message.descriptors), len(buffers))]
    table += [_SIZE.pack(size) for size in sizes]
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

    def add_to(self, message: Message) -> int:
        """Makes the segment. Returns the index of its descriptor."""
        if any(copy.source is None for _, copy in self._copies):
            return self._copy_to(message)
        parts = []
        written = 0
        for offset, copy in self._copies:  # In the order of addresses in each region.
            end = offset + copy.high - copy.low
            if end > written:
                parts.append((offset, copy.source))
                written = end
        moved = [(offset, copy) for offset, copy in self._copies if copy.move_to is not None]
        self.leased = not moved
        index = message.own(_syncline._write_segment(self.size, parts, self.leased))
        if moved:
            view = _syncline._map_shared(os.dup(message.descriptors[index]), self.size)
            for offset, copy in moved:
                copy.move_to(view, offset)
        return index

    def _copy_to(self, message: Message) -> int:
        """Makes a segment of which parts have gaps, in a mapping."""
        view = _syncline._empty_shared([self.size], "uint8")
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
        address = _syncline._address(view)
        descriptor, _, size = _syncline._shared_place(address, self.size)
        _syncline._keep_contents(address)
        self.size = size
        return message.borrow(descriptor, view)


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
