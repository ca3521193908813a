"""Products and sums of floats rounded once, where a kernel allows that.

Matches `a * b + c`, `c + a * b`, `a * b - c` and `c - a * b` of float tiles where nothing else uses the product and
both stand in one block, with the rounding that is meant when nothing is said. Refuses integers (they gain
nothing), products used elsewhere (they would be computed twice), flushed and directed rounding, and half
precision, which is computed in float32 and rounded after each operation.

This changes results, by half a unit in the last place of the product, so it runs on request only
(`fuse_multiply_add=True`), and for the interpreter as well: both devices fuse the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import float32, float64
from ..ir import AddOp, Block, FmaOp, Function, MulOp, NegOp, Op, SubOp, TileType, Value, walk
from ._pass import Pass

__all__ = ["FuseMultiplyAdd"]


@dataclass(frozen=True)
class FuseMultiplyAdd(Pass):
    """Replace a float product and the sum that alone uses it by `fma`; see the module."""

    name = "fuse-multiply-add"

    def run(self, function: Function) -> bool:
        uses: dict[Value, int] = {}
        products: dict[Value, MulOp] = {}
        for op in walk(function.body):
            for value in op.operands:
                uses[value] = uses.get(value, 0) + 1
            if isinstance(op, MulOp) and _is_plain(op):
                products[op.result] = op
        single = {value: op for value, op in products.items() if uses.get(value) == 1}
        return _fuse(function.body, single)


def _is_plain(op: MulOp | AddOp | SubOp) -> bool:
    kind = op.result.type
    return (
        isinstance(kind, TileType)
        and kind.dtype in (float32, float64)
        and op.rounding == op.roundings[0]
        and not op.flush_to_zero
    )


def _fuse(block: Block, products: dict[Value, MulOp]) -> bool:
    changed = False
    kept: list[Op] = []
    own: dict[Value, MulOp] = {}
    for op in block.ops:
        if isinstance(op, MulOp) and op.result in products:
            own[op.result] = op
        for region in op.regions:
            changed |= _fuse(region, products)
        new = _fused(op, own) if isinstance(op, AddOp | SubOp) and _is_plain(op) else [op]
        changed |= new != [op]
        kept += new
    block.ops = kept
    return changed


def _fused(op: AddOp | SubOp, products: dict[Value, MulOp]) -> list[Op]:
    left, right = products.get(op.lhs), products.get(op.rhs)
    product = left or right
    if product is None:
        return [op]
    found: list[Op] = []

    def minus(value: Value) -> Value:
        negative = NegOp(source=value, result=Value(value.type))
        negative.location = op.location
        found.append(negative)
        return negative.result

    factor, addend = product.lhs, op.rhs if left is not None else op.lhs
    if isinstance(op, SubOp):  # the sign of a factor or of what is added is exact
        factor, addend = (factor, minus(addend)) if left is not None else (minus(factor), addend)
    fused = FmaOp(lhs=factor, rhs=product.rhs, acc=addend, result=op.result)
    fused.location = op.location
    return [*found, fused]
