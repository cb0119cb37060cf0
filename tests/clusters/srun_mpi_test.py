"""Backend mpi in jobs of srun: the --mpi that each MPI needs, and that any other is an error."""

import os
import pathlib
import re
import sys

import pytest

from tests.mpi import mpi_installations

HERE = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline/tests/clusters"
CPP = [HERE / "who_am_i", "mpi"]
PYTHON = [sys.executable, HERE / "who_am_i.py", "a", "mpi"]
NEEDED = {"openmpi4": "pmix", "mpich4": "pmi2"}
LAUNCHERS = {"openmpi4": "mpirun of Open MPI", "mpich4": "mpiexec of MPICH"}


@pytest.fixture
def srun(slurm):
    """srun(size, mpi, family, program, NAME=value...): so many tasks on one node, by --mpi=mpi."""

    def start(size, mpi, family, program, **variables):
        env = mpi_installations.environment(family)
        env |= {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
        words = ["env", *(f"{name}={value}" for name, value in env.items()), *program]
        return slurm(1, "srun", "--overcommit", f"-n{size}", f"--mpi={mpi}", *words)

    return start


def check_ranks(size, result):
    code, out, err = result
    assert code == 0, err
    seen = sorted(re.findall(r"rank (\d) of (\d), local (\d), sum (\d)", out))
    total = str(sum(range(size)))
    assert seen == [(str(rank), str(size), str(rank), total) for rank in range(size)], out


@pytest.mark.parametrize("family", NEEDED)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_tasks_of_srun_are_ranks_of_one_mpi_job(srun, family, size):
    library = mpi_installations.library(family)
    check_ranks(size, srun(size, NEEDED[family], family, CPP, SYNCLINE_MPI_LIBRARY=library))


@pytest.mark.parametrize("family", NEEDED)
def test_of_several_libraries_the_one_that_srun_serves_is_taken(srun, family):
    folders = ":".join(str(mpi_installations.library(each).parent) for each in NEEDED)
    check_ranks(2, srun(2, NEEDED[family], family, PYTHON, LD_LIBRARY_PATH=folders))


@pytest.mark.parametrize(
    "family, mpi",
    [("openmpi4", "none"), ("openmpi4", "pmi2"), ("mpich4", "none"), ("mpich4", "pmix")],
)
def test_with_another_mpi_option_every_rank_gets_an_error_that_names_the_right_one(
    srun, family, mpi
):
    library = mpi_installations.library(family)
    code, out, err = srun(2, mpi, family, CPP, SYNCLINE_MPI_LIBRARY=library)
    assert (code, out) == (1, ""), err
    # Of Open MPI it is an error before MPI_Init, which would end the process.
    started = "this process" if family == "openmpi4" else "2 (SLURM_STEP_NUM_TASKS)"
    option = "without --mpi=pmix or --mpi=pmi2" if mpi == "none" else f"with --mpi={mpi}"
    advice = f"Start the job with {LAUNCHERS[family]}, or srun --mpi={NEEDED[family]}"
    # There may be no error, but an MPI_Init that ends the process: before it comes a warning.
    is_warned = (family, mpi) == ("mpich4", "pmix")
    assert err.count("whose launcher serves Open MPI") == (2 if is_warned else 0), err
    err = "\n".join(line for line in err.splitlines() if " initialising " not in line)
    for text in (f"srun of Slurm has started {started} {option}", str(library), advice):
        assert err.count(text) == 2, err
