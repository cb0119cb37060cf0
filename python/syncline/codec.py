"""Objects as bytes, for object collectives.

The safe codec carries data and nothing else: decoding never runs code, whatever the bytes are. It
knows None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, OrderedDict, set,
frozenset, range, decimal.Decimal, the types of datetime, paths of pathlib, argparse.Namespace,
NumPy's scalars and arrays of all types but object, PyTorch's tensors (which arrive on the CPU, with
their requires_grad) and torch.Size; of exactly these types, not of ones derived from them. And
objects of dataclasses, see syncline.codec_classes. An OrderedDict keeps its attributes, as the
_metadata of a module's state_dict().

The format: one byte "S", the size of a JSON text (8 bytes, little-endian), that text, and the bytes
of buffers that it refers to by their sizes, in order. In the JSON text a list stands for a list,
and {"tag": value} for everything that JSON does not have. The codec "pickle" is one byte "P" and a
pickle.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import json
import os
import pathlib
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from syncline.codec_arrays import ArrayCodec
from syncline.codec_classes import fields_of, is_carried, name_of, object_of
from syncline.errors import DistTypeError, DistValueError

Codec: TypeAlias = Literal["safe", "pickle"]
"""The choice of object collectives; "pickle" takes any object, and runs what the sender wants."""

MAX_DEPTH = 100

_VARIABLE = "SYNCLINE_OBJECT_CODEC"
_chosen: Codec | None = None


def set_object_codec(codec: Codec | None) -> None:
    """Chooses the codec of all object collectives of this process that are not given one.

    None is what the environment variable SYNCLINE_OBJECT_CODEC says, which is read at each call,
    or "safe". All ranks should choose alike: one that has not chosen "pickle" reads no pickles.
    Raises ValueError for an unknown name.
    """
    global _chosen
    _chosen = None if codec is None else _check(codec)


def get_object_codec() -> Codec:
    """The codec of object collectives that are not given one."""
    if _chosen is not None:
        return _chosen
    given = os.environ.get(_VARIABLE, "safe")
    if given not in ("safe", "pickle"):
        raise DistValueError(f"{_VARIABLE} must be safe or pickle, not {given!r}")
    return given  # type: ignore[return-value]


_SAFE, _PICKLE = b"S", b"P"
_HEADER = 9
_MAX_DIGITS = 1 << 63  # Python reads and writes large numbers in decimal slowly, or not at all.
_SHORT = 1 << 16
_NOT_PLAIN = re.compile(rb'\{(?!"(?:bytes|dict|frozenset|int|OrderedDict|set|tuple)":)')


def encode(value: Any, codec: Codec | None = "safe") -> bytes:
    """`value` as bytes. A codec of None is that of the process.

    Raises:
      TypeError: the safe codec does not know a type; the message says which, and where.
      ValueError: containers are nested deeper than MAX_DEPTH (or contain themselves), or there is
        no such codec.
    """
    if _check(codec) == "pickle":
        return _PICKLE + pickle.dumps(value)
    encoder = _Encoder()
    text = json.dumps(encoder.encode(value, 0), separators=(",", ":")).encode("ascii")
    return b"".join([_SAFE, len(text).to_bytes(8, "little"), text, *encoder.buffers])


def decode(data: bytes, codec: Codec | None = "safe") -> Any:
    """The inverse of `encode`.

    Raises ValueError if `data` is not what `encode` makes, or is a pickle and `codec` is not.
    """
    codec = _check(codec)
    if data[:1] == _PICKLE:
        if codec != "pickle":
            raise DistValueError(
                'the sender used codec="pickle", which can run any code here: if it is to be '
                'trusted, pass codec="pickle" on this rank too, or choose it for all calls by '
                'syncline.set_object_codec("pickle")'
            )
        return pickle.loads(data[1:])
    try:
        if data[:1] != _SAFE or len(data) < _HEADER:
            raise ValueError("it begins with no known codec")
        size = int.from_bytes(data[1:_HEADER], "little")
        if size > len(data) - _HEADER:
            raise ValueError("it is cut off")
        text = str(data[_HEADER : _HEADER + size], "ascii")
        decoder = _Decoder(memoryview(data)[_HEADER + size :])
        value = decoder.decode(json.loads(text), 0)
        if decoder.buffers:
            raise ValueError("bytes are left over")
        return value
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError) as error:
        raise ValueError(f"malformed object: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise ValueError(f"malformed object: {error}") from error


def is_plain(data: bytes) -> bool:
    """Whether `data` can be decoded on each rank or on none, whatever libraries a rank has.

    So it is with a short value by the safe codec of numbers, texts, bytes and containers of these.
    """
    return data[:1] == _SAFE and len(data) <= _SHORT and not _NOT_PLAIN.search(data, _HEADER)


def _check(codec: Codec | None) -> Codec:
    if codec is None:
        return get_object_codec()
    if codec not in ("safe", "pickle"):
        raise DistValueError(f'codec must be "safe" or "pickle", not {codec!r}')
    return codec


class _Encoder:
    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self.in_key = 0  # Within so many containers whose items are hashed.

    def encode(self, value: Any, depth: int) -> Any:
        """What stands for `value` in the JSON text."""
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if kind is int:
            return value if -_MAX_DIGITS < value < _MAX_DIGITS else {"int": hex(value)}
        if kind in _CONTAINERS:
            if depth == MAX_DEPTH:
                raise ValueError(f"containers are nested deeper than {MAX_DEPTH} levels")
            if kind is list:
                return [self.encode(item, depth + 1) for item in value]
            if kind is OrderedDict and vars(value):
                attributes = self._pairs(vars(value), depth + 1)
                return {"attributed": [attributes, self._pairs(value, depth + 1)]}
            if isinstance(value, dict):
                return {_CONTAINERS[kind]: self._pairs(value, depth + 1)}
            self.in_key += kind in _HASHED
            items = [self.encode(item, depth + 1) for item in value]
            self.in_key -= kind in _HASHED
            return {_CONTAINERS[kind]: items}
        if kind is bytes or kind is bytearray:
            return {kind.__name__: self.buffer(bytes(value))}
        if kind in _PLAIN:
            tag, parts, _ = _PLAIN[kind]
            return {tag: parts(value)}
        if kind is argparse.Namespace:
            return {"namespace": self._within(vars(value), depth)}
        found = ArrayCodec(self.buffer).encode(value)
        if found is None and is_carried(kind):
            if self.in_key:
                raise DistTypeError(
                    f"an object of the dataclass {kind.__qualname__} cannot be carried by the safe "
                    "codec as a key or in a set, as its own code would be called there: pass "
                    'codec="pickle" on all ranks if they trust each other'
                )
            return {"dataclass": [*name_of(kind), *self._within(fields_of(value), depth)]}
        if found is None:
            raise DistTypeError(
                f"an object of type {kind.__module__}.{kind.__qualname__} cannot be carried by the "
                'safe codec: pass codec="pickle" on all ranks if they trust each other, or turn it '
                "into a dict, a list or an array. For all calls: "
                'syncline.set_object_codec("pickle")'
            )
        return found

    def _within(self, values: dict[str, Any], depth: int) -> list[Any]:
        if depth == MAX_DEPTH:
            raise ValueError(f"containers are nested deeper than {MAX_DEPTH} levels")
        return self._pairs(values, depth + 1)

    def _pairs(self, values: dict[Any, Any], depth: int) -> list[Any]:
        """Keys and values in turn."""
        parts = []
        for key, value in values.items():
            self.in_key += 1
            parts.append(self.encode(key, depth))
            self.in_key -= 1
            parts.append(self.encode(value, depth))
        return parts

    def buffer(self, data: bytes) -> int:
        self.buffers.append(data)
        return len(data)


class _Decoder:
    def __init__(self, buffers: memoryview):
        self.buffers = buffers
        self.in_key = 0  # As that of the encoder.

    def decode(self, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"containers are nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, list):
            return [self.decode(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        ((tag, content),) = value.items()
        if tag == "int":
            return int(content, 16)
        if tag in ("dict", "OrderedDict"):
            return _OF_ITEMS[tag](self._pairs(content, depth + 1))
        if tag == "attributed":
            attributes, items = (self._pairs(pairs, depth + 1) for pairs in content)
            made = OrderedDict(_dict(items))
            vars(made).update(_named(_dict(attributes)))
            return made
        if tag in _OF_ITEMS:
            self.in_key += tag in _HASHED_TAGS
            items = [self.decode(item, depth + 1) for item in content]
            self.in_key -= tag in _HASHED_TAGS
            return _OF_ITEMS[tag](items)
        if tag == "namespace":
            return _namespace(_dict(self._pairs(content, depth + 1)))
        if tag == "dataclass":
            if self.in_key:
                raise ValueError("an object of a dataclass is hashed")
            module, name, *pairs = content
            return object_of(module, name, _dict(self._pairs(pairs, depth + 1)))
        if tag == "bytes":
            return self.buffer(content)
        if tag == "bytearray":
            return bytearray(self.buffer(content))
        if tag in _OF_PARTS:
            return _OF_PARTS[tag](content)
        return ArrayCodec(self.buffer).decode(tag, content)

    def _pairs(self, parts: list[Any], depth: int) -> list[Any]:
        decoded = []
        for place, part in enumerate(parts):
            is_key = place % 2 == 0
            self.in_key += is_key
            decoded.append(self.decode(part, depth))
            self.in_key -= is_key
        return decoded

    def buffer(self, size: Any) -> bytes:
        if type(size) is not int or not 0 <= size <= len(self.buffers):
            raise ValueError(f"there are no {size!r} bytes left")
        data = bytes(self.buffers[:size])
        self.buffers = self.buffers[size:]
        return data


def _dict(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _namespace(values: dict[Any, Any]) -> argparse.Namespace:
    made = argparse.Namespace()
    vars(made).update(_named(values))
    return made


def _named(values: dict[Any, Any]) -> dict[str, Any]:
    for name in values:
        if type(name) is not str:
            raise ValueError(f"{name!r} is no attribute's name")
    return values


# ---- Plain values: from and to what JSON has ----


def _timezone_parts(zone: datetime.tzinfo | None) -> list[Any] | None:
    if zone is None:
        return None
    if type(zone) is not datetime.timezone:
        raise TypeError(
            f"a time zone of type {type(zone).__name__} cannot be carried by the safe codec: use "
            'datetime.timezone, or pass codec="pickle"'
        )
    offset, name = zone.utcoffset(None), zone.tzname(None)
    return [offset.days, offset.seconds, offset.microseconds, name]


def _timezone(parts: list[Any] | None) -> datetime.timezone | None:
    if parts is None:
        return None
    offset = datetime.timedelta(*parts[:3])
    plain = datetime.timezone(offset)
    return plain if plain.tzname(None) == parts[3] else datetime.timezone(offset, parts[3])


def _time_parts(t: datetime.time | datetime.datetime) -> list[Any]:
    return [t.hour, t.minute, t.second, t.microsecond, t.fold, _timezone_parts(t.tzinfo)]


def _time(parts: list[Any]) -> datetime.time:
    hour, minute, second, microsecond, fold, zone = parts
    return datetime.time(hour, minute, second, microsecond, _timezone(zone), fold=fold)


def _datetime_parts(moment: datetime.datetime) -> list[Any]:
    return [moment.year, moment.month, moment.day, *_time_parts(moment)]


def _datetime(parts: list[Any]) -> datetime.datetime:
    return datetime.datetime.combine(datetime.date(*parts[:3]), _time(parts[3:]))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no text")
    return value


def _path(value: Any) -> pathlib.Path:
    return pathlib.Path(_text(value))


# Of each type: its tag, its parts in JSON, and the way back.
_PLAIN: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    complex: ("complex", lambda z: [z.real, z.imag], lambda parts: complex(*parts)),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    datetime.timedelta: (
        "timedelta",
        lambda t: [t.days, t.seconds, t.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    datetime.date: (
        "date",
        lambda day: [day.year, day.month, day.day],
        lambda parts: datetime.date(*parts),
    ),
    datetime.time: ("time", _time_parts, _time),
    datetime.datetime: ("datetime", _datetime_parts, _datetime),
    datetime.timezone: ("timezone", _timezone_parts, _timezone),
    range: (
        "range",
        lambda numbers: [hex(n) for n in (numbers.start, numbers.stop, numbers.step)],
        lambda parts: range(*[int(part, 16) for part in parts]),
    ),
    # A path is that of the system where it arrives.
    type(pathlib.Path()): ("path", str, _path),
    pathlib.PurePosixPath: ("posix_path", str, lambda path: pathlib.PurePosixPath(_text(path))),
    pathlib.PureWindowsPath: (
        "windows_path",
        str,
        lambda path: pathlib.PureWindowsPath(_text(path)),
    ),
}
_OF_PARTS = {tag: way_back for tag, _, way_back in _PLAIN.values()}

_CONTAINERS: dict[type, str] = {
    list: "list",
    tuple: "tuple",
    dict: "dict",
    OrderedDict: "OrderedDict",
    set: "set",
    frozenset: "frozenset",
}
_OF_ITEMS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "dict": _dict,
    "OrderedDict": lambda items: OrderedDict(_dict(items)),
    "set": set,
    "frozenset": frozenset,
}
_HASHED = (set, frozenset)
_HASHED_TAGS = ("set", "frozenset")
