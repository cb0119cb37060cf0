"""The four stores, seen from Python. What stores mean is tested in C++, in tests/."""

import gc
import os
import socket
import threading
import weakref
from datetime import timedelta

import numpy
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
    assert store.compare_set("k", b"other", b"x") == b"other"  # As torch: it is absent still.
    assert not store.check(["k"])
    assert store.compare_set("k", b"", b"first") == b"first"
    assert store.compare_set("k", b"other", b"x") == b"first"
    assert store.compare_set("k", b"first", b"second") == b"second"
    store.set("empty", b"")
    assert store.compare_set("empty", b"other", b"x") == b""


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


def test_a_text_is_stored_as_utf_8(store):
    store.set("k", "ä")
    assert store.get("k") == "ä".encode()
    store.append("k", "+")
    assert store.compare_set("k", "ä+", "b") == b"b"
    store.multi_set(["m", "n"], ["1", b"2"])
    assert store.multi_get(["m", "n"]) == [b"1", b"2"]
    with pytest.raises(TypeError, match="bytes"):
        store.set("k", 5)


def test_a_wait_that_is_too_long_is_an_error_of_the_store_too(store):
    for wait in (store.wait, store.multi_get):
        with pytest.raises(dist.DistStoreError, match="^Wait timeout: .*not set"):
            wait(["x"], SOON)
    store.set_timeout(SOON)
    assert store.timeout == SOON
    with pytest.raises(TimeoutError, match="not set after 50ms"):
        store.get("x")
    with pytest.raises(ValueError, match="positive"):
        store.set_timeout(timedelta())


def test_a_clone_is_the_same_store_with_a_timeout_of_its_own(store):
    clone = store.clone()
    assert type(clone) is type(store)
    clone.set_timeout(LATE)
    clone.set("k", "v")
    assert store.get("k") == b"v"
    assert (store.timeout, clone.timeout) == (timedelta(minutes=5), LATE)


def test_a_barrier_can_be_used_again(store):
    arrived = []

    def come(client, number):
        for round in range(3):
            arrived.append((round, number))
            client.barrier("b", 3, LATE)

    others = [threading.Thread(target=come, args=(store.clone(), i)) for i in (1, 2)]
    for thread in others:
        thread.start()
    come(store, 0)
    for thread in others:
        thread.join(LATE.total_seconds())
    assert [round for round, _ in arrived] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with pytest.raises(dist.DistStoreError, match="Wait timeout"):
        store.barrier("alone", 2, SOON)


@pytest.fixture(params=["hash", "tcp", "prefix"])
def queues(request):
    if request.param == "tcp":
        return dist.TCPStore("127.0.0.1", 0, is_master=True)
    whole = dist.HashStore()
    return dist.PrefixStore("part", whole) if request.param == "prefix" else whole


def test_a_queue_gives_each_value_once_in_the_order_of_their_coming(queues):
    assert queues.queue_len("q") == 0
    with pytest.raises(dist.QueueEmptyError, match="queue is empty"):
        queues.queue_pop("q", block=False)
    queues.queue_push("q", "a")
    queues.queue_push("q", b"")
    assert (queues.queue_len("q"), queues.check(["q"]), queues.num_keys()) == (2, True, 0)
    queues.wait(["q"], SOON)
    assert queues.queue_pop("q") == b"a"
    assert queues.queue_pop("q", False) == b""
    assert not queues.check(["q"])
    with pytest.raises(dist.DistStoreError, match="Wait timeout: .*q.* not set"):
        queues.queue_pop("q", timeout=SOON)


def test_pops_that_wait_share_what_comes(queues):
    taken, takers = [], []
    for _ in range(8):
        client = queues.clone()
        takers.append(
            threading.Thread(target=lambda c=client: taken.append(c.queue_pop("q", timeout=LATE)))
        )
        takers[-1].start()
    values = [str(i).encode() for i in range(8)]
    for value in values:
        queues.queue_push("q", value)
    for taker in takers:
        taker.join(LATE.total_seconds())
    assert sorted(taken) == values
    assert queues.queue_len("q") == 0


def test_a_pop_that_gave_up_takes_nothing(queues):
    with pytest.raises(TimeoutError):
        queues.queue_pop("q", timeout=SOON)
    queues.queue_push("q", "kept")
    assert queues.queue_pop("q", block=False) == b"kept"


def test_a_file_has_no_queues(tmp_path):
    store = dist.FileStore(tmp_path / "store")
    for call in (lambda: store.queue_push("q", "v"), lambda: store.queue_len("q")):
        with pytest.raises(NotImplementedError, match="has no queues"):
            call()


def test_a_master_waits_for_its_workers_and_counts_them():
    store = dist.TCPStore("127.0.0.1", 0, world_size=1, is_master=True)
    assert (store.num_keys(), store.list_keys()) == (1, [])
    assert dist.TCPStore("127.0.0.1", 0, is_master=True).num_keys() == 0
    assert dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False).num_keys() == 0
    with pytest.raises(dist.DistStoreError, match=r"Timed out after 2 seconds .*1/2 clients"):
        dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=2))


def test_a_master_goes_on_when_the_last_worker_has_come():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = []
    master = threading.Thread(
        target=lambda: made.append(dist.TCPStore("127.0.0.1", port, 3, True, LATE))
    )
    master.start()
    workers = [dist.TCPStore("127.0.0.1", port, 3, timeout=LATE) for _ in range(2)]
    master.join(LATE.total_seconds())
    assert [client.num_keys() for client in (*made, *workers)] == [1, 1, 1]


def test_masters_of_one_port_are_tenants_of_one_server():
    first = dist.TCPStore("127.0.0.1", 0, 1, True, multi_tenant=True)
    with pytest.raises(dist.DistNetworkError, match="in use"):
        dist.TCPStore("127.0.0.1", first.port, 1, True)
    second = dist.TCPStore("127.0.0.1", first.port, 1, True, multi_tenant=True)
    first.set("k", "v")
    del first
    assert second.get("k") == b"v"


def test_tenants_share_the_server_of_a_store_whose_object_is_gone():
    """As a world that was joined by it keeps it."""
    first = dist.TCPStore("127.0.0.1", 0, 1, True, multi_tenant=True)
    port = first.port
    kept = dist.PrefixStore("part", first)
    kept.set("k", "v")
    del first
    gc.collect()
    second = dist.TCPStore("127.0.0.1", port, 1, True, multi_tenant=True)
    assert second.get("part/k") == b"v"
    kept = dist.PrefixStore("part", second)
    del second
    gc.collect()
    assert kept.get("k") == b"v"
    for wrong in (-1, 1 << 16, (1 << 32) + port):
        with pytest.raises(ValueError, match="port must be in"):
            dist.TCPStore("127.0.0.1", wrong, 1, True, multi_tenant=True)


def test_a_master_can_have_a_socket_that_listens():
    for with_port in (False, True):
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]
        given = port if with_port else 0
        store = dist.TCPStore("127.0.0.1", given, is_master=True, master_listen_fd=server.detach())
        assert store.port == port
        dist.TCPStore("127.0.0.1", port).set("k", "v")
        assert store.get("k") == b"v"
    with socket.socket() as silent, pytest.raises(ValueError, match="no socket that listens"):
        dist.TCPStore("127.0.0.1", 0, is_master=True, master_listen_fd=os.dup(silent.fileno()))


def test_classes_derived_from_a_store_are_that_store(tmp_path):
    class Counting(dist.TCPStore):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.sets = 0

        def set(self, key, value):
            self.sets += 1
            super().set(key, value)

    store = Counting("127.0.0.1", 0, is_master=True)
    store.set("k", "v")
    assert (type(store), store.sets, store.get("k")) == (Counting, 1, b"v")
    world = dist.World.init("local", store=store, rank=0, world_size=1)
    assert world.store is store


class Plain(dist.Store):
    """A store of Python: a dictionary for the threads of a process."""

    def __init__(self):
        super().__init__()
        self.values = {}
        self.lock = threading.Lock()

    def set(self, key, value):
        with self.lock:
            self.values[key] = value

    def get(self, key):
        return self.values[key]

    def add(self, key, amount):
        with self.lock:
            self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
            return int(self.values[key])

    def check(self, keys):
        return all(key in self.values for key in keys)

    def compare_set(self, key, expected, desired):
        with self.lock:
            if self.values.get(key, b"") == expected:
                self.values[key] = desired
            return self.values.get(key, expected)

    def delete_key(self, key):
        return self.values.pop(key, None) is not None


def test_a_store_of_python_has_what_it_does_not_define():
    store = Plain()
    store.multi_set(["a", "b"], [b"1", b"2"])
    assert store.multi_get(["a", "b"], SOON) == [b"1", b"2"]
    with pytest.raises(dist.DistStoreError, match="^Wait timeout: .*'c' not set"):
        store.wait(["a", "c"], SOON)
    with pytest.raises(NotImplementedError, match="Plain does not define append"):
        store.append("a", b"")
    part = dist.PrefixStore("p", store)
    part.set("k", "v")
    assert (store.values["p/k"], part.get("k", SOON)) == (b"v", b"v")


def test_ranks_join_by_a_store_of_python():
    store = Plain()
    sums = []

    def rank(number):
        world = dist.World.init("local", store=store, rank=number, world_size=2)
        assert world.store is store
        value = numpy.full(1, number + 1.0)
        world.group.all_reduce(value)
        sums.append(value[0])
        world.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATE.total_seconds())
    assert sums == [3.0, 3.0]


def test_what_a_store_of_python_raises_is_seen():
    class Broken(Plain):
        def set(self, key, value):
            raise OSError("the disk is full")

        def compare_set(self, key, expected, desired):
            raise OSError("the disk is full")

    with pytest.raises(dist.DistError, match="OSError: the disk is full"):
        dist.World.init("local", store=Broken(), rank=0, world_size=1)


def test_a_store_of_python_is_freed_with_its_last_user():
    store = Plain()
    alive = weakref.ref(store)
    part = dist.PrefixStore("p", store)
    del store
    gc.collect()
    part.set("k", "v")
    assert alive().values == {"p/k": b"v"}
    del part
    gc.collect()
    assert alive() is None


def test_what_is_no_store_is_refused():
    with pytest.raises(TypeError, match="store must be a Store, not <class 'dict'>|a Store"):
        dist.PrefixStore("p", {})
