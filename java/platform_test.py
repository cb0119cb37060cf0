"""What the jar's native library needs of a machine, and whether an old one has it.

As for the wheels in python/packaging/platform_test.py. The JVM is Debian 11's, on its C library.
"""

import os
import pathlib
import subprocess
import zipfile

import pytest
from needs import OLD, assert_runs_everywhere, on_old_glibc, said

FOLDER = "io/syncline/native/linux-x86_64/"
LAUNCHER = os.path.abspath("launch/syncline_run")
JAVA = pathlib.Path("../old_java").resolve()

PROGRAM = """
import io.syncline.*;

public class Program {
  public static void main(String[] arguments) {
    try (World world = World.init()) {
      float[] values = {1, world.rank()};
      world.group().allReduce(values);
      try (Tensor shared = Tensor.emptyShared(DType.FLOAT64, 1 << 20)) {
        world.group().allReduce(shared, ReduceOp.MAX);
      }
      System.out.println("rank " + world.rank() + ": " + values[0] + " " + values[1] + " on "
          + System.getProperty("java.version"));
    }
  }
}
"""

pytestmark = pytest.mark.skipif(
    not os.path.exists(OLD), reason="the mirror no longer has the old C library"
)


@pytest.fixture(scope="module")
def jar():
    return pathlib.Path("java/syncline.jar").resolve()


def test_the_native_library_needs_an_old_c_library_and_nothing_else(jar, tmp_path):
    with zipfile.ZipFile(jar) as archive:
        names = archive.read(FOLDER + "files").decode().split()
        assert names == ["libsyncline_jni.so"]
        for name in names:
            assert_runs_everywhere(pathlib.Path(archive.extract(FOLDER + name, tmp_path)))


@pytest.mark.skipif(not (JAVA / "java").exists(), reason="the mirror no longer has the old Java")
def test_two_ranks_with_an_old_c_library_communicate(jar, tmp_path):
    (tmp_path / "Program.java").write_text(PROGRAM)
    said("javac", "-cp", str(jar), str(tmp_path / "Program.java"))
    home = JAVA / "java"
    java = on_old_glibc(
        home / "bin/java",
        f"-Djava.io.tmpdir={tmp_path}",
        "-cp",
        f"{jar}:{tmp_path}",
        "Program",
        libraries=[JAVA / "lib", home / "lib"],
    )
    script = tmp_path / "worker.sh"
    script.write_text("#!/bin/sh\nexec " + " ".join(java) + "\n")
    script.chmod(0o755)
    done = subprocess.run(
        [LAUNCHER, "--standalone", "--nproc-per-node=2", "--no-python", script],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        assert f"rank {rank}: 2.0 1.0 on 17." in done.stdout, done.stdout
