"""The generator of the bindings: its output for a small API, and its refusals."""

import ast
import inspect
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import bindgen
import description
import pytest
import stub
from java_emitter import JavaEmitter
from jni_emitter import JniEmitter
from python_emitter import PythonEmitter
from stub_emitter import shipped_stub

FOLDER = pathlib.Path(__file__).parent
TINY = FOLDER / "testdata" / "tiny.pyi"


def read(text: str) -> list:
    return stub.read(text, "api.pyi")


def refusal(text: str) -> str:
    with pytest.raises(stub.StubError) as error:
        read(text)
    return str(error.value)


def golden(name: str, generated: str) -> None:
    """Compares; with UPDATE_GOLDEN in the environment, when run by hand, writes instead."""
    file = FOLDER / "testdata" / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(generated)
    hint = "if the change is meant: cd api && UPDATE_GOLDEN=1 python3 -m pytest bindgen_test.py"
    assert generated == file.read_text(), hint


def tiny() -> list:
    return stub.read(TINY.read_text(), TINY.name)


def public_api() -> list:
    return stub.read((FOLDER / "syncline.pyi").read_text(), "syncline.pyi")


def test_the_python_module_of_a_small_api_is_the_golden_one():
    golden("tiny.golden", PythonEmitter().emit(tiny(), TINY.name))


def test_the_java_classes_of_a_small_api_are_the_golden_ones():
    files = JavaEmitter(tiny(), TINY.name).emit()
    golden("tiny_java.golden", "".join(f"==> {n}\n{files[n]}" for n in sorted(files)))


def test_of_several_builders_each_is_named_after_its_method():
    maker = (
        "    @staticmethod\n    def {}(a: int = 1, b: int = 2, c: int = 3) -> A:\n        'It.'\n"
    )
    api = read("class A:\n    'An A.'\n" + maker.format("create") + maker.format("make_large"))
    (text,) = JavaEmitter(api, "api.pyi").emit().values()
    assert "public static CreateBuilder createBuilder() {" in text
    assert "public static final class MakeLargeBuilder {" in text
    assert "return A.makeLarge(a, b, c);" in text
    assert "Builder builder()" not in text


def test_the_jni_glue_of_a_small_api_is_the_golden_one():
    golden("tiny_jni.golden", JniEmitter(tiny(), TINY.name).emit())


def test_every_native_method_of_java_has_its_function():
    files, glue = JavaEmitter(public_api(), "api").emit(), JniEmitter(public_api(), "api").emit()
    declared = {
        f"Java_io_syncline_{pathlib.Path(name).stem}_{native}"
        for name, text in files.items()
        for native in re.findall(r"static native \S+ (\w+)\(", text)
    }
    assert declared == set(re.findall(r"Java_io_syncline_\w+", glue))


def test_equal_sources_make_equal_source_jars(tmp_path):
    files = {"b/B.java": "class B {}", "a/A.java": "class A {}"}
    for jar in ("1", "2"):
        bindgen.write_source_jar(tmp_path / jar, files)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert zipfile.ZipFile(tmp_path / "1").namelist() == sorted(files)


def test_every_method_of_the_public_api_is_emitted():
    api = public_api()
    generated = PythonEmitter().emit(api, "syncline.pyi")
    for handle in (item for item in api if isinstance(item, stub.Handle)):
        for method in handle.methods:
            definition = (
                rf'({handle.name}_\.def_static\(|Define\w+\({handle.name}_, )"{method.name}", '
            )
            assert re.search(definition, generated)


def test_the_shipped_stub_of_a_small_api_is_the_golden_one():
    golden("tiny_stub.golden", shipped_stub(TINY.read_text(), TINY.name))


def test_the_shipped_stub_has_every_method_and_nothing_of_the_generators():
    shipped = ast.parse(shipped_stub((FOLDER / "syncline.pyi").read_text(), "syncline.pyi"))
    classes = {c.name: c for c in shipped.body if isinstance(c, ast.ClassDef)}
    for handle in (item for item in public_api() if isinstance(item, stub.Handle)):
        functions = [f for f in classes[handle.name].body if isinstance(f, ast.FunctionDef)]
        assert {method.name for method in handle.methods} <= {f.name for f in functions}
        decorators = {ast.unparse(d) for f in functions for d in f.decorator_list}
        assert decorators <= {"property", "staticmethod"}
    names = {node.id for node in ast.walk(shipped) if isinstance(node, ast.Name)}
    assert not names & {*stub.REFINED, *vars(description)} - {"Any", "Callable", "TypeAlias"}


def test_a_collective_has_a_form_in_the_background():
    work = 'class Work:\n  "W."\n'
    method = '  @collective\n  def f(self, x: int, timeout: timedelta | None = None) -> int: "F."\n'
    _, handle = read(work + f'class A:\n  "A."\n{method}')
    blocking, background = handle.methods
    assert (blocking.name, blocking.result.name, blocking.twin) == ("f", "int", "f_async")
    assert (background.name, background.result.name) == ("f_async", "Work")
    assert background.arguments == blocking.arguments
    assert background.doc == "As f, in the background."


def test_every_decorator_is_known_to_the_reader():
    functions = {n for n, f in vars(description).items() if inspect.isfunction(f)}
    assert functions == {*stub.MARKS, "collective", "java_base", "python_only"}


def test_an_unknown_type_is_refused_with_class_method_and_vocabulary():
    message = refusal('class A:\n  "A."\n  def f(self, x: dict[str, int]) -> None:\n    "F."\n')
    assert message.startswith(
        "api.pyi:3: A.f, argument x: type 'dict[str, int]' is not in the vocabulary: None, bool, "
    )
    assert "list[list[int]], A, Handle | None" in message


def test_an_unknown_result_is_refused():
    message = refusal('class A:\n  "A."\n  def f(self) -> set: "F."\n')
    assert "A.f, result: type 'set'" in message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def f(self) -> None: ...", "A.f: its docstring is missing"),
        ("@property\n  def f(self) -> int: ...", "A.f: its docstring is missing"),
        ('def f(self, x) -> None: "F."', "A.f, argument x: its type is missing"),
        ('def f(self): "F."', "A.f, result: its type is missing"),
        ('def f(self, x: None) -> None: "F."', "None is a type of results only"),
        ('def f(self, *, x: int) -> None: "F."', "A.f: plain parameters only"),
        ('@classmethod\n  def f(cls) -> None: "F."', "only @staticmethod and @property are known"),
        ('@property\n  def f(self, x: int) -> None: "F."', "a property takes no arguments"),
        ('@field\n  def f(self) -> int: "F."', "A.f: a @field is a @property"),
        ('@java_arrays\n  def f(self) -> int: "F."', "with @java_arrays it takes one Tensor"),
        ('@collective\n  @property\n  def f(self) -> int: "F."', "a @collective is a method"),
        ('@collective\n  def f(self) -> int: "F."', "type 'Work' is not in the vocabulary"),
        ('def f(self) -> None: "F."\n  def f(self) -> int: "F."', "A.f: described twice"),
        ("x = 1", "A: a class holds methods and properties only"),
        ('def f(self, x: int = "1") -> None: "F."', "default ''1'' does not fit int"),
        ('def f(self, x: str = None) -> None: "F."', "default 'None' does not fit str"),
        ('def f(self, x: timedelta = 5) -> None: "F."', "default '5' does not fit timedelta"),
        ('def f(self, x: list[int] = [1]) -> None: "F."', "does not fit list[int]"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_place(body, expected):
    assert expected in refusal(f'class A:\n  "A."\n  {body}\n')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('class A(Enum):\n  "A."\n  X = 1\n', "A: expected MEMBER = 0: values count up from 0"),
        ('class A(B):\n  "A."\n', "A: its base must be one class described above it"),
        ("class A:\n  pass\n", "A: a class holds methods"),
        ('@java\nclass A:\n  "A."\n', "A: only @java_base(NAME) is known of classes"),
        ("class A: ...\n", "A: its docstring is missing"),
        ('def f() -> int: "F."\n', "module: only imports, aliases and classes belong here"),
    ],
)
def test_a_class_that_breaks_a_rule_is_refused(text, expected):
    assert expected in refusal(text)


def test_on_the_command_line_an_error_is_one_line_and_writes_nothing(tmp_path):
    api, out = tmp_path / "api.pyi", tmp_path / "out.cc"
    api.write_text("class A: ...\n")
    command = [sys.executable, bindgen.__file__, api, "--python", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"bindgen: {api}:1: A: its docstring is missing\n"
    assert not out.exists()


def test_private_classes_are_in_the_stub_alone():
    text = "class _Own:\n    def call(self, x: object) -> None: ...\n"
    assert read(text) == []
    assert "class _Own:" in shipped_stub(text, "api.pyi")
