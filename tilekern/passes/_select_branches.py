"""Branches that only choose between scalars become `select`.

Matches an `if` whose sides hold nothing but cheap operations on scalars, both ending with `yield`; what
short-circuit `and` and `or` leave behind, mostly. Refuses tiles (computing both sides costs), memory, nested
control flow, and operations that must not run on the other side's values: integer division, shifts, and what
states a fact that holds on its side only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..dtypes import bool_
from ..ir import (
    AndOp,
    AssumeBelowOp,
    AssumeBoundedOp,
    AssumeDivByOp,
    Block,
    ConstantOp,
    FloorDivOp,
    Function,
    IfOp,
    IndexSpaceOp,
    MakeViewOp,
    ModOp,
    Op,
    OrOp,
    SelectOp,
    ShiftLeftOp,
    ShiftRightOp,
    TileType,
    TruncDivOp,
    Value,
    YieldOp,
    scalar,
)
from ._pass import Pass

__all__ = ["SelectBranches"]

_UNSAFE = (
    *(AssumeBelowOp, AssumeBoundedOp, AssumeDivByOp),
    *(FloorDivOp, TruncDivOp, ModOp, ShiftLeftOp, ShiftRightOp),
)


@dataclass(frozen=True)
class SelectBranches(Pass):
    """Replace an `if` between cheap scalars by computing both and choosing."""

    name = "select-branches"
    max_ops: int = 8
    """Most operations on either side."""

    def run(self, function: Function) -> bool:
        return self._block(function.body, {})

    def _block(self, block: Block, replaced: dict[Value, Value]) -> bool:
        changed = False
        kept: list[Op] = []
        for op in block.ops:
            op.replace_operands(replaced)
            for region in op.regions:
                changed |= self._block(region, replaced)
            if isinstance(op, IfOp) and self._matches(op):
                changed = True
                kept.extend(_flatten(op, replaced))
            else:
                kept.append(op)
        block.ops = kept
        return changed

    def _matches(self, op: IfOp) -> bool:
        if not op.merged:
            return False
        return all(
            isinstance(region.terminator, YieldOp)
            and len(region.ops) - 1 <= self.max_ops
            and all(_is_cheap(inner) for inner in region.ops[:-1])
            for region in op.regions
        ) and all(not v.type.shape for v in op.merged if isinstance(v.type, TileType))


def _is_cheap(op: Op) -> bool:
    if isinstance(op, MakeViewOp | IndexSpaceOp):
        return True  # they name a tensor's tiles, and count them
    return (
        op.effect == "none"
        and not op.regions
        and not isinstance(op, _UNSAFE)
        and all(isinstance(v.type, TileType) and not v.type.shape for v in (*op.operands, *op.results))
    )


def _flatten(op: IfOp, replaced: dict[Value, Value]) -> list[Op]:
    """The operations of both sides, and a choice for every result."""
    ops = [*op.then.ops[:-1], *op.otherwise.ops[:-1]]
    constants = {o.result: o.value for o in ops if isinstance(o, ConstantOp)}
    then, otherwise = op.then.ops[-1].operands, op.otherwise.ops[-1].operands
    for result, a, b in zip(op.merged, then, otherwise, strict=True):
        choice = _choose(op.condition, a, b, constants)
        choice.location = op.location
        ops.append(choice)
        replaced[result] = choice.results[0]
    return ops


def _choose(condition: Value, a: Value, b: Value, constants: Mapping[Value, object]) -> Op:
    """`condition and a`, `condition or b`, or a select."""
    if a.type == scalar(bool_):
        if constants.get(b) is False:
            return AndOp(lhs=condition, rhs=a, result=Value(a.type))
        if constants.get(a) is True:
            return OrOp(lhs=condition, rhs=b, result=Value(a.type))
    return SelectOp(condition=condition, if_true=a, if_false=b, result=Value(a.type))
