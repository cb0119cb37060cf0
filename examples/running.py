"""Runs an example through the launcher, as its users do."""

import contextlib
import os
import pathlib
import subprocess

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline"
RUN = ROOT / "launch/run"
EXAMPLES = ROOT / "examples"
LIMIT = 600  # Seconds; far more than is needed.


@contextlib.contextmanager
def launched(*arguments, cwd):
    """A running launcher; it and all it started are gone afterwards."""
    job = subprocess.Popen(
        [str(RUN), "--standalone", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "BUILD_WORKING_DIRECTORY"},
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            job.terminate()
        job.communicate(timeout=60)


def run(*arguments, cwd, expect=0):
    """What a job prints that ends with the code `expect`."""
    with launched(*arguments, cwd=cwd) as job:
        output, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == expect, output
    return output
