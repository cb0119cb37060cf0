"""NumPy arrays of every kind through pipes and queues: values, layout, sharing, threshold."""

import copy
import os
import pickle
import resource

import leaks
import numpy
import pytest
import syncline.multiprocessing as mp

RECORD = numpy.dtype([("a", "i4"), ("b", "f8", (3,)), ("c", "U5")], align=True)


def through(value):
    """What arrives of `value`."""
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        writer.send(value)
        return reader.recv()


@pytest.fixture(autouse=True)
def nothing_is_left(strategy):
    before = leaks.held(collect=False)
    yield
    if leaks.held(collect=False) != before:
        after = leaks.held(collect=True)  # Of other tests, too.
        assert after[0] <= before[0]
        assert after[1] <= before[1]
    # Their manager frees them in its turn.
    assert leaks.eventually(lambda: leaks.named_segments() == [])


@pytest.fixture
def threshold():
    """Of zero: all arrays that have elements travel as shared memory."""
    mp.set_sharing_threshold(0)
    yield
    mp.set_sharing_threshold(128 << 10)


DTYPES = (
    "bool int8 uint16 int64 float16 float32 float64 longdouble complex64 complex128 S7 U3 V9"
    " datetime64[ns] timedelta64[D] >f8 <i4"
).split()


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("dtype", [*DTYPES, RECORD, numpy.dtype("f4", metadata={"unit": "m"})])
def test_each_element_type_arrives(dtype):
    bits = numpy.random.default_rng(1).integers(0, 100, (5, 7), "u1")
    array = numpy.zeros((5, 7), dtype)
    if array.dtype.fields is None:
        array = bits.astype(array.dtype) if array.dtype.kind != "V" else array
    else:
        array["a"], array["b"][..., 1], array["c"] = bits, bits, "xyz"
    got = through(array)
    assert got.dtype == array.dtype
    assert dict(got.dtype.metadata or {}) == dict(array.dtype.metadata or {})
    assert got.tobytes() == array.tobytes()
    assert got.flags.writeable
    assert got.flags.aligned


LAYOUTS = {
    "C": lambda a: a,
    "Fortran": numpy.asfortranarray,
    "transposed": lambda a: a.transpose(2, 0, 1),
    "backwards": lambda a: a[::-1, :, ::-1],
    "part": lambda a: a[1:-1, 1:, 1:],
    "every other": lambda a: a[::2, ::-2],
    "spread": lambda a: a[:, 0, 0],
    "repeated": lambda a: numpy.broadcast_to(a[0, 0], (40, 50, a.shape[2])),
    "0-d": lambda a: a[1, 2, 3, ...],
    "empty": lambda a: a[:0],
    "no elements": lambda a: numpy.zeros((3, 0, 2), a.dtype),
}


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f8", RECORD])
@pytest.mark.parametrize("shared", [False, True])
def test_each_layout_arrives(layout, dtype, shared):
    whole = numpy.zeros((6, 8, 5), dtype)
    numbers = numpy.arange(whole.size).reshape(whole.shape)
    if whole.dtype.fields is None:
        whole[...] = numbers
    else:
        whole["a"], whole["b"][..., 1], whole["c"] = numbers, -numbers, numbers
    if shared:
        whole = mp.share_memory_(whole)
    array = LAYOUTS[layout](whole)
    got = through(array)
    assert (got.shape, got.dtype) == (array.shape, array.dtype)
    assert (got == array).all()
    if array.size > 0 and (shared or layout not in ("spread", "every other")):
        assert got.strides == array.strides
    assert got.flags.writeable == array.flags.writeable
    assert numpy.shares_memory(got, array) == mp.is_shared(array)
    assert mp.is_shared(array) == (shared and array.size > 0 and layout != "Fortran")


@pytest.mark.usefixtures("threshold")
def test_an_array_that_is_read_only_arrives_so():
    array = numpy.arange(10.0)
    array.flags.writeable = False
    assert not through(array).flags.writeable


def test_objects_and_subclasses_travel_by_value():
    objects = numpy.array([{"a": 1}, [2], None] * 9000, object)
    assert through(objects).tolist() == objects.tolist()
    masked = numpy.ma.masked_greater(numpy.arange(9000.0), 5)
    assert (through(masked) == masked).all()
    matrix = numpy.matrix(numpy.ones((100, 100)))
    assert isinstance(through(matrix), numpy.matrix)


def test_what_is_sent_is_what_it_was_when_put_returned():
    queue = mp.Queue()
    array = numpy.zeros(100_000)
    for step in range(20):
        array[:] = step
        queue.put(array)
    array[:] = -1
    for step in range(20):
        got = queue.get(timeout=30)
        assert (got == step).all()
        got[:] = 7
    assert (array == -1).all()
    queue.close()
    queue.join_thread()


def test_small_arrays_travel_by_value_and_large_ones_as_shared_memory():
    assert mp.get_sharing_threshold() == 128 << 10
    assert not mp.is_shared(through(numpy.zeros((128 << 10) - 1, "u1")))
    assert mp.is_shared(through(numpy.zeros(128 << 10, "u1")))
    mp.set_sharing_threshold(100)
    assert mp.is_shared(through(numpy.zeros(100, "u1")))
    mp.set_sharing_threshold(128 << 10)
    with pytest.raises(ValueError, match="-1"):
        mp.set_sharing_threshold(-1)


def test_views_of_one_array_share_memory_where_they_arrive():
    array = numpy.arange(100_000.0)
    first, second, third = through([array, array[10:], array[::-2]])
    first[10] = -10
    assert second[0] == -10
    third[0] = -5
    assert first[-1] == -5
    assert not numpy.shares_memory(first, array)


def test_an_array_that_is_sent_twice_in_one_message_arrives_once():
    array = numpy.arange(100_000.0)
    first, second = through([array, array])
    assert first is second


def test_what_is_shared_is_a_file_or_not(strategy):
    array = through(numpy.zeros(100_000))
    assert len(leaks.named_segments()) == (1 if strategy == "file_system" else 0)
    assert mp.share_memory_(array) is array
    shared = mp.share_memory_(numpy.zeros(10))
    assert len(leaks.named_segments()) == (2 if strategy == "file_system" else 0)
    assert numpy.shares_memory(through(shared), shared)


def test_each_side_has_a_strategy_of_its_own(strategy):
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        shared = mp.share_memory_(numpy.zeros(10))
        writer.send([shared, numpy.ones(50_000)])
        mp.set_sharing_strategy("file_descriptor")
        first, second = reader.recv()
        assert numpy.shares_memory(first, shared)
        assert second.sum() == 50_000
        assert numpy.shares_memory(through(first), shared)
        mp.set_sharing_strategy("file_system")
        assert numpy.shares_memory(through([first, numpy.zeros(9)])[0], shared)


def test_a_shared_array_is_handed_over():
    array = mp.empty_shared((100, 10))
    assert mp.is_shared(array)
    assert mp.is_shared(array[3:, ::2])
    got, part = through((array, array[5]))
    again = through(array[7])
    got[5, 5] = 3
    again[1] = 4
    assert array[5, 5] == part[5] == 3
    assert array[7, 1] == got[7, 1] == 4
    back = through(through(got))
    assert numpy.shares_memory(back, array)
    assert leaks.mappings() == 1


@pytest.mark.parametrize("make", [mp.empty_shared, lambda n: mp.share_memory_(numpy.zeros(n))])
def test_a_shared_array_keeps_its_contents_when_its_maker_has_freed_it(make):
    reader, writer = mp.Pipe(duplex=False)
    array = make(100_000)
    array[:] = 3
    writer.send(array)
    del array
    assert leaks.mappings() == 0
    got = reader.recv()
    assert (got == 3).all()
    reader.close()
    writer.close()


def test_share_memory_copies_once():
    array = numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4))
    shared = mp.share_memory_(array)
    assert not mp.is_shared(array)
    assert mp.is_shared(shared)
    assert mp.share_memory_(shared) is shared
    assert shared.flags.f_contiguous
    assert (shared == array).all()
    with pytest.raises(TypeError, match="objects"):
        mp.share_memory_(numpy.array([None]))
    with pytest.raises(TypeError, match="list"):
        mp.share_memory_([1])


@pytest.mark.parametrize("value", [1, None, [numpy.zeros(3)], numpy.zeros(0), numpy.zeros(3)])
def test_what_is_not_shared_says_so(value):
    assert not mp.is_shared(value)


def test_many_arrays_in_one_message_share_segments():
    arrays = [numpy.full(10_000, i, "f4") for i in range(1000)]
    got = through(arrays)
    assert all((one == i).all() for i, one in enumerate(got))
    assert leaks.mappings() <= 60


def test_more_arrays_than_one_call_can_pass_arrive():
    arrays = [mp.empty_shared(10) for _ in range(600)]
    for i, array in enumerate(arrays):
        array[:] = i
    got = through(arrays)
    assert all(numpy.shares_memory(a, b) for a, b in zip(arrays, got, strict=True))


def test_large_objects_arrive_beside_arrays():
    value = {"text": "x" * 5_000_000, "array": numpy.arange(100_000), "bytes": bytes(100_000)}
    got = through(value)
    assert got["text"] == value["text"]
    assert (got["array"] == value["array"]).all()
    assert got["bytes"] == value["bytes"]


def test_buffers_of_other_libraries_travel_as_shared_memory():
    data = bytearray(range(256)) * 1000
    got = through(pickle.PickleBuffer(data))
    assert bytes(got) == data
    assert isinstance(got, memoryview)


def test_pickling_elsewhere_is_as_before(tmp_path):
    array = through(numpy.arange(100_000.0))
    assert mp.is_shared(array)
    (tmp_path / "file").write_bytes(pickle.dumps(array))
    loaded = pickle.loads((tmp_path / "file").read_bytes())
    for other in (loaded, copy.deepcopy(array), array.copy()):
        assert (other == array).all()
        assert not mp.is_shared(other)


def test_an_object_that_cannot_be_pickled_is_an_error_of_put_and_leaves_nothing():
    queue = mp.Queue(1)
    for _ in range(3):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            queue.put([numpy.zeros(100_000), lambda: None])
    queue.put(1)
    assert queue.get(timeout=30) == 1
    queue.close()
    queue.join_thread()


def test_messages_that_are_never_received_are_freed_with_the_pipe(strategy):
    if strategy == "file_system":
        return  # They are freed with the job: file_system_test.py.
    for _ in range(50):
        reader, writer = mp.Pipe(duplex=False)
        for _ in range(20):
            writer.send(numpy.zeros(100_000))
        reader.close()
        with pytest.raises(BrokenPipeError):
            writer.send(numpy.zeros(100_000))
        writer.close()


def test_the_memory_of_a_producer_stays_flat():
    reader, writer = mp.Pipe(duplex=False)
    array = numpy.ones(1 << 17)
    for _ in range(20):
        writer.send(array)
        reader.recv()
    before = leaks.resident()
    for _ in range(1000):
        writer.send(array)
        reader.recv()
    assert leaks.resident() - before < 8 << 20
    reader.close()
    writer.close()


def test_segments_are_used_again_and_never_while_somebody_reads_them():
    reader, writer = mp.Pipe(duplex=False)
    kept = []
    for i in range(200):
        writer.send(numpy.full(50_000, i))
        got = reader.recv()
        assert (got == i).all()
        if i % 20 == 0:
            kept.append((i, got[3:]))
    assert all((array == i).all() for i, array in kept)
    forwarded = through(kept[3][1])
    i = kept[3][0]
    del kept
    for _ in range(50):
        through(numpy.zeros(50_000, int))
    assert (forwarded == i).all()
    reader.close()
    writer.close()


def test_bytes_and_objects_can_be_mixed():
    first, second = mp.Pipe()
    with first, second:
        first.send_bytes(b"abc")
        first.send([1, 2])
        first.send_bytes(bytes(50_000))
        first.send(numpy.zeros(100_000))
        assert second.recv_bytes() == b"abc"
        assert pickle.loads(second.recv_bytes()) == [1, 2]
        assert len(second.recv_bytes()) == 50_000
        with pytest.raises(OSError, match=r"recv\(\)"):
            second.recv_bytes()
        second.send(bytes(200_000))
        assert pickle.loads(first.recv_bytes()) == bytes(200_000)


def test_a_connection_can_be_sent_in_a_connection():
    reader, writer = mp.Pipe(duplex=False)
    inner_reader, inner_writer = mp.Pipe(duplex=False)
    writer.send(inner_reader)
    inner_reader.close()
    got = reader.recv()
    inner_writer.send(numpy.arange(100_000))
    assert mp.is_shared(got.recv())
    for end in (reader, writer, inner_writer, got):
        end.close()


def test_strategies_have_names(strategy):
    assert mp.get_all_sharing_strategies() == {"file_descriptor", "file_system"}
    assert mp.get_sharing_strategy() == strategy
    with pytest.raises(ValueError, match="'carrier pigeon'.*file_descriptor, file_system"):
        mp.set_sharing_strategy("carrier pigeon")
    assert mp.get_sharing_strategy() == strategy


def test_parts_of_one_array_that_overlap_arrive_as_they_are():
    array = numpy.arange(200_000)
    parts = through([array[:120_000], array[80_000:], array[:120_001]])
    assert (parts[0] == array[:120_000]).all()
    assert (parts[1] == array[80_000:]).all()
    parts[0][80_000] = -1
    assert parts[1][0] == parts[2][80_000] == -1
    # Buffers of other types, whose bytes overlap.
    data = numpy.arange(100_000, dtype="u1")
    first, second = through(
        [pickle.PickleBuffer(data[:60_000]), pickle.PickleBuffer(data[40_000:])]
    )
    assert bytes(first) == data[:60_000].tobytes()
    assert bytes(second) == data[40_000:].tobytes()


def test_bytes_between_arrays_are_nobodys():
    # A segment that is used again for other arrays of one message.
    reader, writer = mp.Pipe(duplex=False)
    for fill in (255, 1):
        arrays = [numpy.full(33_001 + i, fill, "u1") for i in range(5)]
        writer.send(arrays)
        got = reader.recv()
        whole = numpy.asarray(memoryview(got[0].base))
        assert set(numpy.unique(whole[:-64])) <= {0, fill}  # Before the lease.
        assert all((array == fill).all() for array in got)
        del whole, got
    reader.close()
    writer.close()


def test_a_receiver_without_descriptors_gets_the_message_later():
    reader, writer = mp.Pipe(duplex=False)
    queue = mp.SimpleQueue()
    through(numpy.zeros(50_000))  # What the first use does.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    writer.send([numpy.full(100_000, i) for i in range(5)])
    queue.put(numpy.full(100_000, 7))
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limit[1]))
    try:
        with pytest.raises(OSError, match="many open files"):
            while True:
                taken.append(os.open("/", os.O_RDONLY))
        for receive in (reader.recv, queue.get):
            with pytest.raises(OSError, match=r"when some are closed.*the limit is 200"):
                receive()
        for descriptor in taken:
            os.close(descriptor)
        assert [int(array[9]) for array in reader.recv()] == [0, 1, 2, 3, 4]
        assert queue.get()[5] == 7
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    reader.close()
    writer.close()
    queue.close()


def test_names_travel_through_a_pipe_of_the_standard_module(strategy):
    inner, outer = os.pipe()
    reader, writer = mp.connection.Connection(inner, writable=False), None
    writer = mp.connection.Connection(outer, readable=False)
    with reader, writer:
        array = mp.share_memory_(numpy.arange(100.0))
        writer.send([array, 1])
        got = reader.recv()[0]
        assert (got == array).all()
        assert numpy.shares_memory(got, array) == (strategy == "file_system")
        writer.send("text")
        assert reader.recv() == "text"


def test_a_message_that_is_dropped_frees_its_memory(strategy):
    reader, writer = mp.Pipe(duplex=False)
    with reader, writer:
        for _ in range(3):
            writer.send(numpy.zeros(100_000))
            with pytest.raises(OSError, match=r"recv\(\)"):
                reader.recv_bytes()
    array = numpy.zeros(100_000)
    with pytest.raises((BrokenPipeError, OSError)):
        writer.send(array)
