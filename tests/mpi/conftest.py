"""The fixture of all tests below this folder."""

import subprocess

import pytest


@pytest.fixture
def folder():
    """Short, as launchers make sockets below it."""
    path = subprocess.check_output(["mktemp", "-d"], text=True).strip()
    yield path
    subprocess.run(["rm", "-rf", path], check=True)
