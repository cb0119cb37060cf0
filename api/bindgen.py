"""Generates the language bindings from the one description of the public API.

    bindgen.py api/syncline.pyi --python api.cc --stub _syncline.pyi
    bindgen.py api/syncline.pyi --java api.srcjar --jni api_jni.cc --methods methods.txt

How a value of each type crosses the border is hand-written, once for each language
(python/extension/convert.h, java/convert.h); the emitters only spell names and types. An emitter
knows one language and reads the model of stub.py; what all of them share is in cpp.py.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import zipfile

import stub
from java_emitter import JavaEmitter
from jni_emitter import JniEmitter
from python_emitter import PythonEmitter
from stub_emitter import shipped_stub


def write_source_jar(path: pathlib.Path, files: dict[str, str]) -> None:
    """A zip of `files`, equal for equal files."""
    with zipfile.ZipFile(path, "w") as jar:
        for name in sorted(files):
            jar.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), files[name])


def method_list(api: list[stub.Enum | stub.Handle]) -> str:
    """The full name of every method and property, one on a line."""
    handles = (item for item in api if isinstance(item, stub.Handle))
    names = (f"{handle.name}.{method.name}" for handle in handles for method in handle.methods)
    return "".join(f"{name}\n" for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    path = pathlib.Path
    parser.add_argument("stub", type=path, help="the description of the API")
    parser.add_argument("--python", type=path, help="the C++ file to write for Python")
    parser.add_argument("--stub", type=path, dest="shipped", help="Python's type stub to write")
    parser.add_argument("--java", type=path, help="the .srcjar of Java classes to write")
    parser.add_argument("--jni", type=path, help="the C++ file to write for Java")
    parser.add_argument("--methods", type=path, help="the list of all methods to write")
    options = parser.parse_args()
    source = options.stub.name
    try:
        description = options.stub.read_text()
        api = stub.read(description, str(options.stub))
    except (stub.StubError, SyntaxError) as error:
        sys.exit(f"bindgen: {error}")
    if options.python:
        options.python.write_text(PythonEmitter().emit(api, source))
    if options.shipped:
        options.shipped.write_text(shipped_stub(description, source))
    if options.java:
        write_source_jar(options.java, JavaEmitter(api, source).emit())
    if options.jni:
        options.jni.write_text(JniEmitter(api, source).emit())
    if options.methods:
        options.methods.write_text(method_list(api))


if __name__ == "__main__":
    main()
