"""Numbers that a job measures, by the names of torch.distributed.elastic.metrics.

    configure(ConsoleMetricHandler(), group="training")
    put_metric("images", 512, "training")

Groups without a handler of their own have the one that is configured without a group, which at
first drops everything. `prof` measures how long a function takes and how often it fails.
"""

from __future__ import annotations

import abc
import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

_P = ParamSpec("_P")
_R = TypeVar("_R")
_GROUP = "torchelastic"


class MetricsConfig:
    """Parameters of a handler."""

    __slots__ = ("params",)

    def __init__(self, params: dict[str, str] | None = None):
        self.params = params if params is not None else {}


class MetricData(NamedTuple):
    """One value; `timestamp` in seconds since 1970."""

    timestamp: float
    group_name: str
    name: str
    value: float


class MetricHandler(abc.ABC):
    """Where values go."""

    @abc.abstractmethod
    def emit(self, metric_data: MetricData) -> None: ...


class ConsoleMetricHandler(MetricHandler):
    """Prints each value as a line."""

    def emit(self, metric_data: MetricData) -> None:
        time, group, name, value = metric_data
        print(f"[{time}][{group}]: {name}={value}")


class NullMetricHandler(MetricHandler):
    """Drops them."""

    def emit(self, metric_data: MetricData) -> None:
        pass


class MetricStream:
    """The values of one group."""

    def __init__(self, group_name: str, handler: MetricHandler):
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: float) -> None:
        self.handler.emit(MetricData(time.time(), self.group_name, metric_name, metric_value))


_handlers: dict[str, MetricHandler] = {}
_default_handler: MetricHandler = NullMetricHandler()


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Has the values of `group` go to `handler`; without one those of all other groups."""
    global _default_handler
    if group is None:
        _default_handler = handler
    else:
        _handlers[group] = handler


def getStream(group: str) -> MetricStream:
    """The stream of a group, over the handler that it has now."""
    return MetricStream(group, _handlers.get(group, _default_handler))


def put_metric(metric_name: str, metric_value: float, metric_group: str = _GROUP) -> None:
    """Adds a value to a group."""
    getStream(metric_group).add_value(metric_name, metric_value)


def publish_metric(metric_group: str, metric_name: str, metric_value: float) -> None:
    """The older name of put_metric, which takes the group first."""
    warnings.warn("use put_metric(name, value, group)", FutureWarning, stacklevel=2)
    put_metric(metric_name, metric_value, metric_group)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Milliseconds since `start_time_in_seconds` of time.time()."""
    return int((time.time() - start_time_in_seconds) * 1000)


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Does nothing, as in torch: a place for those who configure handlers."""


@overload
def prof(fn: Callable[_P, _R], group: str = ...) -> Callable[_P, _R]: ...
@overload
def prof(fn: None = None, group: str = ...) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
def prof(fn: Any = None, group: str = _GROUP) -> Any:
    """A decorator that adds NAME.success or NAME.failure, and NAME.duration.ms, for each call."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        return _measured(function, function.__qualname__, group)

    return decorate(fn) if fn is not None else decorate


def profile(group: str | None = None) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """The older form of prof."""
    warnings.warn("use prof(group=...)", FutureWarning, stacklevel=2)
    return lambda function: _measured(function, function.__name__, group or _GROUP)


def _measured(function: Callable[_P, _R], name: str, group: str) -> Callable[_P, _R]:
    @functools.wraps(function)
    def measured(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        start = time.time()
        outcome = "failure"
        try:
            result = function(*args, **kwargs)
            outcome = "success"
            return result
        finally:
            put_metric(f"{name}.{outcome}", 1, group)
            put_metric(f"{name}.duration.ms", get_elapsed_time_ms(start), group)

    return measured
