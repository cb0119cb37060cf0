"""How ReducerStats prints in Python: as its table."""

from __future__ import annotations

from syncline._syncline import ReducerStats


def add_to_reducer_stats() -> None:
    """Adds that to the class. To be called once."""
    for name in ("__str__", "__repr__"):
        setattr(ReducerStats, name, lambda self: self.table)
