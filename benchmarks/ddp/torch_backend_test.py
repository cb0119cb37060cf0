"""The benchmark measures all systems and prints what they took."""

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

from benchmarks.ddp import torch_backend


def test_every_system_is_measured_in_each_round():
    times = torch_backend.run(ranks=2, models=["small"], rounds=3)
    assert set(times["small"]) == set(torch_backend.SYSTEMS)
    assert all(len(values) == 3 and min(values) > 0 for values in times["small"].values())


def test_the_table_has_medians_spread_and_ratio_to_the_first():
    lines = torch_backend.table("small", {"a": [0.004, 0.002, 0.003], "b": [0.0015]}).splitlines()
    assert lines[0].startswith("| small MLP, batch 8: 0.02 MB of gradients |")
    assert lines[2] == "| a | 3.00 (2.00 to 4.00) | 1.00 |"
    assert lines[3] == "| b | 1.50 (1.50 to 1.50) | 2.00 |"
