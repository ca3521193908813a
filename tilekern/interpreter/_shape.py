"""Operations that move elements."""

from __future__ import annotations

import numpy as np

from ..dtypes import float4_e2m1fn
from ..ir import (
    BroadcastOp,
    CatOp,
    ExtractOp,
    InsertOp,
    PackOp,
    PermuteOp,
    ReshapeOp,
    TileType,
    UnpackOp,
)
from ._machine import Array, Frame, runs
from ._memory import out_of_range

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
        result[row] = source[row % len(source)][_part(op, source.shape[1:], index, row, sides)]
    frame[op.result] = result


@runs(InsertOp)
def _insert(frame: Frame, op: InsertOp) -> None:
    assert isinstance(op.source.type, TileType)
    source, target, sides = frame[op.source], frame[op.target], op.source.type.shape
    index = [frame[v] for v in op.index]
    rows = max(len(a) for a in (source, target, *index))
    result = np.array(np.broadcast_to(target, (rows, *target.shape[1:])))
    for row in range(rows):
        result[row][_part(op, target.shape[1:], index, row, sides)] = source[row % len(source)]
    frame[op.result] = result


def _part(
    op: ExtractOp | InsertOp, whole: tuple[int, ...], index: list[Array], row: int, sides: tuple[int, ...]
) -> tuple[slice, ...]:
    """Where a part lies for a block."""
    numbers = [int(a[row % len(a)]) for a in index]
    counts = [n // side for n, side in zip(whole, sides, strict=True)]
    if not all(0 <= number < count for number, count in zip(numbers, counts, strict=True)):
        raise out_of_range(
            op,
            f"{op.mnemonic} of part {tuple(numbers)} of a tile of shape {whole}, which has {tuple(counts)} parts "
            f"of shape {sides}",
        )
    return tuple([slice(n * side, (n + 1) * side) for n, side in zip(numbers, sides, strict=True)])


@runs(PackOp)
def _pack(frame: Frame, op: PackOp) -> None:
    assert isinstance(op.source.type, TileType)
    source = np.ascontiguousarray(frame[op.source])
    data = source.view(np.uint8).reshape(len(source), -1)
    if op.source.type.dtype is float4_e2m1fn:
        data = data[:, ::2] | data[:, 1::2] << np.uint8(4)
    frame[op.result] = data


@runs(UnpackOp)
def _unpack(frame: Frame, op: UnpackOp) -> None:
    assert isinstance(op.result.type, TileType)
    data = np.ascontiguousarray(frame[op.source])
    dtype = op.result.type.number
    if dtype is float4_e2m1fn:
        data = np.stack([data & np.uint8(15), data >> np.uint8(4)], axis=-1).reshape(len(data), -1)
    frame[op.result] = data.view(dtype.dtype)
