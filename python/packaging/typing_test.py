"""The shipped package under mypy --strict, as its users have it: installed from the wheel."""

import os
import pathlib
import re

import clean_venv
import mypy
import numpy
import pytest

TYPING = pathlib.Path("python/packaging/typing").absolute()
OPTIONAL = ["cupy", "jax", "ml_dtypes", "torch"]
# Without PyTorch, whose own types this mypy cannot read, all that comes from it is Any: its classes
# as bases, its decorators; and what is to be ignored with it is nothing to be ignored without.
ON_TORCH = """
[mypy-syncline.torch.*]
disallow_subclassing_any = False
disallow_untyped_decorators = False
warn_return_any = False
warn_unused_ignores = False
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """The clean environment, with NumPy and mypy beside the wheel."""
    venv = clean_venv.CleanVenv(tmp_path_factory.mktemp("typed"))
    folders = [os.path.dirname(os.path.dirname(module.__file__)) for module in (numpy, mypy)]
    (venv.site_packages / "more.pth").write_text("\n".join(folders) + "\n")
    return venv


def mypy_strict(venv, *arguments):
    """The lines with errors that mypy writes."""
    options = ["--strict", "--show-error-codes", "--cache-dir", venv.folder / "cache"]
    out = venv.run(venv.python, "-m", "mypy", *options, *arguments, expect=None)
    errors = [line for line in out.splitlines() if ": error: " in line]
    assert out.startswith("Success") != bool(errors), out
    return errors


def test_mypy_strict_accepts_a_user_script(venv):
    errors = mypy_strict(venv, TYPING / "user_script.py")
    assert not errors, "\n".join(errors)


def test_the_user_script_runs(venv):
    launch = [venv.root / "bin/syncline-run", "--standalone", "--nproc-per-node", "2"]
    assert venv.run(*launch, TYPING / "user_script.py").count("done\n") == 2


def test_mypy_refuses_every_wrong_call(venv):
    lines = (TYPING / "wrong_calls.py").read_text().splitlines()
    marked = {
        (number, line.partition("# refused: ")[2])
        for number, line in enumerate(lines, 1)
        if "# refused: " in line
    }
    errors = mypy_strict(venv, TYPING / "wrong_calls.py")
    found = set()
    for error in errors:
        place, code = re.fullmatch(
            r"\S*wrong_calls\.py:(\d+): error: .*\[([a-z-]+)\]", error
        ).groups()
        found.add((int(place), code))
    assert found == marked, "\n".join(errors)


def test_the_package_itself_is_strictly_typed(venv):
    # What it uses where it is installed, and works without.
    optional = [f"[mypy-{name}.*]\nignore_missing_imports = True\n" for name in OPTIONAL]
    (venv.folder / "mypy.ini").write_text("[mypy]\n" + "".join(optional) + ON_TORCH)
    options = ["--config-file", venv.folder / "mypy.ini", "--package", "syncline"]
    errors = mypy_strict(venv, *options)
    assert not errors, "\n".join(errors)


# What stubtest says of pybind11's classes, which have a metaclass and object's __init__ (stores are
# made by functions of syncline.stores, which have the types), and of the names that only one side
# has: Tensor is an alias for annotations, TensorView what C++ returns.
EXPECTED = re.compile(
    r"syncline\._syncline\."
    r"(\w+ is inconsistent, metaclass differs"
    r"|\w+\.__init__ is inconsistent, stub does not have \*args argument \"args\""
    r"|\w+Store\.__new__ is inconsistent, stub .*"
    # syncline.stores gives them the constructors of torch, and declares them.
    r"|\w+Store\.__init__ is inconsistent, stub does not have argument .*"
    # The class by another name within itself, which a stub cannot say.
    r"|ReduceOp\.RedOpType is not present in stub"
    r"|Tensor is not present at runtime"
    r"|TensorView is not present in stub)"
)


def test_the_stub_and_the_module_have_the_same_names(venv):
    """mypy's stubtest imports the module and compares it with its stub, both ways."""
    stubtest = [venv.python, "-m", "mypy.stubtest", "--concise", "syncline._syncline"]
    differences = venv.run(*stubtest, expect=1).splitlines()
    assert "syncline._syncline.Tensor is not present at runtime" in differences
    unexpected = [line for line in differences if not EXPECTED.fullmatch(line)]
    assert not unexpected, "\n".join(unexpected)
