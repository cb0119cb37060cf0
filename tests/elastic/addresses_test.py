"""The address at which the other nodes reach a node, where its host has several."""

import subprocess
import sys

import cluster

ECHO = ("/bin/sh", "-c", 'echo "at $SYNCLINE_HOST_ADDRESS."')
SECOND = "198.51.100.2"

# Gives the host's interface a second address.
ADD_SECOND = f"""
import fcntl, socket, struct
SIOCSIFADDR = 0x8916
(name,) = [name for _, name in socket.if_nameindex() if name != "lo"]
address = socket.inet_aton("{SECOND}")
request = struct.pack("16sH2x4s8x", f"{{name}}:1".encode(), socket.AF_INET, address)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, SIOCSIFADDR, request)
"""


def on_host(host, *command):
    door, _ = cluster.hosts()[host]
    subprocess.run([cluster.NETWORK, "--on", door, *command], check=True, timeout=cluster.DEADLINE)


def said_by(job, variables, *options):
    """What a job of two nodes says whose second one has these variables, by node."""
    job.options = ["--nnodes=2", "--nproc-per-node=1"]
    options = ["--no-python", *options]
    agents = [
        job.start(0, *options, program=ECHO),
        job.start(1, *options, program=ECHO, variables=variables),
    ]
    for agent in agents:
        assert agent.finish() == 0, job.tell()
    return [agent.said() for agent in agents]


def test_the_interface_that_is_chosen_says_where_a_node_is(job):
    on_host(1, sys.executable, "-c", ADD_SECOND)
    first, second = (address for _, address in cluster.hosts()[:2])
    for variable in ("SYNCLINE_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        said = said_by(job, {variable: "198.51.100.0/24"})
        assert f"at {first}." in said[0]
        assert f"at {SECOND}." in said[1]
    # The loopback leads nowhere, but all nodes may be on one host.
    assert f"at {second}." in said_by(job, {"SYNCLINE_SOCKET_IFNAME": "lo"})[1]
    # What names an address counts before it.
    variables = {"SYNCLINE_SOCKET_IFNAME": "198.51.100.0/24", "SYNCLINE_HOST_ADDRESS": second}
    assert f"at {second}." in said_by(job, variables)[1]


def test_an_interface_that_a_node_lacks_is_named(job):
    job.conf += ",read_timeout=1"
    job.options = ["--nnodes=2", "--nproc-per-node=1"]
    variables = {"SYNCLINE_SOCKET_IFNAME": "no_such"}
    agent = job.start(1, "--no-python", program=ECHO, variables=variables)
    assert agent.finish() == 1, job.tell()
    assert "SYNCLINE_SOCKET_IFNAME is 'no_such'" in agent.said()
    assert "waits up to 1s (read_timeout of --rdzv-conf)" in agent.said()


def test_without_a_default_route_an_interface_says_where_a_node_is(job):
    """Nothing else does: the rendezvous is a file, and the host's name leads nowhere."""
    job.endpoint = ["--rdzv-backend", "file", "--rdzv-endpoint", job.folder / "meeting"]
    for said, (_, address) in zip(said_by(job, {}), cluster.hosts(), strict=False):
        assert f"at {address}." in said
