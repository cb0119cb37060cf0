"""The benchmark measures all systems and prints what they took."""

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

from benchmarks.ddp import training_step


def test_every_system_is_measured_in_each_round():
    results = training_step.run(ranks=2, models=["small"], rounds=3)["small"]
    assert set(results) == set(training_step.SYSTEMS)
    for name, result in results.items():
        assert len(result.steps) == 3 and min(result.steps) > 0
        assert (result.buckets > 0) == name.startswith("Syncline")
        for values in result.of_reducer():
            assert len(values) == (3 if result.buckets else 0)


def test_the_table_has_medians_spread_and_ratio_to_the_first():
    results = {
        "a": training_step.Result([0.004, 0.002, 0.003]),
        "b": training_step.Result([0.0015], 4, [0.0004], [0.0002], [0.00003], [0.00006]),
    }
    lines = training_step.table("small", results).splitlines()
    assert lines[0].startswith("| small MLP, batch 8: 0.02 MB of gradients |")
    assert lines[2] == "| a | 3.00 (2.00 to 4.00) | 1.00 | | | |"
    assert lines[3] == "| b | 1.50 (1.50 to 1.50) | 2.00 | 50%, 4 buckets | 2.0% | 4.0% |"
