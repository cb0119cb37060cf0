"""What takes too long for every day: 500 rounds of kill_storm, 100,000 arrays of 1 MiB."""

import pathlib
import subprocess
import sys

import leaks
import numpy
import pytest
import syncline.multiprocessing as mp

ROUNDS = 500
ARRAYS = 100_000


def receive(queue, count):
    for i in range(count):
        assert queue.get()[0] == i


def test_whoever_is_killed_nothing_is_left_and_nobody_sees_anothers_bytes():
    program = pathlib.Path(__file__).with_name("kill_storm.py")
    ended = subprocess.run(
        [sys.executable, str(program), str(ROUNDS), "1000"],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.usefixtures("strategy")
def test_the_memory_of_a_producer_stays_flat():
    queue = mp.Queue(4)
    child = mp.Process(target=receive, args=(queue, ARRAYS))
    child.start()
    array = numpy.zeros(1 << 17)
    sizes = []
    for i in range(ARRAYS):
        array[0] = i
        queue.put(array)
        if i % 10_000 == 1000:
            sizes.append(leaks.resident())
    child.join()
    print([size >> 10 for size in sizes], "KiB")
    assert child.exitcode == 0
    assert max(sizes) - sizes[0] < 2 << 20
    queue.close()
