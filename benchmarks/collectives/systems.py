"""The systems that can be compared, and how their ranks are started."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import secrets

from benchmarks.collectives.hosts import INTERFACE, Hosts
from tests.mpi import mpi_installations

_HERE = pathlib.Path(os.path.abspath(__file__)).parent  # In the runfiles; links are not followed.

# The limit that the machine sets, not a peer: threads of one process.
MEMORY = "memory"

# That of the network: a connection with no library.
LINK = "link"

# Those that can make calls without a gate in between.
IN_A_ROW_PROGRAMS = ("syncline_peer", "openmpi_peer", "mpich_peer", "gloo_peer", "link_peer")
IN_A_ROW_PROGRAMS += ("numpy_peer", "torch_peer")

Command = tuple[list[str], dict[str, str]]  # And the environment.

_SYNCLINE_BACKENDS = ("shm", "gloo", "auto", "tcp")
_LANGUAGES = {"": "syncline_peer", "-numpy": "numpy_peer", "-torch": "torch_peer"} | {
    "-java": "java_peer"
}


@dataclasses.dataclass(frozen=True)
class System:
    """A program that stands for one system.

    `launcher` is one of "ranks", "mpirun", "hydra" and "threads".
    """

    name: str
    program: str
    variant: str = ""
    launcher: str = "ranks"
    operations: tuple[str, ...] | None = None  # None: all of OPERATIONS.
    settings: tuple[tuple[str, str], ...] = ()  # Of its environment.


# Data above the eager size are read by CMA, whatever the table in backends/shm/thresholds.h says.
_ALWAYS_CMA = (("SYNCLINE_SHM_TUNING", "65536,32768,524288,65536,524288,65537"),)


# Connections are encrypted, with a secret that each group has for itself.
_TLS = (("SYNCLINE_TLS", "secret"),)

# Open MPI's messages over UCX, by shared memory, and CMA as UCX finds best. Without the second and
# third setting Open MPI takes UCX for fast networks only.
_UCX = (
    ("OMPI_MCA_pml", "ucx"),
    ("OMPI_MCA_opal_common_ucx_tls", "any"),
    ("OMPI_MCA_opal_common_ucx_devices", "any"),
    ("OMPI_MCA_osc", "^ucx"),
    ("UCX_NET_DEVICES", "lo"),
    ("UCX_TLS", "self,sm"),
)

# Open MPI's messages over TCP, as between hosts; among hosts, in shared memory within each.
_OPEN_MPI_TCP = (
    ("OMPI_MCA_btl", "tcp,self"),
    ("OMPI_MCA_btl_tcp_if_include", "lo"),
)
_OPEN_MPI_AMONG_HOSTS = {
    "OMPI_MCA_btl": "tcp,vader,self",
    "OMPI_MCA_btl_tcp_if_include": INTERFACE,
    "OMPI_MCA_oob_tcp_if_include": INTERFACE,
    "OMPI_MCA_plm": "rsh",
}


def _all_systems() -> dict[str, System]:
    systems = [
        System(f"syncline-{backend}{language}", program, backend)
        for backend in _SYNCLINE_BACKENDS
        for language, program in _LANGUAGES.items()
    ]
    systems += [
        System("syncline-shm-shared", "syncline_peer", "shm+shared"),  # Tensors in shared memory.
        System("syncline-shm-cma", "syncline_peer", "shm", settings=_ALWAYS_CMA),
        System("syncline-shm-rings", "syncline_peer", "shm", settings=(("SYNCLINE_CMA", "off"),)),
        System("syncline-gloo-tls", "syncline_peer", "gloo", settings=_TLS),
        System("syncline-tcp-tls", "syncline_peer", "tcp", settings=_TLS),
        System("openmpi", "openmpi_peer", launcher="mpirun"),
        System("openmpi-ucx", "openmpi_peer", launcher="mpirun", settings=_UCX),
        System("openmpi-tcp", "openmpi_peer", launcher="mpirun", settings=_OPEN_MPI_TCP),
        System("mpich", "mpich_peer", launcher="hydra"),
        System("openmpi-nonblocking", "openmpi_peer", "nonblocking", launcher="mpirun"),
        System("syncline-mpi", "syncline_peer", "mpi", launcher="mpirun"),
        System("gloo", "gloo_peer", "ring"),
        System("gloo-bcube", "gloo_peer", "bcube", operations=("all_reduce",)),
        System("torch", "torch_peer"),
        System(LINK, "link_peer", operations=("send_recv", "all_reduce")),
        System(
            MEMORY,
            "memory_peer",
            launcher="threads",
            operations=("all_reduce", "copy", "add"),
        ),
    ]
    return {system.name: system for system in systems}


SYSTEMS = _all_systems()


_DROPPED = ("PYTHON", "RUNFILES", "JAVA_RUNFILES", "OMPI_", "MPIR_", "UCX_", "SYNCLINE_")


def _environment(folder: str) -> dict[str, str]:
    """The machine's, without what the runner's own launcher has added."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    return kept | {"TMPDIR": folder, "JAVA_RUNFILES": str(_HERE.parents[2])}


def _new_secret(folder: str) -> str:
    path = pathlib.Path(folder) / "secret"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return str(path)


def _mpirun(system: System, size: int, oversubscribed: bool, hosts: Hosts | None) -> Command:
    places = mpi_installations.open_mpi_4_places(system.settings == _UCX)
    settings = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm": "isolated",  # No ssh is wanted.
        "OMPI_MCA_oob_tcp_if_include": "lo",
        "OMPI_MCA_pml": "ob1",
    } | dict(system.settings)
    if oversubscribed:
        settings["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
    command = [places["OPAL_BINDIR"] + "/orterun", "-np", str(size)]
    for name in places:
        command += ["-x", name]
    if hosts is not None:
        command += ["--host", hosts.slots(size), "--mca", "plm_rsh_agent", hosts.agent()]
        command += ["--bind-to", "none"]  # Its daemons would share the first core.
        settings |= _OPEN_MPI_AMONG_HOSTS
        return hosts.command(hosts.addresses[0], command), places | settings
    return command, places | settings


def _hydra(size: int, base: list[str], folder: str, oversubscribed: bool) -> Command:
    binding = () if oversubscribed else ("-bind-to", "core")  # As Open MPI does by itself.
    return mpi_installations.command("mpich4", size, base, folder, binding)


def commands(
    system: System, folder: str, size: int, oversubscribed: bool, hosts: Hosts | None = None
) -> tuple[list[list[str]], dict[str, str]]:
    """Command lines of the processes of a group of `size` ranks, and their environment.

    A variant "" stands for none. `oversubscribed`: there are more ranks than cores. Without `hosts`
    all ranks are on this one.

    Raises ValueError if the system cannot be placed on hosts.
    """
    if hosts is not None and (system.launcher in ("hydra", "threads") or system.settings == _UCX):
        raise ValueError(f"{system.name} is not among hosts")
    base = [
        str(_HERE / system.program),
        f"--folder={folder}",
        f"--size={size}",
        f"--waiting={'yield' if oversubscribed else 'spin'}",
        f"--variant={system.variant}",
    ]
    environment = _environment(folder) | (hosts.environment() if hosts is not None else {})
    if system.launcher == "mpirun":
        command, settings = _mpirun(system, size, oversubscribed, hosts)
        return [command + base], environment | settings
    if system.launcher == "hydra":
        command, settings = _hydra(size, base, folder, oversubscribed)
        return [command], environment | settings
    if system.launcher == "threads":
        return [base], environment
    environment |= dict(system.settings)
    if system.settings == _TLS:
        environment["SYNCLINE_SECRET_FILE"] = _new_secret(folder)
    ranks = [base + [f"--rank={rank}"] for rank in range(size)]
    if hosts is not None:
        # Each learns its host's address from its environment: see harness.h.
        places = [hosts.of_rank(rank, size) for rank in range(size)]
        ranks = [
            hosts.command(place, ["/usr/bin/env", f"COLLECTIVES_ADDRESS={place}", *rank])
            for place, rank in zip(places, ranks, strict=True)
        ]
    return ranks, environment
