"""Connections whose messages carry descriptors of shared memory beside the bytes.

The names are those of multiprocessing.connection. A connection over a Unix socket sends each object
as one frame, in one call of sendmsg(2) that the kernel carries out wholly or not at all: a process
that is killed leaves no part of a message, and many may write without a lock. A frame that has
arrived in the socket is the kernel's: it outlives its sender, and all that it holds is freed with
the last end of the socket.
"""

# What the standard module has inside has no types.
# mypy: disable-error-code="attr-defined,has-type,misc"

from __future__ import annotations

import array
import errno
import io
import os
import pickle
import socket
import stat
import struct
from multiprocessing import connection as standard
from multiprocessing import reduction
from multiprocessing.connection import (
    wait,
)
from typing import Any

from syncline import _syncline, tensor_queue
from syncline.multiprocessing import limits, pickling, sharing

__all__ = ["Client", "Connection", "Listener", "Pipe", "wait"]

# An object's frame starts as those of the standard module do: with a size of four bytes. A negative
# size, -2 - n, is that of a frame of n bytes with a preamble and descriptors: how many, how many of
# them are in the object's table, the flags, and the size of the table, which is followed by the
# object's bytes.
_SIZE = struct.Struct("!i")
_PREAMBLE = struct.Struct("<IIQ")
# The first descriptor is a segment that holds the table and the bytes of the object, and the frame
# holds their size.
_ELSEWHERE = 1
# The only descriptor is a socket, in which there are all the others.
_RELAYED = 2

# Linux queues up to 36 KiB on a Unix socket at once, and 253 descriptors.
_LARGEST_FRAME = 32 << 10
_MOST_DESCRIPTORS = 253
_CONTROL_SIZE = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)

_TOO_MANY = (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)


class Connection(standard.Connection):
    """A connection of multiprocessing, in which arrays travel as shared memory.

    That needs a Unix socket, and such a connection at the other end. On any other socket or pipe
    all travels by value.
    """

    def __init__(self, handle: int, readable: bool = True, writable: bool = True) -> None:
        super().__init__(handle, readable, writable)
        self._socket = _unix_socket(self._handle)

    def _close(self, _close: Any = os.close) -> None:  # Also when the interpreter ends.
        if self._socket is not None:
            self._socket.detach()
            self._socket = None
        _close(self._handle)

    def send(self, obj: Any) -> None:
        """Sends an object. Arrays that are not shared are copied before it returns."""
        self._check_closed()
        self._check_writable()
        message = self._dumps(obj)
        try:
            send_message(self, message)
        finally:
            message.close()

    def _dumps(self, obj: Any) -> pickling.Message:
        if self._socket is not None:
            return pickling.dumps(obj)
        # Through a pipe names can travel; over TCP the receiver may be on another host.
        is_local = sharing._strategy == "file_system" and stat.S_ISFIFO(
            os.fstat(self._handle).st_mode
        )
        return pickling.dumps(obj, shares=is_local, carries_descriptors=False)

    def recv(self) -> Any:
        """Receives an object."""
        self._check_closed()
        self._check_readable()
        return receive_message(self).load()

    def _send(self, buf: Any, write: Any = os.write) -> None:
        try:
            super()._send(buf, write)  # type: ignore[misc]
        except ConnectionResetError as error:
            raise _broken(error) from None

    def _recv_bytes(self, maxsize: int | None = None) -> io.BytesIO | None:
        received = receive_message(self, maxsize)
        if received is None:
            return None
        if received.table:
            received.close()
            raise OSError("a message with shared memory was read as bytes: use recv()")
        result = io.BytesIO()
        result.write(received.body)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        duplicate = reduction.DupFd(self.fileno())
        return _rebuild_connection, (duplicate, self.readable, self.writable)


class ReceivedBytes:
    """A message that has arrived, with which no memory travels."""

    __slots__ = ("body",)
    table = b""
    descriptors: tuple[int, ...] = ()

    def __init__(self, body: Any) -> None:
        self.body = body

    def load(self) -> Any:
        """The object."""
        return pickle.loads(self.body)

    def close(self) -> None:
        """Frees what came with the message."""


class Received:
    """A message that has arrived."""

    __slots__ = ("body", "descriptors", "table")

    def __init__(self, body: Any, table: bytes, descriptors: list[int]) -> None:
        self.body = body
        self.table = table
        self.descriptors = descriptors

    def load(self) -> Any:
        """The object. To be called once."""
        descriptors, self.descriptors = self.descriptors, []
        table, self.table = self.table, b""
        return pickling.loads(self.body, table, descriptors)

    def close(self, _close: Any = os.close) -> None:
        """Frees what came with the message."""
        descriptors, self.descriptors = self.descriptors, []
        for descriptor in descriptors:
            _close(descriptor)
        table, self.table = self.table, b""
        if table:
            pickling.discard(table)

    def __del__(self) -> None:
        self.close()


def send_message(connection: Connection, message: pickling.Message, flags: int = 0) -> None:
    """Sends a message over a connection that is a Unix socket, as a whole.

    With MSG_DONTWAIT raises BlockingIOError if there is no room for it.
    """
    if connection._socket is None:
        connection._send_bytes(pickling.to_bytes(message))
        message.is_sent = True
        return
    descriptors = message.descriptors
    size = len(message.body)
    if not message.table and size + _SIZE.size <= _LARGEST_FRAME:
        try:
            connection._socket.send(
                b"".join((_SIZE.pack(size), message.body)), flags | socket.MSG_NOSIGNAL
            )
        except ConnectionResetError as error:
            raise _broken(error) from None
        return
    relay: socket.socket | None = None
    elsewhere = -1
    kind = 0
    parts = [message.table, message.body]
    try:
        total = _PREAMBLE.size + len(message.table) + size
        if total + _SIZE.size > _LARGEST_FRAME:
            length = len(message.table) + size
            elsewhere = _syncline._write_segment(
                length, [(0, message.table), (len(message.table), message.body)], True
            )
            descriptors = [elsewhere, *descriptors]
            kind |= _ELSEWHERE
            parts = [struct.pack("<Q", length)]
            total = _PREAMBLE.size + 8
        count = len(descriptors)
        if count > _MOST_DESCRIPTORS:
            relay = relay_descriptors(descriptors)
            descriptors = [relay.fileno()]
            kind |= _RELAYED
        preamble = _PREAMBLE.pack(count, kind, len(message.table))
        _send_frame(connection, [_SIZE.pack(-2 - total), preamble, *parts], descriptors, flags)
        message.is_sent = True
    finally:
        if elsewhere >= 0:
            os.close(elsewhere)
        if relay is not None:
            relay.close()


def receive_message(connection: Connection, maxsize: int | None = None) -> Any:
    """The next message, of class Received; None if it has more than `maxsize` bytes."""
    if connection._socket is None:
        buffer = standard.Connection._recv_bytes(connection, maxsize)  # type: ignore[attr-defined]
        return None if buffer is None else Received(*pickling.from_bytes(buffer.getbuffer()), [])
    start = connection._socket.recv(_SIZE.size + _PREAMBLE.size, socket.MSG_PEEK)
    if len(start) >= _SIZE.size:
        (size,) = _SIZE.unpack_from(start)
        if 0 <= size <= _LARGEST_FRAME and maxsize is None:
            frame = _receive(connection._socket, _SIZE.size + size)
            return ReceivedBytes(memoryview(frame)[_SIZE.size :])
        if size < -1 and len(start) == _SIZE.size + _PREAMBLE.size:
            _check_room(connection._handle, start)
    header, descriptors = _receive_header(connection._socket)
    (size,) = _SIZE.unpack(header)
    if size >= -1:
        if size == -1:
            (size,) = struct.unpack("!Q", _receive(connection._socket, 8))
        if maxsize is not None and size > maxsize:
            return None
        return ReceivedBytes(_receive(connection._socket, size))
    received = Received(b"", b"", descriptors)
    frame = _receive(connection._socket, -2 - size)
    count, kind, table_size = _PREAMBLE.unpack_from(frame)
    if kind & _RELAYED and len(descriptors) == 1:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptors.pop()) as relay:
            received.descriptors = receive_relayed(relay, count)
    if len(received.descriptors) != count:
        received.close()
        raise limits.too_many_descriptors(
            errno.EMFILE, f"a message with {count} descriptors has arrived, and is lost"
        )
    content = memoryview(frame)[_PREAMBLE.size :]
    if kind & _ELSEWHERE:
        (length,) = struct.unpack("<Q", content)
        # Unpickling copies what it needs; then the sender may use the segment again.
        view: Any = _syncline._map_shared(received.descriptors.pop(0), length, True)
        content = memoryview(view)[:length]
    if maxsize is not None and len(content) > maxsize:
        received.close()
        return None
    received.table = bytes(content[:table_size])
    received.body = content[table_size:]
    return received


def relay_descriptors(descriptors: list[int]) -> socket.socket:
    """A socket in which these descriptors are in flight, for receive_relayed."""
    near, far = socket.socketpair()
    with near:
        near.setblocking(False)
        try:
            for start in range(0, len(descriptors), _MOST_DESCRIPTORS):
                socket.send_fds(near, [b"d"], descriptors[start : start + _MOST_DESCRIPTORS])
        except OSError as error:
            far.close()
            if error.errno in (*_TOO_MANY, errno.EAGAIN):
                happened = f"cannot send {len(descriptors)} descriptors at once"
                raise limits.too_many_descriptors(errno.ETOOMANYREFS, happened) from None
            raise
    return far


def receive_relayed(relay: socket.socket, count: int) -> list[int]:
    """The descriptors of relay_descriptors, or those that this process has room for."""
    descriptors: list[int] = []
    relay.setblocking(False)  # All are there.
    try:
        while len(descriptors) < count:
            data, control, _, _ = relay.recvmsg(1, _CONTROL_SIZE, socket.MSG_CMSG_CLOEXEC)
            if not data:
                break
            descriptors += _descriptors_in(control)
    except BlockingIOError:
        pass
    return descriptors


def _send_frame(
    connection: Connection, parts: list[Any], descriptors: list[int], flags: int
) -> None:
    control: list[Any] = []
    if descriptors:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    try:
        assert connection._socket is not None
        connection._socket.sendmsg(parts, control, flags | socket.MSG_NOSIGNAL)
    except ConnectionResetError as error:
        raise _broken(error) from None
    except OSError as error:
        if error.errno in _TOO_MANY:
            raise limits.too_many_descriptors(error.errno, "cannot send shared memory") from None
        raise


def _broken(error: OSError) -> BrokenPipeError:
    """What a pipe says where a socket says that the peer has left data unread."""
    return BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _check_room(descriptor: int, start: bytes) -> None:
    """Raises an error if this process lacks the descriptors that a message takes.

    `start` is the start of the message, which is still in the socket: what there is no room for,
    the kernel would drop.
    """
    count, kind, table_size = _PREAMBLE.unpack_from(start, _SIZE.size)
    # One that holds others is there besides; a named segment is open while it is being mapped, with
    # a connection to its manager.
    if kind & _RELAYED:
        count += 1
    elif table_size > 0:
        count = max(count, 2)
    limits.check_room(descriptor, count)


def _receive_header(sock: socket.socket) -> tuple[bytes, list[int]]:
    header, control, _, _ = sock.recvmsg(_SIZE.size, _CONTROL_SIZE, socket.MSG_CMSG_CLOEXEC)
    if not header:
        raise EOFError
    descriptors = _descriptors_in(control) if control else []
    if len(header) < _SIZE.size:
        header += _receive(sock, _SIZE.size - len(header))
    return header, descriptors


def _descriptors_in(control: list[tuple[int, int, bytes]]) -> list[int]:
    descriptors = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)


def _receive(sock: socket.socket, size: int) -> Any:
    if size <= 0:
        return b""
    data = sock.recv(size) if size <= _LARGEST_FRAME + _SIZE.size else b""
    if len(data) == size:
        return data
    whole = bytearray(size)
    done = len(data)
    whole[:done] = data
    with memoryview(whole) as view:
        while done < size:
            count = sock.recv_into(view[done:])
            if count == 0:
                raise OSError("got end of file during message")
            done += count
    return whole


def _unix_socket(handle: int) -> socket.socket | None:
    """The socket of a descriptor, which stays the caller's; None if it is not a Unix stream."""
    try:
        sock = socket.socket(fileno=handle)
    except OSError:
        return None
    if socket.getdefaulttimeout() is not None:
        sock.setblocking(True)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        sock.detach()
        return None
    return sock


def _rebuild_connection(duplicate: Any, readable: bool, writable: bool) -> Connection:
    return Connection(duplicate.detach(), readable, writable)


def _reduce_connection(collector: pickling.Collector, connection: Any) -> pickling.Reduction:
    descriptor = os.dup(connection.fileno())
    arguments = (collector.stand_in(descriptor), connection.readable, connection.writable)
    return type(connection), arguments


def _reduce_queue(collector: pickling.Collector, queue: Any) -> pickling.Reduction:
    """The queue of a message that outlives its sender: its descriptor is in the socket."""
    descriptor = os.dup(queue._queue.descriptor)
    return tensor_queue._of_descriptor, (collector.stand_in(descriptor), queue._timeout)


pickling.Pickler._reductions[tensor_queue.TensorQueue] = _reduce_queue
pickling.Pickler._reductions[Connection] = _reduce_connection
pickling.Pickler._reductions[standard.Connection] = _reduce_connection


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:  # noqa: N802
    """Two connections, each other's ends. Unless `duplex`, only the second sends."""
    first, second = socket.socketpair()
    if not duplex:
        first.shutdown(socket.SHUT_WR)
    for end in (first, second):
        end.setblocking(True)
    return (
        Connection(first.detach(), writable=duplex),
        Connection(second.detach(), readable=duplex),
    )


def _converted(connection: Any) -> Connection:
    """Takes over the descriptor of a connection of the standard module."""
    ours = Connection(connection.fileno(), connection.readable, connection.writable)
    connection._handle = None
    return ours


class Listener(standard.Listener):
    """A listener of multiprocessing, whose connections are of this module."""

    def accept(self) -> Connection:
        """Accepts a connection. Arrays are shared if the address is that of a Unix socket."""
        return _converted(super().accept())


def Client(  # noqa: N802
    address: Any, family: str | None = None, authkey: bytes | None = None
) -> Connection:
    """A connection to the listener at `address`, which is one of this module, too."""
    return _converted(standard.Client(address, family=family, authkey=authkey))


def XmlListener(*args: Any, **kwargs: Any) -> Any:  # noqa: N802
    """As in multiprocessing.connection: all travels by value."""
    return standard.XmlListener(*args, **kwargs)  # type: ignore[attr-defined]


def XmlClient(*args: Any, **kwargs: Any) -> Any:  # noqa: N802
    """As in multiprocessing.connection: all travels by value."""
    return standard.XmlClient(*args, **kwargs)  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    """What else the standard module of this name has."""
    return getattr(standard, name)
