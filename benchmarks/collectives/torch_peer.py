"""torch.distributed with Gloo; or, where --variant names a backend, Syncline with torch tensors."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from benchmarks.collectives import peer, syncline_system


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        import pypi_torch_status

        raise ImportError(f"no torch: {pypi_torch_status.REASON or error}") from error
    return torch


class TorchSystem:
    """torch.distributed, joined over a file in the group's folder."""

    def __init__(self, options: argparse.Namespace, torch: Any):
        self._torch = torch
        self._rank, self._size = options.rank, options.size
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{options.folder}/torch_store",
            rank=options.rank,
            world_size=options.size,
            timeout=timedelta(minutes=1),
        )

    def describe(self) -> str:
        return f"torch {self._torch.__version__}, backend gloo"

    def new_array(self, count: int) -> Any:
        return self._torch.zeros(count, dtype=self._torch.float32)

    def prepare(
        self, operation: str, input: Any, output: Any, part: int
    ) -> Callable[[], object] | None:
        dist, is_root = self._torch.distributed, self._rank == 0

        def parts(array: Any) -> list[Any] | None:
            return list(array.split(part)) if is_root else None

        if operation == "gather":
            outputs = parts(output)
            return lambda: dist.gather(input, outputs, dst=0)
        if operation == "scatter":
            inputs = parts(input)
            return lambda: dist.scatter(output, inputs, src=0)
        if operation == "send_recv":
            return self._ping_pong(input, output)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(output),
            "broadcast": lambda: dist.broadcast(output, src=0),
            "reduce": lambda: dist.reduce(output, dst=0),
            "all_gather": lambda: dist.all_gather_into_tensor(output, input),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(output, input),
            "all_to_all": lambda: dist.all_to_all_single(output, input),
            "barrier": dist.barrier,
        }
        return calls.get(operation)

    def _ping_pong(self, input: Any, output: Any) -> Callable[[], object]:
        dist, peer_rank = self._torch.distributed, self._rank ^ 1
        if peer_rank >= self._size:
            return lambda: None
        if self._rank < peer_rank:
            return lambda: (dist.send(input, peer_rank), dist.recv(output, peer_rank))
        return lambda: (dist.recv(output, peer_rank), dist.send(input, peer_rank))


def main() -> None:
    options = peer.parse_options()

    def join() -> peer.System:
        torch = _import_torch()
        if not options.variant:
            return TorchSystem(options, torch)

        def new_array(count: int) -> Any:
            return torch.zeros(count, dtype=torch.float32)

        library = f"torch {torch.__version__} tensors"
        return syncline_system.SynclineSystem(options, new_array, library)

    peer.serve(options, join)


if __name__ == "__main__":
    main()
