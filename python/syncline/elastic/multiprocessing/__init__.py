"""Workers' output and ends, by the names of torch.distributed.elastic.multiprocessing."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

from syncline.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record


class SignalException(Exception):
    """A signal has ended the job: `sigval`."""

    def __init__(self, msg: str, sigval: signal.Signals):
        super().__init__(msg)
        self.sigval = sigval


class Std(IntFlag):
    """Some of the two output streams of a worker."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Of "3", or by local rank of "0:1,1:2"."""
        if re.fullmatch(r"[0-3]", vm):
            return Std(int(vm))
        if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", vm):
            pairs = (part.split(":") for part in vm.split(","))
            return {int(rank): Std(int(streams)) for rank, streams in pairs}
        raise ValueError(f'{vm!r} does not say which streams; write "3", or "0:1,1:2"')


def to_map(val_or_map: Std | dict[int, Std], local_world_size: int) -> dict[int, Std]:
    """For each local rank; those that a dict leaves out have none."""
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}


class LogsSpecs:
    """Where the output of workers goes: to files, to the console, or both (`tee`)."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ):
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @property
    def root_log_dir(self) -> str | None:
        return self._root_log_dir

    def options(self) -> list[str]:
        """The launcher's options that say the same."""
        options = []
        if self._root_log_dir is not None:
            options.append(f"--log-dir={self._root_log_dir}")
        options.append(f"--redirects={_spelled(self._redirects)}")
        options.append(f"--tee={_spelled(self._tee)}")
        if self._local_ranks_filter:
            ranks = ",".join(str(rank) for rank in sorted(self._local_ranks_filter))
            options.append(f"--local-ranks-filter={ranks}")
        return options


class DefaultLogsSpecs(LogsSpecs):
    """LogsSpecs by the name under which torch has what it does itself."""


@dataclass
class RunProcsResult:
    """What has become of the workers of one host."""

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return bool(self.failures)


def _spelled(streams: Std | dict[int, Std]) -> str:
    if isinstance(streams, dict):
        return ",".join(f"{rank}:{int(value)}" for rank, value in streams.items()) or "0"
    return str(int(streams))


__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "LogsSpecs",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "record",
    "to_map",
]
