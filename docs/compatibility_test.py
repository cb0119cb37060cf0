"""compatibility.md is what the table says, and the table says all that differs from torch."""

import importlib
import inspect
import pathlib
import re
import sys
from datetime import timedelta

import pypi_torch_status
import pytest

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER))
import compatibility  # noqa: E402

NO_DEFAULT = "none"


def test_the_document_is_what_the_table_says():
    written = (FOLDER / "compatibility.md").read_text()
    assert written == compatibility.document(), (
        "run: python3 docs/compatibility.py > docs/compatibility.md"
    )


if not pypi_torch_status.AVAILABLE:
    pytest.skip(pypi_torch_status.REASON, allow_module_level=True)

import syncline as dist  # noqa: E402
import torch._C._distributed_c10d as c10d  # noqa: E402


def parameters(function):
    """Names and defaults of the parameters without self; names are None where torch has none."""
    try:
        found = list(inspect.signature(function).parameters.values())
        if found and found[0].name == "self":
            found = found[1:]
        return [(p.name, p.default if p.default is not p.empty else NO_DEFAULT) for p in found]
    except ValueError:
        return of_docstring(function.__doc__)


def of_docstring(text):
    """Of what pybind11 or our generator writes: "name(self: X, block: bool = True) -> ..."."""
    line = [line for line in text.split("\n") if ") ->" in line][-1]  # Of the last overload.
    inside, depth = line[line.index("(") + 1 : line.rindex(") ->")], 0
    parts = [""]
    for character in inside:
        depth += character in "([{"
        depth -= character in ")]}"
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    found = []
    for part in filter(None, (part.strip() for part in parts)):
        name, _, default = part.partition(" = ")
        name = name.split(":")[0].strip()
        if name != "self":
            value = eval(default, {"datetime": sys.modules["datetime"]}) if default else NO_DEFAULT
            found.append((None if re.fullmatch(r"arg\d+", name) else name, value))
    return found


def is_same(theirs, ours):
    return len(theirs) == len(ours) and all(
        mine == default and name in (None, my_name)
        for (name, default), (my_name, mine) in zip(theirs, ours, strict=True)
    )


def accepts(theirs, ours):
    """Whether each call of theirs is one of ours."""
    more = ours[len(theirs) :]
    return is_same(theirs, ours[: len(theirs)]) and all(value != NO_DEFAULT for _, value in more)


@pytest.mark.parametrize("kind", compatibility.STORES)
def test_every_method_of_torchs_stores_is_here(kind):
    theirs, ours = getattr(c10d, kind), getattr(dist, kind)
    names = {name for name in dir(theirs) if not name.startswith("_")} | {"__init__"}
    wrong = []
    for name in sorted(names):
        rows = [f"{kind}.{name}", f"Store.{name}"]
        told = any(row in compatibility.STORE_DIFFERENCES for row in rows)
        mine = getattr(ours, name, None)
        if mine is None:
            wrong.append(f"{kind}.{name} is missing")
        elif callable(mine) and name != "__init__" or kind != "Store":
            if isinstance(getattr(theirs, name), property):
                continue
            known, own = parameters(getattr(theirs, name)), parameters(mine)
            if name == "wait":  # Another overload is without a timeout.
                known = [(None, NO_DEFAULT), (None, None)]
            if not accepts(known, own):
                wrong.append(f"{kind}.{name}: torch has {known}, we {own}")
            elif not is_same(known, own) and not told:
                wrong.append(f"{kind}.{name} takes more than torch's, and no row says so: {own}")
    assert not wrong, "\n".join(wrong)


def test_every_row_about_stores_is_of_something():
    for row in compatibility.STORE_DIFFERENCES:
        kind, name = row.split(".")
        assert hasattr(getattr(c10d, kind), name), row


def public(module):
    """The names that a module of torch has for its users."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__.startswith("torch.distributed")
        ]
    return sorted(names)


@pytest.mark.parametrize("module", sorted(compatibility.MODULES))
def test_every_name_of_torchs_elastic_is_here(module):
    theirs = importlib.import_module(module)
    ours = importlib.import_module(compatibility.MODULES[module])
    short = compatibility.MODULES[module].rsplit(".", 1)[-1]
    wrong = []
    for name in public(theirs):
        told = compatibility.ELASTIC_DIFFERENCES.get(f"{short}.{name}")
        their, mine = getattr(theirs, name), getattr(ours, name, None)
        if isinstance(their, str):
            continue  # The name of a variable, which the launcher's manual has.
        if mine is None:
            if told is None:
                wrong.append(f"{name} is missing")
            continue
        for what in differing(their, mine):
            if told is None:
                wrong.append(f"{name}: {what}")
    assert not wrong, "\n".join(wrong)


def differing(theirs, ours):
    """What a user of `theirs` would miss in `ours`."""
    if inspect.isclass(theirs):
        if issubclass(theirs, BaseException) and "__init__" not in vars(theirs):
            return
        for name in vars(theirs):
            if not name.startswith("_") and not hasattr(ours, name):
                annotations = getattr(ours, "__annotations__", {})
                if name not in annotations and name not in getattr(ours, "__slots__", ()):
                    yield f"{name} is missing"
        if "__members__" in dir(theirs):
            if {m: v.value for m, v in theirs.__members__.items()} != {
                m: v.value for m, v in ours.__members__.items()
            }:
                yield "has other members"
            return
        if theirs.__init__ is object.__init__:
            return
    elif not inspect.isroutine(theirs):
        return
    known, own = parameters(theirs), parameters(ours)
    plain = [(name, spelled(default)) for name, default in known]
    mine = [(name, spelled(default)) for name, default in own]
    if plain != mine:
        yield f"torch has {plain}, we {mine}"


def spelled(default):
    """Defaults are of torch's own classes, or new ones for each object."""
    if default == NO_DEFAULT or isinstance(default, (int, float, str, type(None), timedelta)):
        return default
    return type(default).__name__ if not callable(default) else "made"


def test_every_row_about_elastic_is_of_something():
    known = set()
    for module, ours in compatibility.MODULES.items():
        short = ours.rsplit(".", 1)[-1]
        known |= {f"{short}.{name}" for name in public(importlib.import_module(module))}
    assert set(compatibility.ELASTIC_DIFFERENCES) <= known
