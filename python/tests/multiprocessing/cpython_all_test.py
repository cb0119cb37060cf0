"""All of CPython's tests of module multiprocessing, for each start method. Takes minutes."""

import pathlib
import re

import cpython_suite
import pytest

SOURCE = pathlib.Path("../cpython_tests")  # Beside the runfiles of this repository.


@pytest.mark.parametrize("method", cpython_suite.METHODS)
def test_all_pass(method, tmp_path):
    output = cpython_suite.run(tmp_path, SOURCE, method, [], 1500)
    assert int(re.findall(r"^Ran (\d+) tests", output, re.M)[-1]) > 300
    print(output[-200:])
