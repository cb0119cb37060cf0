"""Shares a tensor and a queue with programs in other languages: see sharing_test.py.

Reads commands, one a line, and answers each with one line.

    make             a new shared tensor, float32[3, 5]: its handle
    open HANDLE      takes the tensor of a handle: its type and shape, or the error
    fill VALUE       sets all elements of the tensor
    sum              the sum of its elements
    free             lets go of it
    make_queue       a new queue: its handle
    open_queue HANDLE  takes the queue of a handle: ok, or the error
    put VALUE NOTE   puts a tensor float32[2] with these elements, and the note
    get              takes a message: the sum of its first tensor and its note, or the end
    shut_down        ends the queue
"""

from __future__ import annotations

import sys
from typing import Any

import numpy
import syncline as dist

TIMEOUT = 60  # Seconds.

tensor: Any = None
queue: Any = None


def answer(command: str, arguments: list[str]) -> str:
    global tensor, queue
    if command == "make":
        tensor = dist.empty_shared((3, 5))
        return dist.shared_handle(tensor)
    if command == "open":
        tensor = dist.open_shared(arguments[0])
        return f"{tensor.dtype}{list(tensor.shape)}"
    if command == "fill":
        tensor[...] = float(arguments[0])
        return "ok"
    if command == "sum":
        return f"{tensor.sum():g}"
    if command == "free":
        tensor = None
        return "ok"
    if command == "make_queue":
        queue = dist.TensorQueue(1 << 16)
        return queue.handle
    if command == "open_queue":
        queue = dist.TensorQueue.open(arguments[0])
        return "ok"
    if command == "put":
        array = numpy.full(2, float(arguments[0]), numpy.float32)
        queue.put(dist.TensorMessage([array], arguments[1].encode()), timeout=TIMEOUT)
        return "ok"
    if command == "get":
        try:
            message = queue.get(timeout=TIMEOUT)
        except dist.EndOfQueue:
            return "end"
        return f"{message.arrays[0].sum():g} {message.note.decode()}"
    queue.close()
    return "ok"


for line in sys.stdin:
    words = line.split()
    try:
        print(answer(words[0], words[1:]), flush=True)
    except Exception as error:
        print(f"error: {error}", flush=True)
