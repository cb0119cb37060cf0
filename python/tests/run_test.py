"""`python -m syncline.run` becomes the launcher."""

import os
import pathlib
import shutil
import subprocess
import sys

from syncline import run

WORKER = """
import os, sys
import syncline
print("worker", os.environ["RANK"], sys.executable, sys.argv[1:], flush=True)
sys.exit(5 if "fail" in sys.argv else 0)
"""


def launch(folder, *arguments, **variables):
    script = folder / "worker.py"
    script.write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    options = ["--standalone", "--nproc-per-node=2", str(script), *arguments]
    return subprocess.run(
        [sys.executable, "-m", "syncline.run", *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_workers_are_run_by_the_same_interpreter(tmp_path):
    done = launch(tmp_path, "--an-option", "value")
    assert done.returncode == 0, done.stderr
    expected = [
        f"[rank{rank}]: worker {rank} {sys.executable} ['--an-option', 'value']" for rank in (0, 1)
    ]
    assert sorted(done.stdout.splitlines()) == expected


def test_python_exec_names_another(tmp_path):
    other = tmp_path / "another-python"
    other.symlink_to(sys.executable)
    done = launch(tmp_path, PYTHON_EXEC=str(other))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(other)) == 2


def test_the_exit_code_is_the_launchers(tmp_path):
    assert launch(tmp_path, "fail").returncode == 5


def test_without_a_launcher_it_says_where_it_looked(tmp_path):
    package = tmp_path / "python" / "syncline"
    package.mkdir(parents=True)
    copy = shutil.copy(run.__file__, package)
    done = subprocess.run(
        [sys.executable, copy, "x.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    for place in (package / "bin/syncline-run", pathlib.Path(tmp_path) / "launch/syncline_run"):
        assert str(place) in done.stderr
