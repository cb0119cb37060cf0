"""Messages from one rank to another.

What the module collectives says of arrays, groups, ranks and errors holds here too. Messages of one
pair of ranks and one tag arrive in the order in which they were sent; other messages, and
collectives, do not hold them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from syncline._syncline import Work
from syncline.calls import choose_rank, member_of, waiting
from syncline.job import Group, NonGroupMember, members_of, resolve

if TYPE_CHECKING:
    from syncline._syncline import Tensor

_ANY = -1  # As the source of a receive.


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Sends `tensor` to rank `dst`; may return before it has been received."""
    members = member_of(group, "send")
    if members is not None:
        waiting["send"](members, tensor, choose_rank(members, dst, group_dst, "dst"), tag)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receives from rank `src` what it sends with `tag` into `tensor`, of equal type and size.

    With neither `src` nor `group_src`, from whichever rank sends first. Returns the world's rank of
    the sender; -1 on a process that is not in the group.
    """
    members = member_of(group, "recv")
    if members is None:
        return -1
    if src is None and group_src is None:
        sender: int = waiting["recv"](members, tensor, _ANY, tag)
        return members_of(members).ranks[sender]
    root = choose_rank(members, src, group_src, "src")
    waiting["recv"](members, tensor, root, tag)
    return members_of(members).ranks[root]


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """As send, in the background."""
    members = member_of(group, "isend")
    if members is None:
        return None
    return members.send_async(tensor, choose_rank(members, dst, group_dst, "dst"), tag)


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """As recv, in the background; the Work's source_rank is the sender's rank in the group."""
    members = member_of(group, "irecv")
    if members is None:
        return None
    if src is None and group_src is None:
        return members.recv_async(tensor, _ANY, tag)
    return members.recv_async(tensor, choose_rank(members, src, group_src, "src"), tag)


class P2POp:
    """A message to send or receive, for batch_isend_irecv.

    Args:
      op: syncline.isend or syncline.irecv; a ValueError says so otherwise.
      tensor: what to send, or where to receive.
      peer: the world's rank of the other side; or
      group_peer: its rank in the group.
      group: the group; None for that of all ranks.
      tag: which of the peer's messages.

    Its attributes have the arguments' names; of `peer` and `group_peer` both are there.
    """

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: Tensor,
        peer: int | None = None,
        group: Group = None,
        tag: int = 0,
        group_peer: int | None = None,
    ):
        if op is not isend and op is not irecv:
            raise ValueError(f"op must be syncline.isend or syncline.irecv, not {op!r}")
        if (peer is None) == (group_peer is None):
            raise ValueError("give either peer or group_peer")
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group: Group = group
        self.tag = tag
        self.group_peer = group_peer
        if not isinstance(group, NonGroupMember):
            self.group = members = resolve(group)
            self.group_peer = choose_rank(members, peer, group_peer, "peer")
            self.peer = members_of(members).ranks[self.group_peer]

    def __repr__(self) -> str:
        peers = f"peer={self.peer}, group_peer={self.group_peer}"
        return f"P2POp({self.op.__name__}, {peers}, tag={self.tag})"

    def _start(self) -> Work | None:
        start = isend if self.op is isend else irecv
        return start(self.tensor, None, self.group, self.tag, self.group_peer)


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Starts all of `p2p_op_list`; returns their Works, in the same order.

    Raises ValueError if there are none, or they are of several groups.
    """
    operations = list(p2p_op_list)
    if not operations or not all(isinstance(operation, P2POp) for operation in operations):
        raise ValueError("p2p_op_list must be a list of P2POp that is not empty")
    if any(operation.group is not operations[0].group for operation in operations):
        raise ValueError("all operations of a batch must be of one group")
    works = [operation._start() for operation in operations]
    return [work for work in works if work is not None]
