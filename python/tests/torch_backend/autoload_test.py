"""What `import torch` does where Syncline is installed: it knows the backend's name, no more."""

import os
import subprocess
import sys

import pypi_torch_status
import pytest

if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import syncline_torch_autoload

JOB_OF_ONE = """
import sys
import torch
import torch.distributed as dist

loaded = [name for name in sys.modules if name.partition(".")[0] == "syncline"]
assert not loaded and dist.Backend.SYNCLINE == "syncline", loaded
assert "/_syncline." not in open("/proc/self/maps").read()
assert not dist.Backend._plugins  # So that torch treats other backends as it does without us.

for backend in BACKENDS:
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(x := torch.ones(2))
    assert x.tolist() == [1.0, 1.0]
    assert ("syncline.torch" in sys.modules) == ("syncline" in backend)
    dist.destroy_process_group()
print("done")
"""


@pytest.fixture
def installed(tmp_path):
    """A folder of packages in which Syncline is installed, as far as torch can see."""
    info = tmp_path / "syncline-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: syncline\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\nsyncline = syncline_torch_autoload:register\n"
    )
    return tmp_path


def run(folder, program, expect=0):
    paths = [str(folder), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == expect, done.stdout
    return done.stdout


def test_the_name_is_known_without_an_import_and_others_do_not_notice(installed):
    backends = ["cpu:gloo,cuda:gloo", "syncline"]
    assert "done" in run(installed, JOB_OF_ONE.replace("BACKENDS", str(backends)))


def test_torch_can_be_imported_where_syncline_is_broken(installed):
    broken = installed / "syncline"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('half of a library')\n")
    said = run(installed, JOB_OF_ONE.replace("BACKENDS", "['syncline']"), expect=1)
    assert "half of a library" in said and "init_process_group" in said


def test_a_torch_that_is_not_what_it_was_can_be_imported(monkeypatch):
    class Other:
        class Backend:
            pass

    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", Other)
    syncline_torch_autoload.register()
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d")
    syncline_torch_autoload.register()


COST = """
import importlib.metadata
import time
import torch

for entry in importlib.metadata.entry_points(group="torch.backends"):
    if entry.name == "syncline":
        begun = time.perf_counter()
        entry.load()()
        print(time.perf_counter() - begun)
"""


def test_it_costs_less_than_a_millisecond(installed, monkeypatch):
    """The import of the module, and the call; torch looks for entry points anyway."""
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    times = []
    while len(times) < 4 and (not times or times[-1] >= 1e-3):  # The machine may be busy.
        times.append(float(run(installed, COST).split()[-1]))
    assert times[-1] < 1e-3, times
