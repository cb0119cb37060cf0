"""Shares an array and a queue with programs in C++ and Java, by their handles.

    ./bazelw build //examples:sharing //examples:sharing_java
    ./bazelw run //launch:run -- --standalone --nproc-per-node=1 examples/sharing.py \
        $PWD/bazel-bin/examples/sharing $PWD/bazel-bin/examples/sharing_java

Puts batches of images into the queue. Each program, of which there may be any number, takes some,
and adds the brightness of the images of each class to a row of its own of the array.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import syncline as dist

BATCHES = 200
CLASSES = 10
TIMEOUT = 60  # Seconds, of any wait.


def main() -> None:
    programs = sys.argv[1:]
    totals = dist.empty_shared((len(programs), CLASSES), "float64")
    batches = dist.TensorQueue(4 << 20)
    consumers = [
        subprocess.Popen([program, batches.handle, dist.shared_handle(row)])
        for program, row in zip(programs, totals, strict=True)
    ]
    try:
        expected = np.zeros(CLASSES)
        random = np.random.default_rng(0)
        for _ in range(BATCHES):
            images = random.random((64, 28, 28), np.float32)
            labels = random.integers(0, CLASSES, 64)
            batches.put((images, labels), timeout=TIMEOUT)
            expected += np.bincount(labels, images.sum((1, 2), np.float64), CLASSES)
        batches.close()  # Ends the loops of the consumers, once the queue is empty.
        for consumer in consumers:
            if consumer.wait(TIMEOUT) != 0:
                sys.exit(f"{consumer.args[0]} has failed")
    finally:
        for consumer in consumers:
            consumer.kill()
            consumer.wait(TIMEOUT)
    assert np.allclose(totals.sum(axis=0), expected)
    print(f"{BATCHES} batches were consumed by {len(programs)} programs")


if __name__ == "__main__":
    main()
