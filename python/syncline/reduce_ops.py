"""Reductions: ReduceOp with a factor, and the names that came before it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import SupportsFloat, TypeAlias

from syncline._syncline import ReduceOp


class PremulSum:
    """ReduceOp.PREMUL_SUM with this rank's factor: its elements are multiplied by it, then added.

    Made by `ReduceOp.PREMUL_SUM(factor)`. Factors may differ between ranks.
    """

    __slots__ = ("factor",)

    def __init__(self, factor: SupportsFloat):
        self.factor = float(factor)

    def __repr__(self) -> str:
        return f"ReduceOp.PREMUL_SUM({self.factor!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PremulSum) and self.factor == other.factor

    def __hash__(self) -> int:
        return hash(self.factor)


Op: TypeAlias = ReduceOp | PremulSum
"""What functions take as `op`."""


def split_op(op: Op) -> tuple[ReduceOp, float]:
    """The reduction and its factor, which is 1 for all but PREMUL_SUM."""
    if isinstance(op, PremulSum):
        return ReduceOp.PREMUL_SUM, op.factor
    return op, 1.0


def supports_complex(reduceOp: Op) -> bool:
    """Whether complex numbers can be reduced by `reduceOp`."""
    return split_op(reduceOp)[0] in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM)


class _ReduceOpNames:
    """`reduce_op.SUM` and so on, from before there was ReduceOp."""

    def __getattr__(self, name: str) -> ReduceOp:
        if name.startswith("_") or name not in ReduceOp.__members__:
            raise AttributeError(f"there is no reduction '{name}'; see syncline.ReduceOp")
        warnings.warn("reduce_op is deprecated: use ReduceOp instead", FutureWarning, stacklevel=2)
        return ReduceOp[name]

    @property
    def __members__(self) -> Mapping[str, ReduceOp]:
        return ReduceOp.__members__


reduce_op = _ReduceOpNames()


def _with_factor(self: ReduceOp, factor: SupportsFloat) -> PremulSum:
    if self is not ReduceOp.PREMUL_SUM:
        raise TypeError(f"{self} takes no factor; only ReduceOp.PREMUL_SUM does")
    return PremulSum(factor)


_CALL = "__call__"  # By name, as type checkers know no assignment to it.
setattr(ReduceOp, _CALL, _with_factor)

setattr(ReduceOp, "RedOpType", ReduceOp)  # noqa: B010 - torch has ReduceOp.RedOpType.SUM, too.

_make_nccl_premul_sum = PremulSum  # What torch.distributed calls it.
