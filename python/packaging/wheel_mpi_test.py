"""The wheel on a machine without MPI, with Open MPI alone, with MPICH alone, and with both.

A machine is a mount namespace in which /etc/ld.so.cache names the MPI libraries that are installed,
and the files of any other are hidden.
"""

import glob
import os
import subprocess

import clean_venv
import pytest

from tests.mpi import mpi_installations
from tests.mpi.conftest import folder  # noqa: F401, a fixture

FAMILIES = {"openmpi4": "libmpi.so.40", "mpich4": "libmpich.so.12"}
# Where the loader looks without /etc/ld.so.cache.
LIBRARY_FOLDERS = ["/lib", "/usr/lib", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"]
SPACES = ["unshare", "--mount"] + (["--user", "--map-root-user"] if os.geteuid() != 0 else [])

RANK = """
import array
import syncline as dist

assert dist.is_mpi_available()
dist.init_process_group("mpi")
values = array.array("d", [dist.get_rank() + 1.0] * 1000)
dist.all_reduce(values)
assert list(values) == [3.0] * 1000, values
with open("/proc/self/maps") as maps:
    files = {line.split()[-1].rpartition("/")[2] for line in maps if ".so" in line}
families = {"libmpi.so.40", "libmpich.so.12"} & {".".join(f.split(".")[:3]) for f in files}
print("rank", dist.get_rank(), "has", *families)
dist.destroy_process_group()
"""

WITHOUT = """
import syncline as dist

assert not dist.is_mpi_available()
try:
    dist.init_process_group("mpi")
except dist.DistBackendError as error:
    print("refused:", error)
dist.init_process_group()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    return clean_venv.CleanVenv(tmp_path_factory.mktemp("clean"))


def on_machine(installed, command, env, scratch):
    """Runs the command where these families are installed; returns status, output and stderr."""
    if subprocess.run([*SPACES, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not make namespaces, in which MPI libraries are hidden")
    folders = [os.path.dirname(mpi_installations.library(family)) for family in installed]
    with open(f"{scratch}/ld.so.conf", "w") as conf:
        conf.write("".join(f"{each}\n" for each in folders))
    hidden = [
        path
        for root in LIBRARY_FOLDERS
        for name in ("libmpi*.so*", "libmpich*.so*")
        for path in glob.glob(f"{root}/{name}")
    ]
    script = "\n".join(
        [
            "set -e",
            f"/sbin/ldconfig -X -f {scratch}/ld.so.conf -C {scratch}/ld.so.cache",
            f"mount --bind {scratch}/ld.so.cache /etc/ld.so.cache",
            *(f"mount --bind /dev/null {path}" for path in hidden),
            'exec "$@"',
        ]
    )
    done = subprocess.run(
        [*SPACES, "bash", "-c", script, "bash", *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "installed, launcher",
    [
        (["openmpi4"], "openmpi4"),
        (["mpich4"], "mpich4"),
        (["openmpi4", "mpich4"], "openmpi4"),
        (["mpich4", "openmpi4"], "mpich4"),
    ],
)
def test_it_finds_the_mpi_that_is_installed(installed, launcher, venv, folder):  # noqa: F811
    command, env = mpi_installations.command(launcher, 2, [venv.python, "-c", RANK], folder)
    env.pop("LD_LIBRARY_PATH", None)
    output = on_machine(installed, command, env, folder)
    for rank in range(2):
        assert f"rank {rank} has {FAMILIES[launcher]}\n" in output


def test_without_mpi_it_says_what_it_looked_for_and_does_the_rest(venv, folder):  # noqa: F811
    output = on_machine([], [venv.python, "-c", WITHOUT], {"PATH": "/usr/bin:/bin"}, folder)
    (refusal,) = [line for line in output.splitlines() if line.startswith("refused: ")]
    for name in ("libmpi.so.40", "libmpich.so.12", "libmpi.so.12", "SYNCLINE_MPI_LIBRARY"):
        assert name in refusal
