#!/usr/bin/python3
"""Checks that the files which comments and documents name exist.

Usage: tools/check_paths.py [FOLDER]

Looks through the documents of FOLDER (this repository), the comments of its sources and BUILD
files, and the docstrings of its Python files. It takes these for names of files:

- a path from the root: `core/base/env.h`, `tests/backends`;
- the name of a source, or the end of its path: `env.h`, `tcp/tcp_store.cc`. Any folder may hold it,
  or a BUILD file make it;
- a link of a document, from the document's folder: `[env](base/env.h)`;
- a label: `//core/base:env_test`. Its package has a BUILD file, which names it.

`*` stands for anything, and {h,cc} for both. A file that is only an example has the part that the
reader chooses in angle brackets: `backends/<name>/BUILD`; such a path is not looked for. Nor are
files of others, as their folder is not one of this repository's: `absl/time/time.h`, `~/bench.py`.

Left out are CHANGELOG.md, which names what is gone, and third_party/*.BUILD, which are about the
trees of others. Exits with 1 and a list of the names that lead nowhere.
"""

import ast
import fnmatch
import io
import os
import pathlib
import re
import sys
import tokenize

import checks

LEFT_OUT = {"CHANGELOG.md"}

# What users call the program that they write.
EXAMPLES = {"Train.java", "script.py", "train.py"}

# What the name of a source ends in.
SOURCE = r"\.(?:h|cc|java|py|pyi|bzl|proto|lds|md|\{h,cc\})"

_PART = r"[\w*.{},-]+"
_BEFORE = r"(?<![\w<>{}$~@%/.*:\\-])"
PATH = re.compile(rf"{_BEFORE}({_PART}(?:/{_PART})+)(?![\w<(]|/<|:/)")
FILE = re.compile(rf"{_BEFORE}([\w*][\w*.{{}},-]*(?:{SOURCE}))(?![\w/<(-])")
LABEL = re.compile(r"(?<![\w:/@])//([\w-]+(?:/[\w.-]+)*)(?::([\w./-]*\w))?(?![\w./:-]*<)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
URL = re.compile(r"\b\w+://\S+|@\w+//\S+")


def python_texts(source):
    """Yields (line, text) of the comments and docstrings of Python, or of a BUILD or .bzl file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#")
    try:
        tree = ast.parse(source)
    except SyntaxError:  # Not all of Starlark is Python.
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            first = node.body[0].value
            yield from enumerate(first.value.split("\n"), first.lineno)


def c_texts(source):
    """Yields (line, text) of the comments of C++, Java or Protobuf."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    for found in re.finditer(pattern, source, flags=re.S):
        if not found[0].startswith('"'):
            first = source.count("\n", 0, found.start()) + 1
            yield from enumerate(re.sub(r"^//|^/\*", "", found[0]).split("\n"), first)


def shell_texts(source):
    """Yields (line, text) of the comments of a script or a configuration."""
    for number, line in enumerate(source.split("\n"), 1):
        if re.match(r"\s*#", line):
            yield number, line.strip().lstrip("#")


def document_texts(source):
    """Yields (line, text) of a document."""
    yield from enumerate(source.split("\n"), 1)


READERS = {
    ".bzl": python_texts,
    ".cc": c_texts,
    ".h": c_texts,
    ".java": c_texts,
    ".md": document_texts,
    ".proto": c_texts,
    ".py": python_texts,
    ".pyi": python_texts,
    ".sh": shell_texts,
    ".toml": shell_texts,
    ".yaml": shell_texts,
}


def reader_of(path):
    """Returns what finds the comments of the file; None for one that is not looked at."""
    if path.name in LEFT_OUT:
        return None
    if path.name in ("BUILD", "WORKSPACE"):
        return python_texts
    if path.name in (".bazelrc", "bazelw", "run", "update_lock"):  # The last three are scripts.
        return shell_texts
    return READERS.get(path.suffix)


def alternatives(name):
    """Returns the names that one with {a,b} stands for."""
    found = re.search(r"\{([^{}]*)\}", name)
    if not found:
        return [name]
    rests = [name[: found.start()] + part + name[found.end() :] for part in found[1].split(",")]
    return [single for rest in rests for single in alternatives(rest)]


class Tree:
    """The files and folders of a repository, and what its BUILD files name."""

    def __init__(self, root):
        self.root = root
        self.files = []
        self.paths = set()
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
            folders[:] = [
                name for name in folders if not os.path.islink(os.path.join(folder, name))
            ]
            here = pathlib.Path(folder).relative_to(root)
            self.files += [here / name for name in names]
            self.paths.update(str(here / name) for name in folders + names)
        self.top = {path.partition("/")[0] for path in self.paths if "/" in path}
        self.targets = {
            str(path.parent): set(re.findall(r'"([^"\n]+)"', (root / path).read_text()))
            for path in self.files
            if path.name == "BUILD"
        }
        for package, targets in self.targets.items():
            self.paths.update(os.path.join(package, target) for target in targets if "." in target)
        self.names = {path.rpartition("/")[2] for path in self.paths}

    def has(self, path):
        """Whether there is such a file or folder, from the root."""
        if "*" in path:
            return any(fnmatch.fnmatchcase(known, path) for known in self.paths)
        return path in self.paths

    def has_end(self, path):
        """Whether the path of a file or folder is this or ends in it."""
        if "*" in path:
            return self.has(path) or self.has("*/" + path)
        if path.rpartition("/")[2] not in self.names:
            return False
        return path in self.paths or any(known.endswith("/" + path) for known in self.paths)

    def has_label(self, package, target):
        """Whether there is the package, and its BUILD file names the target or it is a file."""
        if package.endswith("..."):
            return self.has(package[:-4])
        if package not in self.targets:
            return False
        known = self.targets[package]
        target = target or package.rpartition("/")[2]
        stem = re.sub(r"(_\d+)?(_test)?$", "", target)  # As macros and comprehensions make names.
        if (
            target in ("all", "__pkg__", "__subpackages__")
            or {target, stem, stem + "_test"} & known
        ):
            return True
        if target.endswith(("_test", "_fuzz")):
            return self.has(f"{package}/{target}.cc") or self.has(f"{package}/{target}.py")
        return "." in target and self.has(f"{package}/{target}")


def is_wrong(tree, name, folder):
    """Whether the name is one of a file of this repository, and there is none."""
    if name in EXAMPLES:
        return False
    local = os.path.normpath(os.path.join(folder, name))
    if "/" not in name:
        return not tree.has_end(name)
    if name.partition("/")[0] in tree.top:
        return not (tree.has(name) or tree.has(local) or tree.has_end(name))
    if re.search(rf"(?:{SOURCE})$", name) and name.partition("/")[0] in tree.names:
        return not (tree.has(local) or tree.has_end(name))
    return False


def wrong_names(tree, path, text):
    """Yields the names in one line of a file that lead nowhere."""
    folder = str(path.parent)
    text = URL.sub("", text)
    if path.suffix == ".md":
        for link in LINK.findall(text):
            link = link.partition("#")[0]
            if link and not tree.has(os.path.normpath(os.path.join(folder, link))):
                yield link
        text = LINK.sub("]", text)
    for package, target in LABEL.findall(text):
        if not tree.has_label(package, target or None):
            yield f"//{package}:{target}" if target else f"//{package}"
    text = LABEL.sub("", text)
    paths = [name for name in PATH.findall(text) if not name.endswith("/...")]
    for name in paths + FILE.findall(text):
        name = re.sub(r"[.,/:-]+$", "", name)
        for single in alternatives(name):
            if single and is_wrong(tree, single, folder):
                yield single


def check(root):
    """Returns the complaints about the files in `root`."""
    tree = Tree(root)
    complaints = []
    for path in sorted(tree.files):
        reader = reader_of(path)
        if reader is None:
            continue
        for number, text in sorted(reader((root / path).read_text())):
            for name in dict.fromkeys(wrong_names(tree, path, text)):
                complaints.append(f"{path}:{number}: there is no {name}")
    return complaints


if __name__ == "__main__":
    sys.exit(checks.main("tools/check_paths.py", check))
