"""Runs pytest for syncline_py_test: the arguments are files and options of pytest."""

import os
import site
import sys


def main():
    # Neither this file's folder nor what the machine has installed is for tests.
    installed = site.getsitepackages() + [site.getusersitepackages()]
    sys.path[:] = [path for path in sys.path[1:] if path not in installed]
    # Wheels come with a newer NumPy than Debian, and need it.
    sys.path.sort(key=lambda path: "/pypi_" not in path)
    import pytest

    options = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", os.getcwd(), "-q", "-rs"]
    options += ["--import-mode", "importlib"]
    if "XML_OUTPUT_FILE" in os.environ:
        options += ["--junitxml", os.environ["XML_OUTPUT_FILE"]]
    if "TESTBRIDGE_TEST_ONLY" in os.environ:
        options += ["-k", os.environ["TESTBRIDGE_TEST_ONLY"]]
    sys.exit(pytest.main(options + sys.argv[1:]))


if __name__ == "__main__":
    main()
