import os
import pathlib
import sys
import zipfile

import build_wheel
import elf
import pytest

TOOLS = elf.Tools(objdump="/usr/bin/objdump", patchelf="", strip="")
PLATFORM = "debian_12"
PYTHON = pathlib.Path(os.path.realpath(sys.executable))


@pytest.fixture(autouse=True)
def platform(monkeypatch):
    """What the machine's interpreter is made for."""
    monkeypatch.setitem(elf._NEWEST_SYMBOLS, PLATFORM, {"GLIBC": (2, 36)})


def distribution(folder, names, mode):
    info = folder / "d-1.dist-info"
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name * 100)
        path.chmod(mode)
        os.utime(path, (mode, mode))
    build_wheel.pack(folder, info, folder.with_suffix(".whl"))
    return folder.with_suffix(".whl")


def test_neither_time_nor_order_nor_umask_changes_the_bytes(tmp_path):
    names = ["z.py", "a/b.py", "d-1.dist-info/WHEEL", "a/a.py"]
    one = distribution(tmp_path / "one", names, 0o644)
    two = distribution(tmp_path / "two", names[::-1], 0o600)
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        order = ["a/a.py", "a/b.py", "z.py", "d-1.dist-info/WHEEL", "d-1.dist-info/RECORD"]
        assert archive.namelist() == order


def test_entry_points_are_written_by_group():
    targets = {"b.group/one": "m:f", "a/two": "m:g", "b.group/four": "m:h"}
    assert build_wheel.entry_points(targets) == (
        "[a]\ntwo = m:g\n[b.group]\nfour = m:h\none = m:f\n"
    )


def test_programs_stay_executable(tmp_path):
    wheel = distribution(tmp_path / "one", ["bin/run", "d-1.dist-info/WHEEL"], 0o755)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.getinfo("bin/run").external_attr >> 16 == 0o100755
        assert archive.getinfo("d-1.dist-info/RECORD").external_attr >> 16 == 0o100644


def test_a_library_that_is_neither_there_nor_in_the_wheel_is_refused():
    needed = elf.dependencies(TOOLS, PYTHON).libraries
    assert "libc.so.6" in needed and "libz.so.1" in needed
    found = elf.problems(TOOLS, PYTHON, set(needed) - {"libz.so.1"}, PLATFORM)
    assert found == [f"{PYTHON.name} loads libz.so.1, which is neither there nor in the wheel"]
    assert elf.problems(TOOLS, PYTHON, set(needed), PLATFORM) == []


@pytest.mark.parametrize("newest", [(2, 2, 5), (2, 9)])
def test_a_symbol_newer_than_the_platform_is_refused(monkeypatch, newest):
    monkeypatch.setitem(elf._NEWEST_SYMBOLS[PLATFORM], "GLIBC", newest)
    needed = set(elf.dependencies(TOOLS, PYTHON).libraries)
    found = elf.problems(TOOLS, PYTHON, needed, PLATFORM)
    assert f"{PYTHON.name} needs GLIBC_2.34" in found
    assert f"{PYTHON.name} needs GLIBC_2.2.5" not in found


def test_a_bundled_library_is_named_by_its_contents(tmp_path):
    library = tmp_path / "libx-3.so.0.14"
    library.write_bytes(b"")
    assert build_wheel.own_name(library) == "libx-3-e3b0c442.so.0.14"
