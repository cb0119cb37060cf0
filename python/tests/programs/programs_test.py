"""Programs of others over the backend "syncline", beside the same over gloo: equal results.

They run in a virtual environment with the wheel of this project, torch as pinned for all tests and
the packages of requirements.txt, which pip fetches: this needs a package index, and some minutes.
"""

import os
import pathlib
import re
import subprocess
import sys

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import torch

HERE = pathlib.Path(__file__).parent
(WHEEL,) = pathlib.Path("python/wheel").absolute().glob("*.whl")
PIP = os.path.abspath("../pip/pip.whl/pip")
TORCH = pathlib.Path(torch.__file__).parents[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of the environment."""
    root = tmp_path_factory.mktemp("programs") / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", root], check=True)
    (site_packages,) = root.glob("lib/python3.*/site-packages")
    (site_packages / "torch.pth").write_text(f"{TORCH}\n")  # With what torch itself needs.
    interpreter = root / "bin" / "python"
    install = [interpreter, PIP, "install", "--quiet", "--no-deps", "--no-compile"]
    requirements = ["-r", HERE / "requirements.txt"]
    subprocess.run([*install, WHEEL, *requirements], check=True, timeout=900)
    return interpreter


def results(python, folder, launcher, script, *arguments):
    """What the two ranks of a job print, which are the same."""
    command = [
        *launcher,
        *("--standalone", "--nproc-per-node=2", "--max-restarts=1"),
        HERE / "scripts" / script,
        *arguments,
    ]
    environment = {
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    # What both ranks print at the same time may share a line.
    found = re.findall(r"result (-?\d+\.\d+)", done.stdout)
    assert done.returncode == 0 and len(found) == 2 and found[0] == found[1], done.stdout
    return float(found[0]), done.stdout


# The script, whether it is given a folder, and what further to compare with gloo.
PROGRAMS = {
    "lightning": ("lightning_trainer.py", False, ["own"]),
    "lightning with manual optimization": ("lightning_trainer.py manual", False, ["own"]),
    "accelerate": ("accelerate_loop.py", False, []),
    "transformers": ("transformers_trainer.py", True, []),
    "torchrun's tutorial": ("elastic.py", True, []),
    "ddp's tutorials": ("ddp_tutorial.py", True, ["own"]),
    "fsdp's tutorials, checkpoints": ("fsdp_tutorial.py", True, []),
}


@pytest.mark.parametrize("launcher", ["torchrun", "syncline-run"])
@pytest.mark.parametrize("program", list(PROGRAMS))
def test_a_program_gets_the_same_results_as_over_gloo(python, tmp_path, program, launcher):
    script, has_folder, variants = PROGRAMS[program]
    name, *options = script.split()
    launchers = {
        "torchrun": [python, "-m", "torch.distributed.run"],
        "syncline-run": [python.parent / "syncline-run"],
    }
    by = {}
    for variant in ("gloo", "syncline", *variants):
        folder = tmp_path / variant
        folder.mkdir()
        backend = "gloo" if variant == "gloo" else "syncline"
        arguments = [backend, *([str(folder / "files")] if has_folder else [])]
        (folder / "files").mkdir()
        arguments += [*options, *([variant] if variant in variants else [])]
        by[variant], said = results(python, folder, launchers[launcher], name, *arguments)
        if name == "elastic.py":
            assert "goes on with epoch 2" in said
    assert list(by.values()) == pytest.approx([by["gloo"]] * len(by), abs=2e-4), by
    print(program, by, file=sys.stderr)
