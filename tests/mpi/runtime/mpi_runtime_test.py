"""Loads MPI, and uses it through a plug-in, under the launchers of four implementations."""

import os

import pytest

from tests.mpi import mpi_installations
from tests.mpi.runtime import ranks

ALL = pytest.mark.parametrize("family", ranks.FOUND)


@ALL
def test_two_ranks_exchange_messages(family, folder):
    status, output = ranks.run(family, "messages", folder)
    assert status == 0, output
    ranks.check(output, family)
    assert "direct=1 ours=1" in output
    assert "truncated: MPI_Test: " in output
    if family.startswith("openmpi"):
        assert f"ulfm={int(family == 'openmpi5')},0" in output
    else:
        assert "ulfm=0,0" in output


@ALL
def test_the_program_has_initialised_mpi_itself(family, folder):
    status, output = ranks.run(family, "adopt", folder, TEST_OWN_MPI=ranks.library(family))
    assert status == 0, output
    ranks.check(output, family)
    assert "ours=0" in output


@ALL
def test_a_library_that_is_loaded_is_found_without_being_named(family, folder):
    variables = {"SYNCLINE_MPI_LIBRARY": "", "TEST_OWN_MPI": ranks.library(family)}
    status, output = ranks.run(family, "adopt", folder, **variables)
    assert status == 0, output
    ranks.check(output, family)


def test_the_program_has_initialised_mpi_for_one_thread(folder):
    status, output = ranks.run(
        "mpich4", "adopt_single", folder, TEST_OWN_MPI=ranks.library("mpich4")
    )
    assert status == 0, output
    assert output.count("refused: MPI was initialised in this process with a thread level") == 2


@pytest.mark.parametrize("family", ["openmpi4", "mpich4"])
def test_of_several_libraries_that_of_the_launcher_is_taken(family, folder):
    folders = [os.path.dirname(ranks.library(each)) for each in ("openmpi4", "mpich4")]
    variables = {"SYNCLINE_MPI_LIBRARY": "", "LD_LIBRARY_PATH": ":".join(folders)}
    status, output = ranks.run(family, "messages", folder, **variables)
    assert status == 0, output
    ranks.check(output, family)


@pytest.mark.parametrize(
    "family, other, launcher, start_with",
    [
        ("openmpi4", "mpich4", "mpirun of Open MPI", "mpiexec of MPICH"),
        ("mpich4", "openmpi4", "mpiexec of MPICH", "mpirun of Open MPI"),
        ("openmpi5", "mpich4", "mpirun of Open MPI", "mpiexec of MPICH"),
    ],
)
def test_the_launcher_of_another_mpi_is_an_error(family, other, launcher, start_with, folder):
    variables = {"SYNCLINE_MPI_LIBRARY": ranks.library(other)}
    if other == "openmpi4":
        # Alone it would start a daemon, which the pinned package has not.
        variables |= {"OMPI_MCA_ess_singleton_isolated": "1"}
        variables |= mpi_installations.open_mpi_4_places()
    status, output = ranks.run(family, "messages", folder, **variables)
    assert status != 0, output
    assert f"world of one process, but {launcher} has started 2" in output
    assert ranks.library(other) in output
    assert f"Start the job with {start_with}" in output


def test_two_families_in_a_process_are_an_error(folder):
    status, output = ranks.run("mpich4", "adopt", folder, TEST_OWN_MPI=ranks.library("openmpi4"))
    assert status != 0, output
    assert "this process has loaded Open MPI v4.1.4" in output
    assert f"SYNCLINE_MPI_LIBRARY is '{ranks.library('mpich4')}'" in output


@ALL
def test_initialisation_is_given_up_at_the_deadline(family, folder):
    _, output = ranks.run(family, "timeout", folder)
    assert "timeout 0: MPI_Init_thread has not returned within 1s" in output
    assert "timeout 1: MPI cannot be used in this process any more: MPI_Init_thread has" in output


@ALL
def test_a_communicator_that_a_rank_does_not_make_is_given_up(family, folder):
    _, output = ranks.run(family, "blocking", folder)
    assert "gave up: MPI_Comm_create_group has not returned within 500ms" in output


@ALL
def test_a_child_of_fork_gets_an_error_and_does_not_finalise(family, folder):
    status, output = ranks.run(family, "fork", folder)
    assert status == 0, output


@pytest.mark.parametrize("family", ["openmpi4", "mpich4", "openmpi5", "mpich5"])
def test_where_one_thread_may_call_mpi_that_makes_all_calls(family, folder):
    _, output = ranks.run(family, "funneled", folder, preload="funneled.so")
    ranks.check(output, family)
    assert "direct=0 ours=1" in output
    assert "failed: " not in output
    assert "afterwards: MPI_Comm_size: the thread that calls MPI is stuck in a call" in output
    assert (
        "afterwards: MPI cannot be used in this process any more: MPI_Comm_create_group" in output
    )


def test_with_ulfm_a_communicator_is_revoked_and_shrunk(folder):
    status, output = ranks.run("openmpi5", "revoke", folder, options=("--with-ft", "ulfm"))
    assert status == 0, output
    assert "ulfm=1,1" in output
