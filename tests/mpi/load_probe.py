"""A rank of installations_test: load_probe.py LIBRARY PLUGIN SIZE."""

import ctypes
import os
import pathlib
import re
import sys

library, plugin, size = sys.argv[1:]
mpi = ctypes.CDLL(library, os.RTLD_NOW | os.RTLD_GLOBAL)
result = ctypes.CDLL(plugin, os.RTLD_NOW | os.RTLD_LOCAL).Probe(int(size))

# All that belongs to an MPI comes from the repository that has the library.
home = os.path.realpath(library).split("/external/")[0] + "/external/"
maps = pathlib.Path("/proc/self/maps").read_text().split("\n")
mapped = {line.split(maxsplit=5)[5] for line in maps if line.count("/") > 1}
parts = re.compile(r"lib(mpi|open-|pmi|prrte|event|hwloc|uc[mpst]|fabric)|/(mca|libuct)_")
foreign = [path for path in sorted(mapped) if parts.search(path) and not path.startswith(home)]
if foreign:
    print(f"of the machine: {foreign}", file=sys.stderr)
sys.exit(result or bool(foreign))
