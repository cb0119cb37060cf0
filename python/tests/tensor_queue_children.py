"""What the processes of tensor_queue_test.py run: functions that a new interpreter imports soon."""

import numpy
from syncline import TensorQueue

LONG = 60  # Seconds.


def produce(tensors, first, count):
    for i in range(first, first + count):
        tensors.put({"number": i, "x": numpy.full(1 + i % 5000, i)}, timeout=LONG)


def check(x):
    assert (x["x"] == x["number"]).all()
    assert len(x["x"]) == 1 + x["number"] % 5000
    return x["number"]


def echo(incoming, outgoing):
    for x in incoming:
        outgoing.put(x, timeout=LONG)
    outgoing.close()


def put_a_queue_and_exit(queues):
    tensors = TensorQueue(1 << 16)
    tensors.put(numpy.arange(4))
    queues.put(tensors)


def open_and_put(pipe):
    tensors = pipe.recv()
    tensors.put(numpy.arange(9))


def put_torch(tensors):
    import torch

    tensors.put([torch.arange(1000), torch.ones(3, dtype=torch.bfloat16)])


def put_for_ever(tensors, large):
    x = numpy.full(large, 7, numpy.uint8)
    while True:
        tensors.put(x, timeout=LONG)


def get_for_ever(tensors):
    while True:
        tensors.get(timeout=LONG)
