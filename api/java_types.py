"""How the types of the API are spelled in Java and JNI, and cross between the two."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from stub import Argument, Handle, Method, Type

# Methods whose name Java has taken.
_NAMES = {"wait": "await"}
_KEYWORDS = {
    *"abstract assert boolean break byte case catch char class const continue default do".split(),
    *"double else enum extends final finally float for goto if implements import".split(),
    *"instanceof int interface long native new package private protected public return".split(),
    *"short static strictfp super switch synchronized this throw throws transient try".split(),
    *"void volatile while true false null".split(),
    *"getClass hashCode equals clone toString notify notifyAll finalize".split(),
}


@dataclass(frozen=True)
class JavaType:
    java: str  # In public signatures.
    native: str  # In native methods, in Java.
    jni: str  # In native methods, in C++.
    pass_in: str  # The native value of the Java value {0}.
    hand_out: str = "{0}"  # The Java value of the native value {0}.


_CHECKED = 'Convert.notNull({0}, "{0}")'

_WORDS = {
    "None": JavaType("void", "void", "void", ""),
    "bool": JavaType("boolean", "boolean", "jboolean", "{0}"),
    "int": JavaType("long", "long", "jlong", "{0}"),
    "float": JavaType("double", "double", "jdouble", "{0}"),
    "str": JavaType(
        "String", "byte[]", "jbyteArray", 'Convert.utf8({0}, "{0}")', "Convert.text({0})"
    ),
    "str | None": JavaType(
        "String", "byte[]", "jbyteArray", 'Convert.utf8OrNull({0}, "{0}")', "Convert.text({0})"
    ),
    "bytes": JavaType("byte[]", "byte[]", "jbyteArray", _CHECKED),
    "timedelta": JavaType(
        "Duration", "long", "jlong", 'Convert.nanos({0}, "{0}")', "Convert.duration({0})"
    ),
    "timedelta | None": JavaType(
        "Duration", "long", "jlong", "Convert.nanosOrNone({0})", "Convert.duration({0})"
    ),
    "Tensor": JavaType(
        "Tensor", "Tensor", "jobject", 'scope.{use}({0}, "{0}"), {0}.type, {0}.shape'
    ),
    "list[str]": JavaType(
        "List<String>", "byte[][]", "jobjectArray", 'Convert.utf8({0}, "{0}")', "Convert.texts({0})"
    ),
    "list[int]": JavaType("long[]", "long[]", "jlongArray", _CHECKED),
    "list[bytes]": JavaType(
        "List<byte[]>", "byte[][]", "jobjectArray", 'Convert.bytes({0}, "{0}")', "List.of({0})"
    ),
    "list[Tensor]": JavaType(
        "List<Tensor>", "Tensor[]", "jobjectArray", 'scope.{use}({0}, "{0}")', "List.of({0})"
    ),
    "list[list[int]]": JavaType("long[][]", "long[][]", "jobjectArray", 'Convert.rows({0}, "{0}")'),
}

_INT32_WORDS = {
    "int": JavaType("int", "long", "jlong", "{0}", "Math.toIntExact({0})"),
    "list[int]": JavaType(
        "int[]", "long[]", "jlongArray", 'Convert.longs({0}, "{0}")', "Convert.ints({0})"
    ),
    "list[list[int]]": JavaType(
        "int[][]", "long[][]", "jobjectArray", 'Convert.longs({0}, "{0}")', "Convert.ints({0})"
    ),
}


def java_type(type: Type) -> JavaType:
    """The spelling of `type`."""
    if type.kind == "word":
        return (_INT32_WORDS if type.refined in ("Int32", "Rank") else _WORDS)[type.name]
    if type.kind == "enum":
        hand_out = f"{type.name}.values()[{{0}}]"
        return JavaType(type.name, "int", "jint", f"{_CHECKED}.ordinal()", hand_out)
    use = "useOrNull" if type.kind == "nullable" else "use"
    hand_out = f"new {type.name}({{0}})"
    if type.kind == "nullable":
        hand_out = f"Convert.orNull({{0}}, {type.name}::new)"
    return JavaType(type.name, "long", "jlong", f'scope.{use}({{0}}, "{{0}}")', hand_out)


@dataclass(frozen=True)
class NativeParameter:
    name: str
    java: str
    jni: str


def native_parameters(argument: Argument) -> list[NativeParameter]:
    """What a native method takes for one argument."""
    name = java_name(argument.name)
    if argument.type.stub == "Tensor":
        return [
            NativeParameter(f"{name}Address", "long", "jlong"),
            NativeParameter(f"{name}Type", "int", "jint"),
            NativeParameter(f"{name}Shape", "long[]", "jlongArray"),
        ]
    if argument.type.stub == "list[Tensor]":
        return [NativeParameter(name, "long[]", "jlongArray")]
    type = java_type(argument.type)
    return [NativeParameter(name, type.native, type.jni)]


def java_name(name: str) -> str:
    """all_reduce -> allReduce."""
    first, *others = name.split("_")
    camel = _NAMES.get(name, first + "".join(part.capitalize() for part in others))
    return f"{camel}_" if camel in _KEYWORDS else camel


def native_name(method: Method) -> str:
    """all_reduce -> nativeAllReduce."""
    camel = java_name(method.name)
    return f"native{camel[0].upper()}{camel[1:]}"


def java_value(argument: Argument) -> str:
    """The default of an argument."""
    value = argument.default.value
    if argument.type.kind == "enum":
        return f"{argument.type.name}.{value}"
    if isinstance(value, timedelta):
        return f"Duration.ofSeconds({value // timedelta(seconds=1)})"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return java_string(value)
    if value == []:
        java = java_type(argument.type).java
        return f"new {java.replace('[]', '[0]', 1)}" if java.endswith("[]") else "List.of()"
    if isinstance(value, int) and abs(value) >= 2**31:
        return f"{value}L"
    return repr(value)


def java_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def is_tensor(argument: Argument) -> bool:
    return argument.type.stub in ("Tensor", "list[Tensor]")


def scope_use(argument: Argument) -> str:
    """The method of Scope for a tensor, by what the call does with its elements."""
    return {"InputTensor": "read", "OutputTensor": "write"}.get(argument.type.refined, "use")


def is_async(method: Method) -> bool:
    """Whether it starts an operation: what C++ hands out as a Work is a future in Java."""
    return method.result.name == "Work"


def is_namespace(handle: Handle) -> bool:
    """Whether it has no objects, only static methods that make none."""
    return (
        handle.base is None
        and bool(handle.methods)
        and all(m.kind == "static" and m.result.name != handle.name for m in handle.methods)
    )


def roots(handles: list[Handle]) -> dict[str, str]:
    """The class at the top of each class's hierarchy: the one behind whose shared_ptr it stands."""
    result: dict[str, str] = {}
    for handle in handles:  # Bases come first.
        result[handle.name] = result[handle.base] if handle.base else handle.name
    return result
