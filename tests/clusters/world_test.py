"""Processes that mpirun, mpiexec and srun start are ranks of one job by themselves."""

import concurrent.futures
import os
import pathlib
import re
import sys

import pytest

HERE = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline/tests/clusters"
BARE_PYTHON = ["env", f"PYTHONPATH={os.pathsep.join(sys.path)}", sys.executable]
PYTHON = [*BARE_PYTHON, HERE / "who_am_i.py"]
CPP = HERE / "who_am_i"
JAVA = ["env", f"TEST_SRCDIR={os.environ['TEST_SRCDIR']}", HERE / "who_am_i_java"]


def seen(out: str) -> list[tuple]:
    """(rank, size, local rank, sum of all ranks, names of the jobs that met) of each process."""
    pattern = r"rank (\d+) of (\d+), local (\d+), sum (\d+), job ([\w ]+)\."
    found = re.findall(pattern, out)
    return sorted((*map(int, numbers), names) for *numbers, names in found)


def expected(size: int, name: str, local_ranks=None) -> list[tuple]:
    local = local_ranks or range(size)
    return [(rank, size, local[rank], sum(range(size)), name) for rank in range(size)]


@pytest.fixture(params=["mpirun", "mpiexec"])
def mpi(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_processes_of_mpi_on_one_host_are_ranks_of_one_job(mpi, size):
    code, out, err = mpi(size, *PYTHON, "a")
    assert code == 0, err
    assert seen(out) == expected(size, "a")


def test_two_jobs_of_mpi_at_once_do_not_meet(mpi):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        jobs = {name: pool.submit(mpi, 2, *PYTHON, name) for name in ("a", "b")}
    for name, job in jobs.items():
        code, out, err = job.result()
        assert code == 0, err
        assert seen(out) == expected(2, name)


def test_a_wrapper_between_mpi_and_the_script_changes_nothing(mpi):
    command = " ".join(map(str, [*PYTHON, "a"]))
    code, out, err = mpi(2, "/bin/sh", "-c", f"{command}; exit $?")
    assert code == 0, err
    assert seen(out) == expected(2, "a")


def test_the_ranks_of_one_job_may_be_in_three_languages(mpirun):
    code, out, err = mpirun(1, CPP, ":", "-np", "1", *JAVA, ":", "-np", "1", *PYTHON)
    assert code == 0, err
    assert [line[:4] for line in seen(out)] == [line[:4] for line in expected(3, "")]


def test_a_script_that_names_only_its_backend_or_its_rank_is_not_alone(mpi):
    script = (
        "import os, syncline as d; n = os.environ;"
        "rank = int(n.get('PMI_RANK') or n['OMPI_COMM_WORLD_RANK']);"
        "d.init_process_group('auto', rank=rank);"
        "print(f'{d.get_rank()} of {d.get_world_size()}', flush=True);"
        "d.destroy_process_group()"
    )
    code, out, err = mpi(2, *BARE_PYTHON, "-c", script)
    assert code == 0, err
    assert sorted(out.split("\n")) == ["", "0 of 2", "1 of 2"]


def test_a_rank_that_contradicts_mpi_is_refused_with_both(mpirun):
    script = "import syncline as d; d.init_process_group(rank=0)"
    code, out, err = mpirun(2, *BARE_PYTHON, "-c", script)
    assert code != 0
    assert "rank is 0, but Open MPI says 1 (OMPI_COMM_WORLD_RANK)" in err


def test_who_asks_for_a_world_of_one_gets_it(mpirun):
    script = "import syncline as d; d.init_process_group(rank=0, world_size=1)"
    script += "; print(d.get_world_size())"
    code, out, err = mpirun(2, "env", "SYNCLINE_LOG_LEVEL=info", *BARE_PYTHON, "-c", script)
    assert code == 0, err
    assert out.split() == ["1", "1"]
    assert err.count("this is a world of one rank") == 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tasks_of_srun_are_ranks_of_one_job(slurm, size):
    code, out, err = slurm(size, "srun", f"-N{size}", "--ntasks-per-node=1", *PYTHON, "a")
    assert code == 0, err
    assert seen(out) == expected(size, "a", [0] * size)


def test_steps_of_srun_on_one_host_meet_each_in_its_own_place(slurm):
    command = " ".join(map(str, PYTHON))
    steps = " & ".join(f"srun --overlap -n2 {command} {name}" for name in ("a", "b"))
    code, out, err = slurm(
        1, "salloc", "-N1", "-n2", "--", "/bin/sh", "-c", f"{steps}; s=$?; wait; exit $s"
    )
    assert code == 0, err
    assert seen(out) == sorted(expected(2, "a") + expected(2, "b"))


def test_programs_of_other_languages_are_tasks_of_srun_too(slurm):
    code, out, err = slurm(2, "srun", "-N2", "-n2", CPP)
    assert code == 0, err
    assert [line[:2] for line in seen(out)] == [(0, 2), (1, 2)]
    assert {line[3] for line in seen(out)} == {1}


def test_a_script_of_sbatch_is_alone_and_says_so(slurm):
    script = "import syncline as d; d.init_process_group(); print(d.get_world_size())"
    code, out, err = slurm(
        2,
        "salloc",
        "-N2",
        "-n2",
        "--",
        "env",
        "SYNCLINE_LOG_LEVEL=info",
        *BARE_PYTHON,
        "-c",
        script,
    )
    assert code == 0, err
    assert out.split() == ["1"]
    assert "but srun has not started it" in err
