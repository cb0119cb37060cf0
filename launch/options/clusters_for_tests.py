"""Fixtures that run commands under the real mpirun, mpiexec and srun."""

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from tests.mpi import mpi_installations

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"])
SLURM = ROOT / "slurm"
CLUSTER = ROOT / "syncline/launch/options/slurm_cluster.py"
DEADLINE = 120  # Of any command; far more than is needed.


def environment(folder: pathlib.Path) -> dict[str, str]:
    own = {"PATH": os.environ["PATH"], "TMPDIR": str(folder), "PYTHON_EXEC": sys.executable}
    sanitizers = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LD_PRELOAD")
    return own | {name: os.environ[name] for name in sanitizers if name in os.environ}


def finish(command, env) -> tuple[int, str, str]:
    result = subprocess.run(
        [str(word) for word in command],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    return result.returncode, result.stdout, result.stderr


def start_by(family: str, folder: pathlib.Path):
    """Returns start(size, *command), which uses the launcher of that MPI implementation."""

    def start(size, *argv):
        # Jobs that begin at once in one folder fail where both make the same one below it: Open MPI
        # takes a folder that has appeared meanwhile for an error.
        own = pathlib.Path(tempfile.mkdtemp(dir=folder))
        command, env = mpi_installations.command(family, size, list(argv), str(own))
        return finish(command, env | environment(own))

    return start


@pytest.fixture
def folder(tmp_path):
    """Short, as Open MPI and Slurm make sockets below it."""
    path = pathlib.Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


@pytest.fixture
def mpirun(folder):
    """mpirun(size, *command): the command in each of `size` processes, by Open MPI."""
    return start_by("openmpi4", folder)


@pytest.fixture
def mpiexec(folder):
    """mpiexec(size, *command): the command in each of `size` processes, by MPICH."""
    return start_by("mpich4", folder)


@pytest.fixture
def slurm(folder):
    """slurm(nodes, *command): the command in a cluster with so many nodes."""
    (folder / "tmp").mkdir()
    (folder / "cluster").mkdir()
    spaces = ["unshare", "--net", "--mount", "--ipc", "--pid"]
    spaces += ["--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*spaces, "true"], capture_output=True).returncode != 0:
        # Nor would a user namespace do: Slurm's daemons call setgroups.
        pytest.skip("this user may not make namespaces, which the Slurm cluster needs")
    env = environment(folder / "tmp")
    start = [*spaces, sys.executable, CLUSTER, SLURM, folder / "cluster"]
    return lambda nodes, *command: finish([*start, nodes, *command], env)
