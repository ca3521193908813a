"""Tensors, loads and stores.

A tensor is a window onto the device's memory, made once a launch where its address and shape are those of
all blocks. The tiles of a batch are copied one block at a time: a slice each, cut at the tensor's edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..dtypes import DType, bool_
from ..errors import KernelIndexError
from ..ir import (
    AtomicReduceOp,
    IndexSpaceOp,
    JoinTokensOp,
    LoadOp,
    LoadSparseOp,
    MakeTensorOp,
    MakeTokenOp,
    MakeViewOp,
    Op,
    SparseViewType,
    StoreOp,
    StoreSparseOp,
    TensorType,
    TileType,
    ViewType,
)
from ._machine import Array, Frame, runs

__all__ = ["TensorWindow", "out_of_range", "places"]

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

    def inside(self, index: list[Array]) -> Array:
        """Which elements are in the tensor, given an array of indices per axis."""
        found: Array = np.ones((1,) * index[0].ndim, bool)
        for along, extent in zip(index, self._shape, strict=True):
            extents = extent.astype(np.int64).reshape(-1, *[1] * (along.ndim - 1))
            found = found & (along >= 0) & (along < extents)
        return found

    def addresses(self, index: list[Array]) -> Array:
        """The addresses of elements, given an array of indices per axis."""
        ones = [1] * (index[0].ndim - 1)
        itemsize = 1 if self.dtype is bool_ else self.dtype.itemsize
        found: Array = self._base.astype(np.int64).reshape(-1, *ones)
        for along, stride in zip(index, self._strides, strict=True):
            found = found + along.astype(np.int64) * (stride.astype(np.int64).reshape(-1, *ones) * itemsize)
        return found

    def touch(
        self,
        frame: Frame,
        op: LoadOp | StoreOp | AtomicReduceOp,
        row: int,
        rows: int,
        starts: Sequence[int],
        counts: Sequence[int],
        access: str,
    ) -> None:
        """Tell who watches that a block touches a box of elements; where `rows` is 1, that all blocks do."""
        numbers = frame.machine.numbers(frame)
        itemsize = 1 if self.dtype is bool_ else self.dtype.itemsize
        strides = [int(a[row % len(a)]) * itemsize for a in self._strides]
        address = int(self._base[row % len(self._base)]) + sum(
            s * n for s, n in zip(strides, starts, strict=True)
        )
        blocks = numbers if rows == 1 else numbers[row : row + 1]
        strong = getattr(op, "ordering", "weak") != "weak"
        watch = frame.machine.watch
        watch.touch_box(op, blocks, address, counts, strides, itemsize, access, is_strong=strong)
        if strong:
            watch.synchronize(blocks, acquires=op.acquires, releases=op.releases)

    def touch_picked(
        self, frame: Frame, op: Op, row: int, rows: int, there: Sequence[slice | Array], access: str
    ) -> None:
        """The same for elements picked along an axis."""
        index = [np.arange(a.start, a.stop) if isinstance(a, slice) else a for a in there]
        itemsize = 1 if self.dtype is bool_ else self.dtype.itemsize
        addresses: Array = np.full((1,) * len(index), int(self._base[row % len(self._base)]), np.int64)
        for axis, (along, stride) in enumerate(zip(index, self._strides, strict=True)):
            shape = [1] * len(index)
            shape[axis] = len(along)
            addresses = addresses + along.reshape(shape) * (int(stride[row % len(stride)]) * itemsize)
        numbers = frame.machine.numbers(frame)
        blocks = numbers[:2] if rows == 1 and access != "read" else numbers[row : row + 1]
        for block in blocks:
            frame.machine.watch.touch_elements(op, np.array([block]), addresses, itemsize, access)

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
        tiles = -(-extents[:, view.order[axis]] // view.starts_every[axis])
        frame[count] = tiles.astype(count.type.number.dtype)


def places(
    frame: Frame, op: LoadOp | StoreOp | AtomicReduceOp, rows: int
) -> list[tuple[TensorWindow, int, tuple[int, ...], tuple[int, ...]]]:
    """Per block: the tensor, the row, first element and number of elements inside along tensor axes."""
    view = op.view.type
    assert isinstance(view, ViewType)
    tensor = frame[op.view]
    index = [frame[v] for v in op.index]
    rank = len(index)
    contained = isinstance(op, LoadOp | StoreOp) and op.contained
    found = []
    for row in range(rows):
        extents = tensor.extents(row)
        starts, counts = [0] * rank, [0] * rank
        for axis, array in enumerate(index):
            number, side = int(array[row % len(array)]), view.tile_shape[axis]
            along = view.order[axis]
            starts[along] = number * view.starts_every[axis]
            counts[along] = min(side, extents[along] - starts[along])
            if number < 0 or counts[along] <= 0 or (contained and counts[along] < side):
                raise _outside(op, tensor, [int(a[row % len(a)]) for a in index], extents, contained)
        found.append((tensor, row, tuple(starts), tuple(counts)))
    return found


def _outside(
    op: LoadOp | StoreOp | AtomicReduceOp,
    tensor: TensorWindow,
    index: list[int],
    extents: tuple[int, ...],
    contained: bool,
) -> KernelIndexError:
    view = op.view.type
    assert isinstance(view, ViewType)
    tiles = [-(-extents[a] // step) for a, step in zip(view.order, view.starts_every, strict=True)]
    reason = (
        f"{op.mnemonic} of tile {tuple(index)} of {tensor.name}, which has {tuple(tiles)} tiles of shape "
        f"{view.tile_shape} (its shape is {extents})"
    )
    if contained:
        reason += "; check_bounds=False promises that all of the tile is in it"
    return out_of_range(op, reason)


def out_of_range(op: Op, reason: str) -> KernelIndexError:
    """The error for an access outside of its tensor, at the user's line."""
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
    for tensor, row, starts, counts in places(frame, op, rows):
        where = tuple([slice(s, s + n) for s, n in zip(starts, counts, strict=True)])
        if frame.machine.watch is not None:
            tensor.touch(frame, op, row, rows, starts, counts, "read")
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
    for tensor, row, starts, counts in places(frame, op, rows):
        where = tuple([slice(s, s + n) for s, n in zip(starts, counts, strict=True)])
        if frame.machine.watch is not None:
            tensor.touch(frame, op, row, rows, starts, counts, "write")
        content = tile[row % len(tile)][tuple([slice(n) for n in counts])]
        tensor.window(row, "write")[where] = content
    frame[op.result_token] = _NO_TOKEN


# ------------------------------------------------------------------ rows picked one by one


def _picked(
    frame: Frame, op: LoadSparseOp | StoreSparseOp, row: int
) -> tuple[tuple[slice | Array, ...], tuple[slice | Array, ...]]:
    """For a block: which elements of the tensor, and where in the tile, what is in the tensor belongs."""
    view = op.view.type
    assert isinstance(view, SparseViewType)
    tensor = frame[op.view]
    extents = tensor.extents(row)
    index = [frame[v] for v in op.index]
    there: list[slice | Array] = []
    here: list[slice | Array] = []
    for axis, (array, extent, side) in enumerate(zip(index, extents, view.tile_shape, strict=True)):
        part = array[row % len(array)]
        if axis == view.axis:
            good = np.flatnonzero((part >= 0) & (part < extent))
            there.append(part[good].astype(np.int64))
            here.append(good)
            continue
        start = int(part)
        if not 0 <= start < extent:
            raise out_of_range(
                op,
                f"a window along axis {axis} of {tensor.name} starts at element {start}; it has {extent}",
            )
        count = min(side, extent - start)
        there.append(slice(start, start + count))
        here.append(slice(count))
    return tuple(there), tuple(here)


@runs(LoadSparseOp)
def _load_sparse(frame: Frame, op: LoadSparseOp) -> None:
    view = op.view.type
    assert isinstance(view, SparseViewType)
    dtype = view.tensor.dtype
    tensor = frame[op.view]
    rows = max([len(tensor), *[len(frame[v]) for v in op.index]])
    result = np.empty((rows, *view.tile_shape), np.uint8 if dtype is bool_ else dtype.dtype)
    result[...] = _PADDING[view.padding]
    for row in range(rows):
        there, here = _picked(frame, op, row)
        if frame.machine.watch is not None:
            tensor.touch_picked(frame, op, row, rows, there, "read")
        result[row][here] = tensor.window(row, "read")[there]
    frame[op.result] = result != 0 if dtype is bool_ else result
    frame[op.result_token] = _NO_TOKEN


@runs(StoreSparseOp)
def _store_sparse(frame: Frame, op: StoreSparseOp) -> None:
    tensor, tile = frame[op.view], frame[op.tile]
    rows = max([len(tensor), len(tile), *[len(frame[v]) for v in op.index]])
    for row in range(rows):
        there, here = _picked(frame, op, row)
        if frame.machine.watch is not None:
            tensor.touch_picked(frame, op, row, rows, there, "write")
        tensor.window(row, "write")[there] = tile[row % len(tile)][here]
    frame[op.result_token] = _NO_TOKEN


@runs(MakeTokenOp)
def _make_token(frame: Frame, op: MakeTokenOp) -> None:
    frame[op.result] = _NO_TOKEN


@runs(JoinTokensOp)
def _join_tokens(frame: Frame, op: JoinTokensOp) -> None:
    frame[op.result] = _NO_TOKEN
