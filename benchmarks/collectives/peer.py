"""What the Python programs that stand for one system each have in common; see harness.h.

The gate is gate.h's, through libpygate.so.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

MOST_ITERATIONS = 4096
_WARM_UP_CALLS = 2
_PR_SET_PDEATHSIG = 1
_PATTERN_PERIOD = 7

WITH_PARTS = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
IN_PLACE = ("all_reduce", "broadcast", "reduce")


class System(Protocol):
    """One rank of a system."""

    def describe(self) -> str:
        """What to say in the report: version, settings."""

    def new_array(self, count: int) -> Any:
        """A one-dimensional float32 array of `count` zeros, with .numpy() or itself NumPy's."""

    def prepare(
        self, operation: str, input: Any, output: Any, part: int
    ) -> Callable[[], object] | None:
        """A function that makes the call each time it is called; None without such an operation.

        `input` and `output` are as in harness.h, `part` the elements of one rank's part.
        """


def parse_options() -> argparse.Namespace:
    """folder, rank, size, waiting, variant; makes the process die with its parent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--waiting", choices=["spin", "yield"], default="spin")
    parser.add_argument("--variant", default="")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return options


class Gate:
    """One rank's way through the gate. OSError if its file cannot be mapped."""

    def __init__(self, options: argparse.Namespace) -> None:
        library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "libpygate.so"), use_errno=True)
        library.gate_open.restype = ctypes.c_void_p
        library.gate_durations.restype = ctypes.POINTER(ctypes.c_int64)
        path = os.path.join(options.folder, "gate")
        address = library.gate_open(path.encode(), options.size, int(options.waiting == "yield"))
        if not address:
            raise OSError(ctypes.get_errno(), "cannot map the gate", path)
        gate = ctypes.c_void_p(address)
        self.durations = library.gate_durations(gate, options.rank)
        self._pass = library.gate_pass
        self._give_up = library.gate_give_up
        self._gate = gate

    def wait(self) -> None:
        """Returns when all ranks are here. TimeoutError if one has failed or is a minute late."""
        if not self._pass(self._gate):
            raise TimeoutError("another rank has failed or is late")

    def give_up(self) -> None:
        """Makes all ranks' waits end."""
        self._give_up(self._gate)


def _pattern(rank: int, i: int) -> float:
    return float(rank + 1 + i % _PATTERN_PERIOD)


class Buffers:
    """The memory of one rank for an operation on `size_in_bytes` in all; see buffers.h."""

    def __init__(self, system: System, operation: str, size_in_bytes: int, rank: int, size: int):
        parts = size if operation in WITH_PARTS else 1
        self.operation, self.rank, self.size = operation, rank, size
        self.part = max(1, size_in_bytes // (4 * parts))
        self.count = self.part * parts
        self.input = system.new_array(self.part if "gather" in operation else self.count)
        view = self._view(self.input)
        for i in range(min(_PATTERN_PERIOD, len(view))):
            view[i::_PATTERN_PERIOD] = _pattern(rank, i)
        self.output = self.input
        if operation not in IN_PLACE:
            small = operation in ("scatter", "reduce_scatter")
            self.output = system.new_array(self.part if small else self.count)

    @staticmethod
    def _view(array: Any) -> Any:
        return array.numpy() if hasattr(array, "numpy") else array

    def _expected(self, i: int) -> float | None:
        operation, rank, part = self.operation, self.rank, self.part

        def total(at: int) -> float:
            return sum(_pattern(r, at) for r in range(self.size))

        if operation == "all_reduce" or (operation == "reduce" and rank == 0):
            return total(i)
        if operation == "broadcast":
            return _pattern(0, i)
        if operation == "all_gather" or (operation == "gather" and rank == 0):
            return _pattern(i // part, i % part)
        if operation == "scatter":
            return _pattern(0, rank * part + i)
        if operation == "reduce_scatter":
            return total(rank * part + i)
        if operation == "all_to_all":
            return _pattern(i // part, rank * part + i % part)
        if operation == "send_recv" and rank ^ 1 < self.size:
            return _pattern(rank ^ 1, i)
        return None

    def check(self) -> None:
        """After the first call: ValueError if one of some hundred elements is wrong."""
        view = self._view(self.output)
        for i in {*range(0, len(view), max(1, len(view) // 200)), len(view) - 1}:
            expected = self._expected(i)
            if expected is not None and view[i] != expected:
                raise ValueError(
                    f"wrong result: element {i} of {len(view)} is {view[i]} on rank {self.rank},"
                    f" not {expected}"
                )


def _time_calls(
    call: Callable[[], object], buffers: Buffers, iterations: int, in_a_row: bool, gate: Gate
) -> None:
    clock, durations = time.perf_counter_ns, gate.durations
    for i in range(-1 - _WARM_UP_CALLS, 0 if in_a_row else iterations):
        gate.wait()
        start = clock()
        call()
        duration = clock() - start
        if i >= 0:
            durations[i] = duration
        elif i == -1 - _WARM_UP_CALLS:
            buffers.check()
    gate.wait()  # Also: the buffers must outlive the peers' use of them.
    if in_a_row:
        start = clock()
        for _ in range(iterations):
            call()
        mean = (clock() - start) // iterations
        for i in range(iterations):
            durations[i] = mean
        gate.wait()


def _run(options: argparse.Namespace, system: System, gate: Gate, order: str) -> str:
    verb, operation, size_in_bytes, iterations, *mode = order.split()
    if verb != "run":
        return f"error unknown order {order!r}"
    buffers = Buffers(system, operation, int(size_in_bytes), options.rank, options.size)
    call = system.prepare(operation, buffers.input, buffers.output, buffers.part)
    if call is None:
        return "unsupported"
    count = max(1, min(int(iterations), MOST_ITERATIONS))
    try:
        _time_calls(call, buffers, count, mode == ["row"], gate)
    except Exception as error:  # Whatever the system raises is for the report.
        gate.give_up()
        return f"error {type(error).__name__}: {error}"
    return "ok"


def say(options: argparse.Namespace, text: str) -> None:
    """One line to the runner."""
    with open(os.path.join(options.folder, f"{options.rank}.replies"), "w") as replies:
        replies.write(" ".join(text.split()) + "\n")


def serve(options: argparse.Namespace, join: Callable[[], System]) -> None:
    """Follows the runner's orders until it says quit or goes; tells it why if `join` fails."""
    with contextlib.ExitStack() as stack:
        try:
            gate = Gate(options)
            system = join()
        except Exception as error:  # Whatever the system raises is for the report.
            say(options, f"error {type(error).__name__}: {error}")
            raise
        path = os.path.join(options.folder, f"{options.rank}.orders")
        orders = stack.enter_context(open(path))
        say(options, "ready " + system.describe())
        for line in orders:  # It ends with the runner.
            if line.strip() == "quit":
                break
            say(options, _run(options, system, gate, line))
