"""Packs a wheel. Usage: build_wheel.py SPEC WHEEL, where SPEC is written by bazel/wheel.bzl.

Equal inputs give equal bytes. Shared libraries that the package's ELF files load, and that are not
of the platform, are bundled in <distribution>.libs, each under a name of its own (with a hash of
its contents), so that a process that has loaded another library of that name neither gets ours nor
gives us its own.

If a file needs more of the machine than the platform's tag promises, the build fails and says what.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import zipfile

import elf

# The oldest that a zip file can tell.
_DATE = (1980, 1, 1, 0, 0, 0)


def stage(source: pathlib.Path, folder: pathlib.Path, path: str) -> pathlib.Path:
    """Copies the file, writable, to `path` in the folder."""
    copy = folder / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copy)
    copy.chmod(0o755 if os.access(source, os.X_OK) and elf.is_elf(source) else 0o644)
    return copy


def needed_libraries(
    tools: elf.Tools, files: list[pathlib.Path], libraries: dict[str, pathlib.Path]
) -> dict[str, pathlib.Path]:
    """Those of the libraries (by name) that the files load, directly or not."""
    found: dict[str, pathlib.Path] = {}
    todo = list(files)
    while todo:
        for name in elf.dependencies(tools, todo.pop()).libraries:
            if name in libraries and name not in found:
                found[name] = libraries[name]
                todo.append(libraries[name])
    return found


def own_name(library: pathlib.Path) -> str:
    """libz.so.1 -> libz-1b2c3d4e.so.1."""
    stem, _, suffix = library.name.partition(".so")
    return f"{stem}-{hashlib.sha256(library.read_bytes()).hexdigest()[:8]}.so{suffix}"


def stage_package(spec: dict, folder: pathlib.Path) -> None:
    """Puts the package and its libraries into the folder, ready to be packed."""
    tools = elf.Tools(**spec["tools"])
    is_portable = spec["platform"].startswith("manylinux")
    staged = [stage(pathlib.Path(s), folder, path) for path, s in spec["files"].items()]
    binaries = [path for path in staged if elf.is_elf(path)]
    available = {os.path.basename(path): pathlib.Path(path) for path in spec["libraries"]}
    bundled = needed_libraries(tools, binaries, available)
    renamed = {name: own_name(path) for name, path in bundled.items()}
    bundle = folder / (spec["distribution"] + ".libs")
    libraries = {name: stage(path, bundle, renamed[name]) for name, path in bundled.items()}

    problems = []
    for path in [*binaries, *libraries.values()]:
        if is_portable:
            elf.strip(tools, path)  # Before patchelf, whose files strip may break.
        is_library = path.parent == bundle
        rpath = "$ORIGIN" if is_library else "$ORIGIN/" + os.path.relpath(bundle, path.parent)
        elf.link(tools, path, renamed, rpath, path.name if is_library else None)
        if is_portable:
            problems += elf.problems(tools, path, set(renamed.values()), spec["platform"])
    if problems:
        raise SystemExit(f"This is no {spec['platform']} wheel:\n" + "\n".join(problems))


def stage_dist_info(spec: dict, folder: pathlib.Path) -> pathlib.Path:
    info = folder / f"{spec['distribution']}-{spec['version']}.dist-info"
    for path, source in spec["licenses"].items():
        stage(pathlib.Path(source), info / "licenses", path)
    fields = ["Metadata-Version: 2.4", "Name: " + spec["distribution"]]
    fields += ["Version: " + spec["version"], *spec["metadata"]]
    fields += ["License-File: " + path for path in sorted(spec["licenses"])]
    fields += ["Description-Content-Type: text/markdown"]
    description = pathlib.Path(spec["description"]).read_text()
    (info / "METADATA").write_text("\n".join(fields) + "\n\n" + description)
    (info / "WHEEL").write_text(
        "Wheel-Version: 1.0\nGenerator: syncline\nRoot-Is-Purelib: false\nTag: %s\n" % spec["tag"]
    )
    (info / "entry_points.txt").write_text(entry_points(spec["entry_points"]))
    return info


def entry_points(targets: dict[str, str]) -> str:
    """The file of that name, of {"console_scripts/syncline-run": "syncline.run:main"}."""
    lines = []
    group = None
    for name, target in sorted(targets.items()):
        if name.rpartition("/")[0] != group:
            group = name.rpartition("/")[0]
            lines.append(f"[{group}]\n")
        lines.append(f"{name.rpartition('/')[2]} = {target}\n")
    return "".join(lines)


def pack(folder: pathlib.Path, info: pathlib.Path, wheel: pathlib.Path) -> None:
    """Packs the folder, dist-info last, and adds RECORD."""
    record = (info / "RECORD").relative_to(folder).as_posix()
    files = [path for path in folder.rglob("*") if path.is_file()]
    files.sort(key=lambda path: (info in path.parents, path.relative_to(folder).as_posix()))
    lines = []
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in files:
            name, data = path.relative_to(folder).as_posix(), path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
            _add(archive, name, data, 0o755 if os.access(path, os.X_OK) else 0o644)
        _add(archive, record, ("".join(lines) + record + ",,\n").encode(), 0o644)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, permissions: int) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.external_attr = (stat.S_IFREG | permissions) << 16
    archive.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=9)


def main() -> None:
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        stage_package(spec, folder)
        pack(folder, stage_dist_info(spec, folder), pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
