"""A rank is killed: what the others see under each launcher, and that nothing remains."""

import os
import pathlib
import random
import re

import pytest

from tests.mpi.runtime import ranks

PROGRAM = pathlib.Path(os.path.abspath(__file__)).parent / "mpi_survivor"
CALLS = [
    ("all_reduce", 1),
    ("all_reduce", 1_000_000),
    ("broadcast", 100_000),
    ("barrier", 1),
    ("ring", 10),
    ("ring", 1_000_000),
]
# Far less than the 30 s of the calls.
SOON = 5.0


def processes_of(folder):
    """Those that have the folder of the job in their environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if folder.encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue  # It has ended, or is not ours.
    return found


def seconds(text):
    """Of a duration of Abseil's: 1m2.5s, 3.7ms."""
    units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    parts = re.findall(r"([\d.]+)(ms|us|ns|h|m|s)", text)
    return sum(float(number) * units[unit] for number, unit in parts)


def check_survivors(family, size, call, victim, step, folder, options):
    operation, elements = call
    argv = [PROGRAM, operation, str(elements), str(victim), str(step)]
    _, output = ranks.launch(family, size, argv, folder, options)
    reports = re.findall(r"rank (\d): after (\S+): ranks ([\d ]*): (.*)", output)
    assert sorted(int(rank) for rank, *_ in reports) == [r for r in range(size) if r != victim], (
        output
    )
    for rank, took, at_fault, message in reports:
        assert seconds(took) < SOON, output
        assert at_fault == str(victim), output
        assert f"rank {victim} (host " in message and " has died" in message, output
        # In a ring a rank may be a call ahead of its neighbours.
        call_names = ("recv #", "send #") if operation == "ring" else (f"{operation} #{step} ",)
        assert any(f"rank {rank} of group 'default': {name}" in message for name in call_names), (
            output
        )


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]}-{call[1]}")
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_with_recovery_each_survivor_names_the_dead_rank(family, call, folder):
    check_survivors(family, 3, call, 1, 20, folder, ("--enable-recovery",))
    assert processes_of(folder) == []


def test_with_ulfm_each_survivor_names_the_dead_rank(folder):
    check_survivors("openmpi5", 3, ("all_reduce", 1000), 2, 20, folder, ("--with-ft", "ulfm"))


# Not under ULFM, whose MPI_Comm_create_group may fail on one rank when it hears of the death.
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_the_survivors_go_on_over_mpi_in_a_smaller_group(family, folder):
    argv = [PROGRAM, "all_reduce", "1000", "1", "20", "shrink"]
    _, output = ranks.launch(family, 4, argv, folder, ("--enable-recovery",))
    assert sorted(re.findall(r"rank (\d) of 3 goes on\n", output)) == ["0", "1", "2"], output
    assert "failed: " not in output, output


@pytest.mark.parametrize("kills", [5, pytest.param(100, id="storm")])
def test_random_kills_leave_no_survivor_waiting(kills, folder):
    choice = random.Random(kills)
    for _ in range(kills):
        family = choice.choice(["openmpi4", "openmpi5"])
        size = choice.choice([2, 3, 4])
        call, victim = choice.choice(CALLS), choice.randrange(size)
        step = choice.randrange(200)
        print(family, size, call, victim, step)
        check_survivors(family, size, call, victim, step, folder, ("--enable-recovery",))
    assert processes_of(folder) == []


@pytest.mark.parametrize("family", ["openmpi4", "mpich4", "openmpi5", "mpich5"])
def test_without_recovery_the_job_ends_and_nothing_remains(family, folder):
    segments = set(os.listdir("/dev/shm"))
    argv = [PROGRAM, "all_reduce", "1000", "1", "20"]
    status, output = ranks.launch(family, 3, argv, folder)
    # A launcher that has missed the death leaves it to the survivors to say.
    assert status != 0 or "rank 1 (host " in output and " has died" in output, output
    assert processes_of(folder) == []
    left = [name for name in set(os.listdir("/dev/shm")) - segments if "syncline" in name]
    assert left == []
