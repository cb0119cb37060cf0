"""compatibility.md is what the table says, and the table says all that differs from torch."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import re
import sys
import types
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
import syncline.multiprocessing  # noqa: E402
import syncline.nn  # noqa: E402
import torch._C._distributed_c10d as c10d  # noqa: E402
import torch.distributed as torch_dist  # noqa: E402
import torch.distributed.nn  # noqa: E402
import torch.multiprocessing  # noqa: E402
from syncline import distributed_c10d  # noqa: E402
from torch.distributed import distributed_c10d as torch_c10d  # noqa: E402


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


# ---- torch.distributed itself ----

# Classes whose objects scripts have, and their methods that begin with one underscore.
CLASSES = {
    "Backend": torch_c10d.Backend,
    "BackendConfig": torch_c10d.BackendConfig,
    "BuiltinCommHookType": c10d.BuiltinCommHookType,
    "DebugLevel": c10d.DebugLevel,
    "P2POp": torch_c10d.P2POp,
    "ProcessGroup": c10d.ProcessGroup,
    "ReduceOp": c10d.ReduceOp,
    "Work": c10d.Work,
    "group": torch_c10d.group,
    **{
        name: getattr(c10d, name)
        for name in dir(c10d)
        if name.endswith("Options") and not name.startswith("_")
    },
}


def names_of_torch():
    """What a script finds in torch.distributed, of torch's own."""
    names = set(torch_c10d.__all__)
    for name, value in vars(torch_dist).items():
        module = getattr(value, "__module__", None) or "torch"
        is_torchs = str(module).startswith("torch") and not isinstance(value, types.ModuleType)
        is_plain = isinstance(value, (str, dict)) or name in ("log",)
        if is_torchs and not is_plain and not name.startswith("__"):
            names.add(name)
    return sorted(names)


def is_told(name):
    return name in compatibility.DIFFERENCES or name in compatibility.PRIVATE


def misses(theirs, ours):
    """What a call of torch's function would meet in ours; empty if every call is one of ours."""
    known = [(name, plain(default)) for name, default in parameters(theirs)]
    own = [(name, plain(default)) for name, default in parameters(ours)]
    return "" if accepts(known, own) else f"torch has {known}, we {own}"


def plain(default):
    """Defaults are of each library's own classes."""
    return getattr(default, "name", default)


def test_every_name_of_torch_distributed_is_here():
    names = names_of_torch()
    assert len(names) > 120
    wrong = []
    for name in names:
        theirs = getattr(torch_dist, name, None) or getattr(torch_c10d, name)
        ours = getattr(dist, name, getattr(distributed_c10d, name, None))
        if ours is None:
            if not is_told(name):
                wrong.append(f"{name} is missing")
        elif inspect.isfunction(theirs) and (what := misses(theirs, ours)):
            if name != "breakpoint":  # Another default, as its row says.
                wrong.append(f"{name}: {what}")
    assert not wrong, "\n".join(wrong)


def test_every_function_of_distributed_c10d_is_here():
    functions = {
        name: value
        for name, value in vars(torch_c10d).items()
        if inspect.isfunction(value) and value.__module__ == torch_c10d.__name__
    }
    assert len(functions) > 120
    wrong = []
    for name, theirs in functions.items():
        ours = getattr(distributed_c10d, name, None)
        if ours is None:
            if not is_told(name):
                wrong.append(f"{name} is missing")
        elif what := misses(theirs, ours):
            wrong.append(f"{name}: {what}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", sorted(CLASSES))
def test_every_method_of_torchs_classes_is_here(kind):
    theirs, ours = CLASSES[kind], getattr(dist, kind)
    private = kind in ("ProcessGroup", "Work")
    wrong = []
    for name in dir(theirs):
        if name.startswith("__") or name.startswith("_") and not private or hasattr(object, name):
            continue
        if "pybind11" in name or issubclass(theirs, str) and hasattr(str, name):
            continue
        if name in ("name", "value") and "__members__" in dir(theirs):  # Ours is an Enum.
            continue
        if kind == "Backend" and name in ("FAKE", "SYNCLINE"):  # Registered over torch.
            continue
        if kind == "ProcessGroup" and name.isupper():  # Of BackendType.
            continue
        has = hasattr(ours, name) or kind.endswith("Options") and hasattr(ours(), name)
        told = is_told(f"{kind}.{name}") or name in compatibility.PRIVATE_METHODS.get(kind, ())
        if not has and not told:
            wrong.append(f"{kind}.{name} is missing")
    assert not wrong, "\n".join(wrong)


def test_options_have_torchs_defaults():
    for kind, theirs in CLASSES.items():
        if not kind.endswith("Options"):
            continue
        ours, made = getattr(dist, kind)(), theirs()
        for name in ("rootRank", "rootTensor", "timeout", "asyncOp"):
            if hasattr(made, name) and name not in ("rootRank", "rootTensor"):
                assert getattr(ours, name) == getattr(made, name), f"{kind}.{name}"


def test_every_row_about_torch_distributed_is_of_something():
    for row in [*compatibility.DIFFERENCES, *compatibility.PRIVATE]:
        name, _, member = row.partition(".")
        owner = CLASSES.get(name) or getattr(torch_dist, name, None)
        owner = owner or getattr(torch_c10d, name, None)
        owner = owner or getattr(torch_dist.rendezvous, name, None) or RENDEZVOUS.get(name)
        assert owner is not None or hasattr(torch_c10d, name), row
        assert not member or hasattr(owner, member), row
        here = hasattr(distributed_c10d, name)
        assert row in compatibility.DIFFERENCES or not here, f"{row} is here"
        text = compatibility.DIFFERENCES.get(row, "")
        if text.startswith("missing"):
            assert not (hasattr(getattr(dist, name), member) if member else here), row


def test_every_row_about_later_versions_is_of_what_neither_has():
    for row in compatibility.NEWER:
        kind, name = row.split(".")
        assert not hasattr(CLASSES[kind], name), f"{row} is in torch {compatibility.TORCH}"
        assert not hasattr(getattr(dist, kind), name), f"{row} is here"


def test_the_classes_of_torchs_extension_that_are_not_told_are_here():
    told = re.findall(r"`(\w+)`", compatibility.BESIDES["torch._C._distributed_c10d"])
    for name, value in vars(c10d).items():
        if inspect.isclass(value) and (not name.startswith("_") or name in told):
            here = hasattr(dist, name) or name in compatibility.DIFFERENCES
            assert here != (name in told), name


RENDEZVOUS = vars(sys.modules["torch.distributed.rendezvous"])


@pytest.mark.parametrize("version", sorted(compatibility.EARLIER))
def test_every_call_of_an_earlier_version_is_one_of_ours(version):
    for call in compatibility.earlier_calls(version):
        (function,) = ast.parse(f"def {call}: pass").body
        ours = getattr(dist, function.name, None) or getattr(distributed_c10d, function.name)
        if isinstance(ours, type) and issubclass(ours, str):
            ours("gloo")
            continue
        known = [name for name, _ in parameters(ours)]
        given = [argument.arg for argument in function.args.args]
        assert known[: len(given)] == given, f"{call}: ours has {known}"
        assert {argument.arg for argument in function.args.kwonlyargs} <= set(known), call
        needed = [n for n, d in parameters(ours) if d == NO_DEFAULT and n != "kwargs"]
        all_given = given + [argument.arg for argument in function.args.kwonlyargs]
        assert set(needed) <= set(all_given), f"{call}: ours needs {needed}"


def test_every_function_of_torch_distributed_nn_is_here():
    theirs = torch.distributed.nn.functional
    functions = {
        name: value
        for name, value in vars(theirs).items()
        if inspect.isfunction(value) and value.__module__ == theirs.__name__
    }
    assert len(functions) >= 10
    wrong = [
        f"{name}: {what}"
        for name, value in functions.items()
        if name not in ("_deprecated", "_not_supported_under_compile")
        and (what := misses(value, getattr(syncline.nn.functional, name)))
    ]
    assert not wrong, "\n".join(wrong)
    assert all(hasattr(syncline.nn, name) for name in functions if not name.startswith("_"))


def test_every_public_method_of_torchs_distributed_data_parallel_is_here():
    from syncline.torch import DistributedDataParallel as Ours
    from torch.nn.parallel import DistributedDataParallel as Theirs

    names = [n for n in vars(Theirs) if not n.startswith("_") and callable(getattr(Theirs, n))]
    wrong = [name for name in names if not hasattr(Ours, name)]
    assert {"no_sync", "join"} <= set(names)
    assert not wrong
    assert misses(Theirs.__init__, Ours.__init__) == ""


def test_every_module_of_torch_distributed_is_told():
    names = {
        module.name
        for module in pkgutil.iter_modules(torch_dist.__path__)
        if not module.name.startswith("_")
    }
    assert names == set(compatibility.SUBMODULES)
    for name, text in compatibility.SUBMODULES.items():
        for module in re.findall(r"`(syncline\.[\w.]+)`", text):
            assert importlib.util.find_spec(module) or hasattr(dist, module.split(".")[-1]), name


def test_every_name_of_torch_multiprocessing_is_here():
    theirs, ours = torch.multiprocessing, syncline.multiprocessing
    names = {*theirs.__all__, *sys.modules["multiprocessing"].__all__}
    names |= {"spawn", "start_processes", "SpawnContext", "ProcessContext", "init_reductions"}
    wrong = [
        name
        for name in sorted(names)
        if not name.startswith("_") and hasattr(theirs, name) and not hasattr(ours, name)
    ]
    assert set(wrong) <= set(compatibility.MULTIPROCESSING_DIFFERENCES), wrong


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
