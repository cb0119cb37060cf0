"""Packs the C++ package: as a tarball, and for Debian.

Usage: build_package.py SPEC.json TARBALL DEB, with a specification by bazel/cc_package.bzl.
"""

import gzip
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

_TIME = 315532800  # 1980: the same files make the same archive.

# Debian's packages of what the libraries load, and what gives their oldest version that will do.
_RUNTIMES = {"libc6": "GLIBC", "libstdc++6": "GLIBCXX"}
_GLIBCXX = {30: "12", 31: "13", 32: "13", 33: "14"}  # 3.4.30 came with GCC 12.

_CONTROL = """\
Package: {name}-dev
Version: {version}
Architecture: amd64
Maintainer: The Syncline authors <syncline@localhost>
Section: libdevel
Priority: optional
Depends: {depends}
Installed-Size: {kibibytes}
Description: distributed training runtime: C++ libraries and launcher
 Collectives over pluggable backends, the stores that bring processes together,
 averaging of gradients, and a launcher for the workers of any number of hosts.
"""


def is_program(path: str) -> bool:
    return path.startswith("bin/") or ".so" in path


def read_files(spec) -> dict[str, bytes]:
    files = {}
    for path, source in spec["files"].items():
        data = pathlib.Path(source).read_bytes()
        if source.endswith(".in"):
            data = data.replace(b"@VERSION@", spec["version"].encode())
        files[path] = data
    return files


def write_tarball(path, folder, files, links):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in sorted([*files, *links]):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.mtime = _TIME
            if name in links:
                entry.type, entry.linkname = tarfile.SYMTYPE, links[name]
                archive.addfile(entry)
                continue
            entry.mode = 0o755 if is_program(name) else 0o644
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))
    with open(path, "wb") as out, gzip.GzipFile("", "wb", 5, out, mtime=_TIME) as packed:
        packed.write(raw.getvalue())


def depends(objdump: str, programs) -> str:
    """Debian's packages with the newest version of a symbol that one of the programs needs."""
    newest = {runtime: (0,) for runtime in _RUNTIMES.values()}
    for program in programs:
        listing = subprocess.check_output([objdump, "-p", program], text=True)
        for runtime, version in re.findall(r"\b(GLIBC|GLIBCXX)_([\d.]+)$", listing, re.MULTILINE):
            newest[runtime] = max(newest[runtime], tuple(map(int, version.split("."))))
    glibc = ".".join(map(str, newest["GLIBC"]))
    gcc = _GLIBCXX.get(newest["GLIBCXX"][-1], "12")
    return f"libc6 (>= {glibc}), libgcc-s1, libstdc++6 (>= {gcc})"


def write_debian(path, spec, files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)
        for name, data in files.items():
            target = root / "usr" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(0o755 if is_program(name) else 0o644)
        for name, goal in spec["links"].items():
            (root / "usr" / name).symlink_to(goal)
        control = root / "DEBIAN"
        control.mkdir()
        programs = [root / "usr" / name for name in files if is_program(name)]
        (control / "control").write_text(
            _CONTROL.format(
                name=spec["name"],
                version=spec["version"],
                depends=depends(spec["objdump"], programs),
                kibibytes=sum(map(len, files.values())) // 1024,
            )
        )
        (control / "triggers").write_text("activate-noawait ldconfig\n")
        for item in [*root.rglob("*"), root]:
            os.utime(item, (_TIME, _TIME), follow_symlinks=False)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z5", "--build", folder, path],
            env=os.environ | {"SOURCE_DATE_EPOCH": str(_TIME)},
            stdout=subprocess.DEVNULL,
            check=True,
        )


def main():
    _, spec_path, tarball, debian = sys.argv
    spec = json.loads(pathlib.Path(spec_path).read_text())
    files = read_files(spec)
    write_tarball(tarball, f"{spec['name']}-{spec['version']}", files, spec["links"])
    write_debian(debian, spec, files)


if __name__ == "__main__":
    main()
