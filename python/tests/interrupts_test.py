"""Ctrl-C, and other handlers of signals that raise, while this process waits in Syncline."""

import contextlib
import os
import signal
import threading
import time
from datetime import timedelta

import numpy
import pytest
import syncline as dist

LONG = timedelta(minutes=5)
SOON = 5.0  # Seconds, on a loaded machine; the goal is 0.1.


class Raised(Exception):
    """By a handler."""


@pytest.fixture(autouse=True)
def handlers():
    """Ctrl-C raises KeyboardInterrupt, whatever the runner of the tests has set; SIGUSR1 Raised."""

    def raise_it(*_):
        raise Raised

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGUSR1: signal.signal(signal.SIGUSR1, raise_it),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def ended_by(number, expected):
    """The block waits when the signal comes, and ends soon with the exception."""
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    timer = threading.Timer(1, send)  # The block has begun to wait, as a rule.
    timer.start()
    with pytest.raises(expected):
        yield
    took = time.monotonic() - sent[0]
    timer.join()
    print(f"ended after {took * 1000:.0f} ms")
    assert took < SOON


def join(store, rank, backend, size=2):
    return dist.World.init(backend, store=store, rank=rank, world_size=size, timeout=LONG)


@contextlib.contextmanager
def two_ranks(backend):
    """Rank 0 on this thread, and what rank 1 does on another."""
    store = dist.HashStore()
    worlds = []
    thread = threading.Thread(target=lambda: worlds.append(join(store, 1, backend)))
    thread.start()
    world = join(store, 0, backend)
    thread.join(60)
    yield world, worlds[0]


CALLS = [
    lambda group: group.barrier(),
    lambda group: group.all_reduce(numpy.ones(1000, numpy.float32)),
    lambda group: group.recv(numpy.ones(1, numpy.float32), 1),
    lambda group: group.monitored_barrier(),
]


@pytest.mark.parametrize("backend", ["local", "shm", "gloo"])
@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_ends_a_blocking_operation_and_its_group_on_all_ranks(backend, call):
    with two_ranks(backend) as (world, other):
        with ended_by(signal.SIGINT, KeyboardInterrupt):
            call(world.group)
        with pytest.raises(dist.DistBackendError, match="can no longer be used.*by a signal"):
            world.group.barrier()
        with pytest.raises(dist.DistBackendError, match="rank 0.*interrupted by a signal"):
            other.group.barrier()


def test_so_does_any_handler_that_raises_and_none_that_returns():
    seen = []
    signal.signal(signal.SIGUSR2, lambda *_: seen.append(1))
    with two_ranks("shm") as (world, _):
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR2))
        timer.start()
        with ended_by(signal.SIGUSR1, Raised):
            world.group.barrier()
        timer.join()
    assert seen == [1]


def test_ctrl_c_ends_a_wait_for_others_to_join():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with ended_by(signal.SIGINT, KeyboardInterrupt):
        dist.init_process_group(store=store, rank=0, world_size=2, timeout=LONG)
    assert not dist.is_initialized()
    dist.init_process_group(store=dist.PrefixStore("alone", store), rank=0, world_size=1)
    dist.destroy_process_group()


@pytest.mark.parametrize("scheme", ["tcp", "file"])
def test_ctrl_c_ends_a_call_of_a_store_alone(scheme, tmp_path):
    if scheme == "tcp":
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    else:
        store = dist.FileStore(str(tmp_path / "store"))
    with ended_by(signal.SIGINT, KeyboardInterrupt):
        store.wait(["never"], LONG)
    store.set("key", b"value")
    assert store.get("key") == b"value"


def test_ctrl_c_ends_a_wait_behind_an_earlier_operation():
    with two_ranks("shm") as (world, other):
        first = world.group.barrier_async()
        with ended_by(signal.SIGINT, KeyboardInterrupt):
            world.group.barrier()
        for wait in (first.wait, other.group.barrier):
            with pytest.raises(dist.DistBackendError, match="interrupted by a signal"):
                wait()


def test_ctrl_c_ends_the_end_of_a_training_step():
    with two_ranks("shm") as (world, other):
        parameters = [numpy.zeros(100, numpy.float32)]
        thread = threading.Thread(
            target=lambda: dist.GradientReducer(parameters, group=other.group)
        )
        thread.start()
        reducer = dist.GradientReducer(parameters, group=world.group)
        thread.join(60)
        with ended_by(signal.SIGINT, KeyboardInterrupt):
            reducer.finish()
