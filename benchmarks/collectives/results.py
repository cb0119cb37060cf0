"""What was measured, and what follows from it: bandwidths, ratios, means."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable

OPERATIONS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send_recv",
)
_PARTS = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One system at one operation, size and number of ranks; medians over rounds."""

    system: str
    operation: str
    size_in_bytes: int  # 0 for barrier.
    ranks: int
    seconds: float  # The median call.
    fast_seconds: float  # The 10th percentile.

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes a second of what the caller sees: size by time, as in nccl-tests."""
        return effective_size(self.operation, self.size_in_bytes, self.ranks) / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """The same times a factor that makes it comparable between operations and ranks."""
        return self.algorithm_bandwidth * bus_factor(self.operation, self.ranks)


def effective_size(operation: str, size_in_bytes: int, ranks: int) -> int:
    """Bytes that are really asked for: each rank's part is a float32 at least."""
    if operation in _PARTS:
        return max(4, size_in_bytes // ranks // 4 * 4) * ranks
    return size_in_bytes


def bus_factor(operation: str, ranks: int) -> float:
    """Bus over algorithm bandwidth, as nccl-tests' doc/PERFORMANCE.md defines it."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in _PARTS:
        return (ranks - 1) / ranks
    return 1.0


def call_seconds(operation: str, seconds: float) -> float:
    """What is reported of a timed call: of a ping-pong half the round trip."""
    return seconds / 2 if operation == "send_recv" else seconds


def summarize(rounds: Iterable[list[float]]) -> tuple[float, float]:
    """The median and the 10th percentile of each round's calls; of these the medians."""
    medians, fast = [], []
    for durations in rounds:
        medians.append(statistics.median(durations))
        fast.append(sorted(durations)[len(durations) // 10])
    return statistics.median(medians), statistics.median(fast)


class Results:
    """All measurements of a run, or the medians of several."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, int, str, int], Measurement] = {}
        self._runs: list[Results] = [self]
        self.descriptions: dict[tuple[str, int], str] = {}  # By system and ranks.
        self.failures: list[str] = []

    @classmethod
    def of_runs(cls, runs: list[Results]) -> Results:
        """The medians of at least one run, which share their descriptions and failures.

        A ratio is the median of each run's, since within a run the machine is the same for both.
        """
        results = cls()
        results._runs = runs
        results.descriptions, results.failures = runs[0].descriptions, runs[0].failures
        for place in {place: None for run in runs for place in run._by_place}:
            found = [run._by_place[place] for run in runs if place in run._by_place]
            results.add(
                dataclasses.replace(
                    found[0],
                    seconds=statistics.median(m.seconds for m in found),
                    fast_seconds=statistics.median(m.fast_seconds for m in found),
                )
            )
        return results

    def add(self, measurement: Measurement) -> None:
        """Takes the place of one of the same system, operation, size and ranks."""
        m = measurement
        self._by_place[m.operation, m.ranks, m.system, m.size_in_bytes] = m

    def get(
        self, operation: str, ranks: int, system: str, size_in_bytes: int
    ) -> Measurement | None:
        return self._by_place.get((operation, ranks, system, size_in_bytes))

    def all(self) -> list[Measurement]:
        return list(self._by_place.values())

    def sizes(self, operation: str, ranks: int) -> list[int]:
        return sorted({s for o, r, _, s in self._by_place if (o, r) == (operation, ranks)})

    def curve(self, operation: str, ranks: int, system: str) -> list[Measurement]:
        """By size."""
        found = [self.get(operation, ranks, system, s) for s in self.sizes(operation, ranks)]
        return [m for m in found if m is not None]

    def ratios(self, operation: str, ranks: int, subject: str, peer: str) -> dict[int, float]:
        """By size, how many times as long as `subject` `peer` takes, where both were measured."""
        by_size: dict[int, list[float]] = {}
        for run in self._runs:
            for mine in run.curve(operation, ranks, subject):
                theirs = run.get(operation, ranks, peer, mine.size_in_bytes)
                if theirs is not None:
                    of_size = by_size.setdefault(mine.size_in_bytes, [])
                    of_size.append(theirs.seconds / mine.seconds)
        return {size: statistics.median(by_size[size]) for size in sorted(by_size)}


def geometric_mean(values: Iterable[float]) -> float:
    """Of at least one value, all positive."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def size_name(size_in_bytes: int) -> str:
    """ "4 B", "64 KiB", "256 MiB"; "-" for none."""
    if size_in_bytes == 0:
        return "-"
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_in_bytes >= unit:
            return f"{size_in_bytes / unit:.4g} {name}"
    return f"{size_in_bytes} B"


def time_name(seconds: float) -> str:
    """Microseconds with three digits: "0.213", "56.1", "33200"."""
    micros = seconds * 1e6
    digits = 2 - math.floor(math.log10(micros)) if micros > 0 else 0
    return f"{round(micros, digits):.{max(0, digits)}f}"
