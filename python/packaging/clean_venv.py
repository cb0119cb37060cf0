"""A virtual environment with nothing but the wheel in it, which sees nothing of Bazel.

By default that is the wheel for /usr/bin/python3.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

(WHEEL,) = pathlib.Path("python/wheel").absolute().glob("*.whl")
_PIP = os.path.abspath("../pip/pip.whl/pip")
_SANITIZERS = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LD_PRELOAD")


class CleanVenv:
    """Made as on a machine that has Python and pip, also where Debian's python3-venv is missing.

    That package holds the pip that `python3 -m venv` installs; here it is the pinned one.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        interpreter: str = "/usr/bin/python3",
        wheel: pathlib.Path = WHEEL,
        pip: str = _PIP,
    ) -> None:
        self._pip = pip
        self.folder = folder
        self.root = folder / "venv"
        self.tmp = folder / "tmp"
        self.tmp.mkdir(parents=True)
        self.run(interpreter, "-m", "venv", "--without-pip", self.root)
        self.pip("install", "--no-index", "--no-deps", wheel)

    @property
    def python(self) -> pathlib.Path:
        return self.root / "bin" / "python"

    @property
    def site_packages(self) -> pathlib.Path:
        (path,) = self.root.glob("lib/python3.*/site-packages")
        return path

    def pip(self, *arguments: str | os.PathLike[str]) -> str:
        return self.run(self.python, self._pip, "--disable-pip-version-check", *arguments)

    def run(self, *command: str | os.PathLike[str], expect: int | None = 0) -> str:
        """Runs a program there, which is to exit with `expect`, and returns what it wrote."""
        env = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "HOME": str(self.folder)}
        env["TMPDIR"] = str(self.tmp)
        env.update((name, os.environ[name]) for name in _SANITIZERS if name in os.environ)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        if expect is not None:
            said = f"{command} ended with {done.returncode}:\n{done.stdout}"
            assert done.returncode == expect, said
        return done.stdout
