"""Fixtures that start a launcher, and end what is left of it after the test."""

import pytest

from launch.job_for_tests import Job


def pytest_addoption(parser):
    parser.addoption("--strangers", type=int, default=1000, help="of launch_flood_test")


@pytest.fixture
def strangers(request):
    return request.config.getoption("--strangers")


@pytest.fixture
def launch(tmp_path):
    jobs = []

    def start(*args, **kwargs):
        jobs.append(Job(tmp_path, args, **kwargs))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


@pytest.fixture
def shell(launch):
    """shell(script, *options): runs `script` in /bin/sh as the worker."""
    return lambda script, *options, **kwargs: launch(
        *options, "--no-python", "/bin/sh", "-c", script, **kwargs
    )


@pytest.fixture
def python(launch, tmp_path):
    def start(script, *options, args=(), **kwargs):
        (tmp_path / "script.py").write_text(script)
        return launch(*options, "script.py", *args, **kwargs)

    return start
