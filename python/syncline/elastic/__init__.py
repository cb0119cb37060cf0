"""What a worker of an elastic job knows of it, and reports to its launcher; jobs from Python.

    from syncline import elastic

    @elastic.record
    def main():
        ...
        elastic.heartbeat()  # In every step, for --health-timeout.

Under syncline-run and under torchrun alike; without either, a job of one round.

What torch.distributed.elastic and torch.distributed.launcher have is here by the same names, in the
modules `launcher` (LaunchConfig, elastic_launch, run), `agent`, `events`, `metrics`, `timer`,
`rendezvous` and `multiprocessing`; docs/compatibility.md says what differs.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from syncline._syncline import Heartbeat
from syncline.elastic.recording import record

if TYPE_CHECKING:
    from syncline.elastic.agent import LocalElasticAgent, WorkerSpec
    from syncline.elastic.launcher import LaunchConfig, elastic_launch, launch_agent, run
    from syncline.elastic.multiprocessing import (
        ChildFailedError,
        DefaultLogsSpecs,
        LogsSpecs,
        SignalException,
        Std,
    )

# Imported where they are asked for: workers do not need them.
_LATER = {
    "ChildFailedError": "multiprocessing",
    "DefaultLogsSpecs": "multiprocessing",
    "LaunchConfig": "launcher",
    "LocalElasticAgent": "agent",
    "LogsSpecs": "multiprocessing",
    "SignalException": "multiprocessing",
    "Std": "multiprocessing",
    "WorkerSpec": "agent",
    "elastic_launch": "launcher",
    "launch_agent": "launcher",
    "run": "launcher",
}
_MODULES = ("agent", "events", "launcher", "metrics", "multiprocessing", "rendezvous", "timer")

_heartbeat = Heartbeat.create()


def heartbeat() -> None:
    """Says to the launcher that this process makes progress; for every step.

    Touches the file that SYNCLINE_HEARTBEAT_FILE named when this module was imported, at most ten
    times a second; otherwise costs about 0.1 microseconds. Without that variable does nothing.
    """
    _heartbeat.beat()


def round() -> int:
    """How often the job's ranks have formed again: 0 in its first round.

    After a failure, and when nodes have come or gone. Under torchrun, the number of restarts.
    """
    return _number("SYNCLINE_ROUND", restart_count())


def restart_count() -> int:
    """How often the job has been restarted after a failure."""
    return _number("SYNCLINE_RESTART_COUNT", _number("TORCHELASTIC_RESTART_COUNT", 0))


def max_restarts() -> int:
    """How often it may be."""
    return _number("SYNCLINE_MAX_RESTARTS", _number("TORCHELASTIC_MAX_RESTARTS", 0))


def run_id() -> str:
    """The job's name, the same on all its nodes and in all its rounds; "" without a launcher."""
    theirs = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return os.environ.get("SYNCLINE_RUN_ID", theirs)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"environment variable {name}, which the launcher sets, is not a number: {text!r}"
        ) from None


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "LaunchConfig",
    "LocalElasticAgent",
    "LogsSpecs",
    "SignalException",
    "Std",
    "WorkerSpec",
    "elastic_launch",
    "heartbeat",
    "launch_agent",
    "max_restarts",
    "record",
    "restart_count",
    "round",
    "run",
    "run_id",
]
