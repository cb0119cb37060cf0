"""The safe codec carries data whole and runs nothing; object collectives use it."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import pickle
import sys
import zoneinfo
from typing import ClassVar

import numpy
import pytest
import ranks
import syncline as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from syncline.codec import MAX_DEPTH, decode, encode, is_plain

SETTINGS = settings(
    database=None, deadline=None, max_examples=200, suppress_health_check=list(HealthCheck)
)


def same(a, b):
    """Equal in type and value, all the way down; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (numpy.ndarray, numpy.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b) or (a != a and b != b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, datetime.datetime):
        return (a, a.fold, a.utcoffset(), a.tzname()) == (b, b.fold, b.utcoffset(), b.tzname())
    if isinstance(a, decimal.Decimal):
        return str(a) == str(b)
    return a == b


ZONES = st.none() | st.builds(
    datetime.timezone,
    st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)),
    st.text(max_size=5),
) | st.just(datetime.timezone.utc)  # fmt: skip
HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.times(timezones=ZONES)
    | st.timedeltas()
    | st.datetimes(timezones=ZONES),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
DTYPES = (
    npst.scalar_dtypes()
    | npst.byte_string_dtypes(min_len=1)
    | npst.unicode_string_dtypes(min_len=1)
    | npst.nested_dtypes(max_leaves=4)
)
ARRAYS = DTYPES.flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=3))
)
OBJECTS = st.recursive(
    HASHABLE | st.floats() | ARRAYS | st.binary().map(bytearray) | st.sets(HASHABLE, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=4).map(collections.OrderedDict)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@SETTINGS
@given(OBJECTS)
def test_an_object_comes_back_as_it_was(value):
    assert same(decode(encode(value)), value)


@SETTINGS
@given(st.binary(), st.binary())
def test_any_other_bytes_are_an_object_or_a_value_error(text, buffers):
    framed = b"S" + len(text).to_bytes(8, "little") + text + buffers
    for data in (text, framed):
        try:
            value = decode(data)
        except ValueError:
            continue
        assert same(decode(encode(value)), value)


@SETTINGS
@given(OBJECTS, st.data())
def test_damaged_bytes_are_an_object_or_a_value_error(value, data):
    damaged = bytearray(encode(value))
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    try:
        decode(bytes(damaged))
    except ValueError:
        pass


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(10**5000, id="a number of 5001 digits"),
        -(1 << 63),
        -0.0,
        math.inf,
        "\ud800 lone",
        numpy.float64(1.5),
        numpy.arange(12.0).reshape(3, 4)[:, ::2],
        numpy.asfortranarray(numpy.ones((2, 3), ">i4")),
        numpy.zeros((3, 0, 2), numpy.complex64),
        numpy.array(["2020-01-01", "NaT"], "datetime64[D]"),
        numpy.zeros(2, [("x", "f4"), ("y", "i2", (2, 3))]),
        datetime.datetime(2020, 10, 25, 2, 30, fold=1),
        {(1, "a"): [None], frozenset({2}): {3: b"x"}},
    ],
)
def test_notable_objects_come_back(value):
    assert same(decode(encode(value)), value)


def test_arrays_arrive_writable_and_apart():
    array = numpy.arange(3)
    first, second = decode(encode([array, array]))
    first[0] = 7
    assert second.tolist() == array.tolist() == [0, 1, 2]


def test_attributes_of_an_ordered_dict_come_along():
    value = collections.OrderedDict(weight=1)
    value._metadata = collections.OrderedDict({"": {"version": 1}})
    came = decode(encode([value]))[0]
    assert type(came) is collections.OrderedDict and came == value
    assert came._metadata == value._metadata and vars(came).keys() == {"_metadata"}
    value.colour = Colour.RED
    with pytest.raises(TypeError, match="Colour cannot be carried"):
        encode(value)


@pytest.mark.parametrize("content", ["[[1,2],[]]", "[[]]", "[[],[],[]]", "3", '[["a"],[]]'])
def test_malformed_attributes_are_value_errors(content):
    text = b'{"attributed":%s}' % content.encode()
    with pytest.raises(ValueError, match="malformed"):
        decode(b"S" + len(text).to_bytes(8, "little") + text)


class Colour(enum.Enum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Colour.RED,
        Point(1, 2),
        collections.defaultdict(int, a=1),
        numpy.array([None]),
        numpy.ma.masked_array([1]),
        print,
        ValueError("e"),
        datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")),
        [[{1: object()}]],
    ],
)
def test_what_it_does_not_know_is_a_type_error_that_names_the_way_out(value):
    with pytest.raises(TypeError, match='codec="pickle"'):
        encode(value)


@pytest.mark.parametrize("value", [Colour.RED, Point(1, 2), {1: Colour.RED}])
def test_pickle_carries_more_by_choice(value):
    assert decode(encode(value, "pickle"), "pickle") == value
    with pytest.raises(ValueError, match='codec must be "safe" or "pickle"'):
        encode(value, "marshal")


def test_a_pickle_is_not_read_unless_it_is_asked_for():
    class Trap:
        def __reduce__(self):
            return (sys.exit, ("the sender ran code here",))

    with pytest.raises(ValueError, match="can run any code"):
        decode(b"P" + pickle.dumps(Trap()))


def test_depth_is_bounded():
    value = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert decode(encode(value)) == value
    for too_deep in ([value], (value,), {1: value}):
        with pytest.raises(ValueError, match="nested deeper than 100 levels"):
            encode(too_deep)
    value.append(value)  # Contains itself.
    with pytest.raises(ValueError, match="nested deeper"):
        encode(value)
    text = b"[" * 200 + b"]" * 200
    for data in (text, b"[" * 100_000):
        with pytest.raises(ValueError, match="malformed"):
            decode(b"S" + len(data).to_bytes(8, "little") + data)


def test_a_size_that_is_not_there_is_not_made():
    text = b'{"array":["<f8",[1000000000000],0]}'
    with pytest.raises(ValueError, match="malformed"):
        decode(b"S" + len(text).to_bytes(8, "little") + text)


def test_no_dtype_of_objects_is_made():
    for dtype in (b'"O"', b'"|O8"', b'{"names":["x"],"formats":["|O8"]}', b'"ml_dtypes.finfo"'):
        text = b'{"array":[' + dtype + b",[0],0]}"
        with pytest.raises(ValueError, match="malformed"):
            decode(b"S" + len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize("dtype", ["1", "null", "[1]", "true", '{"base":3,"shape":[2]}'])
def test_a_dtype_that_is_no_name_is_a_value_error(dtype):
    text = b'{"array":[%s,[0],0]}' % dtype.encode()
    with pytest.raises(ValueError, match="malformed"):
        decode(b"S" + len(text).to_bytes(8, "little") + text)


# ---- Objects of classes ----


@dataclasses.dataclass
class Config:
    rate: float
    layers: list = dataclasses.field(default_factory=list)
    folder: pathlib.Path | None = None
    KIND: ClassVar[str] = "config"

    @dataclasses.dataclass(frozen=True)
    class Part:
        name: str
        size: int = dataclasses.field(default=3, init=False)


@dataclasses.dataclass(slots=True, frozen=True)
class Slotted:
    value: tuple


ran = []


@dataclasses.dataclass
class Loud:
    value: int

    def __init__(self, value):
        ran.append("init")
        self.value = value

    def __post_init__(self):
        ran.append("post_init")

    def __setattr__(self, name, value):
        ran.append("setattr")
        object.__setattr__(self, name, value)

    def __hash__(self):
        ran.append("hash")
        return 1

    def __eq__(self, other):
        ran.append("eq")
        return True


@dataclasses.dataclass
class Deleted:
    value: int

    def __del__(self):
        ran.append("del")


class Watched:
    def __get__(self, instance, owner=None):
        return 1

    def __set__(self, instance, value):
        ran.append("set")


@dataclasses.dataclass
class Described:
    value: int = Watched()


class Plain:
    pass


@pytest.mark.parametrize(
    "value",
    [
        Config(0.1, [Config.Part("a"), 3], pathlib.Path("/data")),
        Config.Part("b"),
        Slotted((1, Slotted(()))),
        {"config": Config(2.0)},
        pathlib.Path("a/../b"),
        pathlib.PurePosixPath("/x"),
        pathlib.PureWindowsPath("c:\\x"),
        {pathlib.Path("key"): 1},
        range(5),
        range(10**30, -(10**30), -7),
        argparse.Namespace(lr=0.1, layers=[1, 2], nested=argparse.Namespace()),
        [{range(3): (argparse.Namespace(a=Config(1.0)),)}],
    ],
)
@settings(database=None, deadline=None, max_examples=30)
@given(data=st.data())
def test_objects_of_known_classes_come_back(value, data):
    encoded = encode(value)
    returned = decode(encoded)
    assert type(returned) is type(value) and returned == value
    damaged = bytearray(encoded)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode(bytes(damaged))
    except ValueError:
        pass


def test_making_an_object_runs_none_of_its_code():
    sent = encode(Loud(3))
    ran.clear()
    returned = decode(sent)
    assert ran == [] and vars(returned) == {"value": 3}
    for value in ({Loud(1)}, {Loud(1): 2}, {(Loud(1),): 2}, frozenset([(1, Loud(2))])):
        with pytest.raises(TypeError, match="as a key or in a set"):
            encode(value)
    ran.clear()
    inner = sent[9:].decode()
    for text in (
        '{"set":[%s]}',
        '{"frozenset":[%s]}',
        '{"dict":[%s,1]}',
        '{"dict":[{"tuple":[%s]},1]}',
    ):
        with pytest.raises(ValueError, match="is hashed"):
            decode(framed(text % inner))
    assert ran == []


@pytest.mark.parametrize("value", [Deleted(1), Described(1)])
def test_classes_whose_code_would_run_are_refused(value):
    with pytest.raises(TypeError, match="cannot be carried by the safe codec"):
        encode(value)
    ran.clear()
    name = type(value).__qualname__
    with pytest.raises(ValueError, match="no dataclass that is known here"):
        decode(framed('{"dataclass":["%s","%s","value",1]}' % (__name__, name)))
    assert ran == []


def framed(text):
    return b"S" + len(text).to_bytes(8, "little") + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        '"os","system"',
        '"%s","Plain"' % __name__,
        '"%s","Config.KIND"' % __name__,
        '"%s","Nothing"' % __name__,
        '"%s","Slotted","value",1,"more",2' % __name__,
        '"%s","Slotted"' % __name__,
        '"%s","Slotted","__class__",1' % __name__,
        '"not_imported_yet","X"',
        "1,2",
        '["a"],{"b":1}',
    ],
)
def test_a_message_finds_nothing_but_dataclasses_with_their_fields(content):
    with pytest.raises(ValueError, match="malformed object"):
        decode(framed('{"dataclass":[%s]}' % content))


@pytest.mark.parametrize(
    "text",
    [
        '{"namespace":[1,2]}',
        '{"namespace":["a"]}',
        '{"range":["0x0","0x1","0x0"]}',
        '{"range":[0,1,2]}',
        '{"path":5}',
        '{"path":["a"]}',
        '{"size":[1.5]}',
        '{"size":"12"}',
    ],
)
def test_malformed_objects_of_known_classes_are_value_errors(text):
    with pytest.raises(ValueError, match="malformed object"):
        decode(framed(text))


def test_a_dataclass_within_a_function_is_refused_with_advice():
    @dataclasses.dataclass
    class Local:
        x: int

    with pytest.raises(TypeError, match="define it at the top of its module"):
        encode(Local(1))


def test_what_an_object_has_besides_its_fields_is_not_lost_silently():
    value = Config(1.0)
    value.epoch = 3
    with pytest.raises(TypeError, match="attributes that are no fields .*: epoch"):
        encode(value)


# ---- The choice of a codec ----


@pytest.fixture
def unchosen(monkeypatch):
    monkeypatch.delenv("SYNCLINE_OBJECT_CODEC", raising=False)
    yield monkeypatch
    dist.set_object_codec(None)


def test_a_process_chooses_a_codec(unchosen):
    assert dist.get_object_codec() == "safe"
    unchosen.setenv("SYNCLINE_OBJECT_CODEC", "pickle")
    assert dist.get_object_codec() == "pickle"
    dist.set_object_codec("safe")
    assert dist.get_object_codec() == "safe"
    dist.set_object_codec(None)
    unchosen.setenv("SYNCLINE_OBJECT_CODEC", "json")
    with pytest.raises(
        ValueError, match="SYNCLINE_OBJECT_CODEC must be safe or pickle, not 'json'"
    ):
        dist.get_object_codec()
    with pytest.raises(ValueError, match='codec must be "safe" or "pickle", not'):
        dist.set_object_codec("json")


def test_the_chosen_codec_is_that_of_calls_that_are_given_none(unchosen):
    dist.set_object_codec("pickle")

    def run(world):
        objects = [None] * 2
        dist.all_gather_object(objects, Colour.RED, world.group)
        with pytest.raises(TypeError, match="cannot be carried by the safe codec"):
            dist.all_gather_object(objects, Colour.RED, world.group, codec="safe")
        return objects

    assert ranks.in_threads(2, run) == [[Colour.RED] * 2] * 2


# ---- One rank refuses ----


def calls_of(world, value):
    """Of each object collective: the call in which rank 1 passes `value`, and its root, if any."""
    group, mine = world.group, value if world.rank == 1 else 0
    return {
        "all_gather_object": lambda: dist.all_gather_object([None] * 3, mine, group),
        "broadcast_object_list": lambda: dist.broadcast_object_list([mine], 1, group),
        "gather_object": lambda: dist.gather_object(
            mine, [None] * 3 if world.rank == 2 else None, 2, group
        ),
        "scatter_object_list": lambda: dist.scatter_object_list(
            [None], [0, mine, 0] if world.rank == 1 else None, 1, group
        ),
    }


@pytest.mark.parametrize(
    "name",
    ["all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"],
)
def test_all_ranks_hear_at_once_that_one_cannot_send_its_object(name):
    def run(world):
        call = calls_of(world, Colour.RED)[name]
        if world.rank == 1:
            with pytest.raises(TypeError, match="codec_test.Colour cannot be carried"):
                call()
        else:
            with pytest.raises(dist.ObjectRefusedError, match="rank 1 of group .*Colour") as error:
                call()
            assert (error.value.ranks, error.value.operation) == ((1,), name)
        objects = [None] * 3
        dist.all_gather_object(objects, world.rank, world.group)  # The group goes on.
        assert objects == [0, 1, 2]

    ranks.in_threads(3, run)


def test_all_ranks_hear_at_once_that_one_cannot_read_an_object():
    def run(world):
        objects = ["kept"] * 3
        if world.rank == 2:
            with pytest.raises(ValueError, match='the sender used codec="pickle"'):
                dist.all_gather_object(objects, 1, world.group, codec="safe")
        else:
            with pytest.raises(dist.ObjectRefusedError, match='rank 2 .*the sender used codec="pi'):
                dist.all_gather_object(objects, 1, world.group, codec="pickle")
        assert objects == ["kept"] * 3

    ranks.in_threads(3, run)


def test_only_what_every_rank_can_read_needs_no_agreement():
    """A rank may lack a class, a library, memory, or trust."""
    ordered = collections.OrderedDict(a=1)
    for value in (
        None,
        -1,
        1 << 70,
        0.5,
        "text",
        b"bytes",
        [1, ("a", {2})],
        {"loss": 0.5},
        ordered,
    ):
        assert is_plain(encode(value)), value
    for value in (numpy.ones(1), numpy.float32(1), pathlib.Path("/"), "x" * 100_000, Slotted(1)):
        for within in (value, [value], {"key": (value,)}):
            assert not is_plain(encode(within)), value
    assert not is_plain(encode(1, "pickle"))
    for text in ('{ "dataclass":[]}', '[{"\\u0064ataclass":[]}]', '{"tuple":[{\t"dataclass":[]}]}'):
        assert not is_plain(framed(text)), text
    assert not is_plain(b"") and not is_plain(b"Esome error")


def test_a_receiver_hears_at_once_that_the_sender_cannot_send():
    def run(world):
        if world.rank == 0:
            with pytest.raises(TypeError, match="cannot be carried"):
                dist.send_object_list([Colour.RED], 1, world.group)
        else:
            with pytest.raises(dist.ObjectRefusedError, match="rank 0 of group .*Colour"):
                dist.recv_object_list([None], 0, world.group)

    ranks.in_threads(2, run)


# ---- The collectives ----


def test_objects_of_all_ranks_are_gathered():
    def run(world):
        objects = [None] * 3
        dist.all_gather_object(objects, {"rank": world.rank}, world.group)
        with pytest.raises(ValueError, match="object_list must have an item for each of the 3 ra"):
            dist.all_gather_object([None], 1, world.group)
        longer = ["kept"] * 5
        dist.all_gather_object(longer, world.rank, world.group)
        assert longer == [0, 1, 2, "kept", "kept"]
        return objects

    assert ranks.in_threads(3, run) == [[{"rank": r} for r in range(3)]] * 3


def test_an_object_that_cannot_be_carried_leaves_the_group_usable():
    def run(world):
        with pytest.raises(TypeError, match='codec="pickle"'):
            dist.all_gather_object([None] * 2, Colour.RED, world.group)
        objects = [None] * 2
        dist.all_gather_object(objects, Colour.RED, world.group, codec="pickle")
        return objects

    assert ranks.in_threads(2, run) == [[Colour.RED] * 2] * 2


def test_a_rank_that_did_not_ask_for_pickle_does_not_read_it():
    def run(world):
        if world.rank == 0:
            dist.send_object_list([Colour.RED], group=world.group, group_dst=1, codec="pickle")
        else:
            with pytest.raises(ValueError, match='the sender used codec="pickle"'):
                dist.recv_object_list([None], group=world.group)

    ranks.in_threads(2, run)


def test_lists_must_be_equally_long():
    def run(world):
        objects = [1, 2] if world.rank == 0 else [None]
        if world.rank == 0:
            dist.broadcast_object_list(objects, 0, world.group)
        else:
            with pytest.raises(ValueError, match="object_list has 1 items, but 2 were sent"):
                dist.broadcast_object_list(objects, 0, world.group)

    ranks.in_threads(2, run)


def test_wrong_lists_are_refused():
    world = dist.World.init("local", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(ValueError, match="object_gather_list must have an item for each of the 1"):
        dist.gather_object(1, None, group=world.group)
    with pytest.raises(ValueError, match="scatter_object_output_list must be a list with at least"):
        dist.scatter_object_list([], [1], group=world.group)
    with pytest.raises(ValueError, match="scatter_object_input_list must have an item for each"):
        dist.scatter_object_list([None], [1, 2], group=world.group)
