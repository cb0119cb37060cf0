"""tools/check_paths.py finds names of files that do not exist, and nothing else."""

import check_paths
import pytest

WRONG = {
    "core/base/gone.h": "core/base/gone.h",
    "see `core/gone/`": "core/gone",
    "the table in gone.h.": "gone.h",
    "base/gone.cc does it": "base/gone.cc",
    "core/*/gone.h": "core/*/gone.h",
    "core/base/env.{h,cc}": "core/base/env.cc",
    "gone.{h,cc}": "gone.h",
    "gone_test.py": "gone_test.py",
    "//core/gone": "//core/gone",
    "//core/base:gone": "//core/base:gone",
    "./bazelw test //core/base:gone_test": "//core/base:gone_test",
}
RIGHT = [
    "core/base/env.h, core/base",
    "env.h and base/env.h",
    "core/*/env.h",
    "`env.{h,py}`",
    "made.cc is generated",
    "//core/base, //core/base:base, //core/base:env_test, //core/..., //core:all",
    "storm_500_test: //core/base:storm_500_test",
    "backends/<name>/gone.h, core/<name>.h, <name>_test.py",
    "absl/time/gone.h, ~/gone.py, ../elsewhere/gone.h, /usr/include/gone.h",
    "//gone:<name>, //core/<folder>:gone",
    "https://example.com/core/base/gone.h",
    "@gloo//core/base:gone",
    "python3 train.py; and/or; 1/2; send/recv",
]


@pytest.fixture
def tree(tmp_path):
    base = tmp_path / "core/base"
    base.mkdir(parents=True)
    for name in ("env.h", "env.py", "env_test.cc"):
        (base / name).write_text("")
    (tmp_path / "core/BUILD").write_text("")
    (base / "BUILD").write_text('library(name = "base", outs = ["made.cc"])\ntest("storm")\n')
    return tmp_path


@pytest.mark.parametrize("text", WRONG)
def test_a_name_that_leads_nowhere_is_found(tree, text):
    (tree / "core/planted.cc").write_text(f"int x;\n// {text}\n")
    complaints = check_paths.check(tree)
    assert f"core/planted.cc:2: there is no {WRONG[text]}" in complaints


@pytest.mark.parametrize("text", RIGHT)
def test_a_name_of_a_file_or_of_others_is_not_found(tree, text):
    (tree / "core/planted.md").write_text(text)
    assert check_paths.check(tree) == []


@pytest.mark.parametrize(
    "name, source",
    [
        ("core/x.cc", 'int x = 1;\n/* Of\n   core/gone.h. */ Log("core/else.h");\n'),
        ("core/X.java", "/**\n * See\n * core/gone.h. */\n"),
        ("core/x.py", '"""Of\n\ncore/gone.h."""\nx = "core/else.h"\n'),
        ("core/x.pyi", "x: int\ny: int\n# See core/gone.h.\n"),
        ("core/x/BUILD", 'load("//core:x.bzl")\n\n# As core/gone.h.\n'),
        ("core/x.sh", "#!/bin/bash\necho core/else.h\n# core/gone.h\n"),
        ("README.md", "One\n\n[it](core/gone.h)\n"),
    ],
)
def test_comments_of_each_language_are_read_and_code_is_not(tree, name, source):
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text(source)
    assert check_paths.check(tree) == [f"{name}:3: there is no core/gone.h"]


def test_links_lead_from_the_folder_of_their_document(tree):
    (tree / "core/README.md").write_text("[a](base/env.h#L3) [b](../core) [c](#here) [d](env.h)")
    assert check_paths.check(tree) == ["core/README.md:1: there is no env.h"]


def test_the_changelog_may_name_what_is_gone(tree):
    (tree / "CHANGELOG.md").write_text("core/gone.h")
    assert check_paths.check(tree) == []
