"""The launchers that are compared: how to start each, and what one start of it costs."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

_DEADLINE = 60.0  # Seconds, for one start; far more than any launcher needs.
_UP = b"worker-is-up"  # Its end of line is another write in Python, and may come late.

# What the workers run. They end when the gate, a pipe, is closed: a signal to the launcher would
# not do, as torchrun leaves workers behind if it gets one while it still starts.
WORKERS = {
    "sh": ["--no-python", "/bin/sh", "-c", "exec 3<{folder}/gate; echo worker-is-up; exec cat <&3"],
    "python": ["{folder}/worker.py"],
}
_PYTHON_WORKER = """
import pathlib
gate = pathlib.Path(__file__).with_name("gate").open("rb")
print("worker-is-up", flush=True)
gate.read()
"""


class LauncherError(Exception):
    """A launcher that did not do what it was started for; the message has its output."""


@dataclasses.dataclass(frozen=True)
class Launcher:
    """A launcher's command line, up to the options that all of them share."""

    name: str
    command: tuple[str, ...]
    version: str


@dataclasses.dataclass(frozen=True)
class Start:
    """What one start cost: seconds, and KiB of the launcher's own process."""

    first: float  # From exec to the first worker's line.
    all: float  # From exec to the last worker's first line.
    stop: float  # From the moment when the workers end to the launcher's end.
    rss: int  # Once all workers are up.
    peak: int


def syncline() -> Launcher:
    """Syncline's, as built."""
    here = pathlib.Path(os.path.abspath(__file__))  # In the runfiles: links are not followed.
    binary = here.parents[2] / "launch" / "syncline_run"
    return Launcher("syncline-run", (str(binary),), "this version")


def torchrun() -> Launcher:
    """PyTorch's. Raises LauncherError if there is no torch."""
    if importlib.util.find_spec("torch") is None:
        import pypi_torch_status

        raise LauncherError(f"no torch: {pypi_torch_status.REASON}")
    version = importlib.metadata.version("torch")
    return Launcher("torchrun", (sys.executable, "-m", "torch.distributed.run"), f"torch {version}")


def _memory(pid: int) -> tuple[int, int]:
    """Resident now and at most, KiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return int(fields["VmRSS"].split()[0]), int(fields["VmHWM"].split()[0])


@contextlib.contextmanager
def _gate(path: pathlib.Path) -> Iterator[Callable[[], None]]:
    """A pipe from which workers read nothing until it is closed, by the function that is given."""
    os.mkfifo(path)
    with contextlib.ExitStack() as gate:
        # For reading, too: so that opening it does not wait.
        gate.callback(os.close, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        yield gate.close


@contextlib.contextmanager
def _running(
    command: list[str], environment: dict[str, str], errors: pathlib.Path
) -> Iterator[subprocess.Popen[bytes]]:
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()  # What is left of the job may hold the other end.


def _wait_for_lines(process: subprocess.Popen[bytes], workers: int) -> list[float]:
    """When each of the workers' lines came."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    text, times = b"", list[float]()
    deadline = time.perf_counter() + _DEADLINE
    while len(times) < workers:
        left = deadline - time.perf_counter()
        ready, _, _ = select.select([fd], [], [], max(0.0, left))
        data = os.read(fd, 65536) if ready else b""
        if not data:
            raise LauncherError(f"{len(times)} of {workers} workers came up")
        text += data
        now = time.perf_counter()
        times.extend([now] * (text.count(_UP) - len(times)))
    return times


def measure(launcher: Launcher, kind: str, workers: int) -> Start:
    """Starts `workers` workers of `kind` (see WORKERS) under `launcher`, and stops them.

    Raises LauncherError, with what the launcher said, if they do not all come up and end.
    """
    with tempfile.TemporaryDirectory(prefix="launcher-") as folder:
        errors = pathlib.Path(folder, "stderr")
        pathlib.Path(folder, "worker.py").write_text(_PYTHON_WORKER)
        # The same for all; torch is found by the Python path that Bazel has given this program.
        environment = {
            "HOME": folder,
            "OMP_NUM_THREADS": "1",
            "PATH": os.environ["PATH"],
            "PYTHON_EXEC": sys.executable,
            "TMPDIR": folder,
        }
        if launcher.name == "torchrun":
            environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        command = [*launcher.command, "--standalone", f"--nproc-per-node={workers}"]
        command += [part.format(folder=folder) for part in WORKERS[kind]]
        try:
            with _gate(pathlib.Path(folder, "gate")) as close_gate:
                start = time.perf_counter()
                with _running(command, environment, errors) as process:
                    times = _wait_for_lines(process, workers)
                    rss, peak = _memory(process.pid)
                    stop = time.perf_counter()
                    close_gate()
                    process.wait(timeout=_DEADLINE)
                    end = time.perf_counter()
        except (LauncherError, subprocess.TimeoutExpired) as error:
            said = errors.read_text(errors="replace")[-2000:]
            raise LauncherError(f"{launcher.name}, {kind}: {error}\n{said}") from error
        return Start(times[0] - start, times[-1] - start, end - stop, rss, peak)
