"""Worlds whose ranks meet over MPI: of MPI_COMM_WORLD, of a program's communicator, of mpi4py's."""

import os
import pathlib
import re
import sys

import pypi_mpi4py_status
import pytest

from tests.mpi.runtime import ranks

HERE = pathlib.Path(os.path.abspath(__file__)).parent
FOUR = ["openmpi4", "mpich4", "openmpi5", "mpich5"]
# An environment in which the launcher does not say that all ranks are on one host.
SEVERAL_HOSTS = "MPI_LOCALNRANKS=1"


def world(family, folder, *arguments, settings=(), **variables):
    """Two of mpi_world; returns the exit status and the output."""
    argv = ["/usr/bin/env", *settings, HERE / "mpi_world", *arguments]
    return ranks.launch(family, 2, argv, folder, **variables)


def check(status, output, store=r"127\.0\.0\.1:\d+"):
    assert status == 0, output
    found = re.findall(r"rank (\d) of 2: sum 1, store ([^ ]*)\.\n", output)
    assert sorted(rank for rank, _ in found) == ["0", "1"], output
    addresses = {address for _, address in found}
    assert len(addresses) == 1 and re.fullmatch(store, addresses.pop()), output


@pytest.mark.parametrize("family", ranks.FOUND)
def test_backend_mpi_needs_no_setting(family, folder):
    check(*world(family, folder, "mpi"))


@pytest.mark.parametrize("family", ["openmpi4", "mpich4"])
def test_where_only_one_thread_may_call_mpi_the_rest_has_it_call(family, folder):
    check(*world(family, folder, "mpi", preload="funneled.so"))


@pytest.mark.parametrize("family", FOUR)
def test_any_backend_meets_over_mpi_when_asked_to(family, folder):
    check(*world(family, folder, "auto", "mpi://"))


def test_where_the_launcher_does_not_tell_where_to_meet_mpi_does(folder):
    check(*world("mpich4", folder, "auto", settings=[SEVERAL_HOSTS]))


def test_with_no_mpi_and_several_hosts_an_error_says_what_to_set(folder):
    variables = {"SYNCLINE_MPI_LIBRARY": "/nonexistent/libmpi.so"}
    status, output = world("mpich4", folder, "auto", settings=[SEVERAL_HOSTS], **variables)
    assert status != 0
    assert "MPICH started this process as rank 0 of 2" in output, output
    assert "Set MASTER_ADDR to the host of rank 0, and MASTER_PORT" in output
    assert "/nonexistent/libmpi.so" in output


def test_on_one_host_the_default_needs_no_mpi(folder):
    variables = {"SYNCLINE_MPI_LIBRARY": "/nonexistent/libmpi.so"}
    check(*world("mpich4", folder, "auto", **variables), store="")


def on_two_hosts(family, folder, *arguments, options=()):
    """Two ranks, one on each of two hosts; returns the exit status and the output."""
    program = HERE / "mpi_hosts"
    argv = [program, "rank", *arguments]
    status, output = ranks.launch(family, 2, argv, folder, options, within=[program, "run"])
    if output.startswith("not permitted: "):
        pytest.skip(output)
    return status, output


@pytest.mark.parametrize("backend", ["mpi", "auto"])
@pytest.mark.parametrize("family", ["openmpi4", "mpich4"])
def test_on_two_hosts_the_store_is_where_both_reach_it(family, backend, folder):
    status, output = on_two_hosts(family, folder, backend)
    assert status == 0, output
    for rank in range(2):
        assert re.search(rf"rank {rank}: store 10\.77\.0\.1:\d+\.\n", output), output


# Rank 0 hosts the store, which is how the other death is heard of.
@pytest.mark.parametrize("victim", [0, 1])
def test_who_dies_on_another_host_is_named(victim, folder):
    recovery = ("--enable-recovery",)
    _, output = on_two_hosts("openmpi4", folder, "mpi", str(victim), options=recovery)
    assert f"heard in time of {victim}: " in output, output
    assert "has ended, or its host cannot be reached" in output, output


def test_ranks_and_sizes_that_are_not_those_of_mpi_are_an_error(folder):
    for method, text in [
        ("mpi://?rank=1", "rank is 1, but MPI says 0: leave it to MPI"),
        ("mpi://host:1", "mpi:// stands alone"),
    ]:
        # MPICH's mpiexec may lose what ranks write just before they fail.
        for _ in range(5):
            status, output = world("mpich4", folder, "auto", method)
            assert status != 0
            if output:
                break
        assert text in output, output


@pytest.mark.parametrize("family", ["openmpi4", "mpich4"])
def test_a_program_of_mpi_makes_worlds_of_its_communicators(family, folder):
    program = HERE / f"mpi_program_{family[:-1]}"
    libraries = {"LD_LIBRARY_PATH": os.path.dirname(ranks.library(family))}
    argv = ["/usr/bin/env", *(f"{k}={v}" for k, v in libraries.items()), program]
    for _ in range(3):
        status, output = ranks.launch(family, 4, argv, folder, SYNCLINE_MPI_LIBRARY="")
        # The program finalises MPI while a receive is under way. MPICH turns its locks off before
        # it lets anybody know: a lock that another thread holds just then stays locked, and MPICH
        # aborts, in one run of 90 (docs/mpi.md).
        if "Error in system call pthread_mutex_destroy" not in output or family != "mpich4":
            break
    assert status == 0, output
    assert output.count("fine\n") == 4, output
    assert output.count("finalised\n") == 4, output


# The wheel of mpi4py does not know Debian's MPICH, whose library has a name of its own.
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5", "mpich5"])
def test_mpi4py_sends_and_syncline_reduces(family, folder):
    if not pypi_mpi4py_status.AVAILABLE:
        pytest.skip(pypi_mpi4py_status.REASON)
    path = os.pathsep.join(part for part in sys.path if part)
    variables = {"MPI4PY_LIBMPI": ranks.library(family), "SYNCLINE_MPI_LIBRARY": ""}
    argv = [sys.executable, HERE / "mpi4py_program.py"]
    status, output = ranks.launch(family, 4, argv, folder, PYTHONPATH=path, **variables)
    assert status == 0, output
    assert output.count("fine\n") == 4, output
