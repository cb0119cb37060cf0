"""An agent as an object, by the names of torch.distributed.elastic.agent.server.

spec = WorkerSpec("trainer", 4, get_rendezvous_handler(parameters), entrypoint=train, args=(0.1,))
result = LocalElasticAgent(spec).run()
result.return_values if not result.is_failed() else result.failures
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from syncline.elastic.launcher import LaunchConfig, elastic_launch
from syncline.elastic.multiprocessing import LogsSpecs
from syncline.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from syncline.elastic.rendezvous import LauncherRendezvous, RendezvousHandler


@dataclass
class WorkerSpec:
    """What workers of one kind are; torch's fields and defaults."""

    role: str
    local_world_size: int
    rdzv_handler: RendezvousHandler
    fn: Callable[..., Any] | None = None
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        if self.local_world_size < 1:
            raise ValueError(f"local_world_size must be positive, not {self.local_world_size}")
        if self.fn is not None:
            warnings.warn("WorkerSpec.fn is now entrypoint", FutureWarning, stacklevel=3)
            self.entrypoint = self.fn
        if self.entrypoint is None:
            raise ValueError("entrypoint is None: give a function or a program")

    def get_entrypoint_name(self) -> str:
        if isinstance(self.entrypoint, str):
            return self.entrypoint.rsplit("/", 1)[-1]
        return str(getattr(self.entrypoint, "__qualname__", self.entrypoint))


class WorkerState(str, Enum):
    """How the workers of a node are."""

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


@dataclass
class RunResult:
    """What has become of the workers of this node, by rank."""

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return self.state is WorkerState.FAILED


class LocalElasticAgent:
    """Runs the workers of a WorkerSpec on this host, by the launcher."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
    ):
        del start_method, exit_barrier_timeout  # See docs/compatibility.md.
        self._spec = spec
        handler = spec.rdzv_handler
        if isinstance(handler, LauncherRendezvous):
            parameters = handler.parameters
            meeting: dict[str, Any] = {
                "min_nodes": parameters.min_nodes,
                "max_nodes": parameters.max_nodes,
                "run_id": parameters.run_id,
                "rdzv_endpoint": parameters.endpoint,
                "rdzv_backend": parameters.backend,
                "rdzv_configs": dict(parameters.config),
                "local_addr": spec.local_addr or parameters.local_addr,
            }
        else:
            raise NotImplementedError(
                "an agent needs a handler of the launcher's own; register yours with "
                "rendezvous_handler_registry, and name it in LaunchConfig's rdzv_backend"
            )
        self._config = LaunchConfig(
            nproc_per_node=spec.local_world_size,
            logs_specs=logs_specs,
            role=spec.role,
            max_restarts=spec.max_restarts,
            log_line_prefix_template=log_line_prefix_template,
            event_log_handler=spec.event_log_handler,
            numa_options=spec.numa_options,
            duplicate_stdout_filters=spec.duplicate_stdout_filters,
            duplicate_stderr_filters=spec.duplicate_stderr_filters,
            virtual_local_rank=spec.virtual_local_rank,
            shutdown_timeout=shutdown_timeout,
            **meeting,
        )

    def run(self, role: str = "default") -> RunResult:
        """Blocks until the job has ended; failures of workers are in the result."""
        del role
        try:
            values = elastic_launch(self._config, self._spec.entrypoint)(*self._spec.args)
        except ChildFailedError as error:
            return RunResult(WorkerState.FAILED, failures=error.failures)
        return RunResult(WorkerState.SUCCEEDED, return_values=values)


__all__ = ["LocalElasticAgent", "RunResult", "WorkerSpec", "WorkerState"]
