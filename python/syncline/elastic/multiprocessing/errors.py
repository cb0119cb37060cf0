"""How workers have failed, by the names of torch.distributed.elastic.multiprocessing.errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from syncline.elastic.recording import NOT_AVAILABLE, ErrorHandler, get_error_handler, record

_LONGEST_RULE = 60


@dataclass
class ProcessFailure:
    """One worker's end. What it recorded is read from `error_file`, if that is there.

    Attributes:
      exitcode: of the process; -n if signal n killed it.
      message: what was recorded: a text, or a dict with `message` and `extraInfo`.
      timestamp: when it was recorded, in seconds since 1970; otherwise when this was made.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False)
    message: Any = field(init=False)
    timestamp: int = field(init=False)

    def __post_init__(self) -> None:
        self.error_file_data = {"message": "<NONE>"}
        self.message = ""
        self.timestamp = int(time.time())
        if os.path.isfile(self.error_file):
            with open(self.error_file, encoding="utf-8") as file:
                self.error_file_data = json.load(file)
            self.message = self.error_file_data["message"]
            about = self.message["extraInfo"] if isinstance(self.message, dict) else None
            self.timestamp = int((about or self.error_file_data).get("timestamp", 0))
        else:
            self.error_file = NOT_AVAILABLE
        if not self.message:
            self.message = (
                f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
                if self.exitcode < 0
                else "no exception was recorded: decorate the main function with "
                "syncline.elastic.record, or see what the worker printed"
            )

    def signal_name(self) -> str:
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")

    def text(self) -> str:
        """The traceback if there is one, otherwise the message."""
        if not isinstance(self.message, dict):
            return str(self.message)
        about = self.message.get("extraInfo", {})
        return str(about.get("py_callstack", self.message.get("message", NOT_AVAILABLE)))


class ChildFailedError(Exception):
    """Workers have failed. `failures` has them by rank."""

    def __init__(self, name: str, failures: dict[int, ProcessFailure]):
        if not failures:
            raise AssertionError("a ChildFailedError needs failures")
        self.name = name
        self.failures = failures
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """The rank that failed first, and how."""
        rank = min(self.failures, key=lambda rank: self.failures[rank].timestamp)
        return rank, self.failures[rank]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """All failures as a text, the first one last."""
        first, _ = self.get_first_failure()
        shown = {
            rank: _shown(index, rank, failure)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        title = f"{self.name} FAILED"
        longest = max(len(line) for text in (title, *shown.values()) for line in text.split("\n"))
        width = min(longest, _LONGEST_RULE)
        others = [text for rank, text in shown.items() if rank != first]
        return "\n".join(
            [
                "",
                boarder_delim * width,
                title,
                section_delim * width,
                "Failures:",
                *(others or ["  <NO_OTHER_FAILURES>"]),
                section_delim * width,
                "Root Cause (first observed failure):",
                shown[first],
                boarder_delim * width,
            ]
        )


def _shown(index: int, rank: int, failure: ProcessFailure) -> str:
    name = f" ({failure.signal_name()})" if failure.exitcode < 0 else ""
    text = failure.text().replace("\n", "\n  ")
    return (
        f"[{index}]:\n"
        f"  time      : {failure.timestamp_isoformat()}\n"
        f"  host      : {socket.getfqdn()}\n"
        f"  rank      : {rank} (local_rank: {failure.local_rank})\n"
        f"  exitcode  : {failure.exitcode} (pid: {failure.pid}){name}\n"
        f"  error_file: {failure.error_file}\n"
        f"  traceback : {text}"
    )


__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "ProcessFailure",
    "get_error_handler",
    "record",
]
