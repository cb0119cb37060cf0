"""What is shipped for aarch64 runs, emulated by qemu: the launcher, and jobs in Python and Java.

The jar is that for both kinds of machine. Python and Java are Debian's for arm64, on its C library.
"""

import os
import pathlib
import re
import subprocess
import zipfile

import pytest

QEMU = os.path.abspath("../qemu/usr/bin/qemu-aarch64-static")
# The folder itself, not the links to its files: a program looks for its own there.
MACHINE = os.path.dirname(os.path.realpath("../aarch64_machine/BUILD.bazel"))
JARS = ["java/syncline_all.jar", "java/syncline.jar"]
LAUNCHER = os.path.abspath("launch/aarch64/syncline_run")
# With --config=aarch64 the jar is for aarch64 alone.
JAR = next(path for path in map(os.path.abspath, JARS) if os.path.exists(path))
PYTHON = f"{MACHINE}/usr/bin/python3.11"
JAVA = f"{MACHINE}/usr/lib/jvm/java-17-openjdk-arm64/bin/java"

WORKER = """
import array
import platform
import sys
import syncline as dist

dist.init_process_group(sys.argv[1])
values = array.array("f", [dist.get_rank() + 1.0] * 100_001)
dist.all_reduce(values)
assert set(values) == {3.0}
halves = array.array("d", [0.5 * dist.get_rank()] * 3)
dist.all_reduce(halves, op=dist.ReduceOp.MAX)
assert set(halves) == {0.5}
everyone = [None, None]
dist.all_gather_object(everyone, {"rank": dist.get_rank()})
assert everyone == [{"rank": 0}, {"rank": 1}]
print("rank", dist.get_rank(), "on", platform.machine())
dist.destroy_process_group()
"""

PROGRAM = """
import io.syncline.*;

public class Program {
  public static void main(String[] arguments) {
    try (World world = World.init()) {
      float[] values = {1, world.rank()};
      world.group().allReduce(values);
      System.out.println("rank " + world.rank() + ": " + values[0] + " " + values[1] + " on "
          + System.getProperty("os.arch"));
    }
  }
}
"""


def run(*command, **env):
    done = subprocess.run(
        list(map(str, command)),
        env=dict(os.environ, **env),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def emulated(*command):
    return [QEMU, "-L", MACHINE, *command]


def launch(*command, **env):
    """What two workers of the launcher print, which is emulated as they are."""
    options = ["--standalone", "--nproc-per-node=2", "--no-python"]
    return run(*emulated(LAUNCHER, *options, *emulated(*command)), **env)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """What the wheel holds."""
    (wheel,) = pathlib.Path("python/wheel_aarch64").glob("*.whl")
    assert wheel.name.endswith("-cp311-cp311-manylinux_2_36_aarch64.whl")
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The folder of a Java program, compiled."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "Program.java").write_text(PROGRAM)
    run("javac", "-cp", JAR, folder / "Program.java")
    return folder


@pytest.fixture(scope="module")
def binaries(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("jar")
    with zipfile.ZipFile(JAR) as archive:
        native = archive.extract("io/syncline/native/linux-aarch64/libsyncline_jni.so", folder)
    found = [pathlib.Path(LAUNCHER), pathlib.Path(native)]
    found += [path for path in package.rglob("*") if path.is_file() and _is_elf(path)]
    assert len(found) == 5  # In the wheel: the extension, the launcher, the manager of segments.
    return found


def _is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def test_binaries_are_for_aarch64_and_need_no_library_but_that_of_c(binaries):
    of_c = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-aarch64.so.1"}
    for path in binaries:
        assert path.read_bytes()[18:20] == b"\xb7\x00", path
        headers = run("readelf", "--dynamic", "--wide", path)
        assert set(re.findall(r"\(NEEDED\).*\[(.*)\]", headers)) <= of_c, (path, headers)


def test_no_binary_needs_a_newer_c_library_than_readmes_say(binaries):
    for path in binaries:
        versions = re.findall(r"GLIBC_2\.(\d+)", run("readelf", "--version-info", "--wide", path))
        assert max(map(int, versions)) <= 36, path


def test_the_launcher_explains_itself():
    assert run(*emulated(LAUNCHER, "--version")).startswith("syncline-run ")
    assert "--nproc-per-node" in run(*emulated(LAUNCHER, "--help"))


@pytest.mark.parametrize("backend", ["auto", "shm", "tcp", "gloo"])
def test_two_ranks_in_python_communicate_by(backend, package, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    said = launch(PYTHON, "-B", tmp_path / "worker.py", backend, PYTHONPATH=str(package))
    assert "rank 0 on aarch64" in said and "rank 1 on aarch64" in said, said


def test_two_ranks_in_java_communicate(program, tmp_path):
    options = [f"-Djava.io.tmpdir={tmp_path}", f"-XX:ErrorFile={tmp_path}/error.txt"]
    said = launch(JAVA, *options, "-cp", f"{JAR}:{program}", "Program")
    assert "rank 0: 2.0 1.0 on aarch64" in said and "rank 1: 2.0 1.0 on aarch64" in said, said


@pytest.mark.skipif(not JAR.endswith("_all.jar"), reason="the jar is for aarch64 alone")
def test_the_same_jar_serves_this_machine(program, tmp_path):
    options = [f"-Djava.io.tmpdir={tmp_path}", "-XX:-UsePerfData"]
    said = run("java", *options, "-cp", f"{JAR}:{program}", "Program")
    assert "rank 0: 1.0 0.0 on amd64" in said, said
