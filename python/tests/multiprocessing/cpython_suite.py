"""Runs CPython's tests of module multiprocessing with syncline.multiprocessing in its place.

The tests are those of Debian's libpython3.11-testsuite. Their text is read, the module's name is
replaced where it is imported, and the result is run by unittest in a process of its own.
"""

import os
import pathlib
import re
import subprocess
import sys

METHODS = ("fork", "spawn", "forkserver")

# What cannot apply, and why; docs/multiprocessing.md says the same.
NOT_APPLICABLE = {
    "test_queue_feeder_donot_stop_onexc": "put raises what cannot be pickled, no thread prints it",
    "_TestImportStar.test_import": "lists the files of the standard package",
}

_SUITE = """
import sys
import unittest
from test.support import script_helper
# Scripts need PYTHONPATH to find the package.
script_helper.interpreter_requires_environment = lambda: True
import _test_multiprocessing
_test_multiprocessing.install_tests_in_module_dict(globals(), {method!r})
for case in [value for value in globals().values() if isinstance(value, type)]:
    for skipped, reason in {skipped!r}.items():
        owner, _, name = skipped.rpartition(".")
        if hasattr(case, name) and owner in ("", case.__name__):
            setattr(case, name, unittest.skip(reason)(getattr(case, name)))
if __name__ == "__main__":
    unittest.main()
"""


def _substituted(text: str) -> str:
    package = "syncline.multiprocessing"
    text = text.replace(
        "import multiprocessing.connection\n", f"import {package} as multiprocessing\n", 1
    )
    text = re.sub(r"^import multiprocessing\.\w+\n", "", text, flags=re.M)
    text = re.sub(
        r"^(\s*)import multiprocessing$",
        rf"\1import {package} as multiprocessing",
        text,
        flags=re.M,
    )
    text = re.sub(r"\bimport multiprocessing as mp$", f"import {package} as mp", text, flags=re.M)
    ours = "connection|managers|pool|queues|sharedctypes"
    text = re.sub(rf"from multiprocessing\.({ours}) import", rf"from {package}.\1 import", text)
    text = text.replace("from multiprocessing import Pool", f"from {package} import Pool")
    # Scripts that are run with -E would not find the package.
    text = re.sub(r"\[sys\.executable,\s*'-E', ", "[sys.executable, ", text)
    text = text.replace("from test._test_multiprocessing", "from _test_multiprocessing")
    return re.sub(r"(['\"])test\.mp_preload\1", r"\1mp_preload\1", text)


def run(folder: pathlib.Path, source: pathlib.Path, method: str, names: list[str], limit: float):
    """Runs the tests of a start method whose names have one of `names` in them; all if none.

    `source` is the folder with CPython's files, `folder` one to write to. Returns what the tests
    print, and raises AssertionError with its end if one fails.
    """
    for name in ("mp_fork_bomb.py", "mp_preload.py", "_test_multiprocessing.py"):
        text = (source / name).read_text()
        text = text.replace("import multiprocessing, ", "import multiprocessing\nimport ")
        (folder / name).write_text(_substituted(text))
    suite = folder / f"suite_{method}.py"
    suite.write_text(_SUITE.format(method=method, skipped=NOT_APPLICABLE))
    command = [sys.executable, suite.name, "-v"]
    for name in names:
        command += ["-k", name]
    # The interpreter's own package `test` has what the tests import besides.
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), *sys.path]))
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
    failed = "\n".join(re.findall(r"^(?:ERROR|FAIL): .*", done.stdout, re.M))
    assert done.returncode == 0, f"{failed}\n{done.stdout[-20000:]}"
    return done.stdout
