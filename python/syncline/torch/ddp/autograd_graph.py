"""What autograd knows about a model's outputs: the tensors in them, the parameters behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in `value`: in nested lists, tuples, dictionaries and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from find_tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from find_tensors(getattr(value, field.name))


def accumulator(parameter: torch.Tensor) -> Any:
    """The node of the graph that adds to the gradient of `parameter`, which must require it.

    There is one as long as somebody has it.
    """
    with torch.enable_grad():
        function = parameter.view_as(parameter).grad_fn
    assert function is not None
    return function.next_functions[0][0]


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Has the running backward pass call `callback` at its end, unless it fails."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)


def current_pass() -> int:
    """Which backward pass this thread is in: the innermost, also in a callback at its end; or -1.

    No two passes of a process have the same number.
    """
    return int(torch._C._current_graph_task_id())


def is_running() -> bool:
    """Whether this thread is in a backward pass."""
    return current_pass() != -1


def is_nested() -> bool:
    """In a callback at the end of a backward pass: whether that was part of another one.

    So is that of a block whose activations are checkpointed with use_reentrant=True.
    """
    return torch._C._current_autograd_node() is not None


def accumulates(node: Any) -> bool:
    """Whether the running backward pass comes to `node`, an accumulator.

    It does not in torch.autograd.grad, nor if backward(inputs=...) asks for others.
    """
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # How torch says that for a leaf in torch.autograd.grad.
        return False


def unreached(outputs: Iterable[torch.Tensor], accumulators: Sequence[Any]) -> set[int]:
    """The indices of those `accumulators` that no path leads to from `outputs`."""
    left = {node: index for index, node in enumerate(accumulators)}
    pending = []
    for output in outputs:
        if output.grad_fn is not None:
            pending.append(output.grad_fn)
        elif output.requires_grad:  # Perhaps a parameter itself.
            left.pop(accumulator(output), None)
    seen = set(pending)  # Keeps the nodes of Python alive, which are found again by identity.
    while pending and left:
        for node, _ in pending.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                if left.pop(node, None) is None:
                    pending.append(node)
    return set(left.values())
