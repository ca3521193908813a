"""Loop-invariant motion, for what costs no registers to keep.

Matches operations without effects directly in the body of a loop, with operands from outside of it, whose
results are scalars, tensors or views. Refuses tiles: whether to keep one over the loop or compute it again is
for the assembler, which knows the registers. Refuses integer division, which must not run where a loop makes
no turn, unless by a constant other than 0; and what is promised, a fact about a number or that elements are there,
since a loop without turns promises nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import (
    AssumeBelowOp,
    AssumeBoundedOp,
    AssumeDivByOp,
    Block,
    ConstantOp,
    ElementPointersOp,
    FloorDivOp,
    ForOp,
    Function,
    LoopOp,
    ModOp,
    Op,
    TileType,
    TruncDivOp,
    Value,
)
from ._pass import Pass

__all__ = ["HoistInvariants"]


@dataclass(frozen=True)
class HoistInvariants(Pass):
    """Move what is the same in every turn in front of the loop."""

    name = "hoist-invariants"

    def run(self, function: Function) -> bool:
        return _hoist(function.body, {})


def _hoist(block: Block, constants: dict[Value, object]) -> bool:
    changed = False
    kept: list[Op] = []
    for op in block.ops:
        if isinstance(op, ConstantOp):
            constants[op.result] = op.value
        for region in op.regions:
            changed |= _hoist(region, constants)
        if isinstance(op, ForOp | LoopOp):
            moved = _invariants(op.body, constants)
            changed |= bool(moved)
            kept.extend(moved)
        kept.append(op)
    block.ops = kept
    return changed


def _invariants(body: Block, constants: dict[Value, object]) -> list[Op]:
    """Take out of `body` what does not depend on it."""
    own: set[Value] = set(body.arguments)
    moved: list[Op] = []
    kept: list[Op] = []
    for op in body.ops:
        if own.isdisjoint(op.operands) and _may_move(op, constants):
            moved.append(op)
        else:
            own.update(op.results)
            kept.append(op)
    body.ops = kept
    return moved


def _may_move(op: Op, constants: dict[Value, object]) -> bool:
    if op.effect != "none" or op.regions or not op.results:
        return False
    if any(isinstance(v.type, TileType) and v.type.shape for v in op.results):
        return False
    if isinstance(op, AssumeBelowOp | AssumeBoundedOp | AssumeDivByOp):
        return False
    if isinstance(op, ElementPointersOp) and op.promised:
        return False
    if isinstance(op, FloorDivOp | TruncDivOp | ModOp):
        return constants.get(op.rhs, 0) != 0
    return True
