"""Results as Markdown, with a picture for each operation and number of ranks."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import re

from benchmarks.collectives import chart
from benchmarks.collectives.results import (
    OPERATIONS,
    Measurement,
    Results,
    effective_size,
    geometric_mean,
    size_name,
    time_name,
)
from benchmarks.collectives.systems import MEMORY
from benchmarks.collectives.ways import GATED

# Sizes for which memory is what limits.
LEAST_LIMITED = 1 << 20


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(header), "|" + "---|" * len(header), *map(_row, rows), ""]


def _gigabytes(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.3g}"


def peers(results: Results, ranks: int, subject: str) -> list[str]:
    """All systems of these ranks but the subject, in the order in which they were given."""
    names = [name for name, of_ranks in results.descriptions if of_ranks == ranks]
    return [name for name in names if name not in (subject, MEMORY)]


def operation_table(results: Results, operation: str, ranks: int, subject: str) -> list[str]:
    """A row for each size: the subject's time and bandwidths, the peers' times and ratios."""
    found = [
        peer for peer in peers(results, ranks, subject) if results.curve(operation, ranks, peer)
    ]
    header = ["size", f"{subject} µs", "alg GB/s", "bus GB/s"]
    rows = []
    for size in results.sizes(operation, ranks):
        mine = results.get(operation, ranks, subject, size)
        cells = [size_name(size), "-", "-", "-"]
        if mine is not None:
            cells[1] = time_name(mine.seconds)
            if size:
                cells[2:] = [
                    _gigabytes(mine.algorithm_bandwidth),
                    _gigabytes(mine.bus_bandwidth),
                ]
        for peer in found:
            cells.append(_peer_cell(results.get(operation, ranks, peer, size), mine))
        rows.append(cells)
    return _table(header + [f"{peer} µs (ratio)" for peer in found], rows)


def _peer_cell(theirs: Measurement | None, mine: Measurement | None) -> str:
    if theirs is None:
        return "-"
    if mine is None:
        return time_name(theirs.seconds)
    return f"{time_name(theirs.seconds)} ({theirs.seconds / mine.seconds:.2f})"


def summary_table(results: Results, ranks: int, subject: str) -> list[str]:
    """For each operation and peer the geometric mean of the ratios, and the least with its size."""
    found = peers(results, ranks, subject)
    rows = []
    for operation in OPERATIONS:
        cells = [operation]
        for peer in found:
            ratios = results.ratios(operation, ranks, subject, peer)
            if not ratios:
                cells.append("-")
                continue
            size = min(ratios, key=ratios.__getitem__)
            text = f"{geometric_mean(ratios.values()):.2f}"
            if size:
                text += f" (least {ratios[size]:.2f} at {size_name(size)})"
            cells.append(text)
        if set(cells[1:]) != {"-"}:
            rows.append(cells)
    return _table(["operation", *found], rows)


def bandwidth_table(results: Results, operation: str, ranks: int) -> list[str]:
    """Algorithm and bus bandwidth of every system."""
    names = [n for n, r in results.descriptions if r == ranks and n != MEMORY]
    names = [name for name in names if results.curve(operation, ranks, name)]
    rows = []
    for size in results.sizes(operation, ranks):
        found = [results.get(operation, ranks, name, size) for name in names]
        rows.append(
            [size_name(size)]
            + [
                f"{_gigabytes(m.algorithm_bandwidth)} / {_gigabytes(m.bus_bandwidth)}" if m else "-"
                for m in found
            ]
        )
    return _table(["size", *names], rows)


def limit_table(results: Results, ranks: int, subject: str) -> list[str]:
    """Memory's bandwidths, and how much of what they allow the subject's all_reduce reaches."""
    rows = []
    for size in results.sizes("copy", ranks):
        cells = [size_name(size)]
        for operation, buffers in (("copy", 2), ("add", 3)):
            for threads in (1, ranks):
                alone = results.get(operation, threads, MEMORY, size)
                moved = buffers * threads * size
                cells.append(_gigabytes(moved / alone.seconds) if alone else "-")
        limit = results.get("all_reduce", ranks, MEMORY, size)
        mine = results.get("all_reduce", ranks, subject, size)
        cells.append(time_name(limit.seconds) if limit else "-")
        cells.append(time_name(mine.seconds) if mine else "-")
        cells.append(f"{limit.seconds / mine.seconds:.0%}" if limit and mine else "-")
        rows.append(cells)
    header = ["size", "copy GB/s, 1 thread", f"copy, {ranks}", "add GB/s, 1 thread"]
    header += [f"add, {ranks}", "threads' all_reduce µs", f"{subject} µs", "share"]
    return _table(header, rows)


def machine() -> str:
    """ "Intel Xeon, 2 cores, 23 GiB, Linux 6.1", as far as the machine tells."""
    model = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    name = model.group(1) if model else platform.machine()
    return f"{name}, {cores} cores, {gigabytes:.0f} GiB, Linux {platform.release()}"


_HOW_TO_READ = """\
float32, sums, rank 0 as root, processes of one host. Before each timed call all ranks pass a
barrier in shared memory, the same for every system, so that no call overlaps the one before; a call
takes as long as its slowest rank. Systems take turns within one run: medians over calls, then over
rounds. Sizes and bandwidths are those of nccl-tests: the size is that of all ranks' parts together
where there are parts (a part is one element at least); send_recv is half a round trip. A ratio is
the time of that system over the time of {subject}: above 1, {subject} is faster.
"""

_HOW_TO_READ_LIMIT = """\
What memory allows: copy moves 2 bytes for each of the size and thread, add (c = a + b) 3. The
threads' all_reduce is the least that any all_reduce of private buffers must do: threads of one
process that need no copies in between read their share of all buffers and write the sum to all. The
share is its time over that of {subject}.
"""


def settings(results: Results, ranks: int) -> list[str]:
    """What each system says of itself."""
    return [
        f"- {name}: {text}" for (name, of), text in results.descriptions.items() if of == ranks
    ] + [""]


def picture_name(operation: str, ranks: int) -> str:
    return f"{operation}_{ranks}_ranks.svg"


def _section(results: Results, ranks: int, subject: str) -> list[str]:
    lines = [f"## {ranks} ranks", "", *settings(results, ranks)]
    lines += ["Geometric means of the ratios over all sizes:", ""]
    lines += summary_table(results, ranks, subject)
    if results.curve("copy", ranks, MEMORY):
        lines += ["### The limit", "", _HOW_TO_READ_LIMIT.format(subject=subject)]
        lines += limit_table(results, ranks, subject)
    for operation in OPERATIONS:
        if not results.sizes(operation, ranks):
            continue
        lines += [f"### {operation}, {ranks} ranks", ""]
        if operation != "barrier":
            picture = picture_name(operation, ranks)
            lines += [f"![{operation} with {ranks} ranks]({picture})", ""]
        lines += operation_table(results, operation, ranks, subject)
        if operation != "barrier":
            lines += ["Algorithm / bus bandwidth, GB/s:", ""]
            lines += bandwidth_table(results, operation, ranks)
    return lines


def markdown(results: Results, ranks: list[int], subject: str, command: str) -> str:
    """The whole report."""
    lines = ["# Collectives, side by side", "", f"    {command}", "", machine() + ".", ""]
    lines += [_HOW_TO_READ.format(subject=subject)]
    for size in ranks:
        lines += _section(results, size, subject)
    if results.failures:
        lines += ["## What failed", "", *(f"- {failure}" for failure in results.failures), ""]
    return "\n".join(lines).rstrip() + "\n"


def json_line(measurement: Measurement, way: str) -> str:
    """One measurement, as the runner prints it."""
    m = measurement
    return json.dumps(
        {
            "system": m.system,
            "way": way,
            "operation": m.operation,
            "ranks": m.ranks,
            "bytes": effective_size(m.operation, m.size_in_bytes, m.ranks),
            "median_us": round(m.seconds * 1e6, 3),
            "p10_us": round(m.fast_seconds * 1e6, 3),
            "algorithm_gb_s": round(m.algorithm_bandwidth / 1e9, 4),
            "bus_gb_s": round(m.bus_bandwidth / 1e9, 4),
        }
    )


def write(
    results: Results, ranks: list[int], subject: str, command: str, folder: pathlib.Path
) -> None:
    """collectives.md, collectives.jsonl and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "collectives.md").write_text(markdown(results, ranks, subject, command))
    lines = [json_line(m, GATED) + "\n" for m in results.all()]
    (folder / "collectives.jsonl").write_text("".join(lines))
    for size in ranks:
        names = [subject, *peers(results, size, subject), MEMORY]
        for operation in OPERATIONS:
            curves = {name: results.curve(operation, size, name) for name in names}
            curves = {name: curve for name, curve in curves.items() if curve}
            if operation != "barrier" and curves:
                title = f"{operation}, {size} ranks"
                (folder / picture_name(operation, size)).write_text(chart.draw(title, curves))
