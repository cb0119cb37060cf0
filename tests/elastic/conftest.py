"""Tests of this folder run in a network of several hosts."""

import os
import subprocess
import sys

import cluster
import pytest

HOSTS = 5


def pytest_addoption(parser):
    parser.addoption("--rounds", type=int, default=10, help="what happens in the storms, in all")
    parser.addoption("--load", type=int, default=0, help="processes that keep the processors busy")
    parser.addoption("--seed", type=int, help="of the first storm; random without it")


def pytest_configure(config):
    """Restarts the test in that network."""
    if cluster.HOSTS_VARIABLE in os.environ:
        return
    config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
    os.execv(cluster.NETWORK, [cluster.NETWORK, str(HOSTS), sys.executable, *sys.orig_argv[1:]])


@pytest.fixture(scope="session", autouse=True)
def load(request):
    """Keeps the processors busy while tests run."""
    count = request.config.getoption("load")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.fixture
def job(tmp_path):
    """A cluster.Cluster, of which nothing may be left in the end."""
    made = cluster.Cluster(tmp_path)
    try:
        yield made
        made.check_nothing_is_left()
    finally:
        made.close()
