"""The examples that need JAX."""

import json

import pypi_jax_status
import pytest

if not pypi_jax_status.AVAILABLE:
    pytest.skip(pypi_jax_status.REASON, allow_module_level=True)

from running import EXAMPLES, run


def train(folder, *arguments):
    """What two ranks of fashion_mnist_jax.py found."""
    options = ["--epochs=2", "--limit=12000", "--result", folder / "result.json", *arguments]
    output = run("--nproc-per-node=2", EXAMPLES / "fashion_mnist_jax.py", *options, cwd=folder)
    assert "weights bitwise equal on all 2 ranks" in output
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    places = {"inside": [], "outside": ["--outside-jit"]}
    return {name: train(tmp_path_factory.mktemp(name), *places[name]) for name in places}


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_a_perceptron_trains_with_averages_inside_and_outside_jit(trainings, place):
    losses = trainings[place]["losses"]
    assert losses[1] < losses[0] < 1.2
    assert trainings[place]["accuracy"] >= 0.78


def test_it_makes_no_difference_where_gradients_are_averaged(trainings):
    assert trainings["inside"]["losses"] == pytest.approx(trainings["outside"]["losses"], rel=1e-4)
