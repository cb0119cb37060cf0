"""Events of a job, by the names of torch.distributed.elastic.events.

    record(Event("epoch", EventSource.WORKER, metadata={"loss": 0.1}), destination="console")

A destination is a logging.Handler by its name: `null` and `console` are there, `register_handler`
adds others. LaunchConfig's `event_log_handler` may name one: the launcher's events are recorded
there while the job runs.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import traceback
from dataclasses import asdict, dataclass, field
from enum import Enum

EventMetadataValue = str | int | float | bool | None


class EventSource(str, Enum):
    """Who has recorded an event."""

    AGENT = "AGENT"
    WORKER = "WORKER"


class NodeState(str, Enum):
    """How a node stands in the rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class Event:
    """Something that has happened; `timestamp` in milliseconds since 1970."""

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        if isinstance(data, Event):
            return data
        fields = json.loads(data)
        fields["source"] = EventSource(fields["source"])
        return Event(**fields)

    def serialize(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class RdzvEvent:
    """Something that a node has done in the rendezvous."""

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        if isinstance(data, RdzvEvent):
            return data
        fields = json.loads(data)
        fields["node_state"] = NodeState(fields["node_state"])
        return RdzvEvent(**fields)

    def serialize(self) -> str:
        return json.dumps(asdict(self))


_handlers: dict[str, logging.Handler] = {
    "null": logging.NullHandler(),
    "console": logging.StreamHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
}
_loggers: dict[str, logging.Logger] = {}


def register_handler(destination: str, handler: logging.Handler) -> None:
    """Has events for `destination` go to `handler`, instead of the earlier one if there was one."""
    _handlers[destination] = handler
    if destination in _loggers:
        _loggers[destination].handlers[:] = [handler]


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """The handler of that name; ValueError, with the names that there are, if there is none."""
    if destination not in _handlers:
        raise ValueError(f"no event handler '{destination}'; there are {', '.join(_handlers)}")
    return _handlers[destination]


def record(event: Event, destination: str = "null") -> None:
    """Gives the event to the handler, as a line of JSON."""
    _logger(destination).info(event.serialize())


def record_rdzv_event(event: RdzvEvent) -> None:
    """The same for the handler `dynamic_rendezvous`."""
    _logger("dynamic_rendezvous").info(event.serialize())


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Records an event of the caller; the file and function of the caller name it."""
    if isinstance(_handlers["dynamic_rendezvous"], logging.NullHandler):
        return
    caller = sys._getframe(1).f_code
    record_rdzv_event(
        RdzvEvent(
            name=f"{os.path.basename(caller.co_filename)}:{name or caller.co_name}",
            run_id=run_id,
            message=message,
            hostname=hostname or socket.getfqdn(),
            pid=pid or os.getpid(),
            node_state=node_state,
            master_endpoint=master_endpoint,
            rank=rank,
            local_id=local_id,
            error_trace=traceback.format_exc() if node_state is NodeState.FAILED else "",
        )
    )


def _logger(destination: str) -> logging.Logger:
    if destination not in _loggers:
        handler = get_logging_handler(destination)
        logger = logging.getLogger(f"syncline.elastic.events.{destination}")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.handlers[:] = [handler]
        _loggers[destination] = logger
    return _loggers[destination]
