"""The description of the public API as a model: what the emitters of bindgen.py work from.

The description is an ordinary Python stub (syncline.pyi). A class derived from Enum is an enum;
every other class is a handle, behind which stands a std::shared_ptr to a C++ object. Methods have
plain parameters and docstrings. VOCABULARY, the enums and the handles are all that may appear in
a signature, so that every language can spell it, and REFINED types, which say more than a word of
the vocabulary does. What the signature of a method does not say, decorators do: see description.py.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from datetime import timedelta

# Each type of a signature, and the C++ type that stands for it. Besides these: the enums, the
# handles, and `Handle | None`. A new word must have a counterpart in Java too.
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

# Types of description.py, and the words that they refine.
REFINED = {
    "BytesOrStr": "bytes",
    "Int32": "int",
    "Rank": "int",
    "InputTensor": "Tensor",
    "OutputTensor": "Tensor",
}

# Decorators of description.py that a method keeps as its marks.
MARKS = frozenset(
    {
        "accessor",
        "adapted",
        "field",
        "java_arrays",
        "nonblocking",
        "on_streams",
        "true_in_python",
    }
)
ONE_FORM = {"java_arrays", "nonblocking"}  # Those that say nothing of the form in the background.


class StubError(ValueError):
    """The description breaks a rule; the message says where, and what would be right."""


@dataclass(frozen=True)
class Type:
    stub: str  # In words of the vocabulary, such as "list[int]".
    kind: str  # "word" of the vocabulary, "enum", "handle" or "nullable" handle.
    name: str  # The word, or the class.
    refined: str = ""  # The type of REFINED that the description has in place of a word.


@dataclass(frozen=True)
class Default:
    """The default of an argument."""

    value: (
        object  # None, a bool, int, float, str or timedelta, [], or the name of an enum's member.
    )
    stub: str  # As the description spells it.


@dataclass(frozen=True)
class Argument:
    name: str
    type: Type
    default: Default | None  # None if there is none.


@dataclass(frozen=True)
class Method:
    name: str
    kind: str  # "method", "static" or "property".
    arguments: list[Argument]
    result: Type
    doc: str
    marks: frozenset[str] = frozenset()
    twin: str = ""  # Of a blocking collective: its form in the background.


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
    java_base: str = ""  # See description.py.


def read(text: str, filename: str) -> list[Enum | Handle]:
    """The model of the description `text`; StubError or SyntaxError, naming `filename`."""
    return _Reader(text, filename).read()


class _Reader:
    def __init__(self, text: str, filename: str):
        self._filename = filename
        self._tree = ast.parse(text, filename)
        self._classes = {
            node.name: node
            for node in self._tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        }

    def read(self) -> list[Enum | Handle]:
        known = (ast.ClassDef, ast.Import, ast.ImportFrom, ast.AnnAssign)
        for node in self._tree.body:
            if not isinstance(node, known) and not _is_text(node) and not _is_private(node):
                raise self._error(node, "module", "only imports, aliases and classes belong here")
        return [
            self._enum(node) if _is_enum(node) else self._handle(node)
            for node in self._classes.values()
        ]

    def _enum(self, node: ast.ClassDef) -> Enum:
        members: list[str] = []
        for item in node.body:
            if _is_text(item) or _is_private(item):
                continue
            if not isinstance(item, ast.Assign) or ast.unparse(item.value) != str(len(members)):
                expected = f"expected MEMBER = {len(members)}: values count up from 0"
                raise self._error(item, node.name, expected)
            members.append(ast.unparse(item.targets[0]))
        return Enum(node.name, self._doc(node, node.name), members)

    def _handle(self, node: ast.ClassDef) -> Handle:
        bases = [ast.unparse(base) for base in node.bases]
        above = list(self._classes)[: list(self._classes).index(node.name)]
        if len(bases) > 1 or not set(bases) <= set(above):
            raise self._error(node, node.name, "its base must be one class described above it")
        methods: list[Method] = []
        for item in node.body:
            if _is_text(item):
                continue
            if not isinstance(item, ast.FunctionDef):
                raise self._error(item, node.name, "a class holds methods and properties only")
            decorators = [ast.unparse(decorator) for decorator in item.decorator_list]
            if _is_private(item) or "python_only" in decorators:
                continue
            where = f"{node.name}.{item.name}"
            method = self._method(item, decorators, where)
            both = [method]
            if "collective" in decorators:
                both = self._both_forms(item, method, where)
            for form in both:
                if any(form.name == other.name for other in methods):
                    raise self._error(item, f"{node.name}.{form.name}", "described twice")
                methods.append(form)
        doc = self._doc(node, node.name)
        return Handle(node.name, doc, next(iter(bases), None), methods, self._java_base(node))

    def _java_base(self, node: ast.ClassDef) -> str:
        name = ""
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(func=ast.Name(id="java_base"), args=[ast.Constant(value=str(base))]):
                    name = base
                case _:
                    raise self._error(node, node.name, "only @java_base(NAME) is known of classes")
        return name

    def _both_forms(self, node: ast.FunctionDef, method: Method, where: str) -> list[Method]:
        """The forms of a collective: the one that is described, and the one in the background."""
        if method.kind != "method":
            raise self._error(node, where, "a @collective is a method, not static, no property")
        twin = f"{method.name}_async"
        work = self._type(ast.Name("Work"), node, f"{where}, result in the background")
        doc = f"As {method.name}, in the background."
        background = Method(twin, "method", method.arguments, work, doc, method.marks - ONE_FORM)
        return [replace(method, twin=twin), background]

    def _method(self, node: ast.FunctionDef, decorators: list[str], where: str) -> Method:
        kinds = {"staticmethod": "static", "property": "property"}
        if unknown := set(decorators) - set(kinds) - MARKS - {"collective"}:
            known = "only @staticmethod and @property are known, and those of description.py"
            raise self._error(node, where, f"{known}, not @{min(unknown)}")
        kind = next((kinds[name] for name in decorators if name in kinds), "method")
        marks = frozenset(decorators) & MARKS
        if "field" in marks and kind != "property":
            raise self._error(node, where, "a @field is a @property")
        given = node.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs:
            raise self._error(node, where, "plain parameters only: no *, / or **")
        parameters = given.args if kind == "static" else given.args[1:]
        if kind == "property" and parameters:
            raise self._error(node, where, "a property takes no arguments")
        defaults = [None] * (len(parameters) - len(given.defaults)) + list(given.defaults)
        arguments = []
        for parameter, default in zip(parameters, defaults, strict=True):
            place = f"{where}, argument {parameter.arg}"
            type = self._type(parameter.annotation, node, place)
            if type.name == "None":
                raise self._error(node, place, "None is a type of results only")
            arguments.append(Argument(parameter.arg, type, self._default(default, type, place)))
        result = self._type(node.returns, node, f"{where}, result")
        tensors = [argument for argument in arguments if argument.type.name == "Tensor"]
        if "java_arrays" in marks and len(tensors) != 1:
            raise self._error(node, where, "with @java_arrays it takes one Tensor")
        return Method(node.name, kind, arguments, result, self._doc(node, where), marks)

    def _type(self, annotation: ast.expr | None, node: ast.AST, where: str) -> Type:
        if annotation is None:
            raise self._error(node, where, "its type is missing")
        spelled = ast.unparse(annotation)
        refined = next((name for name in REFINED if re.search(rf"\b{name}\b", spelled)), "")
        text = spelled.replace(refined, REFINED[refined]) if refined else spelled
        name = text.removesuffix(" | None")
        if text in VOCABULARY:
            return Type(text, "word", text, refined)
        if name in self._classes and not _is_enum(self._classes[name]):
            return Type(text, "handle" if name == text else "nullable", name)
        if text in self._classes:
            return Type(text, "enum", text)
        known = ", ".join([*VOCABULARY, *self._classes, "Handle | None", *REFINED])
        raise self._error(node, where, f"type '{text}' is not in the vocabulary: {known}")

    def _default(self, node: ast.expr | None, type: Type, where: str) -> Default | None:
        if node is None:
            return None
        stub = ast.unparse(node)
        match node:
            case ast.Constant(value=None) if type.stub.endswith("| None"):
                return Default(None, stub)
            case ast.Constant(value=value) if value.__class__.__name__ == type.stub:
                return Default(value, stub)
            case ast.UnaryOp(
                op=ast.USub(), operand=ast.Constant(value=int() | float() as value)
            ) if value.__class__.__name__ == type.stub:
                return Default(-value, stub)
            case ast.List(elts=[]) if type.stub.startswith("list["):
                return Default([], stub)
            case ast.Attribute(value=ast.Name(id=owner), attr=member) if (
                type.kind == "enum" and owner == type.name
            ):
                return Default(member, stub)
            case ast.Call(
                func=ast.Name(id="timedelta"),
                args=[],
                keywords=[ast.keyword(arg="seconds", value=ast.Constant(value=int(seconds)))],
            ) if type.stub == "timedelta":
                return Default(timedelta(seconds=seconds), stub)
        raise self._error(
            node,
            where,
            f"default '{stub}' does not fit {type.stub}; known are literals, None, [], members of "
            "enums and timedelta(seconds=N)",
        )

    def _doc(self, node: ast.ClassDef | ast.FunctionDef, where: str) -> str:
        doc = ast.get_docstring(node)
        if not doc:
            raise self._error(node, where, "its docstring is missing")
        return doc

    def _error(self, node: ast.AST, where: str, message: str) -> StubError:
        return StubError(f"{self._filename}:{getattr(node, 'lineno', 1)}: {where}: {message}")


def _is_enum(node: ast.ClassDef) -> bool:
    return [ast.unparse(base) for base in node.bases] == ["Enum"]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_private(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("_")
