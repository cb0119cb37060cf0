"""The example of data-parallel training that needs PyTorch."""

import json

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

from running import EXAMPLES, run


def train(folder, *arguments):
    """What two ranks of fashion_mnist_torch.py found."""
    options = ["--epochs=1", "--limit=6400", "--result", folder / "result.json", *arguments]
    output = run("--nproc-per-node=2", EXAMPLES / "fashion_mnist_torch.py", *options, cwd=folder)
    assert "weights bitwise equal on all 2 ranks" in output
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    options = {"ours": [], "torchs": ["--backend", "syncline"]}
    return {name: train(tmp_path_factory.mktemp(name), *options[name]) for name in options}


@pytest.mark.parametrize("module", ["ours", "torchs"])
def test_a_convolutional_network_trains_with_our_module_and_with_torchs(trainings, module):
    assert trainings[module]["losses"][0] < 1.0
    assert trainings[module]["accuracy"] >= 0.72


def test_both_modules_come_to_the_same_losses(trainings):
    assert trainings["ours"]["losses"] == pytest.approx(trainings["torchs"]["losses"], rel=1e-3)
