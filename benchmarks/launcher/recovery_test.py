"""The benchmark measures what it says, on Syncline's launcher alone."""

import pathlib

import pytest

from benchmarks.launcher import launchers, recovery


def steps_of(ranks, steps, start, world):
    """As they are logged by lockstep ranks, a step per second."""
    return [
        recovery.Step(start + i + 0.1 * rank, step, rank, world)
        for i, step in enumerate(steps)
        for rank in ranks
    ]


def test_a_rank_that_repeats_a_step_is_new_and_the_last_one_counts():
    steps = steps_of(range(2), range(20, 26), 0, world=2)
    assert recovery.first_step_after(steps, 4.5, 2) is None  # In flight when it happened.
    steps += steps_of([0], [20], 10, world=2)
    assert recovery.first_step_after(steps, 4.5, 2) is None
    steps += steps_of([1], [20], 11, world=2) + steps_of([0], [21], 12, world=2)
    assert recovery.first_step_after(steps, 4.5, 2) == pytest.approx(6.6)


def test_a_smaller_group_is_new_and_what_orphans_do_does_not_count():
    steps = steps_of(range(6), range(20, 26), 0, world=6)
    steps += steps_of([4, 5], [26, 27], 6, world=6)
    assert recovery.first_step_after(steps, 4.5, 4) is None
    steps += steps_of(range(4), [28], 8, world=4)
    assert recovery.first_step_after(steps, 4.5, 4) == pytest.approx(3.8)


@pytest.mark.parametrize("name", sorted(recovery.FAULTS))
def test_a_recovery_is_measured_and_leaves_nothing(name, monkeypatch, tmp_path):
    monkeypatch.setattr(recovery.tempfile, "tempdir", str(tmp_path))
    assert 0 < recovery.measure(launchers.syncline(), recovery.FAULTS[name]) < 60
    assert list(tmp_path.iterdir()) == []
    for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            assert f"TMPDIR={tmp_path}".encode() not in environ.read_bytes(), environ
        except OSError:
            pass


def test_the_table_has_medians_spread_and_ratio():
    row = recovery.row("a worker", [0.5, 0.25, 1.0], [10.0])
    assert row == "| a worker | 0.50 (0.25 to 1.00) | 10.00 (10.00 to 10.00) | 20.0 |"
    assert recovery.row("a worker", [0.5], []).endswith("| - | - |")
