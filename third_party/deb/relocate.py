"""Makes the ELF files under the current folder find each other without the machine's help.

Usage: relocate.py PATCHELF. Every executable and shared library that needs a
library of the folder gets an rpath to it, relative to $ORIGIN.
"""

import os
import subprocess
import sys


def is_elf(path):
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def main():
    patchelf = sys.argv[1]
    files = [os.path.join(folder, name) for folder, _, names in os.walk(".") for name in names]
    libraries = {}
    for path in sorted(files, key=len, reverse=True):
        if ".so" in os.path.basename(path):
            libraries[os.path.basename(path)] = os.path.dirname(path)
    for path in filter(is_elf, files):
        listed = subprocess.run(
            [patchelf, "--print-needed", path],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        # Object files and static executables have no dynamic section.
        needed = listed.stdout.split() if listed.returncode == 0 else []
        here = os.path.dirname(path)
        folders = {os.path.relpath(libraries[name], here) for name in needed if name in libraries}
        if folders:
            rpath = ":".join("$ORIGIN" if f == "." else "$ORIGIN/" + f for f in sorted(folders))
            subprocess.run([patchelf, "--set-rpath", rpath, path], check=True)


if __name__ == "__main__":
    main()
