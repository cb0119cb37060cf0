"""The benchmark measures what it says, on Syncline's launcher alone."""

import pathlib

import pytest

from benchmarks.launcher import launchers, startup


def _processes_in(folder: str) -> list[str]:
    found = []
    for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={folder}".encode() in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:
            pass
    return found


@pytest.mark.parametrize("kind", sorted(launchers.WORKERS))
def test_a_start_is_measured_and_leaves_nothing(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(launchers.tempfile, "tempdir", str(tmp_path))
    start = launchers.measure(launchers.syncline(), kind, workers=3)
    assert 0 < start.first <= start.all < 60
    assert 0 < start.stop < 60
    assert 1024 < start.rss <= start.peak
    assert list(tmp_path.iterdir()) == []
    assert _processes_in(str(tmp_path)) == []


def test_a_launcher_that_fails_is_an_error_with_its_words(monkeypatch):
    monkeypatch.setitem(launchers.WORKERS, "broken", ["--no-python", "/nowhere/program"])
    with pytest.raises(launchers.LauncherError, match="(?s)0 of 2 workers came up.*/nowhere"):
        launchers.measure(launchers.syncline(), "broken", workers=2)


def test_the_table_has_medians_spread_and_ratio():
    ours = [launchers.Start(0.01 * i, 0.02, 0.03, 20480, 30720) for i in (1, 2, 6)]
    theirs = [launchers.Start(1.0, 2.0, 3.0, 204800, 307200)]
    lines = startup.table("sh", ours, theirs).splitlines()
    assert lines[2] == (
        "| first worker's line, ms | 20.0 (10.0 to 60.0) | 1000.0 (1000.0 to 1000.0) | 50.0 |"
    )
    assert lines[5].startswith("| launcher's memory, MiB | 20.0 (20.0 to 20.0) | 200.0 ")
    assert startup.table("sh", ours, []).splitlines()[2].endswith("| - | - |")
