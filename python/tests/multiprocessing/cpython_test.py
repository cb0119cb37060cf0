"""A selection of CPython's tests of module multiprocessing, for each start method."""

import pathlib
import re

import cpython_suite
import pytest

SOURCE = pathlib.Path("../cpython_tests")  # Beside the runfiles of this repository.
NAMES = ["WithProcessesTestQueue", "WithProcessesTestConnection", "TestSimpleQueue"]


@pytest.mark.parametrize("method", cpython_suite.METHODS)
def test_queues_and_connections_pass(method, tmp_path):
    # Those that wait for half a minute are in cpython_all_test.
    output = cpython_suite.run(tmp_path, SOURCE, method, NAMES, 200)
    assert int(re.findall(r"^Ran (\d+) tests", output, re.M)[-1]) > 20
