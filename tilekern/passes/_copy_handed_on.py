"""Giving what a loop hands on, from one of its variables to another, an operation of its own.

Theory. `before = now; now = ...` in a loop carries two variables, of which one begins a turn as what the other began
the last turn with. The assembler takes turns apart and overlaps them, and of what is used behind the loop it then
mistakes the two: tileiras 13.5 gives what `now` is in the end for `before`, of tiles and of numbers, for as few turns
as overlap or for any number of them. Seen in its PTX, run on the simulated device (`tools/random_pipelines.py
--assembled`), and on an H200. A variable that is computed is right. So it becomes a choice between the two, by a
condition that always holds, which is found out only where machine code is made, and costs nothing there.

Goes once tests/tilekern/lowering/test_handed_on.py passes without.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import bool_, int32
from ..ir import (
    Block,
    BroadcastOp,
    CompareOp,
    ConstantOp,
    ContinueOp,
    ForOp,
    Function,
    IfOp,
    NumBlocksOp,
    Op,
    ReshapeOp,
    SelectOp,
    TileType,
    Value,
    scalar,
)
from ._pass import Pass

__all__ = ["CopyHandedOn"]


@dataclass(frozen=True)
class CopyHandedOn(Pass):
    """Choose what a counted loop hands on between the variable it comes from and the one it goes to.

    Matches `continue` of a `for` with a carried number, or tile of numbers, in the place of another one.
    """

    name = "copy-handed-on"

    def run(self, function: Function) -> bool:
        return _copy(function.body, None)


def _copy(block: Block, loop: ForOp | None) -> bool:
    """Go over the operations of a block; `loop` is the one that its `continue` goes on with."""
    ops: list[Op] = []
    changed = False
    for op in block.ops:
        for region in op.regions:
            changed |= _copy(region, op if isinstance(op, ForOp) else loop if isinstance(op, IfOp) else None)
        if isinstance(op, ContinueOp) and loop is not None:
            changed |= _choose(op, loop, ops)
        ops.append(op)
    block.ops = ops
    return changed


def _choose(end: ContinueOp, loop: ForOp, ops: list[Op]) -> bool:
    carried = loop.body.arguments[1:]
    holds: Value | None = None
    values: list[Value] = []
    for own, value in zip(carried, end.values, strict=True):
        if value is own or value not in carried or not isinstance(value.type, TileType):
            values.append(value)
            continue
        if holds is None:
            blocks = NumBlocksOp(axis=0, result=Value(scalar(int32)))
            zero = ConstantOp(value=0, result=Value(scalar(int32)))
            some = CompareOp(lhs=blocks.result, rhs=zero.result, predicate="gt", result=Value(scalar(bool_)))
            ops += [blocks, zero, some]
            holds = some.result
        shape = value.type.shape
        condition = holds
        if shape:
            one = ReshapeOp(source=holds, result=Value(TileType(bool_, (1,) * len(shape))))
            whole = BroadcastOp(source=one.result, result=Value(TileType(bool_, shape)))
            ops += [one, whole]
            condition = whole.result
        choice = SelectOp(
            condition=condition, if_true=value, if_false=own, result=Value(value.type, value.name)
        )
        choice.location = end.location
        ops.append(choice)
        values.append(choice.result)
    end.values = tuple(values)
    return holds is not None
