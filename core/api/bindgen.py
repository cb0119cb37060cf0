"""Generates the language bindings from the one description of the public API.

    bindgen.py core/api/syncline.pyi --python api.cc

The description is an ordinary Python stub. A class derived from Enum is an enum; every other class
is a handle, behind which stands a std::shared_ptr to the C++ class of the same name. A method
`all_reduce` calls AllReduce, a property `rank` calls rank(), a static method calls the static
function. Where the C++ differs in shape, a function of core/api/adapters.h stands in between: see
ADAPTED. VOCABULARY, the enums and the handles are all that may appear in a signature.

How a value of each type crosses the border is hand-written, once for each language (for Python in
python/convert.h); this file only spells names and types. An emitter is a class with one method for
each part of the description; it reads the model below and knows one language.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

# Each type of a signature, and the C++ type that stands for it. Besides these: the enums, the
# handles, and `Handle | None`. Every type must have a counterpart in Java too.
VOCABULARY = {
    "None": "void",  # Results only. In C++ also absl::Status.
    "bool": "bool",
    "int": "int64_t",
    "float": "double",
    "str": "std::string",
    "str | None": "std::optional<std::string>",
    "bytes": "Bytes",  # A std::string that is not text.
    "timedelta": "absl::Duration",
    "timedelta | None": "std::optional<absl::Duration>",
    "Tensor": "Tensor",
    "list[str]": "std::vector<std::string>",
    "list[int]": "std::vector<int64_t>",
    "list[bytes]": "std::vector<Bytes>",
    "list[Tensor]": "std::vector<Tensor>",
    "list[list[int]]": "std::vector<std::vector<int64_t>>",
}

# The methods that call api::<Class><Method>(self, arguments...) of core/api/adapters.h instead of
# the C++ class itself.
ADAPTED = {
    "Store.get",
    "Store.compare_set",
    "Store.wait",
    "Store.delete_key",
    "Store.list_keys",
    "Store.num_keys",
    "Store.multi_get",
    "HashStore.create",
    "FileStore.create",
    "TCPStore.create",
    "PrefixStore.create",
    "Work.wait",
    "World.init",
    "Reducer.create",
    "Reducer.gradient",
}

# Those of them that wait in pieces: their last argument is the language's api::Interrupt.
INTERRUPTIBLE = {"Store.get", "Store.wait", "Store.multi_get", "Work.wait"}


class StubError(ValueError):
    """The description breaks a rule; the message says where, and what would be right."""


# ---- The model ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    stub: str  # As the description spells it, such as "list[int]".
    kind: str  # "word" of the vocabulary, "enum", "handle" or "nullable" handle.
    name: str  # The word, or the class.


@dataclass(frozen=True)
class Argument:
    name: str
    type: Type
    default: ast.expr | None


@dataclass(frozen=True)
class Method:
    name: str
    kind: str  # "method", "static" or "property".
    arguments: list[Argument]
    result: Type
    doc: str

    @property
    def signature(self) -> str:
        """In Python: "add(key: str, amount: int) -> int"."""
        shown = (
            f"{a.name}: {a.type.stub}" + (f" = {ast.unparse(a.default)}" if a.default else "")
            for a in self.arguments
        )
        return f"{self.name}({', '.join(shown)}) -> {self.result.stub}"


@dataclass(frozen=True)
class Enum:
    name: str
    doc: str
    members: list[str]  # Their values count up from 0.


@dataclass(frozen=True)
class Handle:
    name: str
    doc: str
    base: str | None
    methods: list[Method]


# ---- The description, read ------------------------------------------------------------------


class Reader:
    """Turns the text of a description into the model; StubError if it breaks a rule."""

    def __init__(self, text: str, filename: str):
        self._filename = filename
        self._tree = ast.parse(text, filename)
        self._classes = {n.name: n for n in self._tree.body if isinstance(n, ast.ClassDef)}

    def read(self) -> list[Enum | Handle]:
        for node in self._tree.body:
            harmless = isinstance(node, (ast.ClassDef, ast.Import, ast.ImportFrom, ast.AnnAssign))
            if not harmless and not is_text(node):
                raise self._error(node, "module", "only imports, aliases and classes can stand here")
        return [
            self._enum(node) if is_enum(node) else self._handle(node)
            for node in self._classes.values()
        ]

    def _enum(self, node: ast.ClassDef) -> Enum:
        members = []
        for item in node.body:
            if is_text(item):
                continue
            right = isinstance(item, ast.Assign) and ast.unparse(item.value) == str(len(members))
            if not right:
                raise self._error(
                    item, node.name, f"expected MEMBER = {len(members)}: values count up from 0"
                )
            members.append(ast.unparse(item.targets[0]))
        return Enum(node.name, self._doc(node, node.name), members)

    def _handle(self, node: ast.ClassDef) -> Handle:
        bases = [ast.unparse(base) for base in node.bases]
        known = list(self._classes)[: list(self._classes).index(node.name)]
        if len(bases) > 1 or not set(bases) <= set(known):
            raise self._error(node, node.name, "its base must be one class described above it")
        methods: list[Method] = []
        for item in node.body:
            if is_text(item):
                continue
            if not isinstance(item, ast.FunctionDef):
                raise self._error(item, node.name, "a class holds methods and properties only")
            if any(item.name == method.name for method in methods):
                raise self._error(item, f"{node.name}.{item.name}", "described twice")
            methods.append(self._method(item, node.name))
        return Handle(node.name, self._doc(node, node.name), next(iter(bases), None), methods)

    def _method(self, node: ast.FunctionDef, owner: str) -> Method:
        where = f"{owner}.{node.name}"
        marks = [ast.unparse(mark) for mark in node.decorator_list]
        kinds = {"": "method", "staticmethod": "static", "property": "property"}
        kind = kinds.get(",".join(marks))
        if kind is None:
            raise self._error(node, where, "known decorators are @staticmethod and @property")
        if node.args.vararg or node.args.kwarg or node.args.kwonlyargs or node.args.posonlyargs:
            raise self._error(node, where, "plain parameters only: no *, / or **")
        parameters = node.args.args if kind == "static" else node.args.args[1:]
        required = len(parameters) - len(node.args.defaults)
        if kind == "property" and parameters:
            raise self._error(node, where, "a property takes no arguments")
        arguments = [
            Argument(
                parameter.arg,
                self._type(parameter.annotation, node, f"{where}, argument {parameter.arg}"),
                node.args.defaults[i - required] if i >= required else None,
            )
            for i, parameter in enumerate(parameters)
        ]
        for argument in arguments:
            self._check_default(argument, node, where)
        result = self._type(node.returns, node, f"{where}, result", is_result=True)
        return Method(node.name, kind, arguments, result, self._doc(node, where))

    def _type(
        self, annotation: ast.expr | None, node: ast.AST, where: str, is_result: bool = False
    ) -> Type:
        if annotation is None:
            raise self._error(node, where, "its type is missing")
        text = ast.unparse(annotation)
        name = text.removesuffix(" | None")
        if text in VOCABULARY and (text != "None" or is_result):
            return Type(text, "word", text)
        if name in self._classes and not is_enum(self._classes[name]):
            return Type(text, "handle" if name == text else "nullable", name)
        if text in self._classes:
            return Type(text, "enum", text)
        classes = [*self._classes, *(f"{n} | None" for n in self._classes)]
        raise self._error(
            node,
            where,
            f"type '{text}' is not in the vocabulary: {', '.join([*VOCABULARY, *classes])}",
        )

    def _check_default(self, argument: Argument, node: ast.AST, where: str) -> None:
        try:
            cpp_default(argument)
        except StubError as error:
            raise self._error(node, f"{where}, argument {argument.name}", str(error)) from None

    def _doc(self, node: ast.ClassDef | ast.FunctionDef, where: str) -> str:
        doc = ast.get_docstring(node)
        if not doc:
            raise self._error(node, where, "its docstring is missing")
        return doc

    def _error(self, node: ast.AST, where: str, message: str) -> StubError:
        return StubError(f"{self._filename}:{getattr(node, 'lineno', 1)}: {where}: {message}")


def is_enum(node: ast.ClassDef) -> bool:
    return [ast.unparse(base) for base in node.bases] == ["Enum"]


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


# ---- C++, as every binding calls it ---------------------------------------------------------


def pascal(name: str) -> str:
    """all_reduce -> AllReduce; SUM -> Sum."""
    return "".join(part.capitalize() for part in name.split("_"))


def cpp_type(type: Type) -> str:
    """The C++ type by which a conversion is chosen."""
    if type.kind == "word":
        return VOCABULARY[type.name]
    if type.kind == "enum":
        return type.name
    return f"{'Nullable' if type.kind == 'nullable' else 'std::shared_ptr'}<{type.name}>"


def cpp_default(argument: Argument) -> str | None:
    """The default value in C++, or None for a default of None or no default at all."""
    match argument.default, argument.type:
        case (None, _):
            return None
        case (ast.Constant(value=None), Type(stub=stub)) if stub.endswith("| None"):
            return None
        case (ast.Constant(value=bool(value)), Type(stub="bool")):
            return str(value).lower()
        case (ast.Constant(value=str(value)), Type(stub="str")):
            return cpp_string(value)
        case (ast.List(elts=[]), Type(stub=stub)) if stub.startswith("list["):
            return "{}"
        case (ast.Attribute(value=ast.Name(id=name), attr=member), Type(kind="enum")) if (
            name == argument.type.name
        ):
            return f"{name}::k{pascal(member)}"
        case (
            ast.Call(
                func=ast.Name(id="timedelta"),
                args=[],
                keywords=[ast.keyword(arg="seconds", value=ast.Constant(value=int(seconds)))],
            ),
            Type(stub="timedelta"),
        ):
            return f"absl::Seconds({seconds})"
        case (_, Type(stub="int" | "float")):
            text = ast.unparse(argument.default)
            if text.removeprefix("-").replace(".", "", 1).isdigit():
                return text
    raise StubError(
        f"default '{ast.unparse(argument.default)}' does not fit {argument.type.stub}; known are "
        "literals, [], None, members of enums and timedelta(seconds=N)"
    )


def cpp_string(text: str) -> str:
    """A literal of `text`, over as many lines as it has."""
    if "\n" in text:
        return f'R"doc({text})doc"'
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def cpp_call(handle: Handle, method: Method, interrupt: str) -> str:
    """The expression that makes the call; `interrupt` is the language's api::Interrupt."""
    full_name = f"{handle.name}.{method.name}"
    arguments = [argument.name for argument in method.arguments]
    if full_name in ADAPTED:
        function = f"api::{handle.name}{pascal(method.name)}"
        arguments = ([] if method.kind == "static" else ["self"]) + arguments
    elif method.kind == "static":
        function = f"{handle.name}::{pascal(method.name)}"
    else:
        function = f"self.{method.name if method.kind == 'property' else pascal(method.name)}"
    if full_name in INTERRUPTIBLE:
        arguments.append(interrupt)
    return f"{function}({', '.join(arguments)})"


# ---- Python ---------------------------------------------------------------------------------


class PythonEmitter:
    """Writes DefineApi(module), which fills a pybind11 module; the rest is in python/."""

    def emit(self, api: list[Enum | Handle], source: str) -> str:
        body = "\n\n".join(
            "\n".join(self._enum(item) if isinstance(item, Enum) else self._declare(item))
            for item in api
        )
        methods = "\n\n".join(
            "\n".join(self._methods(item)) for item in api if isinstance(item, Handle)
        )
        return (
            f"// Generated by core/api/bindgen.py from {source}. Do not edit.\n"
            '#include "core/api/adapters.h"\n'
            '#include "python/convert.h"\n'
            '#include "python/define_api.h"\n\n'
            "namespace syncline::python {\n\n"
            "void DefineApi(py::module_& module) {\n"
            "  py::options options;\n"
            "  options.disable_function_signatures();  // The docstrings begin with better ones.\n\n"
            f"{body}\n\n{methods}\n"
            "}\n\n"
            "}  // namespace syncline::python\n"
        )

    def _enum(self, enum: Enum) -> Iterator[str]:
        for value, member in enumerate(enum.members):
            yield f"  static_assert(static_cast<int>({enum.name}::k{pascal(member)}) == {value});"
        members = ", ".join(f'"{member}"' for member in enum.members)
        yield f'  DefineEnum<{enum.name}>(module, "{enum.name}", {{{members}}},'
        yield f"      {cpp_string(enum.doc)});"

    def _declare(self, handle: Handle) -> Iterator[str]:
        """All classes come before the first method, so that defaults can name any of them."""
        base = f"{handle.base}, " if handle.base else ""
        yield f"  py::class_<{handle.name}, {base}std::shared_ptr<{handle.name}>> {handle.name}_("
        yield f'      module, "{handle.name}", {cpp_string(handle.doc)});'

    def _methods(self, handle: Handle) -> Iterator[str]:
        for method in handle.methods:
            call = cpp_call(handle, method, interrupt="CheckSignals")
            if method.kind == "property":
                yield f'  {handle.name}_.def_property_readonly("{method.name}", []({handle.name}& self) {{'
                yield f"    return ToPython<{cpp_type(method.result)}>({call});"
                yield f"  }}, {cpp_string(method.doc)});"
                continue
            parameters = [f"py::handle py_{a.name}" for a in method.arguments]
            if method.kind == "method":
                parameters.insert(0, f"{handle.name}& self")
            verb = "def_static" if method.kind == "static" else "def"
            yield f'  {handle.name}_.{verb}("{method.name}", []({", ".join(parameters)}) {{'
            for a in method.arguments:
                yield f'    const auto {a.name} = FromPython<{cpp_type(a.type)}>(py_{a.name}, "{a.name}");'
            yield f"    return Call<{cpp_type(method.result)}>([&] {{ return {call}; }});"
            doc = cpp_string(f"{method.signature}\n\n{method.doc}")
            yield f"  }}, {', '.join([*map(self._argument, method.arguments), doc])});"

    def _argument(self, argument: Argument) -> str:
        name = f'py::arg("{argument.name}")'
        if argument.default is None:
            return name
        value = cpp_default(argument)
        if value is None:
            return f"{name} = py::none()"
        return f"{name} = ToPython<{cpp_type(argument.type)}>({value})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stub", type=pathlib.Path, help="the description of the API")
    parser.add_argument("--python", type=pathlib.Path, help="the C++ file to write for Python")
    options = parser.parse_args()
    try:
        api = Reader(options.stub.read_text(), str(options.stub)).read()
    except (StubError, SyntaxError) as error:
        sys.exit(f"bindgen: {error}")
    if options.python:
        options.python.write_text(PythonEmitter().emit(api, options.stub.name))


if __name__ == "__main__":
    main()
