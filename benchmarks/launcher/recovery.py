"""From a failure to the first step of training after it: syncline-run beside torchrun, in turns.

./bazelw run //benchmarks/launcher:recovery
./bazelw run //benchmarks/launcher:recovery -- --rounds 5 --faults worker
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

from benchmarks.launcher.launchers import Launcher, LauncherError, syncline, torchrun

_DEADLINE = 120.0  # Seconds, for any wait.
_WORKERS = 2  # Of each agent.
_CHECKPOINT_EVERY = 10  # Steps.
_OPTIONS = ["--steps", "1000000", "--step-time", "0.03", "--limit", "2400"]
_SCRIPT = "elastic_fashion_mnist.py"


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that gets SIGKILL."""

    name: str
    agents: int
    victim: str  # "worker", "agent", "node" (both): of the second agent, if there is one.

    @property
    def world_after(self) -> int:
        """How many ranks there are in the end."""
        return _WORKERS * (self.agents - (self.victim != "worker"))


FAULTS = {
    "worker": Fault("a worker of 2, one agent", 1, "worker"),
    "worker-of-3": Fault("a worker of 6, three agents", 3, "worker"),
    "node-of-3": Fault("one of three agents, with its 2 workers", 3, "node"),
    # Not by default: torchrun's orphans go on, and so do the others, who never miss the agent.
    "agent-of-3": Fault("one of three agents", 3, "agent"),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A line of the log of steps."""

    t: float  # Seconds since 1970.
    step: int
    rank: int
    world: int


def first_step_after(steps: Sequence[Step], moment: float, world: int) -> float | None:
    """Seconds from `moment` until all of `world` new ranks have made a step; None: not yet.

    The steps must be in the order of time. A rank is new if the size of the group has changed since
    its last step, or if it makes a step again, as after a checkpoint.
    """
    before: dict[int, Step] = {}
    new: dict[int, Step] = {}
    for step in steps:
        last = before.get(step.rank)
        is_new = last is None or step.world != last.world or step.step <= last.step
        if step.t > moment and is_new and step.world == world:
            new.setdefault(step.rank, step)
        if step.rank not in new:
            before[step.rank] = step
    return max(step.t for step in new.values()) - moment if len(new) == world else None


class _Job:
    """The agents of one job on this host, and the steps that their workers have made."""

    def __init__(self, launcher: Launcher, agents: int, folder: pathlib.Path) -> None:
        self._launcher, self._count, self._folder = launcher, agents, folder
        self._mark = uuid.uuid4().hex
        self._script = _found("examples", _SCRIPT)
        self.agents: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._endpoint = free.getsockname()

    def start(self) -> None:
        for agent in range(self._count):
            self._start_agent(agent)
            if agent == 0 and self._count > 1:
                self.wait_until(self._is_served, "the first agent serves no store")

    def _start_agent(self, agent: int) -> None:
        nodes = "1" if self._count == 1 else f"1:{self._count}"
        command = [*self._launcher.command, f"--nnodes={nodes}", f"--nproc-per-node={_WORKERS}"]
        command += ["--rdzv-backend=c10d", "--max-restarts=3", f"--rdzv-id={self._mark}"]
        command += ["--rdzv-endpoint={}:{}".format(*self._endpoint), str(self._script), *_OPTIONS]
        command += ["--data", str(_data()), "--log-steps", str(self._folder / "steps")]
        command += ["--checkpoint", str(self._folder / "checkpoint")]
        command += ["--checkpoint-every", str(_CHECKPOINT_EVERY)]
        environment = {  # The same for all.
            "HOME": str(self._folder),
            "MARK": self._mark,
            "OMP_NUM_THREADS": "1",
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHON_EXEC": sys.executable,
            "TMPDIR": str(self._folder),
        }
        with (self._folder / f"agent{agent}.log").open("wb") as log:
            self.agents.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def _is_served(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(self._endpoint, timeout=1):
            return True
        return False

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE
        while not condition():
            if time.monotonic() > deadline:
                raise LauncherError(f"{self._launcher.name}: {what}\n{self._said()}")
            time.sleep(0.005)

    def _said(self) -> str:
        logs = sorted(self._folder.glob("agent*.log"))
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)

    def steps(self) -> list[Step]:
        path = self._folder / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        facts = [json.loads(line) for line in lines if line.endswith("}")]
        return [Step(f["t"], f["step"], f["rank"], f["world"]) for f in facts]

    def is_between_checkpoints(self) -> bool:
        """All ranks have been at it for a while, and the next round repeats some of their steps."""
        last = self.steps()[-_WORKERS * self._count :]
        return (
            len({step.rank for step in last}) == _WORKERS * self._count
            and min(step.step for step in last) > 2 * _CHECKPOINT_EVERY
            and {step.step % _CHECKPOINT_EVERY for step in last} == {_CHECKPOINT_EVERY // 2}
        )

    def workers_of(self, agent: int) -> list[int]:
        """The processes of its workers."""
        found = []
        for pid in self._processes():
            with contextlib.suppress(OSError):
                stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                is_child = int(stat.split()[1]) == self.agents[agent].pid
                if is_child and command[0] == sys.executable.encode():
                    found.append(pid)
        if len(found) != _WORKERS:
            raise LauncherError(f"{self._launcher.name}: {len(found)} workers were found")
        return found

    def _processes(self) -> list[int]:
        """All of this job, orphans included."""
        found = []
        for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in environ.read_bytes():
                    found.append(int(environ.parent.name))
        return found

    def end(self) -> None:
        while processes := self._processes():
            for pid in processes:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for agent in self.agents:
                agent.wait()


def _found(*parts: str) -> pathlib.Path:
    here = pathlib.Path(os.path.abspath(__file__))  # In the runfiles: links are not followed.
    return here.parents[2].joinpath(*parts)


def _data() -> pathlib.Path:
    root = _found("..", "fashion_mnist").resolve()
    return next(root.rglob("train-images-idx3-ubyte.gz")).parent


@contextlib.contextmanager
def _running(launcher: Launcher, agents: int) -> Iterator[_Job]:
    with tempfile.TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as folder:
        job = _Job(launcher, agents, pathlib.Path(folder))
        try:
            job.start()
            yield job
        finally:
            job.end()


def measure(launcher: Launcher, fault: Fault) -> float:
    """Seconds from `fault` to the first step that all ranks have made after it.

    Raises LauncherError, with what the launcher said, if there is none.
    """
    with _running(launcher, fault.agents) as job:
        job.wait_until(job.is_between_checkpoints, "training does not begin")
        index = min(1, fault.agents - 1)
        agent, workers = job.agents[index].pid, job.workers_of(index)
        victims = {"worker": workers[:1], "agent": [agent], "node": [agent, *workers]}
        moment = time.time()
        for pid in victims[fault.victim]:
            with contextlib.suppress(ProcessLookupError):  # Some die with their agent.
                os.kill(pid, signal.SIGKILL)
        world = fault.world_after
        job.wait_until(
            lambda: first_step_after(job.steps(), moment, world) is not None,
            "training does not go on",
        )
        took = first_step_after(job.steps(), moment, world)
        assert took is not None
        return took


def row(what: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """A line of the table: medians with the least and the most, and the ratio of the medians."""

    def cell(values: Sequence[float]) -> str:
        if not values:
            return "-"
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    ratio = f"{statistics.median(theirs) / statistics.median(ours):.1f}" if theirs else "-"
    return f"| {what} | {cell(ours)} | {cell(theirs)} | {ratio} |"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="recovery", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each launcher")
    parser.add_argument(
        "--faults", default="worker,worker-of-3,node-of-3", help=f"of {', '.join(FAULTS)}"
    )
    parser.add_argument("--alone", action="store_true", help="without torchrun")
    options = parser.parse_args(arguments)
    launchers = [syncline()]
    if not options.alone:
        launchers.append(torchrun())
    versions = ", ".join(f"{launcher.name}: {launcher.version}" for launcher in launchers)
    print(f"{options.rounds} rounds, {versions}\n")
    print("| killed | syncline-run, s | torchrun, s | ratio |\n|---|---|---|---|", flush=True)
    for name in options.faults.split(","):
        times: dict[str, list[float]] = {"syncline-run": [], "torchrun": []}
        for _ in range(options.rounds):
            for launcher in launchers:
                times[launcher.name].append(measure(launcher, FAULTS[name]))
        print(row(FAULTS[name].name, times["syncline-run"], times["torchrun"]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
