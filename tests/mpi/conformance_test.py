"""The backends' suite on backend mpi, under the launchers of four MPI implementations."""

import os
import pathlib

import pytest

from tests.mpi.runtime import ranks

PROGRAM = pathlib.Path(os.path.abspath(__file__)).parent / "mpi_conformance"
# Every number of ranks under one of them: what each does with it is MPI's own.
CASES = (
    [("openmpi4", size) for size in (1, 2, 3)]
    + [("mpich4", size) for size in (1, 2, 4)]
    + [(family, 2) for family in ("openmpi5", "mpich5", "standard_abi")]
)


@pytest.mark.parametrize("family, size", CASES)
def test_backend_mpi_does_what_every_backend_must(family, size, folder):
    status, output = ranks.launch(
        family, size, [PROGRAM, f"{folder}/store", "--gtest_brief=1"], folder
    )
    assert status == 0, output
    assert output.count("[  PASSED  ] ") == size, output
