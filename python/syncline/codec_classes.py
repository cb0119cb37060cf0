"""Objects of dataclasses, in the safe codec.

A message has the name of the class and the values of its fields. The class is looked up where it
arrives: it must be there, at the top of a module or of a class of a module that has been imported,
since importing runs code. The object is made without calling its class, and its fields are set
without calling what may be behind them: neither __init__ nor __post_init__ runs. A class of which
that is impossible, or which has a __del__, is not carried. What an object has besides its fields
stays behind; a value that would have to is an error where it is sent.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

from syncline.errors import DistTypeError


def is_carried(kind: type) -> bool:
    """Whether objects of this class can be: a dataclass without code that making one would run."""
    if "__dataclass_fields__" not in _own(kind):
        return False
    if type.__getattribute__(kind, "__new__") is not object.__new__:
        return False
    if any("__del__" in _own(base) for base in _bases(kind)):
        return False
    return all(_is_plain(kind, field.name) for field in dataclasses.fields(kind))


def name_of(kind: type) -> tuple[str, str]:
    """The module and the name by which `object_of` finds the class. TypeError if it would not."""
    if _find(kind.__module__, kind.__qualname__) is not kind:
        raise DistTypeError(
            f"the dataclass {kind.__qualname__} of {kind.__module__} cannot be found by its name, "
            "so the safe codec cannot carry its objects: define it at the top of its module, or "
            'pass codec="pickle"'
        )
    return kind.__module__, kind.__qualname__


def fields_of(value: Any) -> dict[str, Any]:
    """The values of the fields by their names. TypeError if there are other attributes."""
    names = [field.name for field in dataclasses.fields(value)]
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    others = [name for name in attributes if name not in names]
    if others:
        raise DistTypeError(
            f"an object of {type(value).__qualname__} has attributes that are no fields of its "
            f"dataclass, which the safe codec does not carry: {', '.join(others)}"
        )
    return {name: getattr(value, name) for name in names}


def object_of(module: Any, name: Any, values: dict[Any, Any]) -> Any:
    """An object of that class. ValueError if it is none that is carried, or has other fields."""
    kind = _find(module, name)
    if not isinstance(kind, type) or not is_carried(kind):
        raise ValueError(
            f"{module}.{name} is no dataclass that is known here and can be carried: import it "
            "before the call"
        )
    names = {field.name for field in dataclasses.fields(kind)}
    if values.keys() != names:
        raise ValueError(f"the fields of {module}.{name} are others here than at the sender")
    made: Any = object.__new__(kind)
    for field, value in values.items():
        object.__setattr__(made, field, value)
    return made


def _find(module: Any, name: Any) -> Any:
    """What the module has under this name, or None; asks nothing that could run code."""
    if type(module) is not str or type(name) is not str:
        return None
    found = sys.modules.get(module)
    if not isinstance(found, types.ModuleType):
        return None
    names: Any = object.__getattribute__(found, "__dict__")
    value = None
    for part in name.split("."):
        value = names.get(part)
        names = _own(value) if isinstance(value, type) else {}
    return value


def _bases(kind: type) -> tuple[type, ...]:
    bases: tuple[type, ...] = type.__getattribute__(kind, "__mro__")
    return bases


def _own(kind: type) -> Any:
    """The __dict__ of a class, whatever its metaclass does."""
    return type.__dict__["__dict__"].__get__(kind)  # type: ignore[index]


def _is_plain(kind: type, name: str) -> bool:
    """Whether setting this attribute of an object stores a value, and calls no descriptor."""
    for base in _bases(kind):
        if name in _own(base):
            found = _own(base)[name]
            is_slot = isinstance(found, types.MemberDescriptorType)
            return is_slot or not hasattr(type(found), "__set__")
    return True
