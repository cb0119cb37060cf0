"""The languages know the element types of core, those that cross by number in the same order."""

import os
import pathlib
import re

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline"

# What NumPy calls them, where that is not C++'s name in small letters.
NAMES = {"Float8E4M3": "float8_e4m3fn", "Float8E5M2": "float8_e5m2"}


def read(path):
    return (ROOT / path).read_text()


def element_types():
    body = re.search(r"enum class DType \{(.*?)\};", read("include/syncline/dtype.h"), re.DOTALL)[1]
    return [NAMES.get(name, name.lower()) for name in re.findall(r"\bk(\w+)", body)]


def test_core_has_a_size_and_a_name_for_each():
    sizes = re.search(r"kSizes\[\] = \{(.*?)\}", read("include/syncline/dtype.h"))[1]
    assert len(sizes.split(",")) == len(element_types())
    assert re.findall(r'\{DType::k\w+, "(\w+)"', read("core/tensor/dtype.cc")) == element_types()


def test_java_has_them_in_the_same_order():
    java = read("java/io/syncline/DType.java")
    body = java[java.index("public enum DType {") : java.index("private static")]
    assert re.findall(r"^  ([A-Z]\w*)\(\d+\)", body, re.MULTILINE) == [
        name.upper() for name in element_types()
    ]


def test_python_lists_them():
    backends = re.search(r"DTYPES = \((.*?)\)", read("python/syncline/backends.py"), re.DOTALL)[1]
    assert re.findall(r'"(\w+)"', backends) == element_types()
    shared = read("python/syncline/shared_memory.py")
    names = re.search(r"_TYPES = set\((.*?)\.split", shared, re.DOTALL)[1]
    assert re.findall(r"\w+", names) == element_types()
