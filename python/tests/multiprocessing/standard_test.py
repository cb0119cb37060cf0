"""Beside the standard module: the same names, and no change to it; and the limit of descriptors."""

import inspect
import multiprocessing
import os
import subprocess
import sys

import pytest
import syncline.multiprocessing as mp


def run(script):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        timeout=100,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_every_name_of_the_standard_module_is_here():
    assert set(multiprocessing.__all__) <= set(mp.__all__)
    for name in multiprocessing.__all__:
        ours, standard = getattr(mp, name), getattr(multiprocessing, name)
        assert type(ours) is type(standard)
        if inspect.ismethod(standard):
            assert list(inspect.signature(ours).parameters) == list(
                inspect.signature(standard).parameters
            )
    for name in ("connection", "pool", "shared_memory", "synchronize", "sharedctypes", "util"):
        assert inspect.ismodule(getattr(mp, name))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = mp.nonsense


def test_importing_and_using_it_changes_nothing_for_the_standard_module():
    run("""
import concurrent.futures, inspect, multiprocessing, os, resource
from multiprocessing import connection, context, pool, queues, reduction
def state():
    modules = (multiprocessing, connection, context, pool, queues, reduction)
    names = [
        (m.__name__, sorted(n + repr(v) for n, v in vars(m).items()
            if n != "__builtins__" and not inspect.ismodule(v)))
        for m in modules
    ]
    return repr(names), dict(reduction.ForkingPickler._extra_reducers)
multiprocessing.get_start_method()
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
before = state()
import syncline.multiprocessing as mp
assert resource.getrlimit(resource.RLIMIT_NOFILE) == limit
assert state() == before
import numpy
mp.set_start_method("spawn")
queue = mp.Queue()
queue.put(numpy.zeros(100_000))
assert mp.is_shared(queue.get())
assert multiprocessing.get_start_method() == "fork" and mp.get_start_method() == "spawn"
assert state()[1] == before[1]
standard = multiprocessing.Queue()
standard.put(numpy.zeros(100_000))
got = standard.get()
assert type(standard) is queues.Queue and not mp.is_shared(got)
executor = concurrent.futures.ProcessPoolExecutor(1)
assert not mp.is_shared(executor.submit(numpy.zeros, 100_000).result())
executor.shutdown()
first, second = multiprocessing.Pipe()
assert type(first) is connection.Connection
""")


def test_too_many_descriptors_say_what_to_do():
    run("""
import numpy, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
import syncline.multiprocessing as mp
reader, writer = mp.Pipe(duplex=False)
kept = []
try:
    for _ in range(100):
        writer.send(numpy.zeros(100_000))
        kept.append(reader.recv())
    raise SystemExit("no error")
except Exception as error:
    assert "oo many open files" in str(error) and "ulimit" in str(error), error
count = len(kept)
del kept
for _ in range(count):
    writer.send(numpy.zeros(100_000))
    reader.recv()
""")


def test_a_receiver_without_descriptors_says_so_and_gets_the_message_later():
    run("""
import numpy, os, resource
import syncline.multiprocessing as mp
reader, writer = mp.Pipe(duplex=False)
for _ in range(2):
    writer.send([numpy.zeros(100_000) for _ in range(5)])
limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
mp.pickling.limits._raised = True
fill = []
try:
    while True:
        fill.append(os.dup(0))
except OSError:
    os.close(fill.pop())
try:
    reader.recv()
    raise SystemExit("no error")
except OSError as error:
    assert "when some are closed" in str(error) and "limit" in str(error), error
for descriptor in fill:
    os.close(descriptor)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit + 50, limit + 50))
assert len(reader.recv()) == 5
assert len(reader.recv()) == 5
""")


def test_the_limit_is_raised_at_first_use():
    run("""
import numpy, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 200), hard))
import syncline.multiprocessing as mp
mp.SimpleQueue().put(numpy.zeros(100_000))
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
""")


def test_no_memory_is_an_error_with_sizes():
    run("""
import numpy
import syncline.multiprocessing as mp
from syncline import DistBackendError
huge = numpy.broadcast_to(numpy.zeros(1), (1 << 50,))
virtual = numpy.lib.stride_tricks.as_strided(numpy.zeros(1), (1 << 45,), (8,))
queue = mp.SimpleQueue()
try:
    queue.put(virtual)
    raise SystemExit("no error")
except DistBackendError as error:
    assert "KiB" in str(error), error
queue.put(1)
assert queue.get() == 1
""")
