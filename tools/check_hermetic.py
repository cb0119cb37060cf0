#!/usr/bin/python3
"""Checks that what Bazel built depends on the machine's compiler and C library only.

Usage: tools/check_hermetic.py (after a build, in any folder)

1. No compile action read a header of the machine that belongs to another
   package than the C and C++ libraries and the compiler (or to the JDK).
2. No executable or shared library of this workspace loads a library of the
   machine but those of the C and C++ runtime.

Exits with 1 and a list if something did.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Packages whose headers are the compiler's own.
_PACKAGES = re.compile(
    r"(libc6-dev|linux-libc-dev|libcrypt-dev|libgcc-\d+-dev|libstdc\+\+-\d+-dev"
    r"|libclang.*|openjdk-\d+-jdk.*)(:\w+)?$"
)

# The runtime of C and C++, and that of the sanitizers.
_LIBRARIES = re.compile(
    r"(linux-vdso|ld-linux-x86-64|libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt"
    r"|libasan|libubsan|libtsan)\.so(\.\d+)?$"
)

# Those of the torch that loads such a file, which has them.
_OF_TORCH = re.compile(r"lib(c10|torch_cpu|torch_python)\.so$")
_LOADED_BY_TORCH = ("/syncline_torch_native.so", "/torch_call_probe.so")


def built_files():
    """Yields what lies in the output folders, links and runfiles aside."""
    for folder, folders, names in os.walk(ROOT / "bazel-out" / ""):
        folders[:] = [name for name in folders if not name.endswith(".runfiles")]
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                yield path


def machine_headers(dependency_files):
    """Returns {header: a .d file that names it} for all headers outside of Bazel's folders."""
    headers = {}
    for path in dependency_files:
        with open(path) as file:
            for header in re.findall(r"(?<![^\s])/usr/\S+", file.read()):
                headers.setdefault(os.path.normpath(header), path)
    return headers


def owners(files):
    """Returns {file: package} as dpkg knows it; files of no package are missing."""
    found = {}
    files = sorted(files)
    for start in range(0, len(files), 500):
        command = ["dpkg-query", "--search", *files[start : start + 500]]
        listing = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for line in listing.stdout.decode().splitlines():
            packages, _, file = line.partition(": ")
            found[file] = packages
    return found


def check_headers(paths):
    headers = machine_headers(path for path in paths if path.endswith(".d"))
    packages = owners(headers)
    problems = []
    for header, dependency_file in sorted(headers.items()):
        package = packages.get(header, "no package")
        if not _PACKAGES.match(package) and not header.startswith("/usr/lib/jvm/"):
            problems.append("%s (%s) was read: %s" % (header, package, dependency_file))
    print("%d headers of the machine" % len(headers))
    return problems


def is_linked(path):
    """Whether the file is an ELF executable or shared library."""
    with open(path, "rb") as file:
        header = file.read(18)
    return header[:4] == b"\x7fELF" and header[16] in (2, 3)


def check_libraries(paths):
    problems = []
    linked = [path for path in paths if "/external/" not in path and is_linked(path)]
    output_base = os.path.realpath(ROOT / "bazel-out").split("/execroot/")[0]
    for path in sorted(linked):
        real = os.path.realpath(path)
        listing = subprocess.run(["ldd", real], stdout=subprocess.PIPE, text=True)
        for line in listing.stdout.splitlines():
            name, _, target = line.strip().partition(" => ")
            name = os.path.basename(name.split(" (")[0])
            inside = os.path.realpath(target.split(" (")[0]).startswith(output_base + "/")
            if path.endswith(_LOADED_BY_TORCH) and _OF_TORCH.match(name):
                continue
            if name != "statically linked" and not inside and not _LIBRARIES.match(name):
                problems.append("%s loads %s" % (path, line.strip()))
    print("%d executables and shared libraries" % len(linked))
    return problems


def main():
    paths = list(built_files())
    problems = check_headers(paths) + check_libraries(paths)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
