"""A group of three ranks, one each in C++, Python and Java, has equal results in all of them."""

import itertools
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from tests.mpi.runtime import ranks

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline"
HERE = ROOT / "tests/languages"
PROGRAMS = {
    "cpp": [str(HERE / "every_collective")],
    "python": [sys.executable, str(HERE / "every_collective.py")],
    "java": [str(HERE / "every_collective_java")],
}
SIZE = 3
COUNT = 4


def own(rank, offset=0):
    return [10 * rank + i + offset for i in range(COUNT)]


def over_ranks(combine, values):
    """`combine` of each element over all ranks; values(rank) is a rank's list."""
    return [combine(column) for column in zip(*map(values, range(SIZE)), strict=True)]


def fold(function):
    def combine(column):
        result = column[0]
        for value in column[1:]:
            result = function(result, value)
        return result

    return combine


def mean(column):
    return sum(column) / SIZE


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def shifted(rank):
    return own(rank, 1)


def bits(rank):
    return [rank + 4, rank * 3]


def prefix(count):
    return [sum(values) for values in zip(*map(own, range(count)), strict=True)]


def expected(rank):
    """What rank `rank` must print, by the definition of each operation."""
    ranks = range(SIZE)
    product = fold(lambda a, b: a * b)
    total = over_ranks(sum, own)
    both = [a + b for a, b in zip(total, over_ranks(sum, lambda r: own(r, 100)), strict=True)]
    previous = (rank - 1) % SIZE
    splits = [0, 1, 3]
    in_even = rank != 1
    return {
        "all_reduce SUM": over_ranks(sum, shifted),
        "all_reduce AVG": over_ranks(mean, shifted),
        "all_reduce PRODUCT": over_ranks(product, shifted),
        "all_reduce MIN": over_ranks(min, shifted),
        "all_reduce MAX": over_ranks(max, shifted),
        "all_reduce BAND": over_ranks(fold(lambda a, b: a & b), bits),
        "all_reduce BOR": over_ranks(fold(lambda a, b: a | b), bits),
        "all_reduce BXOR": over_ranks(fold(lambda a, b: a ^ b), bits),
        "all_reduce PREMUL_SUM": over_ranks(sum, lambda r: [0.5 * (r + 1) * v for v in own(r)]),
        "reduce": total if rank == 2 else own(rank),
        "scan": prefix(rank + 1),
        "exscan": prefix(rank) if rank > 0 else own(0),
        "all_reduce_coalesced": total + over_ranks(sum, lambda r: own(r, 100)),
        "all_reduce_multi": both + both,
        "broadcast": own(1),
        "all_gather": flat(own(r)[: r + 1] for r in ranks),
        "all_gather_single": flat(map(own, ranks)),
        "gather": flat(map(own, ranks)) if rank == 0 else [],
        "scatter": own(rank),
        "reduce_scatter": over_ranks(sum, lambda r: own(r, rank)),
        "reduce_scatter_single": [total[rank]],
        "all_to_all": flat(own(r, 100 * rank) for r in ranks),
        "all_to_all_single": flat(
            [10 * r + i for i in range(splits[rank], splits[rank] + rank + 1)] for r in ranks
        ),
        "recv": [*own(previous), previous],
        "recv from any": [1, 2] if rank == 0 else [],
        "all_gather_bytes": [1, 2, 3],
        "broadcast_bytes": list(b"xxx"),
        "gather_bytes": [1, 2, 3] if rank == 1 else [],
        "scatter_bytes": list(b"y" * (rank + 2)),
        "recv_bytes": [*b"abc", 2] if rank == 0 else [],
        "split": [
            *([a + b for a, b in zip(own(0), own(2), strict=True)] if in_even else own(1)),
            *([[2, 0].index(rank), 2, 2, 0] if in_even else [0, 1, 1]),
        ],
        "all_reduce_async": total,
        "monitored_barrier": [],
    }


def run(languages, store):
    """Runs one rank in each of `languages`, in this order; returns what each printed."""
    jobs = [
        subprocess.Popen(
            [*PROGRAMS[language], "auto", f"file://{store}", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, language in enumerate(languages)
    ]
    try:
        printed = [job.communicate(timeout=120) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    for job, language, (_, errors) in zip(jobs, languages, printed, strict=True):
        assert job.returncode == 0, f"{language}: {errors}"
    return [output for output, _ in printed]


@pytest.mark.parametrize(
    "languages", itertools.permutations(PROGRAMS), ids=lambda languages: "-".join(languages)
)
def test_every_collective_has_equal_results_in_all_languages(languages, tmp_path):
    check(languages, run(languages, tmp_path / "store"))


def check(languages, outputs):
    for rank, output in enumerate(outputs):
        found = {}
        for line in output.splitlines():
            name, _, values = line.partition(":")
            found[name] = [float(value) for value in values.split()]
        assert found == expected(rank), f"rank {rank}, {languages[rank]}"


# What each process does that mpirun has started.
RANK = """#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
exec "$(dirname "$0")/$rank" > "$(dirname "$0")/$rank.out"
"""


@pytest.mark.parametrize("family", ["openmpi4", "mpich4"])
def test_processes_of_one_mpi_job_may_be_of_different_languages(family):
    languages = list(PROGRAMS)
    folder = subprocess.check_output(["mktemp", "-d"], text=True).strip()
    try:
        scripts = {"rank": RANK}
        for rank, language in enumerate(languages):
            arguments = [*PROGRAMS[language], "mpi", f"file://{folder}/store", str(rank)]
            scripts[str(rank)] = f"#!/bin/sh\nexec {shlex.join(arguments)}\n"
        for name, text in scripts.items():
            script = pathlib.Path(folder, name)
            script.write_text(text)
            script.chmod(0o755)
        environment = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        status, output = ranks.launch(family, SIZE, [f"{folder}/rank"], folder, **environment)
        assert status == 0, output
        check(languages, [pathlib.Path(folder, f"{rank}.out").read_text() for rank in range(SIZE)])
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
