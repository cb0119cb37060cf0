"""A small API with one of everything."""

from datetime import timedelta
from enum import Enum
from typing import Any, TypeAlias

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

    def get(self, key: str, timeout: timedelta | None = None) -> bytes:
        """Adapted, and waits in pieces."""

    @property
    def name(self) -> str:
        """Its name."""

class HashStore(Store):
    """A store with a base."""

    @staticmethod
    def create(timeout: timedelta = timedelta(seconds=300)) -> HashStore:
        """Static and adapted."""

class Work:
    """An operation in flight."""

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

    def mix(self, tensor: Tensor, inputs: list[Tensor] = []) -> None:
        """Has an `_async` twin."""

    def mix_async(self, tensor: Tensor, inputs: list[Tensor] = []) -> Work:
        """As mix, in the background."""

    def recv(self, ranks: list[int], sizes: list[int]) -> int:
        """The rank: a small number in Java, as are `ranks`."""

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Ends it."""

    def find(self, other: Painter, values: list[bytes], tensor: Tensor) -> Painter | None:
        """May find nothing."""

    @property
    def groups(self) -> list[list[int]]:
        """Lists of lists."""

class Tools:
    """Has no objects."""

    @staticmethod
    def names() -> list[str]:
        """ValueError & None: <said> in Java's words."""
