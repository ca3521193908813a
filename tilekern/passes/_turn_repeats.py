"""Repeating each element of a row, where NVIDIA's assembler would get what is computed from it wrong.

Theory. The assembler knows of tiles how many neighbours are equal, computes one for all of them, and tileiras 13.5
takes twice as many for equal where an axis of size 1 is repeated behind a larger one and the tile then gets another
shape: integers are added, compared and divided by numbers wrongly, floats are not looked at so. Seen in its PTX, run on
the simulated device (`tools/differential.py --assembled`): with tiles of 1024 elements and more, and with small ones
where a thread holds several elements. Repeated in front of the others and then turned, they are taken for what they
are, and the code is as long.

Goes once tests/tilekern/lowering/test_repeats.py passes without.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType
from ..ir import Block, BroadcastOp, Function, Op, PermuteOp, ReshapeOp, TileType, Value
from ._pass import Pass

__all__ = ["TurnRepeats"]


@dataclass(frozen=True)
class TurnRepeats(Pass):
    """Repeat in front, and turn, what is repeated behind a larger axis and then gets another shape.

    Matches a reshape of a broadcast of numbers that are no floats, or of pointers.
    """

    name = "turn-repeats"

    def run(self, function: Function) -> bool:
        return _turn(function.body, {})


def _turn(block: Block, broadcasts: dict[Value, BroadcastOp]) -> bool:
    ops: list[Op] = []
    changed = False
    for op in block.ops:
        for region in op.regions:
            changed |= _turn(region, broadcasts)
        if isinstance(op, BroadcastOp):
            broadcasts[op.result] = op
        elif isinstance(op, ReshapeOp):
            broadcast = broadcasts.get(op.source)
            if broadcast is not None and _repeats_behind(broadcast):
                op.source = _turned(broadcast, ops)
                changed = True
        ops.append(op)
    block.ops = ops
    return changed


def _repeats_behind(op: BroadcastOp) -> bool:
    """Whether an axis is repeated that has a larger one before it, and none behind it."""
    source, result = op.source.type, op.result.type
    assert isinstance(source, TileType)
    assert isinstance(result, TileType)
    if isinstance(result.dtype, DType) and result.dtype.is_float:
        return False
    last = max((axis for axis, side in enumerate(result.shape) if side > 1), default=0)
    return source.shape[last] < result.shape[last] and source.size > 1


def _turned(op: BroadcastOp, ops: list[Op]) -> Value:
    """Add what gives the same as `op`, the repeated axes first in between."""
    source, result = op.source.type, op.result.type
    assert isinstance(source, TileType)
    assert isinstance(result, TileType)
    pairs = list(zip(source.shape, result.shape, strict=True))
    axes = sorted(range(result.rank), key=lambda axis: pairs[axis][0] == pairs[axis][1])
    before = ReshapeOp(
        source=op.source, result=Value(source.with_shape(tuple([source.shape[axis] for axis in axes])))
    )
    repeated = BroadcastOp(
        source=before.result, result=Value(result.with_shape(tuple([result.shape[axis] for axis in axes])))
    )
    turned = PermuteOp(
        source=repeated.result,
        order=tuple([axes.index(axis) for axis in range(result.rank)]),
        result=Value(result),
    )
    ops += [before, repeated, turned]
    return turned.result
