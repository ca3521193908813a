"""Constants, places in the grid, assumptions, and operations that move elements."""

from __future__ import annotations

import numpy as np

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
from ..tileir import Bounded, DivBy
from ._elementwise import dtype_of_value
from ._lowerer import Lowerer, lowers

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
    b[op.result] = b.fn.insert(b[op.source], b[op.target], b.all(op.index))


@lowers(PackOp)
def _pack(b: Lowerer, op: PackOp) -> None:
    b[op.result] = b.fn.emit_one("pack", (b[op.source],), b.tile(op.result))


@lowers(UnpackOp)
def _unpack(b: Lowerer, op: UnpackOp) -> None:
    b[op.result] = b.fn.emit_one("unpack", (b[op.source],), b.tile(op.result))
