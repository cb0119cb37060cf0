"""The elastic example runs under torchrun as it does under our launcher."""

import json
import os
import pathlib
import subprocess
import sys

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

LAUNCHERS = {
    "syncline-run": [os.path.abspath("launch/syncline_run")],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}
DROPPED = ("SYNCLINE_", "TORCHELASTIC_", "PET_", "OMP_")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What the example has written under each launcher: rank 1 fails once."""
    result = {}
    root = pathlib.Path(os.environ["TEST_SRCDIR"])
    (images,) = (root / "fashion_mnist").rglob("train-images-idx3-ubyte.gz")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED)}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment["PYTHON_EXEC"] = sys.executable
    for name, launcher in LAUNCHERS.items():
        folder = result[name] = tmp_path_factory.mktemp(name)
        command = [*launcher, "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
        command += [os.path.abspath("examples/elastic_fashion_mnist.py"), "--data", images.parent]
        command += ["--steps", 40, "--limit", 2400, "--fail-at", "25:1"]
        command += ["--checkpoint", folder, "--log-steps", folder / "log"]
        done = subprocess.run(
            [*map(str, command), "--result", str(folder / "result")],
            env={**environment, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout
    return result


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_after_a_failure_all_ranks_go_on_from_the_checkpoint(folders, launcher):
    steps = [json.loads(line) for line in (folders[launcher] / "log").read_text().splitlines()]
    for rank in range(2):
        for round, expected in ((0, range(25)), (1, range(20, 40))):
            made = [s["step"] for s in steps if (s["rank"], s["round"]) == (rank, round)]
            assert made == list(expected)


def test_the_result_is_the_same(folders):
    ours, theirs = (json.loads((folders[name] / "result").read_text()) for name in LAUNCHERS)
    assert ours == theirs
    assert ours["accuracy"] > 0.6
