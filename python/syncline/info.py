"""What this build of Syncline has: `python -m syncline.info`."""

from __future__ import annotations

import os
import sys

from syncline import torch_native
from syncline._syncline import Info

VARIABLES = {
    "RANK": "this process's rank",
    "WORLD_SIZE": "the number of ranks",
    "LOCAL_RANK": "this process's rank among those of its host",
    "LOCAL_WORLD_SIZE": "the number of ranks on its host",
    "MASTER_ADDR": "the host of the store",
    "MASTER_PORT": "the port of the store, or near it where torchrun has that",
    "SYNCLINE_STORE": "host:port of the launcher's store, which goes before MASTER_ADDR",
    "SYNCLINE_ROUND": "how often the ranks of an elastic job have formed again",
    "SYNCLINE_RESTART_COUNT": "how often they have been after a failure",
    "SYNCLINE_MAX_RESTARTS": "how often they may be",
    "SYNCLINE_RUN_ID": "the job's name, if the launcher runs it",
    "SYNCLINE_HEARTBEAT_FILE": "what syncline.elastic.heartbeat touches",
    "SYNCLINE_STALL_FILE": "where the launcher reads which operations wait for long",
    "SYNCLINE_STALL_WARNING": "seconds (10) after which an operation that waits says for whom",
    "TORCHELASTIC_RUN_ID": "the job's name, if an elastic launcher runs it",
    "TORCHELASTIC_ERROR_FILE": "where an exception that ends this process is recorded",
    "SYNCLINE_DEBUG": "on (the default), off or detail: ranks compare their calls",
    "SYNCLINE_CMA": "on (the default), off or ptracer: whether ranks read each other's memory",
    "SYNCLINE_OBJECT_CODEC": "safe (the default) or pickle: how objects travel",
    "SYNCLINE_NCCL_LIBRARY": "the NCCL to open, where none is loaded",
    "SYNCLINE_MPI_LIBRARY": "the MPI library to open, where none is loaded",
    "SYNCLINE_CUDA_LIBRARY": "CUDA's driver, in place of libcuda.so.1",
    "SYNCLINE_LOG_LEVEL": "debug, info, warning (the default) or error",
    "SYNCLINE_SECRET_FILE": "the file with the job's secret",
    "SYNCLINE_TLS": "off (the default), secret or certificates: encryption between hosts",
    "SYNCLINE_TLS_CERT": "PEM file with this process's certificate",
    "SYNCLINE_TLS_KEY": "PEM file with its private key",
    "SYNCLINE_TLS_CA": "PEM file with the certificates of the authorities that are trusted",
    "SYNCLINE_TLS_PEER_NAME": "the name that all certificates of the job must have",
    "SYNCLINE_TLS_PLAIN": "backends that may send between hosts what they cannot encrypt",
    "SYNCLINE_HOST_ADDRESS": "where other hosts reach this one",
    "SYNCLINE_SOCKET_IFNAME": "by which of its interfaces they do; of several each has a stream",
    "GLOO_SOCKET_IFNAME": "the same, where SYNCLINE_SOCKET_IFNAME is not set",
    "SYNCLINE_TORCH_NATIVE": "on (the default), off or a library: torch's backend in C++",
    "SYNCLINE_PORT_RANGE": "ports at which processes listen where none is given: 20000-20099",
    "SYNCLINE_TCP_STREAMS": "connections between two ranks that share large messages, 1 to 16",
    "SYNCLINE_SOCKET_BUFFER": "bytes that the kernel keeps for each direction of a connection",
    "SYNCLINE_TCP_CONGESTION": "how the kernel chooses its speed there: cubic, bbr",
    "SYNCLINE_SOCKET_DSCP": "class of the packets between ranks, 0 to 63",
    "SYNCLINE_SOCKET_BUSY_POLL": "microseconds in which waits look at the network card themselves",
    "SYNCLINE_TCP_KEEPALIVE": "seconds (30) of silence after which a host is lost; 0: never",
}
"""The environment variables that matter, with what they say."""


def describe() -> str:
    """The report that `python -m syncline.info` prints."""
    python = ".".join(map(str, sys.version_info[:3]))
    lines = [
        f"syncline {Info.version()}, Python {python}",
        f"backends: {', '.join(Info.backends())}",
        f"stores:   {', '.join(Info.stores())}",
        *(f"{name}: {text}" for name in Info.backends() if (text := Info.describe_backend(name))),
        f"torch:    {torch_backend()}",
        "",
        Info.capability_table().rstrip("\n"),
        "",
        "environment:",
    ]
    width = max(map(len, VARIABLES))
    for name, meaning in VARIABLES.items():
        value = os.environ.get(name)
        said = "is not set" if value is None else f"= {value!r}"
        lines.append(f"  {name:<{width}}  {said}  ({meaning})")
    return "\n".join(lines)


def torch_backend() -> str:
    """Which form of torch.distributed's backend "syncline" processes use here, and why."""
    try:
        library = torch_native.find(Info.version())
    except ValueError as error:
        return f"unusable: {error}"
    if library.path is None:
        return f"backend in Python: {library.reason}"
    return f"native backend: {library.reason} ({library.path})"


if __name__ == "__main__":
    print(describe())
