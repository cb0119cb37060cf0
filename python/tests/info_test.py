"""What `python -m syncline.info` prints."""

import os
import subprocess
import sys

import syncline as dist


def test_it_prints_what_there_is_and_what_the_environment_says():
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SYNCLINE_DEBUG": "off",
    }
    environment.pop("MASTER_ADDR", None)
    done = subprocess.run(
        [sys.executable, "-m", "syncline.info"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"syncline {dist.Info.version()}, Python 3.")
    assert f"backends: {', '.join(dist.Info.backends())}\n" in done.stdout
    assert f"stores:   {', '.join(dist.Info.stores())}\n" in done.stdout
    assert dist.Info.capability_table() in done.stdout
    assert f"shm: {dist.Info.describe_backend('shm')}\n" in done.stdout
    lines = [line.split("  (")[0].split() for line in done.stdout.splitlines()]
    assert ["SYNCLINE_DEBUG", "=", "'off'"] in lines
    assert ["MASTER_ADDR", "is", "not", "set"] in lines


def test_what_is_said_to_be_served_is_served_and_no_more():
    for backend in dist.Info.backends():
        for operation in dist.Info.operations(backend):
            assert dist.Info.dtypes(backend, operation)
    assert "float32" in dist.Info.dtypes("gloo", "all_reduce")
