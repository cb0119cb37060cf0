"""Finds the thresholds in backends/shm/thresholds.h that suit this machine, and prints them.

./bazelw run //benchmarks:shm_tuning -- --ranks 2,4
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import signal
import tempfile

from benchmarks.collectives import run
from benchmarks.collectives.results import OPERATIONS, Results, geometric_mean
from benchmarks.collectives.systems import SYSTEMS
from benchmarks.collectives.ways import IN_A_ROW

_OPERATIONS = [name for name in OPERATIONS if name not in ("barrier", "send_recv")]
_SIZES = [2**exponent for exponent in range(13, 24, 2)]  # 8 KiB to 8 MiB.
_EAGER = [32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10]
_CHUNKS = [
    (16 << 10, 128 << 10),
    (16 << 10, 256 << 10),
    (32 << 10, 256 << 10),
    (32 << 10, 512 << 10),
    (64 << 10, 512 << 10),
]

_NAMES = ["kEagerMaxBytes", "kMinChunkBytes", "kMaxChunkBytes"]

Candidate = tuple[int, int, int]  # Bytes: eager threshold, the smallest chunk, the largest.


def _enter(candidate: Candidate) -> str:
    """The candidate as a system of its own, by its name."""
    text = ",".join(map(str, candidate))
    SYSTEMS[text] = dataclasses.replace(
        SYSTEMS["syncline-shm"], name=text, settings=(("SYNCLINE_SHM_TUNING", text),)
    )
    return text


def _gain(results: Results, ranks: int, base: str, name: str) -> float:
    """How many times faster than `base`, in the geometric mean."""
    ratios = [results.ratios(operation, ranks, name, base) for operation in _OPERATIONS]
    return geometric_mean(ratio for of_sizes in ratios for ratio in of_sizes.values())


def main() -> None:
    parser = argparse.ArgumentParser(prog="shm_tuning", description=__doc__)
    parser.add_argument("--ranks", default="2,4,8", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.02, help="of calls in a turn")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, run.stop)
    candidates = {
        _enter((eager, *chunks)): (eager, *chunks)
        for eager, chunks in itertools.product(_EAGER, _CHUNKS)
    }
    names = list(candidates)
    options.operations, options.sizes, options.systems = _OPERATIONS, _SIZES, names
    options.deadline, options.bind = 60.0, True
    lines = []
    with tempfile.TemporaryDirectory(prefix="tuning-") as folder:
        counts = [int(ranks) for ranks in options.ranks.split(",")]
        for ranks in counts:
            results = Results()
            run.Run(options, ranks, {IN_A_ROW: results}, folder).measure()
            gains = {name: _gain(results, ranks, names[0], name) for name in names}
            for name, gain in sorted(gains.items(), key=lambda item: -item[1]):
                print(f"# {ranks} ranks: {name}: {gain:.3f}", flush=True)
            best = candidates[max(gains, key=lambda name: gains[name])]
            sizes = ", ".join(
                f"{name} = {size >> 10} << 10" for name, size in zip(_NAMES, best, strict=True)
            )
            lines.append(f"{ranks} ranks: {sizes}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
