"""Collectives of Python objects, of any size.

Objects travel by the safe codec, which carries data only (see syncline.codec for the types) and
cannot run code on the ranks that receive. `codec="pickle"`, on all ranks alike, carries any object;
choose it only where every rank trusts every other. A codec of None is that of the process: what
set_object_codec has been told, else SYNCLINE_OBJECT_CODEC, else "safe". `device` is accepted for
compatibility: objects travel by the CPU.

Besides what the module collectives says of errors: TypeError if the codec does not know the type of
an object; ValueError if what arrives is malformed, or the senders use pickle and this rank does
not. The other ranks of the call get an ObjectRefusedError at once, which names that rank and says
why; lists are left as they were, and the group goes on. Of send_object_list only the receiver is
told of the sender's error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from syncline._syncline import ProcessGroup
from syncline.calls import choose_rank, member_of
from syncline.codec import Codec, decode, encode, is_plain
from syncline.errors import ObjectRefusedError
from syncline.job import Group, members_of

_ANY = -1
_REFUSED = b"E"  # In place of the codec's letter, before what the sender's error says.
_LONGEST = 2000  # Characters of such a text.


def all_gather_object(
    object_list: list[Any], obj: Any, group: Group = None, codec: Codec | None = None
) -> None:
    """Puts every rank's `obj` into object_list[its rank in the group].

    `object_list` has an item for each rank of the group, of whatever value; what it has beyond them
    stays.
    """
    members = member_of(group, "all_gather_object")
    if members is None:
        return
    if len(object_list) < members.size():
        _check_length(object_list, "object_list", members.size())
    call = _Call(members, "all_gather_object", codec)
    values = members.all_gather_bytes(call.encode(obj))
    objects = [call.decode(value) for value in values]
    call.agree(values)
    object_list[: len(objects)] = objects


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    codec: Codec | None = None,
) -> None:
    """Replaces the items of `object_list`, equally long on all ranks, by those of rank `src`.

    `src` is 0 if neither it nor `group_src` is given.
    """
    del device
    members = member_of(group, "broadcast_object_list")
    if members is None:
        return
    root = choose_rank(members, src, group_src, "src", default=0)
    call = _Call(members, "broadcast_object_list", codec)
    is_root = members.rank() == root
    value = members.broadcast_bytes(call.encode(list(object_list)) if is_root else b"", root)
    received: Any = None if is_root else call.decode(value)
    call.agree([value])
    if not is_root:
        _assign(object_list, received)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
    codec: Codec | None = None,
) -> None:
    """Puts every rank's `obj` into object_gather_list[its rank in the group] on rank `dst`.

    `dst` is 0 if neither it nor `group_dst` is given. The list has an item for each rank on it, and
    must be None elsewhere.
    """
    members = member_of(group, "gather_object")
    if members is None:
        return
    root = choose_rank(members, dst, group_dst, "dst", default=0)
    if members.rank() != root and object_gather_list:
        raise ValueError("object_gather_list must be given on the root only")
    if members.rank() == root:
        _check_length(object_gather_list or [], "object_gather_list", members.size())
    call = _Call(members, "gather_object", codec)
    values = members.gather_bytes(call.encode(obj), root)
    objects = [call.decode(value) for value in values]
    call.agree()
    if members.rank() == root and object_gather_list is not None:
        object_gather_list[:] = objects


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
    codec: Codec | None = None,
) -> None:
    """Puts scatter_object_input_list[r] of rank `src` into item 0 of the output list of rank r.

    `src` is 0 if neither it nor `group_src` is given. The input has an object for each rank of the
    group on it, and is ignored elsewhere.
    """
    members = member_of(group, "scatter_object_list")
    if members is None:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError("scatter_object_output_list must be a list with at least one item")
    root = choose_rank(members, src, group_src, "src", default=0)
    call = _Call(members, "scatter_object_list", codec)
    values: list[bytes] = []
    if members.rank() == root:
        objects = scatter_object_input_list or []
        _check_length(objects, "scatter_object_input_list", members.size())
        values = [call.encode(obj) for obj in objects]
    received = call.decode(members.scatter_bytes(values, root))
    call.agree()
    scatter_object_output_list[0] = received


def send_object_list(
    object_list: Sequence[Any],
    dst: int | None = None,
    group: Group = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    codec: Codec | None = None,
) -> None:
    """Sends the items of `object_list` to rank `dst`. `use_batch` makes no difference."""
    del device, use_batch
    members = member_of(group, "send_object_list")
    if members is None:
        return
    peer = choose_rank(members, dst, group_dst, "dst")
    call = _Call(members, "send_object_list", codec)
    members.send_bytes(call.encode(list(object_list)), peer)
    call.raise_own()


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
    codec: Codec | None = None,
) -> int:
    """Replaces the items of `object_list` by as many that rank `src` sends.

    With neither `src` nor `group_src`, from whichever rank sends first. Returns the world's rank of
    the sender; -1 on a process that is not in the group. `use_batch` makes no difference.
    """
    del device, use_batch
    members = member_of(group, "recv_object_list")
    if members is None:
        return -1
    any_source = src is None and group_src is None
    peer = _ANY if any_source else choose_rank(members, src, group_src, "src")
    message = members.recv_bytes(peer)
    if message.value[:1] == _REFUSED:
        raise _refusal(
            "recv_object_list",
            message.source_rank,
            members,
            message.value[1:].decode(errors="replace"),
        )
    _assign(object_list, decode(message.value, codec))
    return members_of(members).ranks[message.source_rank]


def _check_length(objects: Sequence[Any], argument: str, size: int) -> None:
    if len(objects) != size:
        raise ValueError(
            f"{argument} must have an item for each of the {size} ranks, not {len(objects)}"
        )


def _assign(object_list: list[Any], received: list[Any]) -> None:
    if len(received) != len(object_list):
        raise ValueError(
            f"object_list has {len(object_list)} items, but {len(received)} were sent: lists must "
            "be equally long"
        )
    object_list[:] = received


class _Call:
    """What one rank encodes and decodes in a call, and whether all ranks could."""

    def __init__(self, members: ProcessGroup, operation: str, codec: Codec | None):
        self._members = members
        self._operation = operation
        self._codec = codec
        self._error: Exception | None = None

    def encode(self, obj: Any) -> bytes:
        """The bytes to send; if there are none, what tells the others so."""
        try:
            return encode(obj, self._codec)
        except Exception as error:  # What a class does while it is pickled is its own affair.
            self._error = error
            return _REFUSED + self._text()

    def decode(self, value: bytes) -> Any:
        """The object; None if this rank cannot read it, or the sender could not write it."""
        if value[:1] == _REFUSED or self._error is not None:
            return None
        try:
            return decode(value, self._codec)
        except Exception as error:
            self._error = error
            return None

    def agree(self, seen_by_all: Sequence[bytes] = ()) -> None:
        """Raises on all ranks if one has had an error: there its own, on the others what it was.

        `seen_by_all` is what every rank has received. Where that can be read on all ranks alike, it
        needs no collective to say so.
        """
        if seen_by_all and all(is_plain(value) for value in seen_by_all):
            self.raise_own()
            return
        texts = self._members.all_gather_bytes(self._text() if self._error else b"")
        if not any(texts):
            return
        self.raise_own()
        rank = next(rank for rank, text in enumerate(texts) if text)
        raise _refusal(self._operation, rank, self._members, texts[rank].decode(errors="replace"))

    def raise_own(self) -> None:
        """Raises this rank's error, if it has one."""
        if self._error is not None:
            raise self._error

    def _text(self) -> bytes:
        text = f"{type(self._error).__name__}: {self._error}"
        return text[:_LONGEST].encode(errors="backslashreplace")


def _refusal(operation: str, rank: int, members: ProcessGroup, why: str) -> ObjectRefusedError:
    error = ObjectRefusedError(
        f"{operation}: rank {rank} of group '{members.name()}' could not carry an object: {why}"
    )
    error.ranks = (rank,)
    error.operation = operation
    return error
