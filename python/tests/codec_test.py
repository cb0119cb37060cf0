"""The safe codec carries data whole and runs nothing; object collectives use it."""

import collections
import datetime
import decimal
import enum
import math
import pickle
import sys
import zoneinfo

import numpy
import pytest
import ranks
import syncline as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from syncline.codec import MAX_DEPTH, decode, encode

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


# ---- The collectives ----


def test_objects_of_all_ranks_are_gathered():
    def run(world):
        objects = [None] * 3
        dist.all_gather_object(objects, {"rank": world.rank}, world.group)
        with pytest.raises(ValueError, match="object_list must have an item for each of the 3 ra"):
            dist.all_gather_object([None], 1, world.group)
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
