"""The four stores, seen from Python. What stores mean is tested in C++, in tests/."""

import threading
from datetime import timedelta

import pytest
import syncline as dist

SOON = timedelta(milliseconds=50)
LATE = timedelta(seconds=60)


@pytest.fixture(params=["hash", "file", "tcp", "prefix"])
def store(request, tmp_path):
    if request.param == "file":
        return dist.FileStore(tmp_path / "store")
    if request.param == "tcp":
        return dist.TCPStore("127.0.0.1", 0, is_master=True)
    whole = dist.HashStore()
    return dist.PrefixStore("part", whole) if request.param == "prefix" else whole


def test_every_store_is_a_store(store):
    assert isinstance(store, dist.Store)
    assert store.timeout == timedelta(minutes=5)


def test_values_are_bytes_of_any_kind(store):
    for value in (b"", b"\0\xff", b"v" * 100_000):
        store.set("key", value)
        assert store.get("key") == value
    store.set("schlüssel", b"v")
    assert store.list_keys("schl") == ["schlüssel"]


def test_numbers_are_added(store):
    assert store.add("n", 5) == 5
    assert store.add("n", -7) == -2
    assert store.get("n") == b"-2"


def test_compare_set_returns_the_value_after_the_call(store):
    assert store.compare_set("k", b"other", b"x") == b""
    assert store.compare_set("k", b"", b"first") == b"first"
    assert store.compare_set("k", b"other", b"x") == b"first"
    assert store.compare_set("k", b"first", b"second") == b"second"


def test_keys_are_listed_counted_and_deleted(store):
    store.multi_set(["a1", "a2", "b"], [b"1", b"2", b"3"])
    store.append("a1", b"+")
    assert store.multi_get(["b", "a1"]) == [b"3", b"1+"]
    assert store.list_keys("a") == ["a1", "a2"]
    assert store.num_keys() == 3
    assert store.check(["a1", "b"])
    assert store.delete_key("b")
    assert not store.delete_key("b")
    assert not store.check(["a1", "b"])


def test_parameters_have_the_names_of_the_stub(store):
    store.set(key="k", value=b"v")
    assert store.get(key="k", timeout=SOON) == b"v"
    store.wait(keys=["k"], timeout=None)


def test_a_wait_that_is_too_long_names_the_missing_keys(store):
    store.set("there", b"")
    for wait in (store.wait, store.multi_get):
        with pytest.raises(dist.DistTimeoutError, match="keys .*x.*, .*y.* not set after 50ms"):
            wait(["x", "there", "y"], SOON)
    with pytest.raises(TimeoutError, match="key .*x.* not set after 50ms"):
        store.get("x", SOON)


def test_a_thread_that_waits_lets_others_run(store):
    # If the wait kept the GIL, nobody could ever set the key.
    got = []
    waiting = threading.Thread(target=lambda: got.append(store.get("key", LATE)))
    waiting.start()
    store.set("key", b"v")
    waiting.join(LATE.total_seconds())
    assert got == [b"v"]


def test_a_client_of_the_tcp_store_sees_what_the_master_sets():
    master = dist.TCPStore("127.0.0.1", 0, is_master=True)
    client = dist.TCPStore("127.0.0.1", master.port, timeout=timedelta(seconds=30))
    assert (client.host, client.port) == ("127.0.0.1", master.port)
    assert client.timeout == timedelta(seconds=30)
    master.set("k", b"v")
    assert client.get("k") == b"v"


def test_a_prefix_store_is_a_part_of_its_store():
    whole = dist.HashStore()
    part = dist.PrefixStore("a", whole)
    part.set("k", b"v")
    assert whole.list_keys() == ["a/k"]
    assert part.underlying_store is whole


def test_a_file_store_tells_its_file(tmp_path):
    assert dist.FileStore(str(tmp_path / "store")).path == str(tmp_path / "store")


def test_the_world_hands_its_store_back():
    store = dist.HashStore()
    world = dist.World.init("local", store=store, rank=0, world_size=1)
    assert world.store is store
