"""What the runner makes of durations, and that a group of processes really measures."""

import os
import pathlib
import xml.etree.ElementTree
from collections.abc import Iterator

import pytest

from benchmarks.collectives import both_ways, chart, report, systems
from benchmarks.collectives.group import Group, GroupError, Placement, Unsupported
from benchmarks.collectives.hosts import Hosts
from benchmarks.collectives.results import (
    Measurement,
    Results,
    bus_factor,
    call_seconds,
    effective_size,
    geometric_mean,
    size_name,
    summarize,
    time_name,
)
from benchmarks.collectives.ways import GATED, IN_A_ROW

CORES = sorted(os.sched_getaffinity(0))


def measured(system: str, size: int, seconds: float, operation: str = "all_reduce") -> Measurement:
    return Measurement(system, operation, size, 2, seconds, seconds)


@pytest.fixture
def results() -> Results:
    found = Results()
    for system in ("mine", "theirs"):
        found.descriptions[system, 2] = "as it comes"
    for size, mine, theirs in ((4, 1e-6, 4e-6), (1 << 20, 1e-3, 1e-3)):
        found.add(measured("mine", size, mine))
        found.add(measured("theirs", size, theirs))
    return found


def test_bandwidths_are_those_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1
    m = Measurement("mine", "all_reduce", 4000, 4, 1e-6, 1e-6)
    assert m.algorithm_bandwidth == pytest.approx(4e9)
    assert m.bus_bandwidth == pytest.approx(6e9)


def test_a_part_is_at_least_one_element() -> None:
    assert effective_size("all_gather", 4, 4) == 16
    assert effective_size("all_gather", 1 << 20, 4) == 1 << 20
    assert effective_size("all_reduce", 4, 4) == 4


def test_a_ping_pong_counts_half() -> None:
    assert call_seconds("send_recv", 2.0) == 1.0
    assert call_seconds("barrier", 2.0) == 2.0


def test_medians_are_over_calls_and_then_over_rounds() -> None:
    rounds = [[1.0, 2.0, 100.0], [5.0, 6.0, 7.0], [3.0, 4.0, 5.0]]
    assert summarize(rounds) == (4.0, 3.0)


def test_ratios_are_of_the_peers_time_to_ones_own(results: Results) -> None:
    ratios = results.ratios("all_reduce", 2, "mine", "theirs")
    assert ratios == {4: pytest.approx(4), 1 << 20: pytest.approx(1)}
    assert geometric_mean(ratios.values()) == pytest.approx(2)


def test_of_several_runs_a_ratio_is_the_median_of_each_runs(results: Results) -> None:
    runs = [results]
    for mine, theirs in ((2e-6, 2e-6), (9e-6, 27e-6)):  # A slow machine, and a slower one.
        run = Results()
        run.add(measured("mine", 4, mine))
        run.add(measured("theirs", 4, theirs))
        runs.append(run)
    runs[1].add(measured("mine", 64, 1e-6))  # Where the peer has failed.
    merged = Results.of_runs(runs)
    assert merged.ratios("all_reduce", 2, "mine", "theirs") == {
        4: pytest.approx(3),
        1 << 20: pytest.approx(1),
    }
    found = merged.get("all_reduce", 2, "mine", 4)
    assert found is not None and found.seconds == pytest.approx(2e-6)
    assert merged.sizes("all_reduce", 2) == [4, 64, 1 << 20]
    assert merged.descriptions == results.descriptions


def test_numbers_are_named_shortly() -> None:
    assert [size_name(s) for s in (0, 4, 4096, 256 << 20)] == ["-", "4 B", "4 KiB", "256 MiB"]
    assert [time_name(s) for s in (2.134e-7, 5.61e-5, 0.033249)] == ["0.213", "56.1", "33200"]


def test_the_report_has_the_time_bandwidths_and_ratio_of_every_size(results: Results) -> None:
    text = report.markdown(results, [2], "mine", "the command")
    assert "| 4 B | 1.00 | 0.004 | 0.004 | 4.00 (4.00) |" in text
    assert "| 1 MiB | 1000 | 1.05 | 1.05 | 1000 (1.00) |" in text
    assert "| all_reduce | 2.00 (least 1.00 at 1 MiB) |" in text


def test_the_page_of_both_ways_is_read_as_it_is_written(results: Results) -> None:
    results.add(measured("mine", 0, 2e-7, "barrier"))
    results.add(measured("theirs", 0, 3e-7, "barrier"))
    gated = Results()
    gated.descriptions = results.descriptions
    gated.add(measured("mine", 4, 1e-6))
    gated.add(measured("theirs", 4, 0.5e-6))
    by_way = {GATED: gated, IN_A_ROW: results}
    text = both_ways.page(by_way, [2], "mine", "the command")
    assert "| all_reduce | 4.00 | 1.00 | 2.00 |" in text
    assert "| all_reduce | 0.50 | 0.50 |" in text
    assert "0.50; 1 below 1.0, of which 1 below 0.9: all_reduce of 4 B 0.50." in text
    assert "3 ratios, geometric mean 1.82; none below 1.0." in text
    ratios = both_ways.ratios(by_way, [2], "mine")
    assert both_ways.read(text) == pytest.approx(ratios)
    assert ratios == {
        ("theirs", GATED, "all_reduce", 2, "4 B"): pytest.approx(0.5),
        ("theirs", IN_A_ROW, "all_reduce", 2, "4 B"): pytest.approx(4),
        ("theirs", IN_A_ROW, "all_reduce", 2, "1 MiB"): pytest.approx(1),
        ("theirs", IN_A_ROW, "barrier", 2, "-"): pytest.approx(1.5),
    }


def test_the_page_says_what_failed(results: Results) -> None:
    results.failures.append("theirs, 2 ranks, start: no such library")
    text = both_ways.page({IN_A_ROW: results}, [2], "mine", "the command")
    assert "- theirs, 2 ranks, start: no such library" in text


def test_what_has_fallen_is_told_worst_first(results: Results) -> None:
    def ratios() -> dict[both_ways.Place, float]:
        return both_ways.ratios({IN_A_ROW: results}, [2], "mine")

    known = ratios()
    assert both_ways.fallen(known, known) == []
    results.add(measured("mine", 4, 1.2e-6))  # Within what runs differ by.
    assert both_ways.fallen(ratios(), known) == []
    results.add(measured("mine", 4, 2e-6))
    results.add(measured("mine", 1 << 20, 4e-3))
    assert both_ways.fallen(ratios(), known) == [
        "all_reduce of 1 MiB, 2 ranks, in-a-row: 1.00 -> 0.25 theirs",
        "all_reduce of 4 B, 2 ranks, in-a-row: 4.00 -> 2.00 theirs",
    ]


def test_pictures_are_well_formed_and_have_a_curve_for_each_system(results: Results) -> None:
    curves = {name: results.curve("all_reduce", 2, name) for name in ("mine", "theirs")}
    picture = xml.etree.ElementTree.fromstring(chart.draw("a < b", curves))
    lines = [e for e in picture.iter() if e.get("class") == "c"]
    assert len(lines) == 4  # In two panels.


def test_a_page_of_hosts_shows_a_picture_of_each_operation(results: Results) -> None:
    by_way = {IN_A_ROW: results}
    pictures = both_ways.pictures(by_way, [2], "3_hosts")
    assert list(pictures) == ["3_hosts_all_reduce_2_ranks.svg"]
    xml.etree.ElementTree.fromstring(pictures["3_hosts_all_reduce_2_ranks.svg"])
    text = both_ways.page(by_way, [2], "mine", "the command", 3, tuple(pictures))
    assert "![3_hosts_all_reduce_2_ranks](3_hosts_all_reduce_2_ranks.svg)" in text
    assert both_ways.read(text) == pytest.approx(both_ways.ratios(by_way, [2], "mine"))


def start(name: str, folder: pathlib.Path, ranks: int = 2) -> Group:
    return Group(systems.SYSTEMS[name], folder, Placement(ranks, CORES))


@pytest.mark.parametrize(
    "name",
    [
        "syncline-shm",
        "syncline-tcp",
        "syncline-tcp-tls",
        "openmpi",
        "openmpi-ucx",
        "openmpi-tcp",
        "mpich",
        "gloo",
        "memory",
    ],
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_group_times_each_call(name: str, ranks: int, tmp_path: pathlib.Path) -> None:
    group = start(name, tmp_path / "group", ranks)
    try:
        durations = group.run("all_reduce", 4096, 7, 60)
        assert len(durations) == 7
        assert all(0 < seconds < 60 for seconds in durations)
        assert len(group.run("all_reduce", 4, 3, 60)) == 3
    finally:
        group.close()
    assert not (tmp_path / "group").exists()


@pytest.mark.parametrize("name", ["syncline-shm", "syncline-shm-numpy"])
def test_calls_in_a_row_have_one_time(name: str, tmp_path: pathlib.Path) -> None:
    group = start(name, tmp_path / "group")
    try:
        durations = group.run("all_reduce", 4096, 7, 60, in_a_row=True)
        assert len(durations) == 7
        assert len(set(durations)) == 1
        assert 0 < durations[0] < 60
    finally:
        group.close()


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    made = Hosts(2, megabits=100)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["syncline-auto", "openmpi-tcp", "gloo", "link"])
def test_hosts_are_as_far_apart_as_they_should_be(
    name: str, hosts: Hosts, tmp_path: pathlib.Path
) -> None:
    group = Group(systems.SYSTEMS[name], tmp_path / "group", Placement(2, CORES, hosts=hosts))
    try:
        assert max(group.run("all_reduce", 4, 3, 60)) > 0
        # A megabyte each way takes 84 ms, less what the switch had saved up.
        assert min(group.run("all_reduce", 1 << 20, 2, 60)) > 0.04
    finally:
        group.close()


def test_what_knows_one_host_only_says_so(hosts: Hosts, tmp_path: pathlib.Path) -> None:
    for name in ("memory", "mpich", "openmpi-ucx"):
        with pytest.raises(GroupError, match=f"{name} is not among hosts"):
            Group(systems.SYSTEMS[name], tmp_path / name, Placement(2, CORES, hosts=hosts))


@pytest.mark.parametrize("name", ["openmpi-ucx", "openmpi-tcp"])
def test_settings_of_a_system_come_before_those_of_its_launcher(name, tmp_path) -> None:
    system = systems.SYSTEMS[name]
    _, environment = systems.commands(system, str(tmp_path), 2, oversubscribed=False)
    assert environment.items() >= dict(system.settings).items()


def test_ranks_are_bound_only_where_each_has_a_core() -> None:
    assert Placement(2, [3, 5], bound=True).core_of(1) == 5
    assert Placement(2, [3, 5]).core_of(1) is None
    assert Placement(4, [3, 5], bound=True).core_of(1) is None


def test_what_a_system_does_not_have_leaves_its_group_as_it_was(tmp_path: pathlib.Path) -> None:
    group = start("memory", tmp_path / "group")
    try:
        with pytest.raises(Unsupported):
            group.run("barrier", 0, 3, 60)
        assert len(group.run("copy", 4096, 3, 60)) == 3
    finally:
        group.close()


def test_a_group_that_cannot_start_says_why(tmp_path: pathlib.Path) -> None:
    unknown = systems.System("unknown", "syncline_peer", "no-such-backend")
    with pytest.raises(GroupError, match="no-such-backend"):
        Group(unknown, tmp_path / "group", Placement(2, CORES))
    assert not (tmp_path / "group").exists()


def test_a_rank_that_dies_is_an_error_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    group = start("syncline-shm", tmp_path / "group")
    victim = group._processes[1]
    try:
        victim.kill()
        with pytest.raises(GroupError):
            group.run("all_reduce", 4096, 1000, 60)
    finally:
        group.close()
    assert all(process.returncode is not None for process in group._processes)
    assert not (tmp_path / "group").exists()
