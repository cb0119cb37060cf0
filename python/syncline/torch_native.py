"""The native backend of torch.distributed: where its library is, and how it is compiled.

The library is compiled for one torch, one Python and one Syncline (`key`), on the user's machine:
wheels have its sources. This module imports neither torch nor the rest of Syncline, so that
`python -m syncline.info` and a build of these sources can use it.

As a program: torch_native.py OUTPUT TORCH_FOLDER PYTHON_INCLUDE [OPTION...] compiles it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import sysconfig
from dataclasses import dataclass

VARIABLE = "SYNCLINE_TORCH_NATIVE"
MODULE = "syncline_torch_native"
TORCH_VERSIONS = ("2.13",)
"""Those whose C++ interface the sources are written for."""

_SOURCES = pathlib.Path(__file__).parent / "torch" / "native"
_COMPILE_TIMEOUT = 1800.0


@dataclass(frozen=True)
class Torch:
    """A torch that is installed; found without importing it."""

    version: str
    git_version: str
    folder: pathlib.Path

    @property
    def is_served(self) -> bool:
        """Whether the sources are written for it."""
        return self.version.startswith(tuple(f"{known}." for known in TORCH_VERSIONS))


@dataclass(frozen=True)
class Library:
    """The native library of this process's torch, if there is one.

    Attributes:
      path: where it is; None if the backend in Python is used.
      reason: why that one, or why none; for people.
    """

    path: pathlib.Path | None
    reason: str


def setting() -> str:
    """What SYNCLINE_TORCH_NATIVE says: "on" (the default), "off" or the path of a library."""
    value = os.environ.get(VARIABLE, "") or "on"
    if value not in ("on", "off") and os.sep not in value:
        raise ValueError(f"{VARIABLE} must be on, off or the path of a library, not {value!r}")
    return value


def installed_torch() -> Torch | None:
    """The torch that `import torch` would find."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return torch_in(pathlib.Path(spec.origin).parent)


def torch_in(folder: pathlib.Path) -> Torch | None:
    """The torch whose package is `folder`."""
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        return None
    found = dict(re.findall(r"^(__version__|git_version) = ['\"]([^'\"]*)['\"]", text, re.M))
    if "__version__" not in found:
        return None
    return Torch(found["__version__"], found.get("git_version", ""), folder)


def key(torch: Torch, version: str) -> str:
    """What a library is for: torch, Python, Syncline's `version`, and the sources it is made of."""
    digest = hashlib.sha256(torch.git_version.encode())
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return f"torch-{torch.version}-{abi}-syncline-{version}-{digest.hexdigest()[:12]}"


def sources() -> list[pathlib.Path]:
    """The files that the library is made of."""
    return sorted(path for path in _SOURCES.iterdir() if path.suffix in (".cc", ".h"))


def cache_folder() -> pathlib.Path:
    """Where libraries are kept: below XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / ".cache"
    return root / "syncline" / "torch"


def find(version: str) -> Library:
    """The library that fits; nothing is imported. `version` is Syncline's."""
    given = setting()
    if given == "off":
        return Library(None, f"{VARIABLE} is off")
    if given != "on":
        return Library(pathlib.Path(given).absolute(), f"{VARIABLE} names it")
    torch = installed_torch()
    if torch is None:
        return Library(None, "torch is not installed")
    if not torch.is_served:
        return Library(
            None, f"torch {torch.version} is not {' or '.join(TORCH_VERSIONS)}, which it is for"
        )
    path = pathlib.Path()
    try:
        path = cache_folder() / f"{key(torch, version)}.so"
        _check_private(path)
    except FileNotFoundError:
        return Library(
            None, f"none is built for torch {torch.version}: run python -m syncline.torch.build"
        )
    except OSError as error:
        return Library(None, f"{path} is not used: {error}")
    except RuntimeError as error:  # Nobody knows where this user's home is.
        return Library(None, f"there is no cache: {error}")
    return Library(path, f"built for torch {torch.version}")


def _check_private(path: pathlib.Path) -> None:
    """PermissionError if another user could have written the library, which would then run here."""
    for each in (path, path.parent):
        state = each.stat()
        if state.st_uid not in (os.geteuid(), 0):
            raise PermissionError(f"{each} belongs to user {state.st_uid}")
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"others than its owner may write to {each}")


def compile_command(
    torch: Torch, python_include: str, output: pathlib.Path, options: list[str] | None = None
) -> list[str]:
    """The compiler's command line: CXX, or g++, with torch's headers and its pybind11."""
    include = torch.folder / "include"
    return [
        *(os.environ.get("CXX", "") or "g++").split(),
        *("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-g0"),
        f"-DTORCH_EXTENSION_NAME={MODULE}",
        *(options or ()),
        *("-isystem", str(include)),
        *("-isystem", str(include / "torch" / "csrc" / "api" / "include")),
        *("-isystem", python_include),
        *(str(path) for path in sources() if path.suffix == ".cc"),
        *("-o", str(output)),
        # torch has loaded these when the library is: it needs no path to them.
        f"-L{torch.folder / 'lib'}",
        *("-lc10", "-ltorch_cpu", "-ltorch_python"),
    ]


def compile_library(
    torch: Torch, python_include: str, output: pathlib.Path, options: list[str] | None = None
) -> None:
    """Compiles it to `output`. RuntimeError, with what the compiler says, if that fails."""
    command = compile_command(torch, python_include, output, options)
    try:
        compiler = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        raise RuntimeError(
            f"there is no compiler {command[0]!r}: install g++ (Debian: apt-get install g++), or "
            "say in CXX which one to use"
        ) from None
    with compiler:
        try:
            _, said = compiler.communicate(timeout=_COMPILE_TIMEOUT)
        except BaseException as error:
            os.killpg(compiler.pid, signal.SIGKILL)  # The programs that it has started, too.
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise RuntimeError(
                f"the compiler has not ended within {_COMPILE_TIMEOUT:.0f} s"
            ) from None
    if compiler.returncode != 0:
        raise RuntimeError(
            f"the compiler has failed ({compiler.returncode}): {' '.join(command)}\n{said}"
        )


def build(version: str) -> pathlib.Path:
    """Compiles the library for the torch that is installed, into the cache; returns its path.

    Several builders may be at work at once: each writes a file of its own, and puts it into place
    when it is complete. RuntimeError if it cannot be built.
    """
    torch = installed_torch()
    if torch is None:
        raise RuntimeError("torch is not installed")
    if not torch.is_served:
        raise RuntimeError(
            f"torch {torch.version} is installed, and the native backend is for torch "
            f"{' or '.join(TORCH_VERSIONS)}"
        )
    include = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(include, "Python.h")):
        raise RuntimeError(
            f"Python's headers are not in {include}: install them (Debian: apt-get install "
            "python3-dev)"
        )
    path = cache_folder() / f"{key(torch, version)}.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        compile_library(torch, include, part)
        part.chmod(0o700)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def main(arguments: list[str]) -> None:
    """What the program does."""
    output, folder, python_include, *options = arguments
    torch = torch_in(pathlib.Path(folder))
    if torch is None:
        raise SystemExit(f"there is no torch in {folder}")
    try:
        compile_library(torch, python_include, pathlib.Path(output), options)
    except RuntimeError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
