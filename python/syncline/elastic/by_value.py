"""Pickles of calls, for processes of the same interpreter on the same host.

Functions and classes that the other process could not import travel by value: those of a notebook
or of `python -c`, lambdas, and functions within functions. All else is pickled as ever.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import functools
import importlib
import io
import marshal
import os
import pickle
import sys
import types
from typing import Any

_MAIN = "__main__"
# Objects of dataclasses that are compared by identity.
_MARKS = {
    id(getattr(dataclasses, name)): name
    for name in ("MISSING", "KW_ONLY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR")
    + ("_HAS_DEFAULT_FACTORY",)
}
_DROPPED = ("__dict__", "__weakref__", "__module__", "__name__", "__qualname__", "__doc__")


def dumps(value: Any) -> bytes:
    """The pickle; pickle.PicklingError says what cannot travel."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def loads(data: bytes) -> Any:
    return pickle.loads(data)  # What this user's own process has written.


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, types.FunctionType) and not _can_be_imported(value):
            return _reduce_function(value)
        if isinstance(value, types.CellType):
            return _reduce_cell(value)
        if isinstance(value, types.MappingProxyType):
            return _make_proxy, (dict(value),)
        if (name := _MARKS.get(id(value))) is not None:
            return getattr, (dataclasses, name)
        if isinstance(value, type) and not _can_be_imported(value):
            return _reduce_class(value)
        return NotImplemented


def main_is_a_file() -> bool:
    """Whether this program can be run again: it is no notebook, and did not come by stdin."""
    return os.path.isfile(getattr(sys.modules[_MAIN], "__file__", None) or "")


def _can_be_imported(value: Any) -> bool:
    """Whether the other process finds the same by module and name."""
    if value.__module__ is None or (value.__module__ == _MAIN and not main_is_a_file()):
        return False
    if value.__module__ == "builtins":
        return True
    if not _is_found(value.__module__.partition(".")[0]):
        return False
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


@functools.cache
def _is_found(module: str) -> bool:
    """Whether a process that begins finds it; some are loaded by hand."""
    if module in (_MAIN, "__mp_main__"):
        return True
    for finder in sys.meta_path:  # Those of editable installs too.
        try:
            if finder.find_spec(module, None) is not None:
                return True
        except Exception:  # Somebody else's, that does not know this module.
            continue
    return False


def _reduce_function(function: types.FunctionType) -> tuple[Any, ...]:
    code = function.__code__
    known = function.__globals__
    state = {
        "globals": {name: known[name] for name in sorted(_names(code)) if name in known},
        "defaults": function.__defaults__,
        "kwdefaults": function.__kwdefaults__,
        "annotations": _annotations(function),
        "attributes": dict(function.__dict__),
        "doc": function.__doc__,
        "qualname": function.__qualname__,
    }
    made = (marshal.dumps(code), function.__module__, function.__name__, function.__closure__)
    return _make_function, made, state, None, None, _fill_function


def _names(code: types.CodeType) -> set[str]:
    """The globals that the code, and code within it, reads."""
    operations = ("LOAD_GLOBAL", "LOAD_NAME")
    names = {i.argval for i in dis.get_instructions(code) if i.opname in operations}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _annotations(function: types.FunctionType) -> dict[str, Any]:
    # As text: nobody computes with them, and what they name need not travel.
    return {
        name: hint if isinstance(hint, str) else getattr(hint, "__name__", repr(hint))
        for name, hint in function.__annotations__.items()
    }


def _namespace(module: str | None) -> dict[str, Any]:
    """Of this process's main module for what was in the other's; that of the module for others."""
    if module == _MAIN:
        return vars(sys.modules[_MAIN])
    if module is None:
        return {"__builtins__": builtins}
    try:
        return vars(importlib.import_module(module))
    except ImportError:
        return {"__builtins__": builtins, "__name__": module}


def _make_function(
    code: bytes, module: str | None, name: str, closure: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    return types.FunctionType(marshal.loads(code), _namespace(module), name, None, closure)


def _fill_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    for name, value in state["globals"].items():
        if function.__module__ == _MAIN:
            function.__globals__[name] = value
        else:
            function.__globals__.setdefault(name, value)
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__annotations__ = state["annotations"]
    function.__dict__.update(state["attributes"])
    function.__doc__ = state["doc"]
    function.__qualname__ = state["qualname"]


def _reduce_cell(cell: types.CellType) -> tuple[Any, ...]:
    try:
        content: tuple[Any, ...] = (cell.cell_contents,)
    except ValueError:  # Nothing has been put there yet.
        content = ()
    return _make_cell, (), content, None, None, _fill_cell


def _make_cell() -> types.CellType:
    return types.CellType()


def _make_proxy(content: dict[Any, Any]) -> types.MappingProxyType[Any, Any]:
    return types.MappingProxyType(content)


def _fill_cell(cell: types.CellType, content: tuple[Any, ...]) -> None:
    if content:
        cell.cell_contents = content[0]


def _reduce_class(kind: type) -> tuple[Any, ...]:
    if issubclass(kind, enum.Enum):
        raise pickle.PicklingError(
            f"the enum {kind.__qualname__} is in no module that workers can import: put it in one"
        )
    if "__slots__" in vars(kind):
        raise pickle.PicklingError(
            f"class {kind.__qualname__} has __slots__ and is in no module that workers can import: "
            "put it in one"
        )
    state = {name: value for name, value in vars(kind).items() if name not in _DROPPED}
    names = (kind.__module__, kind.__name__, kind.__qualname__, kind.__doc__)
    return _make_class, (type(kind), kind.__bases__, names), state, None, None, _fill_class


def _make_class(meta: type, bases: tuple[type, ...], names: tuple[str, str, str, str]) -> type:
    module, name, qualname, doc = names
    body = {"__module__": module, "__qualname__": qualname, "__doc__": doc}
    kind: type = meta(name, bases, body)
    # Its objects that travel back are pickled by this name.
    if module == _MAIN and qualname == name:
        setattr(sys.modules[_MAIN], name, kind)
    return kind


def _fill_class(kind: type, state: dict[str, Any]) -> None:
    for name, value in state.items():
        try:
            setattr(kind, name, value)
        except (AttributeError, TypeError):  # What the metaclass makes itself.
            continue
