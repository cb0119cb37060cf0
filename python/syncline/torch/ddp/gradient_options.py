"""How gradients are reduced."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """How gradients are reduced: equal on all ranks."""

    bucket_cap_bytes: int
    first_bucket_cap_bytes: int
    bucket_caps_bytes: list[int] = field(default_factory=list)
    sparse: frozenset[int] = frozenset()  # Parameters whose gradients are sparse tensors.
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
