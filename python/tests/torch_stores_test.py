"""Stores of torch.distributed and ours: the same calls have the same results, and each serves the
other's groups."""

import threading
from datetime import timedelta

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import numpy  # noqa: E402
import syncline as dist  # noqa: E402
import torch  # noqa: E402
import torch.distributed as torch_dist  # noqa: E402
from syncline.torch import to_torch_store  # noqa: E402

SOON = timedelta(milliseconds=100)
LATE = timedelta(seconds=60)


def made(module, kind, folder):
    if kind == "file":
        return module.FileStore(str(folder / module.__name__), 1)
    if kind == "tcp":
        return module.TCPStore("127.0.0.1", 0, 1, True)
    if kind == "prefix":
        return module.PrefixStore("p", module.HashStore())
    return module.HashStore()


def results(store):
    """What a script sees that makes these calls one after the other."""
    seen = []

    def call(name, *args, **kwargs):
        try:
            seen.append((name, getattr(store, name)(*args, **kwargs)))
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            kind = next((k for k in kinds if k in ("QueueEmptyError", "NotImplementedError")), None)
            timed_out = "timeout" in str(error).lower()
            seen.append((name, kind or ("timeout" if timed_out else repr(error))))

    call("set", "a", "text")
    call("get", "a")
    call("set", "a", b"\xff\x00")
    call("get", "a")
    call("compare_set", "absent", "other", "x")
    call("check", ["absent"])
    call("compare_set", "c", "", "first")
    call("compare_set", "c", "wrong", "x")
    call("compare_set", "c", "first", "second")
    call("set", "empty", "")
    call("compare_set", "empty", "other", "x")
    call("add", "n", 3)
    call("add", "n", -5)
    call("get", "n")
    call("wait", ["a", "n"])
    call("wait", ["a"], SOON)
    call("wait", [])
    call("set_timeout", SOON)
    call("get", "never")
    call("wait", ["never", "a"])
    call("wait", ["never"], SOON)
    call("set_timeout", LATE)
    call("multi_set", ["m1", "m2"], ["1", b"2"])
    call("multi_get", ["m2", "m1"])
    call("append", "m1", "+")
    call("append", "new", "+")
    call("multi_get", ["m1", "new"])
    call("check", ["m1", "new"])
    call("check", [])
    call("delete_key", "m1")
    call("check", ["m1"])
    call("barrier", "b", 1)
    call("queue_len", "q")
    call("queue_push", "q", "1")
    call("queue_push", "q", b"2")
    call("queue_len", "q")
    call("queue_pop", "q")
    call("queue_pop", "q", False)
    call("queue_pop", "q", False)
    call("set_timeout", SOON)
    call("queue_pop", "q", block=True)
    return seen


@pytest.mark.parametrize("kind", ["hash", "file", "tcp", "prefix"])
def test_the_same_calls_have_the_same_results(kind, tmp_path):
    ours, theirs = (made(module, kind, tmp_path) for module in (dist, torch_dist))
    assert results(ours) == results(theirs)


def test_timeouts_are_what_torchs_are(tmp_path):
    for kind in ("hash", "file", "tcp", "prefix"):
        ours, theirs = (made(module, kind, tmp_path) for module in (dist, torch_dist))
        assert ours.timeout == theirs.timeout == timedelta(minutes=5)
        for module, store in ((dist, ours), (torch_dist, theirs)):
            store.set_timeout(SOON)
            with pytest.raises(RuntimeError, match="(?i)timeout"):
                store.get("x")
            if kind != "file":  # Torch's raises a bare RuntimeError.
                with pytest.raises(module.DistStoreError):
                    store.get("x")


def test_the_init_key_counts_as_torchs(tmp_path):
    ours, theirs = (made(module, "tcp", tmp_path) for module in (dist, torch_dist))
    for store in (ours, theirs):
        store.set("first_key", "first_value")
    assert ours.num_keys() == theirs.num_keys() == 2
    assert ours.list_keys() == theirs.list_keys() == ["first_key"]


def test_torchs_process_group_joins_by_our_store():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    groups = [None, None]

    def join(rank):
        client = to_torch_store(dist.PrefixStore("g", store.clone()))
        groups[rank] = torch_dist.ProcessGroupGloo(client, rank, 2, LATE)

    together(join)
    sums = [torch.full((3,), rank + 1.0) for rank in range(2)]
    together(lambda rank: groups[rank].allreduce([sums[rank]]).wait())
    assert [value.tolist() for value in sums] == [[3.0] * 3] * 2


def test_torchs_init_process_group_takes_our_store():
    torch_dist.init_process_group(
        "gloo", store=to_torch_store(dist.HashStore()), rank=0, world_size=1
    )
    try:
        value = torch.ones(2)
        torch_dist.all_reduce(value)
        assert value.tolist() == [1.0, 1.0]
    finally:
        torch_dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["hash", "tcp"])
def test_our_ranks_join_by_torchs_store(kind, tmp_path):
    store = made(torch_dist, kind, tmp_path)
    clients = [store, store.clone()]
    sums = [numpy.full(2, rank + 1.0) for rank in range(2)]

    def join(rank):
        world = dist.World.init("local", store=clients[rank], rank=rank, world_size=2)
        assert world.store is clients[rank]
        world.group.all_reduce(sums[rank])
        world.close()

    together(join)
    assert [value.tolist() for value in sums] == [[3.0, 3.0]] * 2


def test_a_store_of_torch_says_which_keys_are_missing():
    part = dist.PrefixStore("p", torch_dist.HashStore())
    with pytest.raises(dist.DistStoreError, match="^Wait timeout: .*'p/x' not set after 0.1s"):
        part.get("x", SOON)
    assert part.compare_set("x", "other", "y") == b"other"
    assert part.compare_set("x", "", "y") == b"y"


def test_ours_as_torchs_has_torchs_errors():
    store = to_torch_store(dist.HashStore())
    store.queue_push("q", "v")
    assert (store.queue_pop("q"), store.underlying_store.queue_len("q")) == (b"v", 0)
    with pytest.raises(torch_dist.QueueEmptyError):
        store.queue_pop("q", False)
    with pytest.raises(TypeError, match="syncline.Store"):
        to_torch_store(torch_dist.HashStore())


def together(call):
    """Calls it on two threads, of ranks 0 and 1."""
    errors = []

    def guarded(rank):
        try:
            call(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATE.total_seconds())
    assert not errors, errors
