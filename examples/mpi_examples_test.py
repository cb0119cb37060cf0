"""The example under mpirun: it needs no setting, and learns the same with backends mpi and auto."""

import json
import os
import pathlib
import sys

import pytest

from tests.mpi.conftest import folder  # noqa: F401, a fixture
from tests.mpi.runtime import ranks

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"])


@pytest.mark.parametrize("family", ["openmpi4", "mpich4"])
def test_fashion_mnist_learns_the_same_with_backends_mpi_and_auto(family, folder):  # noqa: F811
    results = {}
    for backend in ("mpi", "auto"):
        program = [sys.executable, ROOT / "syncline/examples/fashion_mnist.py"]
        options = {
            "--backend": backend,
            "--data": next(ROOT.glob("fashion_mnist/**/train-images-idx3-ubyte.gz")).parent,
            "--epochs": 2,
            "--limit": 12000,
            "--picture": f"{folder}/loss.svg",
            "--result": f"{folder}/result.json",
        }
        arguments = [str(part) for option in options.items() for part in option]
        path = os.pathsep.join(part for part in sys.path if part)
        status, output = ranks.launch(family, 2, program + arguments, folder, PYTHONPATH=path)
        assert status == 0, output
        assert "weights bitwise equal on all 2 ranks" in output
        results[backend] = json.loads(pathlib.Path(folder, "result.json").read_text())
    assert len(results["mpi"]["losses"]) == 2
    assert results["mpi"]["losses"][1] < results["mpi"]["losses"][0]
    assert results["mpi"]["losses"] == results["auto"]["losses"]
    assert results["mpi"]["accuracy"] == results["auto"]["accuracy"] >= 0.7
