"""Builders: for factories with so many defaults that arguments want names, which Java has not."""

from __future__ import annotations

from collections.abc import Iterator

from java_docs import JavaDocs
from java_types import java_name, java_type, java_value
from stub import Argument, Handle, Method

_ENOUGH_DEFAULTS = 3


def has_builder(handle: Handle, method: Method) -> bool:
    defaults = sum(argument.default is not None for argument in method.arguments)
    makes_one = method.kind == "static" and method.result.name == handle.name
    return makes_one and defaults >= _ENOUGH_DEFAULTS


def builder(handle: Handle, method: Method, docs: JavaDocs) -> Iterator[str]:
    """The static method `builder` and the class of what it returns.

    Named after the method, powerSgdBuilder, where the class has several.
    """
    several = sum(has_builder(handle, other) for other in handle.methods) > 1
    function = java_name(f"{method.name}_builder" if several else "builder")
    type = function[0].upper() + function[1:]
    required = [a for a in method.arguments if a.default is None]
    optional = [a for a in method.arguments if a.default is not None]
    parameters = ", ".join(f"{_type(a)} {java_name(a.name)}" for a in required)
    names = ", ".join(java_name(a.name) for a in required)
    tags = ["", *(docs.argument(a) for a in required), "@return the arguments so far"]
    yield ""
    yield from docs.comment([f"As {java_name(method.name)}, with arguments by name.", *tags], "  ")
    yield f"  public static {type} {function}({parameters}) {{"
    yield f"    return new {type}({names});"
    yield "  }"
    yield ""
    text = f"The arguments of {java_name(method.name)}; those that are not set have their defaults."
    yield from docs.comment([text], "  ")
    yield f"  public static final class {type} {{"
    for argument in required:
        yield f"    private final {_type(argument)} {java_name(argument.name)};"
    for argument in optional:
        name = java_name(argument.name)
        yield f"    private {_type(argument)} {name} = {java_value(argument)};"
    yield ""
    yield f"    private {type}({parameters}) {{"
    for argument in required:
        yield f"      this.{java_name(argument.name)} = {java_name(argument.name)};"
    yield "    }"
    for argument in optional:
        name = java_name(argument.name)
        yield ""
        comment = [f"Sets {name}.", "", docs.argument(argument), "@return this"]
        yield from docs.comment(comment, "    ")
        yield f"    public {type} {name}({_type(argument)} {name}) {{"
        yield f"      this.{name} = {name};"
        yield "      return this;"
        yield "    }"
    yield ""
    done = ["Makes the call.", "", f"@return the {handle.name}"]
    yield from docs.comment(done, "    ")
    yield f"    public {handle.name} build() {{"
    arguments = ", ".join(java_name(a.name) for a in method.arguments)
    yield f"      return {handle.name}.{java_name(method.name)}({arguments});"
    yield "    }"
    yield "  }"


def _type(argument: Argument) -> str:
    return java_type(argument.type).java
