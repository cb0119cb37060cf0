"""What pip makes of the sources through Bazel: in a clone, and of the source distribution.

SYNCLINE_EXAMPLE_OPTIONS, which --test_env passes on, has further options for the builds, such as
--disk_cache=FOLDER.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import build_backend
import pytest

SOURCES = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = os.environ.get("SYNCLINE_EXAMPLE_OPTIONS", "")
PIP = os.path.abspath("../pip/pip.whl/pip")

WORKER = """
import array
import syncline as dist

dist.init_process_group()
values = array.array("f", [dist.get_rank() + 1.0] * 1001)
dist.all_reduce(values)
assert list(values) == [3.0] * 1001
print("rank", dist.get_rank(), "done")
"""


def run(*command, cwd, path="/usr/bin:/bin"):
    # Bazel and its caches are the user's; everything else is not this test's.
    env = {"PATH": path, "HOME": os.path.expanduser("~")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.fixture
def clone(tmp_path):
    """A clone with what is not committed yet, as one who builds has it."""
    folder = tmp_path / "clone"
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=SOURCES)
    for name in filter(None, listed.decode().split("\0")):
        if (SOURCES / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCES / name, folder / name)
    yield folder
    if (folder / "bazel-bin").exists():
        run("./bazelw", "clean", "--expunge", cwd=folder)


def pip_wheel(what, folder):
    """Has pip build the wheel of `what`; returns its path."""
    venv = folder / "builder"
    if not venv.exists():
        run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=folder)
    options = ["--no-index", "--no-deps", "--wheel-dir", folder / "wheels"]
    if OPTIONS:
        options += ["--config-settings", "bazel-options=" + OPTIONS]
    run(venv / "bin/python", PIP, "wheel", *options, what, cwd=folder)
    (wheel,) = (folder / "wheels").glob("*.whl")
    return wheel


def use(wheel, folder):
    """Installs the wheel in an environment of its own, and has two ranks communicate."""
    venv = folder / "user"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=folder)
    run(venv / "bin/python", PIP, "install", "--no-index", "--no-deps", wheel, cwd=folder)
    (folder / "worker.py").write_text(WORKER)
    launch = [venv / "bin/syncline-run", "--standalone", "--nproc-per-node=2", "worker.py"]
    output = run(*launch, cwd=folder, path=f"{venv}/bin:/usr/bin:/bin")
    assert "rank 0 done" in output and "rank 1 done" in output, output


def test_pip_builds_a_clone(clone, tmp_path):
    use(pip_wheel(clone, tmp_path), tmp_path)


def test_pip_builds_the_source_distribution(clone, tmp_path, monkeypatch):
    monkeypatch.chdir(clone)
    name = build_backend.build_sdist(str(tmp_path))
    use(pip_wheel(tmp_path / name, tmp_path), tmp_path)
