"""Processes in C++, Python and Java share a tensor, and a queue, by their handles."""

import itertools
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time

import numpy
import pytest
import syncline as dist

HERE = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline/tests/languages"
PROGRAMS = {
    "cpp": [str(HERE / "sharing")],
    "python": [sys.executable, str(HERE / "sharing.py")],
    "java": [str(HERE / "sharing_java")],
}
PAIRS = [pair for pair in itertools.product(PROGRAMS, repeat=2) if pair != ("python", "python")]
LONG = 100  # Seconds.


class Program:
    """A process that carries out the commands of sharing.py."""

    def __init__(self, language):
        self._process = subprocess.Popen(
            PROGRAMS[language], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._process.pid

    def __call__(self, *command):
        self._process.stdin.write(" ".join(map(str, command)).encode() + b"\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(LONG), f"no answer to {command}"
        return self._process.stdout.readline().decode(errors="replace").removesuffix("\n")

    def end(self, how=signal.SIGKILL):
        self._process.send_signal(how)
        self._process.wait(LONG)
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def programs():
    """Two processes of each language."""
    both = {language: (Program(language), Program(language)) for language in PROGRAMS}
    yield both
    for pair in both.values():
        for program in pair:
            program.end()


@pytest.mark.parametrize(("maker", "opener"), PAIRS)
def test_a_tensor_is_the_same_memory_in_both_processes(programs, maker, opener):
    there, here = programs[maker][0], programs[opener][1]
    handle = there("make")
    assert handle.startswith("syncline-tensor-1,")
    assert here("open", handle) == "float32[3, 5]"
    assert there("fill", 2) == "ok"
    assert here("sum") == "30"
    assert here("fill", 3) == "ok"
    assert there("sum") == "45"
    # Its maker frees it: who has it keeps it, nobody else gets it.
    assert there("free") == "ok"
    assert here("sum") == "45"
    assert here("free") == "ok"
    answer = here("open", handle)
    end = time.monotonic() + LONG
    while maker == "java" and not answer.startswith("error") and time.monotonic() < end:
        there("free")  # Collects the buffers, which keep the memory.
        answer = here("open", handle)
    assert f"process {there.pid}, which made the handle, has freed the memory" in answer


@pytest.mark.parametrize(("maker", "opener"), PAIRS)
def test_a_queue_carries_tensors_both_ways(programs, maker, opener):
    there, here = programs[maker][0], programs[opener][1]
    assert here("open_queue", there("make_queue")) == "ok"
    assert there("put", 2, "two") == "ok"
    assert here("put", 3, "three") == "ok"
    assert here("get") == "4 two"
    assert there("get") == "6 three"
    assert here("put", 5, "rest") == "ok"
    assert there("shut_down") == "ok"
    assert here("put", 6, "late").startswith("error: ")
    assert there("get") == "10 rest"
    assert (there("get"), here("get")) == ("end", "end")


@pytest.mark.parametrize("opener", PROGRAMS)
def test_a_wrong_handle_is_an_error_in_every_language(programs, opener):
    here = programs[opener][0]
    assert "'nonsense' is not the handle of a shared tensor" in here("open", "nonsense")
    assert "'nonsense' is not the handle of a queue" in here("open_queue", "nonsense")


@pytest.mark.parametrize("maker", PROGRAMS)
def test_the_handle_of_a_process_that_was_killed_is_an_error_that_names_it(programs, maker):
    killed = Program(maker)
    tensor, queue = killed("make"), killed("make_queue")
    kept = dist.open_shared(tensor)
    assert killed("fill", 4) == "ok"
    killed.end()
    ended = f"process {killed.pid}, which made the handle, has ended"
    for opener in PROGRAMS:
        here = programs[opener][0]
        assert ended in here("open", tensor)
        assert ended in here("open_queue", queue)
    with pytest.raises(dist.DistBackendError, match=ended):
        dist.open_shared(tensor)
    assert (kept == 4).all()


def test_python_produces_and_java_and_cpp_consume_and_write_back(programs):
    rows = dist.empty_shared((2, 3, 5))
    batches = dist.TensorQueue(1 << 16)
    consumers = [programs["java"][0], programs["cpp"][0]]
    for row, consumer in zip(rows, consumers, strict=True):
        assert consumer("open", dist.shared_handle(row)) == "float32[3, 5]"
        assert consumer("open_queue", batches.handle) == "ok"
    for i in range(6):
        batches.put((numpy.full(4, i, numpy.float32), numpy.arange(3)))
    for i in range(6):
        consumer = consumers[i % 2]
        assert consumer("get").split()[0] == str(4 * i)
        assert consumer("fill", i) == "ok"
    assert (rows[0] == 4).all()
    assert (rows[1] == 5).all()
