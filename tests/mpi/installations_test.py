"""One plug-in for each ABI of MPI runs under all libraries of that ABI."""

import ctypes
import os
import pathlib
import re
import sys

import pytest

from tests.mpi import mpi_installations
from tests.mpi.runtime import ranks

HERE = pathlib.Path(os.path.abspath(__file__)).parent
VERSIONS = {
    "openmpi4": r"Open MPI v4\.1\.4",
    "mpich4": r"MPICH Version:\s*4\.0\.2",
    "openmpi5": r"Open MPI v5\.0\.11",
    "mpich5": r"MPICH Version:\s*5\.0\.2",
}


def run_probe(family, library, plugin, size, folder, options=()):
    argv = [sys.executable, "-B", HERE / "load_probe.py", library, HERE / plugin, size]
    status, output = ranks.launch(family, size, argv, folder, options)
    assert status == 0, output
    found = re.findall(r"rank (\d+) of (\d+): " + VERSIONS[family], output)
    assert sorted(found) == [(str(rank), str(size)) for rank in range(size)], output


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("family", mpi_installations.FAMILIES)
def test_plugin_runs_under_each_library_of_its_abi(family, size, folder):
    ranks.skip_unless_available(family)
    plugin = "open_mpi_probe.so" if family.startswith("openmpi") else "mpich_probe.so"
    run_probe(family, mpi_installations.library(family), plugin, size, folder)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_standard_abi(size, folder):
    ranks.skip_unless_available("mpich5")
    library = mpi_installations.STANDARD_ABI_LIBRARY
    run_probe("mpich5", library, "standard_abi_probe.so", size, folder)


@pytest.mark.parametrize(
    "family, options",
    [
        ("openmpi4", ["--enable-recovery"]),
        ("openmpi5", ["--enable-recovery"]),
        ("openmpi5", ["--with-ft", "ulfm"]),
        ("mpich4", ["-disable-auto-cleanup"]),
        ("mpich5", ["-disable-auto-cleanup"]),
    ],
)
def test_options_that_let_survivors_run_on(family, options, folder):
    ranks.skip_unless_available(family)
    plugin = "open_mpi_probe.so" if family.startswith("openmpi") else "mpich_probe.so"
    run_probe(family, mpi_installations.library(family), plugin, 2, folder, options)


@pytest.mark.parametrize("abi", ["open_mpi", "mpich", "standard_abi"])
def test_plugins_link_no_mpi_library(abi):
    plugin = HERE / f"{abi}_probe.so"
    if abi == "standard_abi":
        ranks.skip_unless_available("mpich5")
    with pytest.raises(OSError, match="undefined symbol: (MPI_|ompi_)"):
        ctypes.CDLL(str(plugin), os.RTLD_NOW)
