"""Launchers that mpirun and srun start find each other without options."""

import os
import pathlib
import re

import pytest

LAUNCHER = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline/launch/syncline_run"
# A shell of its own for each launcher, so that their environments are what the cluster set.
SAY = ["--no-python", "/bin/sh", "-c"]
WHO = (
    'echo "rank $RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE, job $SYNCLINE_RUN_ID."'
)


def seen(out: str) -> list[tuple[int, ...]]:
    """(rank, world size, node rank, nodes) of each worker."""
    pattern = r"rank (\d+) of (\d+), node (\d+) of (\d+), job "
    return sorted(tuple(map(int, found)) for found in re.findall(pattern, out))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_launchers_of_mpirun_on_one_host_are_nodes_of_one_job(mpirun, size):
    code, out, err = mpirun(size, LAUNCHER, "--nproc-per-node=2", *SAY, WHO)
    assert code == 0, err
    assert seen(out) == [(rank, 2 * size, rank // 2, size) for rank in range(2 * size)]
    assert len(set(re.findall(r"job (\S+)\.", out))) == 1


def test_mpirun_learns_the_exit_code_of_the_first_failure(mpirun):
    code, out, err = mpirun(2, LAUNCHER, *SAY, "[ $RANK = 1 ] && exit 7; exec sleep 1000")
    assert code == 7, err
    assert "rank 1" in err


def test_a_dry_run_under_mpirun_says_where_the_numbers_come_from(mpirun):
    code, out, err = mpirun(2, LAUNCHER, "--dry-run", *SAY, WHO)
    assert code == 0, err
    assert out.count("from Open MPI (OMPI_COMM_WORLD_RANK)") == 2
    assert out.count("this is node 0") == out.count("this is node 1") == 1


def test_launchers_of_srun_are_nodes_of_one_job(slurm):
    code, out, err = slurm(
        3, "srun", "-N3", "--ntasks-per-node=1", LAUNCHER, "--nproc-per-node=2", *SAY, WHO
    )
    assert code == 0, err
    assert seen(out) == [(rank, 6, rank // 2, 3) for rank in range(6)]
    assert set(re.findall(r"job (\S+)\.", out)) == {"slurm-1.0"}


def test_tasks_of_srun_that_share_a_host_are_nodes_of_their_own(slurm):
    code, out, err = slurm(2, "srun", "-N2", "-n3", LAUNCHER, *SAY, WHO)
    assert code == 0, err
    assert seen(out) == [(rank, 3, rank, 3) for rank in range(3)]


def test_one_task_of_srun_is_a_job_of_one_node(slurm):
    code, out, err = slurm(1, "srun", "-n1", LAUNCHER, *SAY, WHO)
    assert code == 0, err
    assert seen(out) == [(0, 1, 0, 1)]


def test_srun_learns_the_exit_code_of_the_first_failure(slurm):
    code, out, err = slurm(
        2, "srun", "-N2", "-n2", LAUNCHER, *SAY, "[ $RANK = 1 ] && exit 7; exec sleep 1000"
    )
    assert code == 7, err
    assert "rank 1" in err


def test_signals_of_scancel_reach_the_workers_and_stop_nothing(slurm):
    # Rank 0 sends it once all have set their traps.
    script = (
        'trap "echo rank $RANK was told; exit 0" HUP; : > "$TMPDIR/ready$RANK"; '
        'until [ -e "$TMPDIR/ready0" ] && [ -e "$TMPDIR/ready1" ]; do sleep 0.05; done; '
        "[ $RANK = 0 ] && scancel --signal=HUP $SLURM_JOB_ID; while :; do sleep 0.05; done"
    )
    options = ["--signals-to-handle=SIGTERM", "--signals-to-forward=SIGHUP,SIGUSR1"]
    code, out, err = slurm(2, "srun", "-N2", "-n2", LAUNCHER, *options, *SAY, script)
    assert code == 0, err
    assert "rank 0 was told" in out and "rank 1 was told" in out


def test_a_dry_run_under_srun_names_the_first_host(slurm):
    code, out, err = slurm(2, "srun", "-N2", "-n2", LAUNCHER, "--dry-run", *SAY, WHO)
    assert code == 0, err
    assert len(re.findall(r"c10d at n1:2\d{4}", out)) == 2
    assert out.count("from Slurm (SLURM_PROCID)") == 2
