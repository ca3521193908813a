"""Operations that move elements."""

from __future__ import annotations

import numpy as np

from ..ir import BroadcastOp, CatOp, ExtractOp, PermuteOp, ReshapeOp, TileType
from ._machine import Frame, runs

__all__: list[str] = []


@runs(ReshapeOp)
def _reshape(frame: Frame, op: ReshapeOp) -> None:
    assert isinstance(op.result.type, TileType)
    source = frame[op.source]
    frame[op.result] = source.reshape((len(source), *op.result.type.shape))


@runs(BroadcastOp)
def _broadcast(frame: Frame, op: BroadcastOp) -> None:
    assert isinstance(op.result.type, TileType)
    source = frame[op.source]
    frame[op.result] = np.broadcast_to(source, (len(source), *op.result.type.shape))


@runs(PermuteOp)
def _permute(frame: Frame, op: PermuteOp) -> None:
    frame[op.result] = np.transpose(frame[op.source], (0, *[1 + axis for axis in op.order]))


@runs(CatOp)
def _cat(frame: Frame, op: CatOp) -> None:
    lhs, rhs = frame[op.lhs], frame[op.rhs]
    rows = max(len(lhs), len(rhs))
    parts = [np.broadcast_to(a, (rows, *a.shape[1:])) for a in (lhs, rhs)]
    frame[op.result] = np.concatenate(parts, axis=1 + op.axis)


@runs(ExtractOp)
def _extract(frame: Frame, op: ExtractOp) -> None:
    assert isinstance(op.result.type, TileType)
    source, sides = frame[op.source], op.result.type.shape
    index = [frame[v] for v in op.index]
    rows = max(len(a) for a in (source, *index))
    result = np.empty((rows, *sides), source.dtype)
    for row in range(rows):
        starts = [int(a[row % len(a)]) * side for a, side in zip(index, sides, strict=True)]
        where = tuple([slice(start, start + side) for start, side in zip(starts, sides, strict=True)])
        result[row] = source[row % len(source)][where]
    frame[op.result] = result
