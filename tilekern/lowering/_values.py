"""Constants, places in the grid, assumptions, and operations that move elements."""

from __future__ import annotations

import numpy as np

from ..dtypes import bool_
from ..ir import (
    AssumeBelowOp,
    AssumeBoundedOp,
    AssumeDivByOp,
    BlockIdOp,
    BroadcastOp,
    CatOp,
    ConstantOp,
    ExtractOp,
    InsertOp,
    IotaOp,
    NumBlocksOp,
    PackOp,
    PermuteOp,
    ReshapeOp,
    TileType,
    UnpackOp,
)
from ..tileir import Bounded, ComparisonPredicate, DivBy, types
from ._elementwise import dtype_of_value
from ._lowerer import Lowerer, element_type, lowers

__all__: list[str] = []


@lowers(ConstantOp)
def _constant(b: Lowerer, op: ConstantOp) -> None:
    kind = b.tile(op.result)
    if isinstance(op.value, tuple):
        dtype = dtype_of_value(op.result)
        values = np.array(op.value, np.float64 if dtype.is_float else dtype.dtype)
        b[op.result] = b.fn.constant(kind, values.reshape(kind.shape))
    else:
        b[op.result] = b.fn.constant(kind, op.value)


@lowers(IotaOp)
def _iota(b: Lowerer, op: IotaOp) -> None:
    b[op.result] = b.fn.iota(b.tile(op.result))


@lowers(BlockIdOp)
def _block_id(b: Lowerer, op: BlockIdOp) -> None:
    b[op.result] = b.block_id[op.axis]


@lowers(NumBlocksOp)
def _num_blocks(b: Lowerer, op: NumBlocksOp) -> None:
    b[op.result] = b.num_blocks[op.axis]


@lowers(AssumeDivByOp)
def _assume_div_by(b: Lowerer, op: AssumeDivByOp) -> None:
    b[op.result] = b.fn.assume(b[op.source], DivBy(op.divisor))


@lowers(AssumeBoundedOp)
def _assume_bounded(b: Lowerer, op: AssumeBoundedOp) -> None:
    b[op.result] = b.fn.assume(b[op.source], Bounded(op.lower, op.upper))


@lowers(AssumeBelowOp)
def _assume_below(b: Lowerer, op: AssumeBelowOp) -> None:
    """Tile IR states bounds by numbers only."""
    b[op.result] = b.fn.assume(b[op.source], Bounded(0, None))


@lowers(ReshapeOp)
def _reshape(b: Lowerer, op: ReshapeOp) -> None:
    assert isinstance(op.result.type, TileType)
    b[op.result] = b.fn.reshape(b[op.source], op.result.type.shape)


@lowers(BroadcastOp)
def _broadcast(b: Lowerer, op: BroadcastOp) -> None:
    assert isinstance(op.result.type, TileType)
    b[op.result] = b.fn.broadcast(b[op.source], op.result.type.shape)


@lowers(PermuteOp)
def _permute(b: Lowerer, op: PermuteOp) -> None:
    b[op.result] = b.fn.permute(b[op.source], op.order)


@lowers(CatOp)
def _cat(b: Lowerer, op: CatOp) -> None:
    b[op.result] = b.fn.cat(b[op.lhs], b[op.rhs], op.axis)


@lowers(ExtractOp)
def _extract(b: Lowerer, op: ExtractOp) -> None:
    assert isinstance(op.result.type, TileType)
    b[op.result] = b.fn.extract(b[op.source], b.all(op.index), op.result.type.shape)


@lowers(InsertOp)
def _insert(b: Lowerer, op: InsertOp) -> None:
    """By selection: compiled to the `insert` of Tile IR, 3 of 2100 random kernels lost what they put in (H200, tileiras
    13.5). That it is the assembler's fault is suspected, not shown.
    """
    dtype = dtype_of_value(op.target)
    if dtype.bits < 8 and dtype is not bool_:
        b[op.result] = b.fn.insert(b[op.source], b[op.target], b.all(op.index))
        return
    source, target = b[op.source], b[op.target]
    kind, part = target.tile_type, source.tile_type.shape
    as_bits = dtype.is_float and dtype.bits == 8
    if as_bits:
        source, target = b.fn.bitcast(source, types.i8), b.fn.bitcast(target, types.i8)
    counts = [n // m for n, m in zip(kind.shape, part, strict=True)]
    parts = [side for pair in zip(counts, part, strict=True) for side in pair]
    whole = b.fn.broadcast(b.fn.reshape(source, [side for m in part for side in (1, m)]), parts)
    result = whole
    chosen = None
    for axis, (count, index) in enumerate(zip(counts, b.all(op.index), strict=True)):
        if count == 1:
            continue
        row = types.tile(types.i32, (count,))
        here = b.fn.broadcast(b.fn.reshape(index, (1,)), (count,))
        same = b.fn.cmpi(ComparisonPredicate.EQUAL, b.fn.iota(row), here)
        same = b.fn.reshape(same, [count if i == 2 * axis else 1 for i in range(len(parts))])
        same = b.fn.broadcast(same, parts)
        chosen = same if chosen is None else b.fn.binary("andi", chosen, same)
    if chosen is not None:
        result = b.fn.select(chosen, whole, b.fn.reshape(target, parts))
    result = b.fn.reshape(result, kind.shape)
    b[op.result] = b.fn.bitcast(result, element_type(dtype)) if as_bits else result


@lowers(PackOp)
def _pack(b: Lowerer, op: PackOp) -> None:
    b[op.result] = b.fn.emit_one("pack", (b[op.source],), b.tile(op.result))


@lowers(UnpackOp)
def _unpack(b: Lowerer, op: UnpackOp) -> None:
    b[op.result] = b.fn.emit_one("unpack", (b[op.source],), b.tile(op.result))
