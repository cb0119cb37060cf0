"""What pip and build call (PEP 517): wheels by Bazel, and the source distribution.

    pip wheel .                                     for the interpreter that runs pip
    pip wheel . -C bazel-options="--config=locked"  the same, with options of Bazel's
    python -m build --sdist                         syncline-<version>.tar.gz: all sources

pip builds from the last in the same way. They need what `./bazelw` needs: Debian 12 on x86-64, and
its package mirror. Beyond that the standard library is enough.
"""

from __future__ import annotations

import ast
import gzip
import io
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping

# Interpreters whose headers are pinned; that of any other must have its own.
_PINNED = {(3, 11): "wheel", (3, 13): "wheel_cp313", (3, 14): "wheel_cp314"}
_NAME = "syncline"

Settings = Mapping[str, "str | list[str]"]


def _constant(path: str, name: str) -> str | list[str]:
    """What a .bzl file says that `name` is."""
    for node in ast.parse(pathlib.Path(path).read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{path} has no {name}")


def _version() -> str:
    return str(_constant("bazel/version.bzl", "VERSION"))


def _options(settings: Settings | None) -> list[str]:
    """The options of Bazel's among pip's -C. One comes as a text, several come as a list."""
    given = (settings or {}).get("bazel-options", [])
    texts = [given] if isinstance(given, str) else given
    return [option for text in texts for option in shlex.split(text)]


def build_wheel(
    wheel_directory: str,
    config_settings: Settings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds the wheel for this interpreter; returns its name."""
    target = _PINNED.get(sys.version_info[:2], "wheel_local")
    bazel = ["./bazelw"]
    if os.path.exists("PKG-INFO"):
        bazel.append("--max_idle_secs=30")  # Nobody builds here again.
    options = [f"--repo_env=SYNCLINE_PYTHON={sys.executable}", *_options(config_settings)]
    try:
        subprocess.run([*bazel, "build", *options, f"//python:{target}"], check=True)
        (wheel,) = pathlib.Path("bazel-bin/python", target).glob(f"{_NAME}-{_version()}-*.whl")
        shutil.copyfile(wheel, pathlib.Path(wheel_directory, wheel.name))
        return wheel.name
    finally:
        # Bazel keeps gigabytes for each folder that it has built in, which pip is about to remove.
        if os.path.exists("PKG-INFO") and _is_temporary():
            subprocess.run([*bazel, "clean", "--expunge"], check=False)


def _is_temporary() -> bool:
    """Whether the current folder is one that pip has unpacked a source distribution in."""
    return pathlib.Path(tempfile.gettempdir()).resolve() in pathlib.Path.cwd().parents


def _sources() -> list[str]:
    """The files that git knows; where there is no git, all but what Bazel has made."""
    if os.path.exists(".git"):
        listing = subprocess.run(["git", "ls-files", "-z"], check=True, stdout=subprocess.PIPE)
        return [name for name in listing.stdout.decode().split("\0") if os.path.isfile(name)]
    found = []
    for folder, folders, names in os.walk("."):
        # Bazel's folders are links.
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(folder, name))]
        found += [os.path.relpath(os.path.join(folder, name)) for name in names]
    return [name for name in found if name != "PKG-INFO" and not name.endswith(".pyc")]


def _package_info() -> str:
    fields = ["Metadata-Version: 2.4", "Name: " + _NAME, "Version: " + _version()]
    fields += _constant("python/packaging/metadata.bzl", "METADATA")
    fields += ["License-File: LICENSE", "License-File: third_party/THIRD_PARTY.md"]
    fields += ["Description-Content-Type: text/markdown"]
    return "\n".join(fields) + "\n\n" + pathlib.Path("python/packaging/DESCRIPTION.md").read_text()


def build_sdist(sdist_directory: str, config_settings: Settings | None = None) -> str:
    """Packs the sources, equal ones as equal bytes; returns the archive's name."""
    root = f"{_NAME}-{_version()}"
    path = pathlib.Path(sdist_directory, root + ".tar.gz")
    with (
        open(path, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, f"{root}/PKG-INFO", _package_info().encode(), 0o644)
        for name in sorted(_sources()):
            mode = 0o755 if os.access(name, os.X_OK) else 0o644
            _add(archive, f"{root}/{name}", pathlib.Path(name).read_bytes(), mode)
    return path.name


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), mode, 315532800  # 1980, as in wheels.
    archive.addfile(entry, io.BytesIO(data))
