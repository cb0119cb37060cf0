import email
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

import build_backend
import pytest

FILES = ["bazel/version.bzl", "python/packaging/metadata.bzl", "python/packaging/DESCRIPTION.md"]

# Writes down how it was called, and makes the wheel that was asked for.
BAZELW = """#!/bin/sh
echo "$@" >> called
[ "$1" = build ] || [ "$2" = build ] || exit 0
for target; do :; done
folder=bazel-bin/python/${target##*:}
mkdir -p $folder
echo wheel > $folder/syncline-%s-cpXY-cpXY-any.whl
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A small tree of sources, with another program in place of ./bazelw."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bazelw").write_text(BAZELW % build_backend._version())
    (tmp_path / "bazelw").chmod(0o755)
    (tmp_path / "LICENSE").write_text("licence")
    return tmp_path


@pytest.mark.parametrize(
    "version, target",
    [
        ((3, 11), "wheel"),
        ((3, 12), "wheel_local"),
        ((3, 13), "wheel_cp313"),
        ((3, 15), "wheel_local"),
    ],
)
def test_the_wheel_is_that_for_the_interpreter(tree, monkeypatch, version, target):
    monkeypatch.setattr(sys, "version_info", (*version, 0))
    (tree / "out").mkdir()
    name = build_backend.build_wheel("out", {"bazel-options": "--config=locked -k"})
    assert (tree / "out" / name).read_text() == "wheel\n"
    called = (tree / "called").read_text().split()
    python = f"--repo_env=SYNCLINE_PYTHON={sys.executable}"
    assert called == ["build", python, "--config=locked", "-k", f"//python:{target}"]


@pytest.mark.parametrize("is_temporary", [True, False])
def test_what_bazel_keeps_is_removed_with_the_folder_that_pip_unpacks(
    tree, monkeypatch, tmp_path_factory, is_temporary
):
    elsewhere = tree.parent if is_temporary else tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    (tree / "PKG-INFO").write_text("Name: syncline\n")
    (tree / "out").mkdir()
    assert (tree / "out" / build_backend.build_wheel("out")).exists()
    first, *others = (tree / "called").read_text().splitlines()
    assert first.startswith("--max_idle_secs=30 build ")
    assert others == (["--max_idle_secs=30 clean --expunge"] if is_temporary else [])


def test_a_failed_build_makes_no_wheel(tree):
    (tree / "bazelw").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError):
        build_backend.build_wheel(".")


def members(path):
    with tarfile.open(path) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}


def test_the_source_distribution_has_the_sources_and_what_they_are(tree, tmp_path_factory):
    os.symlink("/usr", tree / "bazel-out")
    out = tmp_path_factory.mktemp("out")
    name = build_backend.build_sdist(str(out))
    version = build_backend._version()
    root = f"syncline-{version}/"
    found = members(out / name)
    expected = {"PKG-INFO", "LICENSE", "bazelw", *FILES}
    assert {each.removeprefix(root) for each in found} == expected
    info = email.message_from_bytes(found[root + "PKG-INFO"])
    assert info["Name"] == "syncline" and info["Version"] == version
    assert info["Requires-Python"] == ">=3.11" and info.get_payload().startswith("# Syncline")
    with tarfile.open(out / name) as archive:
        assert archive.getmember(root + "bazelw").mode == 0o755


def test_a_source_distribution_of_its_own_sources_is_the_same(tree, tmp_path_factory, monkeypatch):
    out = tmp_path_factory.mktemp("out")
    first = (out / build_backend.build_sdist(str(out))).read_bytes()
    with tarfile.open(out / f"syncline-{build_backend._version()}.tar.gz") as archive:
        archive.extractall(out)
    monkeypatch.chdir(out / f"syncline-{build_backend._version()}")
    again = pathlib.Path(tmp_path_factory.mktemp("again"))
    assert (again / build_backend.build_sdist(str(again))).read_bytes() == first


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_what_git_does_not_know_is_not_packed(tree, tmp_path_factory):
    git = ["git", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "bazel", "python", "LICENSE"], check=True)
    (tree / "secret.txt").write_text("mine")
    out = tmp_path_factory.mktemp("out")
    names = {pathlib.Path(name).name for name in members(out / build_backend.build_sdist(str(out)))}
    assert "LICENSE" in names and "secret.txt" not in names and "bazelw" not in names
