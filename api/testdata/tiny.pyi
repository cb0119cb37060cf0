"""A small API with one of everything."""

from datetime import timedelta
from enum import Enum
from typing import Any, TypeAlias

from description import (
    InputTensor,
    Int32,
    OutputTensor,
    Rank,
    accessor,
    adapted,
    collective,
    field,
    java_arrays,
    java_base,
    nonblocking,
    python_only,
)

Tensor: TypeAlias = Any
"""Any array."""

class Color(Enum):
    """How it looks."""

    RED = 0
    DARK_BLUE = 1

class Store:
    """A "store".

    With two paragraphs.
    """

    @adapted
    def get(self, key: str, timeout: timedelta | None = None) -> bytes:
        """Adapted, and waits in pieces."""

    @property
    def name(self) -> str:
        """Its name."""

class HashStore(Store):
    """A store with a base."""

    @staticmethod
    @adapted
    def create(timeout: timedelta = timedelta(seconds=300)) -> HashStore:
        """Static and adapted."""

@java_base("WorkBase")
class Work:
    """An operation in flight."""

    @accessor
    def source_rank(self) -> Rank:
        """A method that C++ calls source_rank."""

    @python_only
    def result(self) -> list[Any]:
        """Nobody else has it."""

    @adapted
    def wait(self, timeout: timedelta | None = None) -> None:
        """Java has another wait."""

class Painter:
    """Uses the rest of the vocabulary."""

    @staticmethod
    def open(path: str = 'a"b', size: int = -1, scale: float = 1.5, on: bool = True) -> Painter:
        """Static, with literals for defaults."""

    def paint_all(
        self,
        tensors: list[Tensor],
        color: Color = Color.DARK_BLUE,
        store: Store | None = None,
        names: list[str] = [],
        title: str | None = None,
    ) -> None:
        """Calls PaintAll."""

    @collective
    def mix(self, output: OutputTensor, inputs: list[InputTensor] = []) -> None:
        """Has an `_async` twin."""

    @collective
    @java_arrays
    def send(
        self,
        tensor: InputTensor,
        dst: Rank,
        color: Color = Color.RED,
        timeout: timedelta | None = None,
        scale: float = 1.0,
    ) -> None:
        """Takes arrays in Java, and has shorter forms without the timeout and what follows it."""

    def recv(self, ranks: list[Rank], sizes: list[int]) -> Rank:
        """The rank: an int in Java, as are `ranks`."""

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Ends it."""

    def find(self, other: Painter, values: list[bytes], tensor: Tensor) -> Painter | None:
        """May find nothing."""

    @nonblocking
    def hurry(self) -> None:
        """Stays on a virtual thread."""

    @property
    @field
    def groups(self) -> list[list[Int32]]:
        """Lists of lists, in a field."""

class Tools:
    """Has no objects."""

    @staticmethod
    def names() -> list[str]:
        """ValueError & None: <said> in Java's words."""
