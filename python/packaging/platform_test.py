"""What the wheels' binaries need of a machine, and whether an old C library has it.

The build of a wheel refuses symbols that are too new (elf.py). Here readelf looks, also at the
plug-ins for MPI, which lie as bytes within the extension, and binaries run with Debian 11's glibc.
"""

import pathlib
import re
import subprocess
import zipfile

import pytest
from needs import OLD, assert_runs_everywhere, on_old_glibc, said

WHEELS = sorted(pathlib.Path("python").glob("wheel*/*.whl"))
PLUGINS = sorted(pathlib.Path("backends/mpi").glob("*.so"))
FOR_THIS_MACHINE = any(wheel.name.endswith("-linux_x86_64.whl") for wheel in WHEELS)

pytestmark = pytest.mark.skipif(
    FOR_THIS_MACHINE,
    reason="wheels of a sanitizer's build, or without the old C library, are for this machine",
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """{wheel: [its ELF files]}"""
    found = {}
    for wheel in WHEELS:
        folder = tmp_path_factory.mktemp(wheel.name.split("-")[2])
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        found[wheel] = [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]
        for path in found[wheel]:
            path.chmod(0o755)
    return found


def test_each_wheel_is_for_an_interpreter_of_its_own():
    tags = [wheel.name.split("-")[2] for wheel in WHEELS]
    assert "cp311" in tags and len(set(tags)) == len(tags)


def test_no_binary_needs_more_than_its_tag_says(unpacked):
    for wheel, files in unpacked.items():
        major, minor = map(int, re.search(r"manylinux_(\d+)_(\d+)_x86_64", wheel.name).groups())
        assert (major, minor) == (2, 28)
        assert len(files) == 3  # The extension, the launcher, the manager of segments.
        for path in [*files, *PLUGINS]:
            assert_runs_everywhere(path)


def test_plugins_are_looked_at():
    names = {path.name for path in PLUGINS}
    assert {"libsyncline_mpi_mpich.so", "libsyncline_mpi_openmpi.so"} <= names


def test_an_old_c_library_has_all_that_an_extension_needs_but_python(unpacked):
    for files in unpacked.values():
        (extension,) = [path for path in files if path.name == "_syncline.so"]
        env = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "yes", "LD_BIND_NOW": "1"}
        loader = on_old_glibc(extension)
        done = subprocess.run(loader, env=env, capture_output=True, text=True, timeout=60)
        out = done.stdout + done.stderr
        assert "libc.so.6 => " + OLD in out, out
        missing = re.findall(r"undefined symbol: (\w+)", out)
        assert missing and not [name for name in missing if not re.match("_?Py", name)], out
        assert "not found" not in out, out


def test_the_launcher_runs_a_job_with_an_old_c_library(unpacked, tmp_path):
    (launcher,) = [path for path in unpacked[WHEELS[0]] if path.name == "syncline-run"]
    assert said(*on_old_glibc(launcher, "--version")).startswith("syncline-run ")
    script = tmp_path / "worker.sh"
    script.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE"\n')
    script.chmod(0o755)
    options = ["--standalone", "--nproc-per-node", "2", "--no-python"]
    out = said(*on_old_glibc(launcher, *options, script))
    assert "rank 0 of 2" in out and "rank 1 of 2" in out
