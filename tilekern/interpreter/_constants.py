"""Constants, places in the grid, assumptions."""

from __future__ import annotations

import numpy as np

from ..errors import KernelAssertionError
from ..ir import (
    AssumeBelowOp,
    AssumeBoundedOp,
    AssumeDivByOp,
    BlockIdOp,
    ConstantOp,
    IotaOp,
    NumBlocksOp,
    TileType,
)
from ._machine import Frame, runs

__all__: list[str] = []


@runs(ConstantOp)
def _constant(frame: Frame, op: ConstantOp) -> None:
    array = frame.machine.constants.get(op)
    if array is None:
        kind = op.result.type
        assert isinstance(kind, TileType)
        values = np.array(op.value, np.float64 if kind.number.is_float else kind.number.dtype)
        array = np.empty((1, *kind.shape), kind.number.dtype)
        array[...] = values.reshape(kind.shape) if isinstance(op.value, tuple) else values
        array.flags.writeable = False
        frame.machine.constants[op] = array
    frame[op.result] = array


@runs(IotaOp)
def _iota(frame: Frame, op: IotaOp) -> None:
    kind = op.result.type
    assert isinstance(kind, TileType)
    frame[op.result] = np.arange(kind.size).astype(kind.number.dtype)[None]


@runs(BlockIdOp)
def _block_id(frame: Frame, op: BlockIdOp) -> None:
    frame[op.result] = frame[frame.machine.block_ids[op.axis]]


@runs(NumBlocksOp)
def _num_blocks(frame: Frame, op: NumBlocksOp) -> None:
    frame[op.result] = np.array([frame.machine.grid[op.axis]], np.int32)


@runs(AssumeDivByOp)
def _assume_div_by(frame: Frame, op: AssumeDivByOp) -> None:
    source = frame[op.source]
    if (source % op.divisor).any():
        message = f"{op.source.name or 'a value'} is promised to be a multiple of {op.divisor}, and is not"
        raise KernelAssertionError(op.location.describe(message) if op.location else message)
    frame[op.result] = source


@runs(AssumeBoundedOp)
def _assume_bounded(frame: Frame, op: AssumeBoundedOp) -> None:
    source = frame[op.source]
    assert op.lower is None or (source >= op.lower).all(), f"{op.source!r} is below {op.lower}"
    assert op.upper is None or (source <= op.upper).all(), f"{op.source!r} is above {op.upper}"
    frame[op.result] = source


@runs(AssumeBelowOp)
def _assume_below(frame: Frame, op: AssumeBelowOp) -> None:
    source = frame[op.source]
    assert (source >= 0).all(), f"{op.source!r} is below 0"
    assert (source < frame[op.limit]).all(), f"{op.source!r} is not below {op.limit!r}"
    frame[op.result] = source
