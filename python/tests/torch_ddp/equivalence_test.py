"""Training with our DistributedDataParallel gives what training with torch's gives."""

import json
import pathlib
import tempfile

import pypi_torch_status
import pytest
import ranks

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import equivalence_worker
from combinations import COMBINATIONS


@pytest.fixture(scope="module")
def results():
    """What is wrong, by number of ranks, then by rank and combination."""
    found = {}
    for size in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.json"
            ranks.in_processes(size, equivalence_worker.__file__, str(path))
            found[size] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("combination", list(COMBINATIONS))
def test_parameters_equal_those_of_torchs_module_and_those_of_all_ranks(results, combination, size):
    for rank, wrong in enumerate(results[size]):
        assert wrong[combination] == [], f"rank {rank}"
