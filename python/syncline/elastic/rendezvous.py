"""How nodes find each other, by the names of torch.distributed.elastic.rendezvous.

The launcher itself meets by `static`, `c10d`, `etcd` and `file` (docs/launcher.md). A handler
written in Python is registered by a name, which LaunchConfig's `rdzv_backend` may be then:

    rendezvous_handler_registry.register("zeus", lambda parameters: Zeus(parameters))

It is asked once: its ranks and its store bring the launchers together as node ranks of a job of
fixed size. Afterwards they know each other, and restart by themselves.
"""

from __future__ import annotations

import importlib.metadata
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

LAUNCHERS_OWN = ("static", "c10d", "etcd", "etcd-v2", "file")
_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")


class RendezvousError(Exception):
    """A rendezvous has failed."""


class RendezvousClosedError(RendezvousError):
    """It was closed."""


class RendezvousTimeoutError(RendezvousError):
    """It took too long."""


class RendezvousConnectionError(RendezvousError):
    """What serves it cannot be reached."""


class RendezvousStateError(RendezvousError):
    """What it holds makes no sense."""


class RendezvousGracefulExitError(RendezvousError):
    """This node is not needed, which is no failure."""


@dataclass
class RendezvousStoreInfo:
    """Where the workers' store is, or is to be."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int, store: Any, local_addr: str | None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """What node 0 says of itself through `store`: its address, and a port that was free."""
        if rank == 0:
            address = local_addr or socket.getfqdn()
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY, address.encode())
            port = server_port or _free_port()
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(port).encode())
        return RendezvousStoreInfo(
            store.get(RendezvousStoreInfo.MASTER_ADDR_KEY).decode(),
            int(store.get(RendezvousStoreInfo.MASTER_PORT_KEY)),
        )


class RendezvousInfo:
    """What a rendezvous has come to: this node's rank among the nodes, and a store for them."""

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        bootstrap_store_info: RendezvousStoreInfo | None,
    ):
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info

    @property
    def store(self) -> Any:
        return self._store

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo | None:
        return self._bootstrap_store_info


class RendezvousHandler(ABC):
    """One node's side of a rendezvous. To be derived from."""

    @abstractmethod
    def get_backend(self) -> str:
        """The name that it is registered by."""

    @property
    def use_agent_store(self) -> bool:
        """Whether its store may serve the workers too."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until the nodes have met; raises a RendezvousError."""

    @abstractmethod
    def is_closed(self) -> bool: ...

    @abstractmethod
    def set_closed(self) -> None:
        """No node is to join any more."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes have come too late."""

    @abstractmethod
    def get_run_id(self) -> str: ...

    @abstractmethod
    def shutdown(self) -> bool:
        """Lets go of what it holds; whether all went well."""


class RendezvousParameters:
    """What a handler is made from; further keyword arguments are those of its kind."""

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **kwargs: Any,
    ):
        if not backend:
            raise ValueError("backend, the name of the rendezvous, is empty")
        if min_nodes < 1:
            raise ValueError(f"min_nodes must be positive, not {min_nodes}")
        if max_nodes < min_nodes:
            raise ValueError(f"max_nodes, {max_nodes}, is less than min_nodes, {min_nodes}")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.config = kwargs
        self.local_addr = local_addr

    def get(self, key: str, default: Any = None) -> Any:
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        value = self.get(key, default)
        text = str(value).lower()
        if value is None or isinstance(value, bool):
            return value
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise ValueError(f"rendezvous option {key}={value!r} is neither true nor false")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"rendezvous option {key}={value!r} is no integer") from None


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]


class LauncherRendezvous(RendezvousHandler):
    """Stands for a rendezvous of the launcher's own, as the argument of a WorkerSpec.

    It cannot be asked to meet: the launchers do that among themselves.
    """

    def __init__(self, parameters: RendezvousParameters):
        self.parameters = parameters
        self._is_closed = False

    def get_backend(self) -> str:
        return self.parameters.backend

    def next_rendezvous(self) -> RendezvousInfo:
        raise NotImplementedError(
            f"rendezvous '{self.get_backend()}' is the launcher's own: give it to elastic_launch "
            "or LocalElasticAgent, which start one"
        )

    def is_closed(self) -> bool:
        return self._is_closed

    def set_closed(self) -> None:
        self._is_closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.parameters.run_id

    def shutdown(self) -> bool:
        self._is_closed = True
        return True


class RendezvousHandlerRegistry:
    """Handlers by their names."""

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Has `creator` make the handlers of that name; ValueError if another one does."""
        if not backend:
            raise ValueError("backend, the name of the rendezvous, is empty")
        known = self._creators.setdefault(backend, creator)
        if known != creator:
            raise ValueError(
                f"rendezvous '{backend}' is registered already, with {known}; choose another name"
            )

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """A new handler; ValueError, with the names that there are, if there is none."""
        creator = self._creators.get(params.backend)
        if creator is None:
            names = ", ".join(sorted(self._creators))
            raise ValueError(
                f"no rendezvous '{params.backend}' is registered; there are {names}. Call "
                "rendezvous_handler_registry.register for one of your own"
            )
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"the handler that was made for rendezvous '{params.backend}' is one of "
                f"'{handler.get_backend()}'"
            )
        return handler


rendezvous_handler_registry = RendezvousHandlerRegistry()
for _name in LAUNCHERS_OWN:
    rendezvous_handler_registry.register(_name, LauncherRendezvous)


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A new handler, of those that are registered or that an installed package brings.

    Packages bring them as torch's do, by entry points of the group `torchrun.handlers`: functions
    that return a RendezvousHandlerCreator.
    """
    if params.backend not in rendezvous_handler_registry._creators:
        for entry in importlib.metadata.entry_points(
            group="torchrun.handlers", name=params.backend
        ):
            rendezvous_handler_registry.register(params.backend, entry.load()())
    return rendezvous_handler_registry.create_handler(params)


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
