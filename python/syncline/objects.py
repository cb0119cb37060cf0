"""Collectives of Python objects, of any size.

Objects travel by the safe codec, which carries data only (see syncline.codec for the types) and
cannot run code on the ranks that receive. `codec="pickle"`, on all ranks alike, carries any object;
choose it only where every rank trusts every other. `device` is accepted for compatibility: objects
travel by the CPU.

Besides what the module collectives says of errors: TypeError if the codec does not know the type of
an object, before anything is sent; ValueError if what arrives is malformed, or the senders use
pickle and this rank does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from syncline.calls import choose_rank, member_of
from syncline.codec import Codec, decode, encode
from syncline.job import Group, members_of

_ANY = -1


def all_gather_object(
    object_list: list[Any], obj: Any, group: Group = None, codec: Codec = "safe"
) -> None:
    """Puts every rank's `obj` into object_list[its rank in the group].

    `object_list` has an item for each rank of the group, of whatever value.
    """
    members = member_of(group, "all_gather_object")
    if members is None:
        return
    _check_length(object_list, "object_list", members.size())
    values = members.all_gather_bytes(encode(obj, codec))
    object_list[:] = [decode(value, codec) for value in values]


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    codec: Codec = "safe",
) -> None:
    """Replaces the items of `object_list`, equally long on all ranks, by those of rank `src`.

    `src` is 0 if neither it nor `group_src` is given.
    """
    del device
    members = member_of(group, "broadcast_object_list")
    if members is None:
        return
    root = choose_rank(members, src, group_src, "src", default=0)
    is_root = members.rank() == root
    value = members.broadcast_bytes(encode(list(object_list), codec) if is_root else b"", root)
    if not is_root:
        _assign(object_list, decode(value, codec))


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
    codec: Codec = "safe",
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
    values = members.gather_bytes(encode(obj, codec), root)
    if members.rank() == root and object_gather_list is not None:
        object_gather_list[:] = [decode(value, codec) for value in values]


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
    codec: Codec = "safe",
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
    values: list[bytes] = []
    if members.rank() == root:
        objects = scatter_object_input_list or []
        _check_length(objects, "scatter_object_input_list", members.size())
        values = [encode(obj, codec) for obj in objects]
    scatter_object_output_list[0] = decode(members.scatter_bytes(values, root), codec)


def send_object_list(
    object_list: Sequence[Any],
    dst: int | None = None,
    group: Group = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    codec: Codec = "safe",
) -> None:
    """Sends the items of `object_list` to rank `dst`. `use_batch` makes no difference."""
    del device, use_batch
    members = member_of(group, "send_object_list")
    if members is None:
        return
    peer = choose_rank(members, dst, group_dst, "dst")
    members.send_bytes(encode(list(object_list), codec), peer)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
    codec: Codec = "safe",
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
