"""Pointers: addresses in int64, and loads and stores through them, for all blocks of a batch at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DType, bool_
from ..ir import (
    AtomicCasOp,
    AtomicOp,
    ElementPointersOp,
    InBoundsOp,
    LoadPointersOp,
    OffsetOp,
    PointerType,
    StorePointersOp,
    TileType,
    Value,
)
from ._machine import Array, Frame, runs
from ._memory import out_of_range

__all__ = ["pointee", "stored", "touch_pointers"]

_NO_TOKEN = np.zeros(1, bool)


def pointee(pointers: Value) -> DType:
    """The element type that pointers point to."""
    kind = pointers.type
    assert isinstance(kind, TileType)
    assert isinstance(kind.dtype, PointerType)
    return kind.dtype.pointee


def stored(dtype: DType) -> np.dtype[Any]:
    """What NumPy sees in memory of an element type: bytes where there are bools."""
    return np.dtype(np.uint8) if dtype is bool_ else dtype.dtype


def touch_pointers(
    frame: Frame,
    op: LoadPointersOp | StorePointersOp | AtomicOp | AtomicCasOp,
    addresses: Array,
    mask: Value | None,
    itemsize: int,
    access: str,
) -> None:
    """Tell who watches what blocks touch through pointers."""
    watch = frame.machine.watch
    numbers = frame.machine.numbers(frame)
    chosen = np.ones((1,) * addresses.ndim, bool) if mask is None else frame[mask]
    rows = max(len(addresses), len(chosen), len(numbers))
    shape = (rows, *np.broadcast_shapes(addresses.shape[1:], chosen.shape[1:]))
    blocks = numbers.reshape(-1, *(1,) * (addresses.ndim - 1))
    picked = np.broadcast_to(chosen, shape)
    touched = np.broadcast_to(addresses, shape)[picked]
    if touched.size:
        who, strong = np.broadcast_to(blocks, shape)[picked], op.ordering != "weak"
        watch.touch_elements(op, who, touched, itemsize, access, is_strong=strong)
    watch.synchronize(numbers, acquires=op.acquires, releases=op.releases)


@runs(OffsetOp)
def _offset(frame: Frame, op: OffsetOp) -> None:
    itemsize = stored(pointee(op.pointers)).itemsize
    elements = frame[op.elements].astype(np.int64)
    frame[op.result] = frame[op.pointers] + elements * itemsize


@runs(ElementPointersOp)
def _element_pointers(frame: Frame, op: ElementPointersOp) -> None:
    tensor, index = frame[op.tensor], [frame[v] for v in op.index]
    if op.promised:
        good = tensor.inside(index)
        if op.mask is not None:
            good = good | ~frame[op.mask]
        if not good.all():
            place = tuple(np.argwhere(~good)[0])
            wrong = tuple([int(np.broadcast_to(a, good.shape)[place]) for a in index])
            raise out_of_range(
                op,
                f"element {wrong} of {tensor.name}, whose shape is {tensor.extents(int(place[0]))}; "
                "check_bounds=False promises that indices are in it",
            )
    frame[op.result] = tensor.addresses(index)


@runs(InBoundsOp)
def _in_bounds(frame: Frame, op: InBoundsOp) -> None:
    frame[op.result] = frame[op.tensor].inside([frame[v] for v in op.index])


@runs(LoadPointersOp)
def _load_pointers(frame: Frame, op: LoadPointersOp) -> None:
    dtype = pointee(op.pointers)
    memory = frame.machine.memory
    addresses = frame[op.pointers]
    if frame.machine.watch is not None:
        touch_pointers(frame, op, addresses, op.mask, stored(dtype).itemsize, "read")
    if op.mask is None:
        loaded = memory.load(addresses.astype(np.uint64), stored(dtype))
        frame[op.result] = loaded != 0 if dtype is bool_ else loaded
    else:
        assert op.padding is not None
        addresses, mask, padding = np.broadcast_arrays(addresses, frame[op.mask], frame[op.padding])
        result = padding.copy()
        if mask.any():
            loaded = memory.load(addresses[mask].astype(np.uint64), stored(dtype))
            result[mask] = loaded != 0 if dtype is bool_ else loaded
        frame[op.result] = result
    frame[op.result_token] = _NO_TOKEN


@runs(StorePointersOp)
def _store_pointers(frame: Frame, op: StorePointersOp) -> None:
    dtype = stored(pointee(op.pointers))
    addresses, tile = frame[op.pointers], frame[op.tile]
    mask = np.ones([1] * tile.ndim, bool) if op.mask is None else frame[op.mask]
    addresses, tile, mask = np.broadcast_arrays(addresses, tile, mask)
    if frame.machine.watch is not None:
        touch_pointers(frame, op, addresses, op.mask, dtype.itemsize, "write")
    if mask.any():
        frame.machine.memory.store(addresses[mask].astype(np.uint64), tile[mask].astype(dtype))
    frame[op.result_token] = _NO_TOKEN
