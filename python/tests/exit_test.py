"""Interruption, fork and the end of the interpreter, with operations in flight."""

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta

import numpy
import pytest
import ranks
import syncline as dist

LONG = timedelta(minutes=5)


def run_python(code: str) -> str:
    """The output of `code` in an interpreter of its own, which must end well and in time."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


IN_FLIGHT = """
import threading, numpy, syncline as dist
store = dist.HashStore()
worlds = {}
def join(rank):
    worlds[rank] = dist.World.init("BACKEND", store=store, rank=rank, world_size=2)
threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
work = worlds[0].group.all_reduce_async(numpy.ones(2))
"""


@pytest.mark.parametrize("backend", ["local", "gloo"])
def test_an_operation_in_flight_does_not_hold_up_the_exit(backend):
    run_python(IN_FLIGHT.replace("BACKEND", backend))


def test_a_backend_of_python_in_the_middle_of_an_operation_does_not_hold_up_the_exit():
    run_python(
        """
import threading, syncline as dist
class Waits:
    def __init__(self, store, rank, size, timeout):
        self.aborted = threading.Event()
    def barrier(self, timeout):
        entered.set()
        self.aborted.wait()
    def abort(self, reason):
        self.aborted.set()
entered = threading.Event()
dist.Backend.register_backend("waits", Waits, devices="cpu")
world = dist.World.init("waits", store=dist.HashStore(), rank=0, world_size=1)
work = world.group.barrier_async()
entered.wait()
"""
    )


def test_a_thread_that_waits_does_not_hold_up_the_exit():
    run_python(
        IN_FLIGHT.replace("BACKEND", "local")
        + """
started = threading.Barrier(3)
def wait(call):
    started.wait()
    call()
for call in (lambda: store.get("never"), lambda: worlds[1].group.recv(numpy.ones(3), src=0)):
    threading.Thread(target=wait, args=(call,), daemon=True).start()
started.wait()
"""
    )


def test_daemon_threads_in_calls_do_not_hurt_the_exit():
    # Whether a thread takes the GIL in the wrong moment is a matter of luck.
    run_python(
        """
import os, signal, sys, threading, syncline as dist
for _ in range(40):
    if os.fork() == 0:
        signal.alarm(30)
        group = dist.World.init("local", store=dist.HashStore(), rank=0, world_size=1).group
        calls = threading.Semaphore(0)
        def call():
            while True:
                group.barrier()
                calls.release()
        for _ in range(3):
            threading.Thread(target=call, daemon=True).start()
        for _ in range(100):
            calls.acquire()
        sys.exit(0)
    assert os.wait()[1] == 0
"""
    )


def test_a_child_that_is_forked_while_a_callback_runs_comes_to_its_end():
    run_python(
        """
import os, signal, sys, threading, syncline as dist
group = dist.World.init("local", store=dist.HashStore(), rank=0, world_size=1).group
began, inside, forked = threading.Event(), threading.Event(), threading.Event()
def callback():
    inside.set()
    forked.wait()
first, second = group.barrier_async(), group.barrier_async()
first._on_complete(began.wait)  # So that the next one is called by the queue's thread.
second._on_complete(callback)
began.set()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    sys.exit(0)
status = os.waitpid(child, 0)[1]
forked.set()
assert status == 0, status
"""
    )


def test_a_job_that_was_not_left_is_left_at_the_exit():
    run_python(
        """
import numpy, syncline as dist
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(numpy.ones(3), async_op=True)
"""
    )


def test_the_package_needs_nothing_but_the_standard_library():
    assert run_python("import sys, syncline; print('numpy' in sys.modules)") == "False\n"


def test_groups_that_nobody_holds_end_while_operations_use_python_buffers():
    def run(world):
        if world.rank == 1:
            world.store.get("issued")
            return []
        works = [world.group.all_reduce_async(bytearray(1000)) for _ in range(10)]
        world.store.set("issued", b"")
        return works

    # The worlds end with their threads: each waits for its queue, which releases the bytearrays.
    works = ranks.in_threads(2, run)[0]
    for work in works:
        with pytest.raises(dist.DistError):
            work.wait()


@pytest.fixture
def interrupts():
    """Ctrl-C raises KeyboardInterrupt, whatever the runner of the tests has set."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_soon():
    # Soon is during the wait; if it were before, the test would pass all the same.
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    return timer


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(
    "wait",
    [
        lambda store: store.get("never", LONG),
        lambda store: store.wait(["never"], LONG),
        lambda store: store.multi_get(["never"], LONG),
    ],
)
def test_ctrl_c_ends_a_wait_for_a_key(wait):
    store = dist.HashStore()
    with pytest.raises(KeyboardInterrupt):
        timer = interrupt_soon()
        wait(store)
    timer.join()
    store.set("k", b"")


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_ends_a_wait_for_work():
    def run(world):
        return world, world.group.barrier_async() if world.rank == 0 else None

    (world, work), other = ranks.in_threads(2, run)
    with pytest.raises(KeyboardInterrupt):
        timer = interrupt_soon()
        work.wait(LONG)
    timer.join()
    other[0].group.barrier()
    work.wait()


def test_a_forked_child_is_told_that_it_has_no_groups():
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(numpy.ones(3), async_op=True).wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            dist.all_reduce(numpy.ones(3))
        except dist.DistError as error:
            status = 0 if "forked" in str(error) and not dist.is_initialized() else 2
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(numpy.ones(3))
    dist.destroy_process_group()


def test_everything_of_the_parent_is_refused_in_a_forked_child_at_once():
    output = run_python(
        IN_FLIGHT.replace("BACKEND", "gloo")
        + """
import os
group, world = worlds[1].group, worlds[1]
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
x = numpy.ones(2)
calls = {
    "operation": lambda: group.all_reduce(x),
    "operation in the background": lambda: group.all_reduce_async(x).wait(),
    "message": lambda: group.recv(x, 0),
    "wait": lambda: work.wait(),
    "split": lambda: group.split([[0, 1]]),
    "shrink": lambda: group.shrink([0]),
    "new_group": lambda: world.new_group([0, 1]),
    "monitored_barrier": lambda: group.monitored_barrier(),
    "bytes": lambda: group.all_gather_bytes(b""),
    "function": lambda: dist.all_reduce(x),
    "function on a group": lambda: dist.all_reduce(x, group=group),
    "object": lambda: dist.all_gather_object([None] * 2, 1, group),
    "init": lambda: dist.init_process_group(store=store, rank=0, world_size=1),
    "destroy": lambda: dist.destroy_process_group(),
}
if os.fork() == 0:
    for name, call in calls.items():
        try:
            call()
            print(name, "did not fail", flush=True)
        except dist.DistError as error:
            if "forked" not in str(error):
                print(name, "said", error, flush=True)
    group.abort("in the child")
    group.close()
    world.close()
    del group, world, worlds, work
    print("child done", flush=True)
    os._exit(0)
assert os.wait()[1] == 0
group.all_reduce(x)  # The parent goes on.
work.wait()
print(x.tolist())
"""
    )
    assert output == "child done\n[2.0, 2.0]\n"
