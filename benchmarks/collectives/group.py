"""The ranks of one system, as processes that take orders."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import mmap
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator

from benchmarks.collectives import systems
from benchmarks.collectives.hosts import Hosts

# See gate.h.
_HEADER_BYTES = 4096
_MOST_ITERATIONS = 4096

_START_SECONDS = 90.0
_QUIT_SECONDS = 10.0
_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1
# Where Open MPI keeps segments, which a killed process leaves: here it gets a folder of its own.
_SEGMENTS = "/dev/shm"
_SEGMENTS_SETTING = "OMPI_MCA_btl_vader_backing_directory"


class GroupError(Exception):
    """What a system failed with; the group is of no more use."""


class Unsupported(Exception):
    """The system has no such operation; the group is as good as before."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """How many ranks there are, and the machine's cores."""

    ranks: int
    cores: list[int]
    bound: bool = False  # Each rank to a core of its own, unless mpirun sees to that.
    hosts: Hosts | None = None  # None: all ranks on this one.

    @property
    def oversubscribed(self) -> bool:
        return self.ranks > len(self.cores)

    def core_of(self, rank: int) -> int | None:
        """The only core that this rank may use; None if it may use all, or all of its host."""
        if self.hosts is not None or not self.bound or self.oversubscribed:
            return None
        return self.cores[rank]


def _prepare_child(core: int | None) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if core is not None:
        os.sched_setaffinity(0, {core})


class Group:
    """The ranks of `system`, in a folder of their own that goes with them.

    Between orders the ranks sleep, so that groups of several systems can live side by side.
    """

    def __init__(self, system: systems.System, folder: pathlib.Path, placement: Placement):
        """Raises GroupError if the ranks do not come up."""
        size = placement.ranks
        self.system, self.size = system, size
        self.description = ""
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._orders: list[int] = []
        self._replies: list[int] = []
        self._partial = [b""] * size
        self._segments = ""
        try:
            self._make_folder()
            self._start(placement)
            self.description = self._await_replies("ready", _START_SECONDS)
        except BaseException:
            self.close()
            raise

    def _make_folder(self) -> None:
        self._folder.mkdir(parents=True)
        with open(self._folder / "gate", "wb") as gate:
            gate.truncate(_HEADER_BYTES + self.size * _MOST_ITERATIONS * 8)
        for rank in range(self.size):
            for name, descriptors in (("orders", self._orders), ("replies", self._replies)):
                path = self._folder / f"{rank}.{name}"
                os.mkfifo(path)
                # Read and write: neither side waits for the other to open, and what the ranks read
                # ends when this process does.
                descriptors.append(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))

    def _start(self, placement: Placement) -> None:
        try:
            commands, environment = systems.commands(
                self.system,
                str(self._folder),
                self.size,
                placement.oversubscribed,
                placement.hosts,
            )
        except ValueError as error:
            raise GroupError(str(error)) from error
        if self.system.launcher == "mpirun" and os.path.isdir(_SEGMENTS):
            self._segments = tempfile.mkdtemp(prefix="collectives-", dir=_SEGMENTS)
            environment[_SEGMENTS_SETTING] = self._segments
        with open(self._folder / "log", "wb") as log:
            for rank, command in enumerate(commands):
                one_process_a_rank = self.system.launcher == "ranks"
                core = placement.core_of(rank) if one_process_a_rank else None
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=environment,
                        cwd=self._folder,
                        # In this session, as all ranks of mpirun are in one: Linux (autogroup)
                        # shares cores among sessions first, and who yields gives its core to its
                        # own session only.
                        process_group=0,
                        preexec_fn=functools.partial(_prepare_child, core),
                    )
                )

    def run(
        self,
        operation: str,
        size_in_bytes: int,
        iterations: int,
        seconds: float,
        in_a_row: bool = False,
    ) -> list[float]:
        """Seconds of each of `iterations` calls: those of the slowest rank.

        In a row: without a gate between the calls, and the mean in the place of each. The
        program in Java cannot do that.

        Raises Unsupported, or GroupError if a rank fails or is not done in `seconds`.
        """
        iterations = min(iterations, _MOST_ITERATIONS)
        mode = " row" if in_a_row else ""
        order = f"run {operation} {size_in_bytes} {iterations}{mode}\n".encode()
        for descriptor in self._orders:
            os.write(descriptor, order)
        self._await_replies("ok", seconds)
        durations = self._durations(iterations)
        return [max(of_ranks) / 1e9 for of_ranks in zip(*durations, strict=True)]

    def _durations(self, iterations: int) -> list[list[int]]:
        with (
            open(self._folder / "gate", "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
            memoryview(memory) as every_byte,
            every_byte[_HEADER_BYTES:] as body,
            body.cast("q") as numbers,
        ):
            starts = [rank * _MOST_ITERATIONS for rank in range(self.size)]
            return [list(numbers[start : start + iterations]) for start in starts]

    def _await_replies(self, wanted: str, seconds: float) -> str:
        """What follows `wanted` in rank 0's reply, once all ranks have sent one."""
        replies: dict[int, str] = {}
        for rank, reply in self._read_replies(seconds):
            verb, _, text = reply.partition(" ")
            if verb not in (wanted, "unsupported"):
                raise GroupError(self._with_log(f"rank {rank}: {text or reply}"))
            replies[rank] = reply
            if len(replies) == self.size:
                break
        if "unsupported" in replies.values():
            raise Unsupported(self.system.name)
        return replies[0].partition(" ")[2]

    def _read_replies(self, seconds: float) -> Iterator[tuple[int, str]]:
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for rank, descriptor in enumerate(self._replies):
                selector.register(descriptor, selectors.EVENT_READ, rank)
            while time.monotonic() < deadline:
                for key, _ in selector.select(_POLL_SECONDS):
                    rank = key.data
                    *lines, self._partial[rank] = (
                        self._partial[rank] + os.read(key.fd, 65536)
                    ).split(b"\n")
                    for line in lines:
                        yield rank, line.decode(errors="replace")
                for process in self._processes:
                    if process.poll() is not None:
                        what = f"a process ended with status {process.returncode}"
                        raise GroupError(self._with_log(what))
        raise GroupError(self._with_log(f"no reply within {seconds:.0f} s"))

    def _with_log(self, text: str) -> str:
        log = (self._folder / "log").read_text(errors="replace").strip().splitlines()
        return " | ".join([text] + log[-5:])

    def close(self) -> None:
        """Ends the ranks, by force if they do not go, and removes what they leave."""
        for descriptor in self._orders:
            with contextlib.suppress(OSError):
                os.write(descriptor, b"quit\n")
        if self.description:
            self._wait(_QUIT_SECONDS)
        for how in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, how)
            self._wait(3.0)
        for descriptor in self._orders + self._replies:
            os.close(descriptor)
        self._orders, self._replies = [], []
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._segments:
            shutil.rmtree(self._segments, ignore_errors=True)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
