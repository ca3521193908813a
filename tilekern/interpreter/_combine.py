"""Reductions and scans with a function of the user's.

The body runs for many combinations at once, each of which is a row of a frame inside: a row for every block
and place off the axis. A reduction combines neighbours in pairs, in log2(n) rounds; a scan combines each
element with the one 1, 2, 4, ... before it. Both keep what is left on the left.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from ..ir import BlockIdOp, CombineOp, ReduceWithOp, ScanWithOp, TileType, walk
from ._machine import CONTROL, Array, Exit, Frame, run_block

__all__: list[str] = []


def _columns(frame: Frame, op: CombineOp) -> tuple[list[Array], int]:
    """Sources as (row, place off the axis, place along it), and the number of rows they have."""
    arrays = [frame[v] for v in op.sources]
    rows = frame.size if _knows_block(frame, op) else max(len(a) for a in arrays)
    moved = [np.moveaxis(np.broadcast_to(a, (rows, *a.shape[1:])), 1 + op.axis, -1) for a in arrays]
    return [a.reshape(rows, -1, a.shape[-1]) for a in moved], rows


def _knows_block(frame: Frame, op: CombineOp) -> bool:
    """True where the body itself gives different blocks different results."""
    own = set(op.body.arguments)
    for inner in walk(op.body):
        if isinstance(inner, BlockIdOp) or any(v not in own and len(frame[v]) > 1 for v in inner.operands):
            return True
        own.update(inner.results)
    return False


def _combined(
    frame: Frame, op: CombineOp, left: list[Array], right: list[Array]
) -> Generator[None, None, list[Array]]:
    """The body, of arrays whose first axis is that of the frame's rows."""
    shape = left[0].shape
    blocks = np.repeat(np.arange(shape[0]), left[0][0].size)
    inside = frame.part(blocks)
    for argument, content in zip(op.body.arguments, [*left, *right], strict=True):
        inside[argument] = content.reshape(-1)
    (end,) = yield from run_block(inside, op.body)
    return [np.broadcast_to(a, blocks.shape).reshape(shape) for a in end.values]


def _reduce(frame: Frame, op: ReduceWithOp) -> Generator[None, None, list[Exit]]:
    values, _ = _columns(frame, op)
    while values[0].shape[-1] > 1:
        values = yield from _combined(
            frame, op, [a[..., ::2] for a in values], [a[..., 1::2] for a in values]
        )
    for result, value in zip(op.combined, values, strict=True):
        assert isinstance(result.type, TileType)
        frame[result] = value.reshape(len(value), *result.type.shape)
    return []


def _scan(frame: Frame, op: ScanWithOp) -> Generator[None, None, list[Exit]]:
    values, rows = _columns(frame, op)
    if op.reverse:
        values = [np.flip(a, -1) for a in values]
    distance = 1
    while distance < values[0].shape[-1]:
        later = yield from _combined(
            frame,
            op,
            [a[..., :-distance] for a in values],
            [a[..., distance:] for a in values],
        )
        values = [np.concatenate([a[..., :distance], b], axis=-1) for a, b in zip(values, later, strict=True)]
        distance *= 2
    for result, value in zip(op.combined, values, strict=True):
        assert isinstance(result.type, TileType)
        shape = result.type.shape
        others = shape[: op.axis] + shape[op.axis + 1 :]
        whole = (np.flip(value, -1) if op.reverse else value).reshape(rows, *others, shape[op.axis])
        frame[result] = np.moveaxis(whole, -1, 1 + op.axis)
    return []


CONTROL[ReduceWithOp] = _reduce
CONTROL[ScanWithOp] = _scan
