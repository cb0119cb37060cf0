"""A backend written in Python, which moves everything through the group's store: for tests."""

import threading
from datetime import timedelta

import numpy
import syncline as dist

COMBINE = {
    dist.ReduceOp.SUM: numpy.add,
    dist.ReduceOp.PRODUCT: numpy.multiply,
    dist.ReduceOp.MIN: numpy.minimum,
    dist.ReduceOp.MAX: numpy.maximum,
    dist.ReduceOp.BAND: numpy.bitwise_and,
    dist.ReduceOp.BOR: numpy.bitwise_or,
    dist.ReduceOp.BXOR: numpy.bitwise_xor,
}


class StoreBackend:
    """One rank's end. Every message is a key that is taken away by its only reader."""

    def __init__(self, store, rank, size, timeout):
        assert isinstance(store, dist.Store)
        assert isinstance(timeout, timedelta)
        self.store, self.rank, self.size = store, rank, size
        self.counts = {}
        self.aborted = None
        self.lock = threading.Lock()
        self.barrier(timeout)

    def broadcast(self, tensor, root, timeout):
        if self.rank == root:
            self._put_all([tensor] * self.size)
        else:
            _write(tensor, self._take(root, "c", timeout))

    def all_reduce(self, tensor, op, timeout):
        self._put_all([tensor] * self.size)
        self._reduce(tensor, tensor, op, timeout)

    def reduce(self, tensor, op, root, timeout):
        if self.rank == root:
            self._reduce(tensor, tensor, op, timeout)
        else:
            self._put(root, "c", tensor)

    def all_gather(self, outputs, input, timeout):
        self._put_all([input] * self.size)
        self._collect(outputs, input, timeout)

    def gather(self, outputs, input, root, timeout):
        if self.rank == root:
            self._collect(outputs, input, timeout)
        else:
            self._put(root, "c", input)

    def scatter(self, output, inputs, root, timeout):
        if self.rank == root:
            self._put_all(inputs)
            _write(output, bytes(_flat(inputs[root]).data))
        else:
            _write(output, self._take(root, "c", timeout))

    def reduce_scatter(self, output, inputs, op, timeout):
        self._put_all(inputs)
        self._reduce(output, inputs[self.rank], op, timeout)

    def scan(self, tensor, op, timeout):
        self._put_above(tensor)
        self._reduce(tensor, tensor, op, timeout, range(self.rank + 1))

    def exscan(self, tensor, op, timeout):
        self._put_above(tensor)
        if self.rank > 0:
            self._reduce(tensor, tensor, op, timeout, range(self.rank))

    def all_to_all(self, outputs, inputs, timeout):
        self._put_all(inputs)
        self._collect(outputs, inputs[self.rank], timeout)

    def barrier(self, timeout):
        empty = numpy.empty(0)
        self._put_all([empty] * self.size)
        self._collect([empty] * self.size, empty, timeout)

    def send(self, tensor, dst, tag, timeout):
        self._put(dst, f"p{tag}", tensor)

    def recv(self, tensor, src, tag, timeout):
        if src == -1:
            raise NotImplementedError("it cannot receive from any rank")
        _write(tensor, self._take(src, f"p{tag}", timeout))
        return src

    def abort(self, reason):
        self.aborted = reason

    # ---- How ----

    def _put(self, to, channel, tensor):
        key = f"{channel}/{self.rank}/{to}"
        with self.lock:
            number = self.counts[key] = self.counts.get(key, 0) + 1
        self.store.set(f"{key}/{number}", bytes(_flat(tensor).data))

    def _put_all(self, tensors):
        for to in range(self.size):
            if to != self.rank:
                self._put(to, "c", tensors[to])

    def _put_above(self, tensor):
        for to in range(self.rank + 1, self.size):
            self._put(to, "c", tensor)

    def _take(self, source, channel, timeout):
        key = f"{channel}/{source}/{self.rank}"
        with self.lock:
            number = self.counts[key] = self.counts.get(key, 0) + 1
        while True:  # In pieces, so that abort ends it.
            if self.aborted is not None:
                raise dist.DistBackendError(self.aborted)
            piece = min(timeout, timedelta(milliseconds=100))
            try:
                value = self.store.get(f"{key}/{number}", piece)
                break
            except dist.DistTimeoutError:
                timeout -= piece
                if timeout <= timedelta(0):
                    raise TimeoutError(f"rank {source} has sent nothing") from None
        self.store.delete_key(f"{key}/{number}")
        return value

    def _collect(self, outputs, input, timeout):
        own = bytes(_flat(input).data)
        for source in range(self.size):
            _write(
                outputs[source],
                own if source == self.rank else self._take(source, "c", timeout),
            )

    def _reduce(self, output, input, op, timeout, sources=None):
        kind = dist.ReduceOp.SUM if op in (dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM) else op
        own = _flat(input).copy()
        result = None
        # In the order of ranks, so that all get the same.
        for source in range(self.size) if sources is None else sources:
            part = own
            if source != self.rank:
                part = numpy.frombuffer(self._take(source, "c", timeout), own.dtype)
            result = part if result is None else COMBINE[kind](result, part)
        _flat(output)[:] = result / self.size if op is dist.ReduceOp.AVG else result


def _flat(tensor):
    return numpy.asarray(tensor).reshape(-1)


def _write(tensor, data):
    array = _flat(tensor)
    array[:] = numpy.frombuffer(data, array.dtype)
