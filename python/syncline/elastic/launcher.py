"""Jobs that a program starts, by the names of torch.distributed.launcher.

    def train(rate):
        dist.init_process_group()
        ...
        return loss

    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=4, rdzv_backend="c10d")
    losses = elastic_launch(config, train)(0.1)     # {0: ..., 1: ..., 2: ..., 3: ...}

The launcher (docs/launcher.md) runs as a process of its own: the same that `syncline-run` is, with
all it does about restarts, rendezvous, logs and signals. Functions of a notebook, lambdas and
functions within functions may be called too; see syncline.elastic.by_value.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.process
import multiprocessing.spawn
import os
import pickle
import re
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from syncline import run as _run
from syncline.elastic import by_value, events, rendezvous
from syncline.elastic.files import CALL, PREPARATION, error_path, result_path
from syncline.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, SignalException
from syncline.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

_LOOK = 0.1  # Seconds between two looks at the events.
_FAILED = re.compile(r"syncline-run: (rank \d+ .*\bfailed\b.*)")
_GRACE = 10.0  # Of the launcher, over its own time to stop.
_TAIL = 30  # Lines of its stderr that an error shows.
# Becomes the launcher, which is told to stop if this process dies. Before that nothing is imported.
_FOLLOW = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,15);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);os.execv(sys.argv[2],sys.argv[2:])"
)


@dataclass
class LaunchConfig:
    """How to launch; fields and defaults are torch's, options of docs/launcher.md their meaning.

    `monitor_interval`, `start_method` and `metrics_cfg` have no effect: workers are watched without
    an interval, and are programs of their own. `rdzv_configs["timeout"]` is the time in which nodes
    must have come (`join_timeout`). On one node without an endpoint there is no rendezvous.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None

    def __post_init__(self) -> None:
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        else:
            self.rdzv_configs.setdefault("timeout", 900)
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
        if self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout must not be negative, as {self.shutdown_timeout}")


class elastic_launch:
    """Calls a function, or runs a program, in all workers of a job; blocks until it has ended.

    Returns what the function returned, by rank, of the workers of this node; None for a worker that
    has ended by sys.exit(0), and for each of a program. Workers import the main module of functions
    again: what launches must be under `if __name__ == "__main__":`.

    Raises ChildFailedError if workers have failed and no restart is left, here or on another node;
    SignalException if a signal of `signals_to_handle` has stopped the job, RuntimeError if it could
    not begin.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: Any = None,
    ):
        if health_check_server is not None:
            raise NotImplementedError(
                "the launcher serves its own health: see --metrics-port in docs/monitoring.md"
            )
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: Any = None,
) -> dict[int, Any]:
    """As elastic_launch(config, entrypoint)(*args)."""
    if entrypoint is None:
        raise ValueError("entrypoint is None: give a function or a program")
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise RuntimeError(
            f"{_name_of(entrypoint, args)} would be launched by each worker again: workers import "
            'the main module. Launch it under `if __name__ == "__main__":`'
        )
    if not config.run_id:
        config.run_id = uuid.uuid4().hex
    folder = tempfile.mkdtemp(prefix="syncline-launch-")
    kept: set[str] = set()
    try:
        return _Job(config, entrypoint, args, folder).run()
    except ChildFailedError as error:
        kept = {os.path.basename(failure.error_file) for failure in error.failures.values()}
        raise
    finally:
        for name in set(os.listdir(folder)) - kept:
            os.remove(os.path.join(folder, name))
        with contextlib.suppress(OSError):  # Error files are for those who look at the failures.
            os.rmdir(folder)


_End = tuple[int, int, int, int]  # Of a worker: local rank, pid, exit code and time.


class _Job:
    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str,
        args: list[Any],
        folder: str,
    ):
        self._config = config
        self._signals = _signals_of(config.signals_to_handle)
        self._name = _name_of(entrypoint, args)
        self._folder = folder
        self._events = os.path.join(folder, "events")
        self._returns = not isinstance(entrypoint, str)
        if isinstance(entrypoint, str):
            program = ["--no-python", entrypoint, *(str(argument) for argument in args)]
        else:
            _leave_call(folder, entrypoint, args)
            program = ["-m", "syncline.elastic._worker", folder]
        self._program = program
        self._handler: rendezvous.RendezvousHandler | None = None
        # Of the round that is on, and of all: what the launcher's events say.
        self._round = 0
        self._ranks: dict[int, int] = {}
        self._failures: dict[int, _End] = {}
        self._stopped: dict[int, _End] = {}  # Failed, but because the launcher stopped them.
        self._was_asked_to_stop = False

    def run(self) -> dict[int, Any]:
        try:
            command = [_run.find_launcher(), *self._options(), *self._program]
            code, err = self._watch(command)
        finally:
            if self._handler is not None:
                self._handler.shutdown()
        if code == 0:
            return self._results()
        if self._failures:
            raise ChildFailedError(self._name, self._process_failures(self._failures))
        if self._stopped and err.failure and not self._was_asked_to_stop:
            # No event tells of workers of other nodes.
            cause = f"stopped because of a failure on another node: {err.failure}"
            raise ChildFailedError(self._name, self._process_failures(self._stopped, cause))
        tail = "\n".join(err.tail)
        raise RuntimeError(
            f"the launcher has ended with exit code {code}, without a worker that failed:\n{tail}"
        )

    def _options(self) -> list[str]:
        config = self._config
        options = [
            f"--nproc-per-node={config.nproc_per_node}",
            f"--role={config.role}",
            f"--max-restarts={config.max_restarts}",
            f"--signals-to-handle={','.join(number.name for number in self._signals)}",
            f"--shutdown-timeout={config.shutdown_timeout}",
            f"--event-log={self._events}",
            *self._meeting(),
            *(config.logs_specs.options() if config.logs_specs else []),
        ]
        if config.log_line_prefix_template is not None:
            options.append(f"--log-line-prefix-template={config.log_line_prefix_template}")
        if config.local_addr:
            options.append(f"--local-addr={config.local_addr}")
        for stream in ("stdout", "stderr"):
            if filters := getattr(config, f"duplicate_{stream}_filters"):
                options.append(f"--duplicate-{stream}-filters={','.join(filters)}")
        if config.virtual_local_rank:
            options.append("--virtual-local-rank")
        if config.numa_options is not None:
            mode = getattr(config.numa_options, "affinity_mode", config.numa_options)
            options.append(f"--numa-binding={getattr(mode, 'value', mode)}")
        return options

    def _meeting(self) -> list[str]:
        """How the nodes find each other."""
        config = self._config
        nodes = f"--nnodes={config.min_nodes}:{config.max_nodes}"
        parameters = rendezvous.RendezvousParameters(
            config.rdzv_backend,
            config.rdzv_endpoint,
            config.run_id,
            config.min_nodes,
            config.max_nodes,
            config.local_addr,
            **config.rdzv_configs,
        )
        handler = rendezvous.get_rendezvous_handler(parameters)
        if not isinstance(handler, rendezvous.LauncherRendezvous):
            self._handler = handler
            return self._meeting_by(handler)
        # The launcher finds a port by itself.
        alone = config.max_nodes == 1 and config.rdzv_endpoint in ("", "localhost:0", "127.0.0.1:0")
        if alone:
            return ["--nnodes=1", f"--rdzv-id={config.run_id}"]
        conf = dict(config.rdzv_configs)
        timeout = conf.pop("timeout", None)
        if timeout is not None:
            conf.setdefault("join_timeout", timeout)
        rank = conf.pop("rank", None)
        options = [
            nodes,
            f"--rdzv-backend={config.rdzv_backend}",
            f"--rdzv-endpoint={config.rdzv_endpoint}",
            f"--rdzv-id={config.run_id}",
            "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in conf.items()),
        ]
        return options if rank is None else [*options, f"--node-rank={rank}"]

    def _meeting_by(self, handler: rendezvous.RendezvousHandler) -> list[str]:
        """Node ranks from a handler of Python, and node 0's address through its store."""
        info = handler.next_rendezvous()
        place = info.bootstrap_store_info or rendezvous.RendezvousStoreInfo.build(
            info.rank, info.store, self._config.local_addr
        )
        if info.world_size == 1:
            return ["--standalone"]
        return [
            f"--nnodes={info.world_size}",
            f"--node-rank={info.rank}",
            "--rdzv-backend=static",
            f"--master-addr={place.master_addr}",
            f"--master-port={place.master_port}",
            f"--rdzv-id={self._config.run_id}",
        ]

    def _watch(self, command: list[str]) -> tuple[int, _Relay]:
        """Runs the launcher; its exit code, and what it said."""
        environment = dict(os.environ, PYTHON_EXEC=_run.interpreter())
        if self._returns and (path := _path_of_package()) is not None:
            # Until the worker has this process's sys.path, and its own PYTHONPATH again.
            paths = filter(None, (environment.get("PYTHONPATH"), path))
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        with (
            _Relay(sys.stdout, 1) as out,
            _Relay(sys.stderr, 2, always=True) as err,
            _PassedSignals(self._signals) as signals,
        ):
            launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _FOLLOW, str(os.getpid()), *command],
                stdout=out.target,
                stderr=err.target,
                env=environment,
                # Ctrl-C comes to it once, from here: a second one would end the workers at once.
                start_new_session=True,
            )
            try:
                signals.pass_to(launcher)
                out.begin()
                err.begin()
                self._wait(launcher)
            except BaseException:
                self._stop(launcher)
                raise
        self._read_events()
        if signals.passed:
            number = signal.Signals(signals.passed[0])
            raise SignalException(f"{number.name} has stopped the job", number)
        return launcher.returncode, err

    def _wait(self, launcher: subprocess.Popen[bytes]) -> None:
        while True:
            try:
                launcher.wait(timeout=_LOOK)
                return
            except subprocess.TimeoutExpired:
                self._read_events()

    def _stop(self, launcher: subprocess.Popen[bytes]) -> None:
        if launcher.poll() is None:
            launcher.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(timeout=(self._config.shutdown_timeout or 0) + _GRACE)
        finally:
            if launcher.poll() is None:
                launcher.kill()
                launcher.wait()

    _read = 0
    _rest = b""

    def _read_events(self) -> None:
        try:
            with open(self._events, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        name = event.get("event")
        if name == "round_formed":
            self._round = event["round"]
            self._failures.clear()
            self._stopped.clear()
        elif name == "workers_started":
            self._ranks = {worker["rank"]: worker["local_rank"] for worker in event["workers"]}
        elif name in ("worker_failed", "worker_exited"):
            number = event["signal"]
            code = -_signal_number(number) if number else event["exit_code"]
            end = (event["local_rank"], event["pid"], code, int(event["time"]))
            if name == "worker_failed":
                self._failures.setdefault(event["rank"], end)
            elif code != 0:
                self._stopped.setdefault(event["rank"], end)
        elif name == "stop_signal":
            self._was_asked_to_stop = True
        if self._config.event_log_handler != "null":
            plain = (str, int, float, bool, type(None))
            about = {k: v if isinstance(v, plain) else json.dumps(v) for k, v in event.items()}
            moment = int(1000 * event.get("time", time.time()))
            agent = events.EventSource.AGENT
            recorded = events.Event(str(name), agent, moment, metadata=about)
            events.record(recorded, self._config.event_log_handler)

    def _results(self) -> dict[int, Any]:
        if not self._returns:
            return dict.fromkeys(sorted(self._ranks))
        results: dict[int, Any] = {}
        for rank in sorted(self._ranks):
            try:
                with open(result_path(self._folder, self._round, rank), "rb") as file:
                    data = file.read()
            except FileNotFoundError:  # It has ended well, by os._exit(0) for one.
                results[rank] = None
            else:
                results[rank] = by_value.loads(data)
        return results

    def _process_failures(
        self, ends: dict[int, _End], cause: str | None = None
    ) -> dict[int, ProcessFailure]:
        """`cause` is the message of those that have recorded nothing."""
        found = {}
        for rank, (local_rank, pid, code, moment) in ends.items():
            path = error_path(self._folder, self._round, rank)
            found[rank] = ProcessFailure(local_rank, pid, code, path)
            if not os.path.exists(path):
                found[rank].timestamp = moment
                found[rank].message = cause or found[rank].message
        return found


class _Relay:
    """Where one stream of the launcher goes: to this process's own, or line by line to a file of
    Python's that is not that, as in a notebook."""

    def __init__(self, file: Any, number: int, always: bool = False):
        self._file = file
        self._number = number
        self._always = always
        self.tail: list[str] = []
        self.failure = ""  # The last line of the launcher about a rank that failed.
        self.target: int | None = None
        self._reader: int = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _Relay:
        if self._always or not self._is_own():
            self._reader, self.target = os.pipe()
        return self

    def _is_own(self) -> bool:
        try:
            return bool(self._file.fileno() == self._number)
        except (AttributeError, OSError, ValueError):
            return False

    def begin(self) -> None:
        """The launcher has its end: this process lets go of that."""
        if self.target is not None:
            os.close(self.target)
            self.target = None
            self._thread = threading.Thread(target=self._pass, daemon=True)
            self._thread.start()

    def _pass(self) -> None:
        # Without a newline of its own it leaves each \r where it is: progress bars need them.
        with os.fdopen(
            self._reader, "r", encoding="utf-8", errors="backslashreplace", newline=""
        ) as lines:
            self._reader = -1
            overwritten = False
            for line in lines:
                kept = self.tail[:-1] if overwritten else self.tail
                self.tail = [*kept[-_TAIL:], line.rstrip("\r\n")]
                overwritten = line.endswith("\r")
                if found := _FAILED.match(line):
                    self.failure = found[1]
                try:
                    self._file.write(line)
                    self._file.flush()
                except Exception:  # The launcher must not wait for a file that takes nothing more.
                    continue

    def __exit__(self, *_: object) -> None:
        if self.target is not None:
            os.close(self.target)
        if self._thread is not None:
            self._thread.join(_GRACE)
        if self._reader >= 0 and self._thread is None:
            os.close(self._reader)


class _PassedSignals:
    """Passes signals on to the launcher, where this is Python's main thread."""

    def __init__(self, numbers: list[signal.Signals]):
        self.passed: list[int] = []
        self._numbers = numbers
        self._waiting: deque[int] = deque()
        self._launcher: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _PassedSignals:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in self._numbers:
                    handler = signal.getsignal(number)
                    if handler is None:  # Not Python's: it could not be put back.
                        continue
                    self._before[number] = handler
                    signal.signal(number, self._pass_on)
            except BaseException:
                self.__exit__()
                raise
        return self

    def pass_to(self, launcher: subprocess.Popen[bytes]) -> None:
        """From now on; also those that have come already."""
        self._launcher = launcher
        self._send()

    def _pass_on(self, number: int, _: Any) -> None:
        self.passed.append(number)
        self._waiting.append(number)
        self._send()

    def _send(self) -> None:
        # Each once, though a handler may interrupt this: a second one would end workers at once.
        while self._launcher is not None:
            try:
                number = self._waiting.popleft()
            except IndexError:
                return
            self._launcher.send_signal(number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _signals_of(names: str) -> list[signal.Signals]:
    """Spelled as the launcher allows it: SIGTERM, TERM or term."""
    found = []
    for name in filter(None, (name.strip() for name in names.split(","))):
        number = signal.Signals.__members__.get("SIG" + name.upper().removeprefix("SIG"))
        if number is None:
            raise ValueError(f"signals_to_handle: there is no signal {name!r}")
        if number in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(f"signals_to_handle: no process can handle {number.name}")
        found.append(number)
    return list(dict.fromkeys(found))


def _signal_number(name: str) -> int:
    """Of an event; signals without a name are "signal 50"."""
    if name in signal.Signals.__members__:
        return signal.Signals[name]
    found = re.search(r"\d+$", name)
    return int(found[0]) if found else signal.SIGKILL


def _path_of_package() -> str | None:
    """Where a worker must look for this package, if it does not look there by itself."""
    path = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    known = [*site.getsitepackages(), site.getusersitepackages()]
    return None if _run.interpreter() == sys.executable and path in known else path


def _leave_call(folder: str, function: Callable[..., Any], args: list[Any]) -> None:
    preparation = multiprocessing.spawn.get_preparation_data("worker")
    # Of these a worker needs its own.
    for name in ("authkey", "name", "sys_argv", "orig_dir", "log_to_stderr", "start_method"):
        preparation.pop(name, None)
    if not by_value.main_is_a_file():
        preparation.pop("init_main_from_path", None)
    with open(os.path.join(folder, PREPARATION), "wb") as file:
        pickle.dump((preparation, os.environ.get("PYTHONPATH")), file)
    try:
        data = by_value.dumps((function, tuple(args)))
    except Exception as error:
        raise TypeError(
            f"{_name_of(function, args)} and its arguments cannot be given to workers: {error}"
        ) from error
    with open(os.path.join(folder, CALL), "wb") as call:
        call.write(data)


def _name_of(entrypoint: Callable[..., Any] | str, args: list[Any]) -> str:
    if not isinstance(entrypoint, str):
        return str(getattr(entrypoint, "__qualname__", entrypoint))
    if entrypoint == sys.executable:
        return next((str(argument) for argument in args if not str(argument).startswith("-")), "")
    return entrypoint


def run(
    fn: Callable[..., Any],
    nprocs: int = 1,
    args: tuple[Any, ...] = (),
    *,
    max_restarts: int = 0,
    **options: Any,
) -> list[Any]:
    """Calls `fn(*args)` in `nprocs` workers of this host; what they return, in the order of ranks.

    For notebooks and interactive sessions, whose functions and classes it takes along; what workers
    print appears where `print` does. `options` are fields of LaunchConfig. Raises what
    elastic_launch does.
    """
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=nprocs, max_restarts=max_restarts, **options
    )
    results = elastic_launch(config, fn)(*args)
    return [results[rank] for rank in sorted(results)]


__all__ = ["LaunchConfig", "elastic_launch", "launch_agent", "run"]
