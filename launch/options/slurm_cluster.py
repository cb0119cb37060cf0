"""Runs a command in a Slurm cluster of its own.

    slurm_cluster.py SLURM FOLDER NODES COMMAND...

SLURM: where Slurm's packages are unpacked. FOLDER: an empty one, for files. NODES: how many
nodes (n1, n2, ...) there are; all are this host, with an address each. Must be the first process
in namespaces of its own for processes, mounts, the network and System V's shared memory (see
clusters_for_tests.py): what it starts ends with it, and ports and names are its own. Exits with the
command's code.
"""

import fcntl
import os
import pathlib
import socket
import struct
import subprocess
import sys
import time

DEADLINE = 60  # Seconds until all nodes are up.
SIOCSIFADDR, SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8916, 0x8914, 0x1, 0x40
CONTROLLER = """
ClusterName=test
MailProg=/bin/true
SlurmctldPort=7000
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def address(node: int) -> str:
    """The address of node 1, 2, ..."""
    return f"10.255.0.{node}"


def bring_up_network(nodes: int) -> None:
    """Gives each node an address of this host, and a name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for node in range(nodes + 1):
            name = f"lo:{node}" if node else "lo"
            location = socket.inet_aton(address(node) if node else "127.0.0.1")
            request = struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, location)
            fcntl.ioctl(control, SIOCSIFADDR, request)
            flags = struct.pack("16sH14x", name.encode(), IFF_UP | IFF_RUNNING)
            fcntl.ioctl(control, SIOCSIFFLAGS, flags)


def write_names(folder: pathlib.Path, nodes: int) -> None:
    """Replaces /etc/hosts of this namespace, and /etc/resolv.conf: nobody answers here."""
    lines = ["127.0.0.1 localhost"]
    lines += [f"{address(node)} n{node}" for node in range(1, nodes + 1)]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    (folder / "resolv.conf").write_text("")
    for name in ("hosts", "resolv.conf"):
        subprocess.run(["mount", "--bind", folder / name, f"/etc/{name}"], check=True)


def replace_shared_memory() -> None:
    """Gives this namespace a /dev/shm of its own, where names of MPI are derived from pids."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)


def write_configuration(slurm: pathlib.Path, folder: pathlib.Path, nodes: int) -> None:
    """Writes slurm.conf."""
    (folder / "state").mkdir()
    host = socket.gethostname().partition(".")[0]
    lines = [
        f"SlurmctldHost={host}({address(1)})",
        f"PluginDir={slurm / 'usr/lib/x86_64-linux-gnu/slurm-wlm'}",
        f"StateSaveLocation={folder / 'state'}",
        f"SlurmdSpoolDir={folder / 'spool.%n'}",
        f"TmpFS={folder / 'tmp.%n'}",
        f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
        f"SlurmdPidFile={folder / 'slurmd.%n.pid'}",
    ]
    for node in range(1, nodes + 1):
        (folder / f"tmp.n{node}").mkdir()
        location = f"NodeHostname={host} NodeAddr={address(node)} Port={7000 + node}"
        lines.append(f"NodeName=n{node} {location} CPUs=2")
    (folder / "slurm.conf").write_text("\n".join(lines) + CONTROLLER)


def start_daemons(slurm: pathlib.Path, folder: pathlib.Path, nodes: int) -> None:
    """Starts the controller and the nodes' daemons; they end with the namespace."""
    sbin = slurm / "usr/sbin"
    commands = {"slurmctld": [sbin / "slurmctld-wlm", "-D", "-c"]}
    for node in range(1, nodes + 1):
        step = ["-d", sbin / "slurmstepd-wlm"]
        commands[f"n{node}"] = [sbin / "slurmd-wlm", "-D", "-N", f"n{node}", *step]
    for name, command in commands.items():
        with open(folder / f"{name}.log", "wb") as log:
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait_until_idle(slurm: pathlib.Path, folder: pathlib.Path, nodes: int) -> None:
    """Returns once every node takes jobs."""
    deadline = time.monotonic() + DEADLINE
    states = ""
    while states.split() != ["idle"] * nodes:
        if time.monotonic() > deadline:
            for log in sorted(folder.glob("*.log")):
                print(f"{log.name}:\n{log.read_text()}", file=sys.stderr)
            sys.exit(f"not all nodes are idle after {DEADLINE} s: {states!r}")
        time.sleep(0.05)
        sinfo = [slurm / "usr/bin/sinfo", "--noheader", "--Node", "--format=%T"]
        states = subprocess.run(sinfo, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    slurm, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    nodes = int(sys.argv[3])
    bring_up_network(nodes)
    write_names(folder, nodes)
    replace_shared_memory()
    write_configuration(slurm, folder, nodes)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    # Where libpmix looks for its plug-ins, which srun --mpi=pmix needs.
    os.environ["PMIX_PKGLIBDIR"] = str(slurm / "usr/lib/x86_64-linux-gnu/pmix2/lib/pmix")
    os.environ["PATH"] = f"{slurm / 'usr/bin'}:{os.environ['PATH']}"
    start_daemons(slurm, folder, nodes)
    wait_until_idle(slurm, folder, nodes)
    return subprocess.run(sys.argv[4:]).returncode


if __name__ == "__main__":
    sys.exit(main())
