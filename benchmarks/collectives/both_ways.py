"""The page of calls timed in both ways: a table of ratios for each peer, way and number of ranks.

It is also what a later run is compared with, so it is read as it is written.
"""

from __future__ import annotations

import pathlib
import re

from benchmarks.collectives import chart, report
from benchmarks.collectives.results import OPERATIONS, Results, geometric_mean, size_name, time_name
from benchmarks.collectives.ways import GATED, IN_A_ROW

# The peer, the way, the operation, the number of ranks, the size's name.
Place = tuple[str, str, str, int, str]

# A ratio may lie so far below that of the page before it counts as fallen: runs differ by as much.
TOLERANCE = 0.2

_TITLES = {GATED: "with a gate before each call", IN_A_ROW: "calls in a row"}
_WAYS = {title: way for way, title in _TITLES.items()}

_HOW_TO_READ = """\
float32, sums, rank 0 as root, processes of {where}. Medians over rounds, in which all systems and
ways take turns; a system that would take more than ten seconds has fewer rounds. A ratio is the
time of that system over the time of {subject}: above 1, {subject} is faster. Of several runs
(`--runs`) everything is the median. Sizes are those of nccl-tests, as in
[collectives](collectives.md); send_recv is half a round trip.

- With a gate before each call: all ranks pass a barrier in shared memory, the same for every
  system, so that no call overlaps the one before. The median call, of its slowest rank.
- Calls in a row, as programs make them: each as soon as the one before has returned. A rank that
  need not wait for the others goes ahead, in all systems. The mean of many calls, of the slowest
  rank.

Where ranks outnumber cores, MPICH goes on spinning while it waits for a rank that has no core,
which takes milliseconds: what it takes there says nothing of its algorithms.
"""


_LINK = """\
`link` is no library: a plain TCP connection between two ranks. Its send_recv is a ping-pong, its
all_reduce moves the bytes that one has to move, in both directions at once, and adds nothing up."""


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


def _summary(found: dict[Place, float]) -> str:
    """How many ratios there are, their mean, and which of them are below 1."""
    text = f"{len(found)} ratios, geometric mean {geometric_mean(found.values()):.2f}"
    below = {place: value for place, value in found.items() if value < 1}
    if not below:
        return text + "; none below 1.0."
    names = ", ".join(f"{_what(place)} {value:.2f}" for place, value in below.items())
    least = sum(value < 0.9 for value in below.values())
    return f"{text}; {len(below)} below 1.0, of which {least} below 0.9: {names}."


def _what(place: Place) -> str:
    """ "all_reduce of 4 B", "barrier"."""
    _, _, operation, _, size = place
    return operation if size == size_name(0) else f"{operation} of {size}"


def pictures(results: dict[str, Results], ranks: list[int], prefix: str) -> dict[str, str]:
    """Curves of every operation, as SVG by the names of their files, which begin with `prefix`."""
    found = dict[str, str]()
    for way, of_way in results.items():
        for size in ranks:
            names = [name for name, of in of_way.descriptions if of == size]
            for operation in OPERATIONS:
                curves = {name: of_way.curve(operation, size, name) for name in names}
                curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
                if curves:
                    file = f"{prefix}_{report.picture_name(operation, size)}"
                    found[file] = chart.draw(f"{operation}, {size} ranks, {_TITLES[way]}", curves)
    return found


def page(
    results: dict[str, Results],
    ranks: list[int],
    subject: str,
    command: str,
    hosts: int = 1,
    pictures: tuple[str, ...] = (),
) -> str:
    """The whole page, of results by way; `pictures` are files to show at its end."""
    any_way = next(iter(results.values()))
    title, where = "One host, beside MPI", "one host"
    if hosts > 1:
        title = f"{hosts} hosts, beside others and a bare connection"
        congestion = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
        where = (
            f"{hosts} hosts, network namespaces of this machine that a switch joins, with "
            f"congestion control {congestion}"
        )
    lines = [f"# {title}", "", f"    {command}", "", report.machine() + ".", ""]
    lines += [_HOW_TO_READ.format(subject=subject, where=where)]
    if hosts > 1:
        lines += [_LINK, ""]
    for size in ranks:
        lines += [f"## {size} ranks", "", *report.settings(any_way, size)]
        for peer in report.peers(any_way, size, subject):
            for way, of_way in results.items():
                found = ratios({way: of_way}, [size], subject)
                of_peer = {place: value for place, value in found.items() if place[0] == peer}
                if not of_peer:
                    continue
                lines += [f"### {peer} over {subject}, {size} ranks, {_TITLES[way]}", ""]
                lines += [_summary(of_peer), "", *_table(of_way, size, subject, peer)]
        for way, of_way in results.items():
            lines += [f"### Times of {subject}, {size} ranks, {_TITLES[way]}", ""]
            lines += _times(of_way, size, subject)
    if any_way.failures:
        lines += ["## What failed", "", *(f"- {failure}" for failure in any_way.failures), ""]
    if pictures:
        lines += [
            "## Curves",
            "",
            *(f"![{name.removesuffix('.svg')}]({name})" for name in pictures),
        ]
    return "\n".join(lines).rstrip() + "\n"


def read(text: str) -> dict[Place, float]:
    """The ratios of a page."""
    ratios: dict[Place, float] = {}
    peer, way, ranks, header = "", "", 0, list[str]()
    for line in text.splitlines():
        if line.startswith("#"):
            section = re.fullmatch(r"### (\S+) over \S+, (\d+) ranks, (.*)", line)
            peer, header = (section[1] if section else ""), []
            if section:
                ranks, way = int(section[2]), _WAYS[section[3]]
        if not peer or not line.startswith("| "):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
            continue
        for name, cell in zip(header[1:], cells[1:], strict=True):
            if name != "mean" and cell != "-":
                ratios[peer, way, cells[0], ranks, name] = float(cell)
        if cells[0] == "barrier":
            ratios[peer, way, cells[0], ranks, size_name(0)] = float(cells[-1])
    return ratios


def ratios(results: dict[str, Results], ranks: list[int], subject: str) -> dict[Place, float]:
    """The ratios of a run, as `read` has them."""
    return {
        (peer, way, operation, size, size_name(in_bytes)): ratio
        for way, of_way in results.items()
        for size in ranks
        for peer in report.peers(of_way, size, subject)
        for operation in OPERATIONS
        for in_bytes, ratio in of_way.ratios(operation, size, subject, peer).items()
    }


def fallen(now: dict[Place, float], known: dict[Place, float]) -> list[str]:
    """A line for each ratio that is lower than it was by more than the tolerance, worst first."""
    lines = []
    for place, ratio in now.items():
        before = known.get(place)
        if before is None or ratio >= before * (1 - TOLERANCE):
            continue
        peer, way, _, ranks, _ = place
        where = f"{_what(place)}, {ranks} ranks, {way}"
        lines.append((ratio / before, f"{where}: {before:.2f} -> {ratio:.2f} {peer}"))
    return [line for _, line in sorted(lines)]
