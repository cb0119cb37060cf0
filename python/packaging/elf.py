"""What a wheel's ELF files need of the machine, and how they find each other."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess

# PEP 600's promise: a machine with this glibc has these libraries with these versions of their
# symbols. From auditwheel's policy of the same name, as far as it concerns C and C++.
_RUNTIME = {
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
}
_NEWEST_SYMBOLS = {
    "manylinux_2_28_x86_64": {
        "CXXABI": (1, 3, 11),
        "GCC": (7, 0, 0),
        "GLIBC": (2, 28),
        "GLIBCXX": (3, 4, 24),
    },
    "manylinux_2_36_aarch64": {
        "CXXABI": (1, 3, 13),
        "GCC": (7, 0, 0),
        "GLIBC": (2, 36),
        "GLIBCXX": (3, 4, 30),
    },
}


@dataclasses.dataclass
class Tools:
    objdump: str
    patchelf: str
    strip: str


@dataclasses.dataclass
class Dependencies:
    libraries: list[str]  # NEEDED, by name.
    symbols: list[str]  # Versions of symbols: GLIBC_2.34.


def is_elf(path: pathlib.Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def dependencies(tools: Tools, path: pathlib.Path) -> Dependencies:
    listing = _run(tools.objdump, "--private-headers", str(path))
    references = listing.partition("Version References:")[2]
    return Dependencies(
        libraries=re.findall(r"^\s+NEEDED\s+(\S+)$", listing, re.MULTILINE),
        symbols=re.findall(r"^\s+0x\w+ 0x\w+ \d+ (\S+)$", references, re.MULTILINE),
    )


def strip(tools: Tools, path: pathlib.Path) -> None:
    _run(tools.strip, "--strip-unneeded", str(path))


def link(
    tools: Tools, path: pathlib.Path, renamed: dict[str, str], rpath: str, name: str | None = None
) -> None:
    """Lets the file load `renamed` (from: to) from `rpath`, and calls it `name`."""
    needed = dependencies(tools, path).libraries
    edits = [("--replace-needed", old, renamed[old]) for old in needed if old in renamed]
    edits.append(("--set-rpath", rpath) if edits else ("--remove-rpath",))
    if name:
        edits.append(("--set-soname", name))
    for edit in edits:  # One by one: patchelf 0.14 mixes up the names of several.
        _run(tools.patchelf, *edit, str(path))


def problems(tools: Tools, path: pathlib.Path, bundled: set[str], platform: str) -> list[str]:
    """Why the file does not run on all machines of the platform."""
    found = []
    needs = dependencies(tools, path)
    for library in sorted(set(needs.libraries) - _RUNTIME - bundled):
        found.append(f"{path.name} loads {library}, which is neither there nor in the wheel")
    newest = _NEWEST_SYMBOLS[platform]
    for symbol in needs.symbols:
        kind, _, version = symbol.partition("_")
        allowed = newest.get(kind)
        # Versions of bundled libraries' symbols are called otherwise.
        if allowed and not (re.fullmatch(r"[\d.]+", version) and _numbers(version) <= allowed):
            found.append(f"{path.name} needs {symbol}")
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"LC_ALL": "C.UTF-8", "PATH": os.defpath},
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}")
    return done.stdout
