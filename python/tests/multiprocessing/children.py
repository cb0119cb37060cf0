"""What the processes of the tests run: functions that a new interpreter can import."""

import os
import signal
import sys
import time

import numpy
import syncline.multiprocessing as mp


def double(array):
    """Doubles in place, and says whether the argument was shared."""
    array *= 2
    return array, mp.is_shared(array)


def echo(inbox, outbox):
    """Sends back what comes, until None does."""
    while True:
        value = inbox.get()
        if value is None:
            return
        outbox.put(value)
        del value


def echo_over(connection):
    """As echo, over a connection."""
    while True:
        value = connection.recv()
        if value is None:
            return
        connection.send(value)
        del value


def finish_tasks(queue, count):
    for _ in range(count):
        queue.get()[0] = 1
        queue.task_done()


def write(arrays, value):
    for array in arrays:
        array[...] = value


def produce_and_die(queue, count, end):
    """Puts `count` arrays, each of its number, and ends as `end` says."""
    for i in range(count):
        queue.put((os.getpid(), numpy.full(50_000, i, "f4")))
    if end == "return":
        return
    if end == "exit":
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def produce_for_ever(queue, number):
    i = 0
    while True:
        queue.put((number, i, numpy.full(30_000, i % 100 + number, "f4")))
        i += 1


def fill(rank, arrays):
    arrays[rank] = rank + 1


def fail(rank, failing, how):
    if rank == failing:
        if how == "raise":
            raise ValueError(f"this is rank {rank}")
        if how == "exit":
            sys.exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)


def ignore_termination(rank, ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.put(os.getpid())
    if rank == 0:
        ready.put(None)
        raise ValueError("the first one fails")
    time.sleep(100)


def sleep(rank, started):
    started.put(os.getpid())
    time.sleep(100)


def parent_of_sleepers(method, outbox):
    started = mp.get_context(method).SimpleQueue()
    context = mp.start_processes(sleep, (started,), nprocs=2, join=False, start_method=method)
    for _ in range(2):
        outbox.put(started.get())
    context.join()


class Summing(mp.Process):
    """A process with a member of its own, and a reference to itself."""

    def __init__(self, array, outbox):
        super().__init__()
        self.array = array
        self.outbox = outbox
        self.myself = [self]

    def run(self):
        self.array += 1
        self.outbox.put((float(self.array.sum()), self.myself[0] is self))


def tell_strategy(outbox):
    outbox.put(
        (mp.get_sharing_strategy(), os.environ["SYNCLINE_SEGMENT_MANAGER"], numpy.ones(50_000))
    )


def send_when_told(inbox, outbox, array):
    inbox.get()
    outbox.put(array)
