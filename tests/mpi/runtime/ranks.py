"""Runs mpi_rank under the launchers of four MPI implementations, and with the standard ABI."""

import os
import pathlib
import re
import subprocess

import mpich5_status
import openmpi5_status
import pytest

from tests.mpi import mpi_installations

HERE = pathlib.Path(os.path.abspath(__file__)).parent
DEADLINE = 240  # Of any command; far more than is needed.
STATUS = {"openmpi5": openmpi5_status, "mpich5": mpich5_status, "standard_abi": mpich5_status}
# What the ranks find, and the family of the plug-in that they load for it.
FOUND = {
    "openmpi4": "Open MPI v4.1.4, Open MPI",
    "mpich4": "MPICH 4.0.2, MPICH",
    "openmpi5": "Open MPI v5.0.11, Open MPI",
    "mpich5": "MPICH 5.0.2, MPICH",
    "standard_abi": "MPICH 5.0.2, MPI 5 ABI",
}


def skip_unless_available(family):
    if family in STATUS and not STATUS[family].AVAILABLE:
        pytest.skip(STATUS[family].REASON)


def library(family):
    if family == "standard_abi":
        return str(mpi_installations.STANDARD_ABI_LIBRARY)
    return str(mpi_installations.library(family))


def run(family, scenario, folder, options=(), **variables):
    """Runs two of mpi_rank under the family's launcher; returns the exit status and the output."""
    return launch(family, 2, [HERE / "mpi_rank", scenario], folder, options, **variables)


def launch(family, processes, argv, folder, options=(), preload="", within=(), **variables):
    """Runs a program under the family's launcher; returns the exit status and the output.

    `within` is a command that runs the launcher's.
    """
    skip_unless_available(family)
    if preload:
        preloaded = f"{os.environ.get('LD_PRELOAD', '')}:{HERE / preload}"
        argv = ["/usr/bin/env", f"LD_PRELOAD={preloaded}", *argv]
    launcher = "mpich5" if family == "standard_abi" else family
    command, env = mpi_installations.command(launcher, processes, argv, folder, options)
    env["TEST_SRCDIR"] = os.environ["TEST_SRCDIR"]
    env["SYNCLINE_MPI_LIBRARY"] = library(family)
    # Open MPI names shared memory by the user and the launcher's pid: in /dev/shm, jobs in two pid
    # namespaces, as Bazel's sandboxes are, take each other's.
    env["OMPI_MCA_btl_vader_backing_directory"] = folder
    env["OMPI_MCA_btl_sm_backing_directory"] = folder
    env |= variables
    done = subprocess.run(
        [*map(str, within), *command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )
    return done.returncode, done.stdout


def check(output, family):
    found = re.findall(r"rank (\d) of 2: " + re.escape(FOUND[family]) + ", ", output)
    assert sorted(found) == ["0", "1"], output
