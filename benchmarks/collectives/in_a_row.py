"""The page of calls made in a row: one table of ratios for each peer and number of ranks.

It is also what a later run is compared with, so it is read as it is written.
"""

from __future__ import annotations

import re

from benchmarks.collectives import report
from benchmarks.collectives.results import OPERATIONS, Results, geometric_mean, size_name, time_name

Place = tuple[str, str, int, str]  # The peer, the operation, the number of ranks, the size's name.

# A ratio may lie so far below that of the page before it counts as fallen: runs differ by as much.
TOLERANCE = 0.2

_HOW_TO_READ = """\
float32, sums, rank 0 as root, processes of one host. Ranks make each call as soon as the one before
has returned, as programs do, with nothing in between: what is shown is the mean of many calls, of
the slowest rank, the median over rounds in which systems take turns. A rank that need not wait for
the others goes ahead, in all systems. Sizes are those of nccl-tests, as in
[collectives](collectives.md), where a gate stands before each call; send_recv is half a round trip.
A ratio is the time of that system over the time of {subject}: above 1, {subject} is faster.
"""


def _table(results: Results, ranks: int, subject: str, peer: str) -> list[str]:
    operations = [op for op in OPERATIONS if results.ratios(op, ranks, subject, peer)]
    sizes = sorted({s for op in operations for s in results.sizes(op, ranks) if s})
    header = ["operation", *map(size_name, sizes), "mean"]
    lines = [" | ".join(["", *header, ""]).strip(), "|" + "---|" * len(header)]
    for operation in operations:
        ratios = results.ratios(operation, ranks, subject, peer)
        # A barrier has no size: its ratio is its mean.
        cells = [f"{ratios[size]:.2f}" if size in ratios else "-" for size in sizes]
        cells.append(f"{geometric_mean(ratios.values()):.2f}")
        lines.append("| " + " | ".join([operation, *cells]) + " |")
    return [*lines, ""]


def _times(results: Results, ranks: int, subject: str) -> list[str]:
    operations = [op for op in OPERATIONS if results.curve(op, ranks, subject)]
    sizes = sorted({s for op in operations for s in results.sizes(op, ranks) if s})
    barrier = results.get("barrier", ranks, subject, 0)
    if barrier is not None:
        lines = [f"barrier: {time_name(barrier.seconds)} µs.", ""]
    else:
        lines = []
    lines.append("| µs | " + " | ".join(map(size_name, sizes)) + " |")
    lines.append("|" + "---|" * (len(sizes) + 1))
    for operation in operations:
        found = [results.get(operation, ranks, subject, size) for size in sizes]
        if any(found):
            cells = [time_name(m.seconds) if m else "-" for m in found]
            lines.append("| " + " | ".join([operation, *cells]) + " |")
    return [*lines, ""]


def page(results: Results, ranks: list[int], subject: str, command: str) -> str:
    """The whole page."""
    lines = ["# Collectives in a row", "", f"    {command}", "", report.machine() + ".", ""]
    lines += [_HOW_TO_READ.format(subject=subject)]
    for size in ranks:
        lines += [f"## {size} ranks", "", *report.settings(results, size)]
        for peer in report.peers(results, size, subject):
            lines += [f"### {peer} over {subject}, {size} ranks", ""]
            lines += _table(results, size, subject, peer)
        lines += [f"### Times of {subject}, {size} ranks", "", *_times(results, size, subject)]
    return "\n".join(lines).rstrip() + "\n"


def read(text: str) -> dict[Place, float]:
    """The ratios of a page."""
    ratios: dict[Place, float] = {}
    peer, ranks, header = "", 0, list[str]()
    for line in text.splitlines():
        if line.startswith("#"):
            section = re.fullmatch(r"### (\S+) over \S+, (\d+) ranks", line)
            peer, ranks, header = (section[1], int(section[2]), []) if section else ("", 0, [])
        if not peer or not line.startswith("| "):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
            continue
        for name, cell in zip(header[1:], cells[1:], strict=True):
            if name != "mean" and cell != "-":
                ratios[peer, cells[0], ranks, name] = float(cell)
        if cells[0] == "barrier":
            ratios[peer, cells[0], ranks, size_name(0)] = float(cells[-1])
    return ratios


def ratios(results: Results, ranks: list[int], subject: str) -> dict[Place, float]:
    """The ratios of a run, as `read` has them."""
    return {
        (peer, operation, size, size_name(in_bytes)): ratio
        for size in ranks
        for peer in report.peers(results, size, subject)
        for operation in OPERATIONS
        for in_bytes, ratio in results.ratios(operation, size, subject, peer).items()
    }


def fallen(now: dict[Place, float], known: dict[Place, float]) -> list[str]:
    """A line for each ratio that is lower than it was by more than the tolerance, worst first."""
    lines = []
    for place, ratio in now.items():
        before = known.get(place)
        if before is None or ratio >= before * (1 - TOLERANCE):
            continue
        peer, operation, ranks, size = place
        what = operation if size == size_name(0) else f"{operation} of {size}"
        lines.append((ratio / before, f"{what}, {ranks} ranks: {before:.2f} -> {ratio:.2f} {peer}"))
    return [line for _, line in sorted(lines)]
