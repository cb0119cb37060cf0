"""What binaries need of a machine, by what readelf says, for tests of what is shipped."""

import os
import re
import subprocess

OLD = os.path.abspath("../old_glibc/lib")

# What every machine has. No C++ library is among it.
ALLOWED = {f"lib{name}" for name in ("c.so.6", "m.so.6", "dl.so.2", "pthread.so.0", "rt.so.1")} | {
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
}


def said(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def on_old_glibc(*command, libraries=()):
    """The command, as Debian 11's C library runs it."""
    path = ":".join([OLD, *map(str, libraries)])
    return [f"{OLD}/ld-linux-x86-64.so.2", "--library-path", path, *map(str, command)]


def needs(path):
    """The libraries, and the newest version of the symbols of each kind: {"GLIBC": (2, 28)}."""
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", said("readelf", "--dynamic", "-W", path)))
    versions = re.findall(r"Name: (\w+)_([\d.]+)\s", said("readelf", "--version-info", "-W", path))
    newest = {}
    for kind, version in versions:
        numbers = tuple(map(int, version.split(".")))
        newest[kind] = max(newest.get(kind, ()), numbers)
    return libraries, newest


def assert_runs_everywhere(path):
    """Whether it needs no more than glibc 2.28 and the oldest libgcc of our compiler's age."""
    libraries, newest = needs(path)
    assert libraries <= ALLOWED, path
    assert newest["GLIBC"] <= (2, 28), (path, newest)
    assert newest.get("GCC", ()) <= (7, 0, 0), (path, newest)
    assert set(newest) <= {"GLIBC", "GCC"}, (path, newest)
