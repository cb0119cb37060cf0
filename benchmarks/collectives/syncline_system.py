"""Syncline as a system of peer.py, for arrays of any library."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import syncline


class SynclineSystem:
    """Joins over a file in the group's folder; --variant names the backend."""

    def __init__(self, options: argparse.Namespace, new_array: Callable[[int], Any], library: str):
        self._world = syncline.World.init(
            options.variant,
            f"file://{options.folder}/store",
            rank=options.rank,
            world_size=options.size,
            timeout=timedelta(minutes=1),
        )
        self._group = self._world.group
        self._library = library
        self.new_array = new_array

    def describe(self) -> str:
        return f"backend {self._group.backend}, {self._library}"

    def prepare(
        self, operation: str, input: Any, output: Any, part: int
    ) -> Callable[[], object] | None:
        group = self._group
        rank, size = group.rank(), group.size()

        def parts(array: Any) -> list[Any]:
            return [array[r * part : (r + 1) * part] for r in range(size)] if rank == 0 else []

        if operation == "gather":
            outputs = parts(output)
            return lambda: group.gather(outputs, input, 0)
        if operation == "scatter":
            inputs = parts(input)
            return lambda: group.scatter(output, inputs, 0)
        if operation == "send_recv":
            return self._ping_pong(input, output)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: group.all_reduce(output),
            "broadcast": lambda: group.broadcast(output, 0),
            "reduce": lambda: group.reduce(output, 0),
            "all_gather": lambda: group.all_gather_single(output, input),
            "reduce_scatter": lambda: group.reduce_scatter_single(output, input),
            "all_to_all": lambda: group.all_to_all_single(output, input),
            "barrier": group.barrier,
        }
        return calls.get(operation)

    def _ping_pong(self, input: Any, output: Any) -> Callable[[], object]:
        group, peer = self._group, self._group.rank() ^ 1
        if peer >= group.size():
            return lambda: None
        if group.rank() < peer:
            return lambda: (group.send(input, peer), group.recv(output, peer))
        return lambda: (group.recv(output, peer), group.send(input, peer))
