"""Measures collectives of several systems side by side, in turns. See README.md.

./bazelw run //benchmarks/collectives -- --quick
./bazelw run //benchmarks/collectives -- --out docs/benchmarks
./bazelw run //benchmarks/collectives -- --ways in-a-row --systems syncline-shm,openmpi --runs 5
./bazelw run //benchmarks/collectives -- --changes
./bazelw run //benchmarks/collectives -- --hosts 2 --systems syncline-auto,openmpi-tcp,gloo,link
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex
import signal
import statistics
import sys
import tempfile
import time
from types import FrameType

from benchmarks.collectives import both_ways, report
from benchmarks.collectives.group import Group, GroupError, Placement, Unsupported
from benchmarks.collectives.hosts import Hosts
from benchmarks.collectives.results import (
    OPERATIONS,
    Measurement,
    Results,
    call_seconds,
    size_name,
    summarize,
    time_name,
)
from benchmarks.collectives.systems import IN_A_ROW_PROGRAMS, MEMORY, SYSTEMS
from benchmarks.collectives.ways import GATED, IN_A_ROW, WAYS

_SIZES = [4**exponent for exponent in range(1, 15)]  # 4 B to 256 MiB.
_QUICK_SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 16 << 20]
_DEFAULT_SYSTEMS = (
    "syncline-shm,openmpi,mpich,gloo,torch,syncline-gloo,"
    "syncline-shm-numpy,syncline-shm-torch,syncline-shm-java,memory"
)
# What --changes measures, in two minutes, and what it compares that with.
_CHANGES = {
    "systems": "syncline-shm,openmpi",
    "sizes": "4,64,1K,16K,256K,1M,16M",
    "rounds": 3,
    "seconds": 0.03,
    "bind": True,
    "ways": IN_A_ROW,
}
_PAGE = "docs/benchmarks/one_host.md"
_PROBE_CALLS = 5
_FEWEST_CALLS = 5
_MOST_CALLS = 2000
_MOST_SECONDS = 10.0  # Of all turns of a system in one place; it has fewer rounds if need be.
_RESTARTS = 2  # Of the ranks of a system that fails.


def _size(text: str) -> int:
    """ "64", "64K", "16M": bytes."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    if text[-1:].upper() in units:
        return int(text[:-1]) * units[text[-1].upper()]
    return int(text)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="collectives", description="Measures collectives of several systems side by side."
    )
    parser.add_argument("--operations", default=",".join(OPERATIONS), help="comma-separated")
    parser.add_argument("--sizes", help="bytes, comma-separated; 4,64K,16M")
    parser.add_argument("--ranks", default="2,4", help="comma-separated")
    parser.add_argument(
        "--systems",
        default=_DEFAULT_SYSTEMS,
        help=f"comma-separated, ratios are to the first; of {', '.join(SYSTEMS)}",
    )
    parser.add_argument("--rounds", type=int, help="turns of each system (5; quick: 3)")
    parser.add_argument(
        "--runs",
        type=int,
        default=1,
        help="of everything, one after the other; of them medians (1)",
    )
    parser.add_argument("--seconds", type=float, help="of calls in a turn (0.1; quick: 0.03)")
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds for a turn")
    parser.add_argument(
        "--out", help="folder for the report and pictures, from the workspace's root"
    )
    parser.add_argument(
        "--bind", action="store_true", help="each rank to a core, where there are enough of them"
    )
    parser.add_argument(
        "--hosts", type=int, default=1, help="on which the ranks are: network namespaces (1)"
    )
    parser.add_argument(
        "--megabits", type=int, default=0, help="a second, of what reaches a host (no limit)"
    )
    parser.add_argument("--quick", action="store_true", help="few sizes, little time")
    parser.add_argument(
        "--ways",
        default=GATED,
        help=f"comma-separated; of {', '.join(WAYS)}. {GATED}: a gate before each timed call; "
        f"{IN_A_ROW}: none, and means instead of medians, of systems in C++ and Python",
    )
    parser.add_argument(
        "--changes",
        action="store_true",
        help=f"two minutes, in a row; prints which ratios to Open MPI have fallen since {_PAGE}",
    )
    options = parser.parse_args(arguments)
    if options.changes:
        vars(options).update(_CHANGES, out=None)
    if options.runs < 1:
        parser.error("--runs: at least 1")
    options.operations = options.operations.split(",")
    options.ranks = [int(ranks) for ranks in options.ranks.split(",")]
    options.systems = options.systems.split(",")
    options.ways = options.ways.split(",")
    default_sizes = _QUICK_SIZES if options.quick else _SIZES
    options.sizes = [_size(s) for s in options.sizes.split(",")] if options.sizes else default_sizes
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.seconds = options.seconds or (0.03 if options.quick else 0.1)
    for name, known in (("operations", OPERATIONS), ("systems", SYSTEMS), ("ways", WAYS)):
        for value in getattr(options, name):
            if value not in known:
                parser.error(f"--{name}: there is no {value!r}, but {', '.join(known)}")
    if IN_A_ROW in options.ways:
        for name in options.systems:
            if SYSTEMS[name].program not in IN_A_ROW_PROGRAMS:
                parser.error(f"--ways {IN_A_ROW}: {name} cannot do that")
    return options


class _Entrant:
    """A system while it takes part: its ranks are restarted after a failure, at most twice."""

    def __init__(
        self, name: str, placement: Placement, folder: pathlib.Path, results: Results
    ) -> None:
        self.system = SYSTEMS[name]
        self._placement, self._ranks, self._folder = placement, placement.ranks, folder
        self._results = results  # Of any way: what it takes of descriptions and failures.
        self._group: Group | None = None
        self._starts = 0

    def group(self) -> Group | None:
        """The ranks, started if need be; None once the system is out."""
        while self._group is None and self._starts <= _RESTARTS:
            folder = self._folder / f"{self.system.name}-{self._ranks}-{self._starts}"
            self._starts += 1
            try:
                self._group = Group(self.system, folder, self._placement)
                key = (self.system.name, self._ranks)
                self._results.descriptions[key] = self._group.description
            except GroupError as error:
                self.fail("start", error)
                self._starts = _RESTARTS + 1  # What does not start once will not the next time.
        return self._group

    @property
    def description(self) -> str:
        return self._results.descriptions[self.system.name, self._ranks]

    def fail(self, what: str, error: Exception) -> None:
        text = f"{self.system.name}, {self._ranks} ranks, {what}: {error}"
        print("FAILED:", text, flush=True)
        self._results.failures.append(text)
        self.close()

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


class Run:
    """All measurements with one number of ranks."""

    def __init__(
        self,
        options: argparse.Namespace,
        ranks: int,
        results: dict[str, Results],
        folder: str,
        hosts: Hosts | None = None,
    ):
        """`results` are by way; they share their descriptions and failures."""
        self._options, self._ranks, self._results = options, ranks, results
        any_way = next(iter(results.values()))
        placement = Placement(ranks, sorted(os.sched_getaffinity(0)), options.bind, hosts)
        self._entrants = [
            _Entrant(name, placement, pathlib.Path(folder), any_way) for name in options.systems
        ]

    def measure(self) -> None:
        try:
            for entrant in self._entrants:
                if entrant.group() is not None:
                    text = entrant.description
                    print(f"# {entrant.system.name}: {text}", flush=True)
            for operation in [*self._options.operations, "copy", "add"]:
                for size in self._sizes(operation):
                    self._measure_block(operation, size)
        finally:
            for entrant in self._entrants:
                entrant.close()

    def _sizes(self, operation: str) -> list[int]:
        if operation == "barrier":
            return [0]
        least = 0 if operation in OPERATIONS else report.LEAST_LIMITED
        return [size for size in self._options.sizes if size >= least]

    def _measure_block(self, operation: str, size: int) -> None:
        """One operation of one size: all systems and ways, in turns."""
        taking_part = [
            (entrant, way)
            for entrant in self._entrants
            if operation in (entrant.system.operations or OPERATIONS)
            for way in self._results
        ]
        calls: dict[tuple[str, str], int] = {}
        rounds: dict[tuple[str, str], int] = {}
        for entrant, way in taking_part:
            probe = self._turn(entrant, way, operation, size, _PROBE_CALLS)
            if probe:
                wanted = int(self._options.seconds / statistics.median(probe))
                place = entrant.system.name, way
                calls[place] = min(max(wanted, _FEWEST_CALLS), _MOST_CALLS)
                turn_seconds = calls[place] * statistics.median(probe)
                rounds[place] = min(self._options.rounds, 1 + int(_MOST_SECONDS / turn_seconds))
        turns: dict[tuple[str, str], list[list[float]]] = {place: [] for place in calls}
        taking_part = [(e, way) for e, way in taking_part if (e.system.name, way) in calls]
        for number in range(self._options.rounds):
            shift = number % max(1, len(taking_part))
            for entrant, way in taking_part[shift:] + taking_part[:shift]:
                place = entrant.system.name, way
                if number >= rounds[place]:
                    continue
                turn = self._turn(entrant, way, operation, size, calls[place])
                if turn:
                    turns[place].append(turn)
        for (name, way), measured in turns.items():
            if measured:
                self._report(name, way, operation, size, measured)
        for way in self._results:
            names = [name for name, of_way in calls if of_way == way]
            if names:
                self._print_row(way, operation, size, names)

    def _turn(
        self, entrant: _Entrant, way: str, operation: str, size: int, calls: int
    ) -> list[float] | None:
        group = entrant.group()
        if group is None:
            return None
        try:
            durations = group.run(operation, size, calls, self._options.deadline, way == IN_A_ROW)
        except Unsupported:
            return None
        except GroupError as error:
            entrant.fail(f"{operation} {size_name(size)}, {way}", error)
            return None
        return [call_seconds(operation, duration) for duration in durations]

    def _report(
        self, name: str, way: str, operation: str, size: int, rounds: list[list[float]]
    ) -> None:
        median, fast = summarize(rounds)
        measurement = Measurement(name, operation, size, self._ranks, median, fast)
        self._results[way].add(measurement)
        if operation in OPERATIONS:
            print(report.json_line(measurement, way), flush=True)

    def _print_row(self, way: str, operation: str, size: int, names: list[str]) -> None:
        results = self._results[way]
        subject = results.get(operation, self._ranks, self._options.systems[0], size)
        cells = []
        for name in names:
            found = results.get(operation, self._ranks, name, size)
            if found is not None:
                ratio = f" ({found.seconds / subject.seconds:.2f})" if subject else ""
                cells.append(f"{name} {time_name(found.seconds)}{ratio}")
        head = f"{operation} {size_name(size)}, {self._ranks} ranks, {way}, us (ratio)"
        print(f"# {head}: {', '.join(cells)}", flush=True)


def _measure_one_thread(options: argparse.Namespace, results: Results, folder: str) -> None:
    """Memory's bandwidths with a single thread, for the limit."""
    narrowed = argparse.Namespace(**vars(options))
    narrowed.systems, narrowed.operations = [MEMORY], []
    Run(narrowed, 1, {GATED: results}, folder).measure()


def _print_changes(results: Results, ranks: list[int], subject: str, page: pathlib.Path) -> None:
    known = both_ways.read(page.read_text())
    now = both_ways.ratios({IN_A_ROW: results}, ranks, subject)
    lines = both_ways.fallen(now, known)
    compared = len(now.keys() & known.keys())
    print("\n".join(lines))
    print(f"# {len(lines)} of {compared} ratios have fallen by more than {both_ways.TOLERANCE:.0%}")
    print("# machines are noisy: what is fallen in several runs has changed")


def stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _measure(options: argparse.Namespace) -> dict[str, Results]:
    """The results of all runs, by way."""
    first = Results()
    runs: dict[str, list[Results]] = {way: [] for way in options.ways}
    with tempfile.TemporaryDirectory(prefix="collectives-") as folder:
        hosts = Hosts(options.hosts, options.megabits) if options.hosts > 1 else None
        try:
            for number in range(options.runs):
                results = {way: Results() for way in options.ways}
                for of_way in results.values():
                    of_way.descriptions, of_way.failures = first.descriptions, first.failures
                of_run = os.path.join(folder, str(number))
                if MEMORY in options.systems and GATED in results:
                    _measure_one_thread(options, results[GATED], of_run)
                for ranks in options.ranks:
                    Run(options, ranks, results, of_run, hosts).measure()
                for way, of_way in results.items():
                    runs[way].append(of_way)
        finally:
            if hosts is not None:
                hosts.close()
    return {way: Results.of_runs(of_way) for way, of_way in runs.items()}


def main() -> None:
    options = _parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, stop)
    begun = time.monotonic()
    results = _measure(options)
    first = results[options.ways[0]]
    command = shlex.join(["./bazelw", "run", "//benchmarks/collectives", "--", *sys.argv[1:]])
    root = pathlib.Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
    subject = options.systems[0]
    if options.changes:
        _print_changes(first, options.ranks, subject, root / _PAGE)
    elif IN_A_ROW in results:
        name, pictures = pathlib.Path(_PAGE).stem, dict[str, str]()
        if options.hosts > 1:
            limit = f"_{options.megabits}_megabits" if options.megabits else ""
            name = f"{options.hosts}_hosts{limit}"
            pictures = both_ways.pictures(results, options.ranks, name)
        page = both_ways.page(
            results, options.ranks, subject, command, options.hosts, tuple(pictures)
        )
        print(page)
        if options.out:
            for file, text in {f"{name}.md": page, **pictures}.items():
                (root / options.out / file).write_text(text)
    else:
        print(report.markdown(first, options.ranks, subject, command))
        if options.out:
            report.write(first, options.ranks, subject, command, root / options.out)
    if options.out:
        print(f"# written to {root / options.out}")
    print(f"# {time.monotonic() - begun:.0f} s, {len(first.failures)} failures")


if __name__ == "__main__":
    main()
