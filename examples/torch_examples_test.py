"""The example of data-parallel training that needs PyTorch."""

import json
import os
import pathlib
import subprocess
import sys

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)


def train(folder, *arguments):
    """What two ranks of fashion_mnist_torch.py found."""
    root = pathlib.Path(os.environ["TEST_SRCDIR"])
    (images,) = (root / "fashion_mnist").rglob("train-images-idx3-ubyte.gz")
    command = ["launch/syncline_run", "--standalone", "--nproc-per-node=2"]
    command += ["examples/fashion_mnist_torch.py", "--data", images.parent, "--epochs", 1]
    command += ["--limit", 6400, "--result", folder / "result.json", *arguments]
    done = subprocess.run(
        [*map(str, command)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHON_EXEC": sys.executable,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    assert "weights bitwise equal on all 2 ranks" in done.stdout
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
