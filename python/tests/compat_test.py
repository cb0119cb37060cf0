"""Scripts written for torch.distributed 1.5 run with `import syncline as dist`."""

import os
import sys
import tempfile
from pathlib import Path

import pypi_torch_status
import pytest
import ranks
import syncline as dist

FOLDER = Path(__file__).parent / "compat"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))

# One interpreter for several scripts, each of which joins and leaves.
RUN_ALL = """
import runpy, sys
for script in sys.argv[2:]:
    runpy.run_path(script, run_name="__main__")
"""


def run(scripts, size, library):
    """Runs them as a launcher does, on `size` ranks; fails with their output if one fails."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "INIT_FILE": f"{folder}/init",
            "WORLD_SIZE": str(size),
            "SYNCLINE_STORE": f"127.0.0.1:{server.port}",
            "PYTHONWARNINGS": "ignore::UserWarning",
            "OMP_NUM_THREADS": "1",
        }
        files = [str(FOLDER / f"{script}.py") for script in scripts]
        ranks.run(size, [sys.executable, "-c", RUN_ALL, library, *files], environment)


def test_there_are_scripts():
    assert len(SCRIPTS) == 6


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_that_time_runs_with_numpy(script, size):
    run([script], size, "numpy")


@pytest.mark.parametrize("size", [2, 3])
def test_the_scripts_run_with_torch(size):
    if not pypi_torch_status.AVAILABLE:
        pytest.skip(pypi_torch_status.REASON)
    run(SCRIPTS, size, "torch")


def test_a_script_that_fails_fails_the_test():
    with pytest.raises(AssertionError, match="rank 0 failed"):
        run(["collectives"], 2, "no_such_library")
