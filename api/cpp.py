"""How every binding calls C++: names, types, literals and calls.

A method `all_reduce` calls AllReduce of the C++ class of the same name, a property `rank` calls
rank() or, with @field, reads a field, a static method calls the static function. Where the C++
differs in shape, a function of api/adapters.h stands in between: see @adapted in description.py.
"""

from __future__ import annotations

from datetime import timedelta

import stub
from stub import Handle, Method, Type


def pascal(name: str) -> str:
    """all_reduce -> AllReduce; SUM -> Sum."""
    return "".join(part.capitalize() for part in name.split("_"))


def cpp_type(type: Type) -> str:
    """The C++ type by which a conversion is chosen."""
    if type.kind == "word":
        word = stub.VOCABULARY[type.name]
        return word.replace("int64_t", "int") if type.refined == "Rank" else word
    if type.kind == "enum":
        return type.name
    return f"{'Nullable' if type.kind == 'nullable' else 'std::shared_ptr'}<{type.name}>"


def cpp_value(value: object, type: Type) -> str:
    """A default other than None, which stands for itself in every language."""
    if type.kind == "enum":
        return f"{type.name}::k{pascal(str(value))}"
    if isinstance(value, timedelta):
        return f"absl::Seconds({value // timedelta(seconds=1)})"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return cpp_string(value)
    return "{}" if value == [] else repr(value)


def cpp_string(text: str) -> str:
    """A literal of `text`, over as many lines as it has."""
    if "\n" in text:
        return f'R"doc({text})doc"'
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def cpp_call(handle: Handle, method: Method) -> str:
    """The expression that makes the call."""
    arguments = [argument.name for argument in method.arguments]
    if "adapted" in method.marks:
        function = f"api::{handle.name}{pascal(method.name)}"
        arguments = ([] if method.kind == "static" else ["self"]) + arguments
    elif "field" in method.marks:
        return f"self.{method.name}"
    elif method.kind == "static":
        function = f"{handle.name}::{pascal(method.name)}"
    elif method.kind == "property" or "accessor" in method.marks:
        function = f"self.{method.name}"
    else:
        function = f"self.{pascal(method.name)}"
    return f"{function}({', '.join(arguments)})"
