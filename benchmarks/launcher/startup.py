"""What it costs to start 8 workers: Syncline's launcher beside torchrun, in turns. See README.md.

./bazelw run //benchmarks/launcher
./bazelw run //benchmarks/launcher -- --rounds 3 --workers 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence

from benchmarks.launcher.launchers import (
    WORKERS,
    Launcher,
    LauncherError,
    Start,
    measure,
    syncline,
    torchrun,
)

_MILLISECONDS = 1e3
_MEBIBYTES = 1 / 1024


def _row(
    what: str, ours: Sequence[float], theirs: Sequence[float], scale: float, digits: int
) -> str:
    """A line of the table: medians with the least and the most, and the ratio of the medians."""

    def cell(values: Sequence[float]) -> str:
        if not values:
            return "-"
        low, middle, high = (
            f"{scale * value:.{digits}f}"
            for value in (min(values), statistics.median(values), max(values))
        )
        return f"{middle} ({low} to {high})"

    ratio = f"{statistics.median(theirs) / statistics.median(ours):.1f}" if theirs else "-"
    return f"| {what} | {cell(ours)} | {cell(theirs)} | {ratio} |"


def table(kind: str, ours: Sequence[Start], theirs: Sequence[Start]) -> str:
    """The Markdown table for workers of one kind; `theirs` may be empty."""
    quantities: list[tuple[str, Callable[[Start], float], float, int]] = [
        ("first worker's line, ms", lambda start: start.first, _MILLISECONDS, 1),
        ("all workers' lines, ms", lambda start: start.all, _MILLISECONDS, 1),
        ("workers' end to the launcher's, ms", lambda start: start.stop, _MILLISECONDS, 1),
        ("launcher's memory, MiB", lambda start: start.rss, _MEBIBYTES, 1),
        ("launcher's memory at most, MiB", lambda start: start.peak, _MEBIBYTES, 1),
    ]
    lines = [f"| {kind} workers | syncline-run | torchrun | ratio |", "|---|---|---|---|"]
    for what, quantity, scale, digits in quantities:
        values = [[quantity(start) for start in starts] for starts in (ours, theirs)]
        lines.append(_row(what, values[0], values[1], scale, digits))
    return "\n".join(lines)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="launcher", description="Measures the start of workers, beside torchrun, in turns."
    )
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=11, help="turns of each launcher")
    parser.add_argument("--kinds", default=",".join(WORKERS), help=f"of {', '.join(WORKERS)}")
    parser.add_argument("--alone", action="store_true", help="without torchrun")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    launchers: list[Launcher] = [syncline()]
    if not options.alone:
        try:
            launchers.append(torchrun())
        except LauncherError as error:
            print(error, file=sys.stderr)
    print(
        f"{options.workers} workers, {options.rounds} rounds, "
        + ", ".join(f"{launcher.name}: {launcher.version}" for launcher in launchers)
    )
    for kind in options.kinds.split(","):
        starts: dict[str, list[Start]] = {launcher.name: [] for launcher in launchers}
        for round_number in range(options.rounds + 1):
            for launcher in launchers:
                start = measure(launcher, kind, options.workers)
                if round_number > 0:  # The first one fills the caches.
                    starts[launcher.name].append(start)
        print(f"\n{table(kind, starts['syncline-run'], starts.get('torchrun', []))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
