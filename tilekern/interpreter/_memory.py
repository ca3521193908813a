"""Tensors, loads and stores.

A tensor is a window onto the device's memory, made once a launch where its address and shape are those of
all blocks. The tiles of a batch are copied one block at a time: a slice each, cut at the tensor's edge.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ..dtypes import DType, bool_
from ..errors import KernelIndexError
from ..ir import (
    IndexSpaceOp,
    JoinTokensOp,
    LoadOp,
    MakeTensorOp,
    MakeTokenOp,
    MakeViewOp,
    StoreOp,
    TensorType,
    TileType,
    ViewType,
)
from ._machine import Array, Frame, runs

__all__ = ["TensorWindow"]

Access = Literal["read", "write"]

_PADDING = {"zero": 0.0, "neg_zero": -0.0, "nan": np.nan, "pos_inf": np.inf, "neg_inf": -np.inf}
_NO_TOKEN = np.zeros(1, bool)


class TensorWindow:
    """A tensor of the IR: a window onto memory per block, or one for all. Rows are taken as of an array."""

    # Any: the device's memory, known by its methods
    def __init__(
        self, memory: Any, name: str, dtype: DType, base: Array, shape: list[Array], strides: list[Array]
    ) -> None:
        self._memory = memory
        self.name = name
        self.dtype = dtype
        self._base = base
        self._shape = shape
        self._strides = strides
        self._windows: dict[tuple[int, Access], Array] = {}

    def __len__(self) -> int:
        return max(len(a) for a in (self._base, *self._shape, *self._strides))

    def __getitem__(self, rows: Any) -> TensorWindow:
        def take(array: Array) -> Array:
            return array if len(array) == 1 else array[rows]

        shape, strides = [take(a) for a in self._shape], [take(a) for a in self._strides]
        return TensorWindow(self._memory, self.name, self.dtype, take(self._base), shape, strides)

    def extents(self, row: int) -> tuple[int, ...]:
        """The dimensions for a block."""
        return tuple([int(a[row % len(a)]) for a in self._shape])

    def window(self, row: int, access: Access) -> Array:
        """Live memory as an array, for a block."""
        key = (row % len(self), access)
        found = self._windows.get(key)
        if found is None:
            dtype = np.dtype(np.uint8) if self.dtype is bool_ else self.dtype.dtype
            strides = [int(a[row % len(a)]) * dtype.itemsize for a in self._strides]
            base = int(self._base[row % len(self._base)])
            found = self._memory.array(base, dtype, self.extents(row), strides, access)
            self._windows[key] = found
        return found


@runs(MakeTensorOp)
def _make_tensor(frame: Frame, op: MakeTensorOp) -> None:
    kind = op.result.type
    assert isinstance(kind, TensorType)
    frame[op.result] = TensorWindow(
        frame.machine.memory,
        op.result.name.removesuffix("_tensor") or "a tensor",
        kind.dtype,
        frame[op.base],
        _filled(kind.shape, [frame[v] for v in op.shape]),
        _filled(kind.strides, [frame[v] for v in op.strides]),
    )


def _filled(known: tuple[int | None, ...], others: list[Array]) -> list[Array]:
    rest = iter(others)
    return [next(rest) if n is None else np.array([n], np.int64) for n in known]


@runs(MakeViewOp)
def _make_view(frame: Frame, op: MakeViewOp) -> None:
    frame[op.result] = frame[op.tensor]


@runs(IndexSpaceOp)
def _index_space(frame: Frame, op: IndexSpaceOp) -> None:
    view = op.view.type
    assert isinstance(view, ViewType)
    tensor = frame[op.view]
    extents = np.array([tensor.extents(row) for row in range(len(tensor))], np.int64)
    for axis, count in enumerate(op.counts):
        assert isinstance(count.type, TileType)
        tiles = -(-extents[:, view.order[axis]] // view.tile_shape[axis])
        frame[count] = tiles.astype(count.type.number.dtype)


def _places(
    frame: Frame, op: LoadOp | StoreOp, rows: int
) -> list[tuple[TensorWindow, int, tuple[int, ...], tuple[int, ...]]]:
    """Per block: the tensor, the row, first element and number of elements inside along tensor axes."""
    view = op.view.type
    assert isinstance(view, ViewType)
    tensor = frame[op.view]
    index = [frame[v] for v in op.index]
    rank = len(index)
    places = []
    for row in range(rows):
        extents = tensor.extents(row)
        starts, counts = [0] * rank, [0] * rank
        for axis, array in enumerate(index):
            number, side = int(array[row % len(array)]), view.tile_shape[axis]
            along = view.order[axis]
            starts[along] = number * side
            counts[along] = min(side, extents[along] - starts[along])
            if number < 0 or counts[along] <= 0:
                raise _outside(op, tensor, [int(a[row % len(a)]) for a in index], extents)
        places.append((tensor, row, tuple(starts), tuple(counts)))
    return places


def _outside(
    op: LoadOp | StoreOp, tensor: TensorWindow, index: list[int], extents: tuple[int, ...]
) -> KernelIndexError:
    view = op.view.type
    assert isinstance(view, ViewType)
    tiles = [-(-extents[a] // side) for a, side in zip(view.order, view.tile_shape, strict=True)]
    reason = (
        f"{op.mnemonic} of tile {tuple(index)} of {tensor.name}, which has {tuple(tiles)} tiles of shape "
        f"{view.tile_shape} (its shape is {extents})"
    )
    return KernelIndexError(op.location.describe(reason) if op.location else reason)


def _rows_of(frame: Frame, op: LoadOp | StoreOp) -> int:
    return max([len(frame[op.view]), *[len(frame[v]) for v in op.index]])


@runs(LoadOp)
def _load(frame: Frame, op: LoadOp) -> None:
    view = op.view.type
    assert isinstance(view, ViewType)
    dtype = view.tensor.dtype
    rows = _rows_of(frame, op)
    sides = [0] * len(view.order)
    for axis, along in enumerate(view.order):
        sides[along] = view.tile_shape[axis]
    result = np.empty((rows, *sides), np.uint8 if dtype is bool_ else dtype.dtype)
    whole = tuple(sides)
    for tensor, row, starts, counts in _places(frame, op, rows):
        where = tuple([slice(s, s + n) for s, n in zip(starts, counts, strict=True)])
        source = tensor.window(row, "read")[where]
        if counts == whole:
            result[row] = source
        else:
            result[row] = _PADDING[view.padding]
            result[row][tuple([slice(n) for n in counts])] = source
    tile = np.transpose(result, (0, *[1 + along for along in view.order]))
    frame[op.result] = tile != 0 if dtype is bool_ else tile
    frame[op.result_token] = _NO_TOKEN


@runs(StoreOp)
def _store(frame: Frame, op: StoreOp) -> None:
    view = op.view.type
    assert isinstance(view, ViewType)
    # back to the tensor's axes
    back = [view.order.index(axis) for axis in range(len(view.order))]
    tile = np.transpose(frame[op.tile], (0, *[1 + axis for axis in back]))
    rows = max(_rows_of(frame, op), len(tile))
    for tensor, row, starts, counts in _places(frame, op, rows):
        where = tuple([slice(s, s + n) for s, n in zip(starts, counts, strict=True)])
        content = tile[row % len(tile)][tuple([slice(n) for n in counts])]
        tensor.window(row, "write")[where] = content
    frame[op.result_token] = _NO_TOKEN


@runs(MakeTokenOp)
def _make_token(frame: Frame, op: MakeTokenOp) -> None:
    frame[op.result] = _NO_TOKEN


@runs(JoinTokensOp)
def _join_tokens(frame: Frame, op: JoinTokensOp) -> None:
    frame[op.result] = _NO_TOKEN
