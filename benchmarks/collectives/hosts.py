"""Hosts for the ranks: network namespaces of this machine that a switch joins."""

from __future__ import annotations

import os
import pathlib
import subprocess

_HERE = pathlib.Path(os.path.abspath(__file__)).parent  # In the runfiles; links are not followed.
_PROGRAM = str(_HERE / "on_hosts")
INTERFACE = "cable"  # Of each host, to the switch.


class Hosts:
    """So many hosts. Each is limited to `megabits` a second from all others; 0: it is not.

    Raises RuntimeError if this user may not make them. Close it.
    """

    def __init__(self, count: int, megabits: int):
        self._maker = subprocess.Popen(
            [_PROGRAM, "make", str(count), str(megabits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._maker.stdout is not None
        self._doors = self._maker.stdout.readline().strip()
        if not self._doors:
            self._maker.wait()
            raise RuntimeError("there are no hosts: see the line above")
        self.addresses = [door.partition("=")[0] for door in self._doors.split()]

    def of_rank(self, rank: int, size: int) -> str:
        """The address of its host; the ranks of a host follow each other."""
        return self.addresses[rank * len(self.addresses) // size]

    def slots(self, size: int) -> str:
        """How many ranks each host has, as mpirun's --host wants it."""
        places = [self.of_rank(rank, size) for rank in range(size)]
        return ",".join(f"{address}:{places.count(address)}" for address in self.addresses)

    def command(self, address: str, command: list[str]) -> list[str]:
        """That runs `command` on the host, with environment() around it."""
        return [_PROGRAM, "enter", address, *command]

    def agent(self) -> str:
        """What stands for ssh."""
        return f"{_PROGRAM} agent"

    def environment(self) -> dict[str, str]:
        return {
            "ON_HOSTS": self._doors,
            "SYNCLINE_SOCKET_IFNAME": INTERFACE,
            "GLOO_SOCKET_IFNAME": INTERFACE,
        }

    def close(self) -> None:
        self._maker.communicate()
