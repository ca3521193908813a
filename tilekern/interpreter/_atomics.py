"""Atomics: element by element in row-major order, one block after the other.

What two elements do to one address, they do in turn. Elements of different addresses have nothing to do with
each other, so those that come first at their address go together, then those that come second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..dtypes import DType
from ..ir import AtomicCasOp, AtomicOp, AtomicReduceOp, Value, ViewType
from ._machine import Array, Frame, runs
from ._memory import places
from ._numeric import narrow, wide
from ._pointers import pointee, touch_pointers

__all__: list[str] = []

_NO_TOKEN = np.zeros(1, bool)

_MODES: dict[str, Callable[[Array, Array], Array]] = {
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda old, new: new,
}


def _combine(mode: str, old: Array, tile: Array, dtype: DType) -> Array:
    if mode == "add":
        return narrow(wide(old, dtype) + wide(tile, dtype), dtype)
    return _MODES[mode](old, tile)


def _turns(addresses: Array) -> Iterator[Array]:
    """Positions among `addresses`, in parts without an address twice, in the order they come in."""
    if not addresses.size:
        return
    by_address = np.argsort(addresses, kind="stable")
    ordered = addresses[by_address]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    sizes = np.diff(np.append(starts, len(ordered)))
    turn = np.arange(len(ordered)) - np.repeat(starts, sizes)
    by_turn = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))
    yield from np.split(by_address[by_turn], ends[:-1])


def _read_modify_write(
    frame: Frame,
    pointers: Value,
    mask: Value | None,
    operands: tuple[Value, ...],
    combine: Callable[..., Array],
    result: Array,
    op: AtomicOp | AtomicCasOp,
) -> None:
    """Put `combine(old, *operands)` where pointers point, in turn; `result` gets what was there."""
    dtype = pointee(pointers).dtype
    shape = result.shape
    if frame.machine.watch is not None:
        access = "compare and swap" if isinstance(op, AtomicCasOp) else "update"
        touch_pointers(frame, op, frame[pointers], mask, dtype.itemsize, access)
    addresses = np.broadcast_to(frame[pointers], shape).reshape(-1)
    tiles = [np.broadcast_to(frame[v], shape).reshape(-1) for v in operands]
    active = (
        np.arange(addresses.size)
        if mask is None
        else np.flatnonzero(np.broadcast_to(frame[mask], shape).reshape(-1))
    )
    flat = result.reshape(-1)
    for turn in _turns(addresses[active]):
        which = active[turn]
        now = addresses[which].astype(np.uint64)
        for window, elements, part in frame.machine.memory.regions(now, dtype, "write"):
            chosen = which if part is None else which[part]
            old = window[elements]
            flat[chosen] = old
            window[elements] = combine(old, *[tile[chosen] for tile in tiles])


def _result(frame: Frame, value: Value, fill: Array | None = None) -> Array:
    """An array for what was there, with a row for every block: each does its own."""
    dtype = value.type.number  # type: ignore[union-attr]  # a tile, by the verifier
    made = np.zeros((frame.size, *value.type.shape), dtype.dtype)  # type: ignore[union-attr]
    if fill is not None:
        made[...] = fill
    return made


@runs(AtomicOp)
def _atomic(frame: Frame, op: AtomicOp) -> None:
    dtype = pointee(op.pointers)
    result = _result(frame, op.result)
    _read_modify_write(
        frame,
        op.pointers,
        op.mask,
        (op.tile,),
        lambda old, tile: _combine(op.mode, old, tile, dtype),
        result,
        op,
    )
    frame[op.result], frame[op.result_token] = result, _NO_TOKEN


@runs(AtomicCasOp)
def _atomic_cas(frame: Frame, op: AtomicCasOp) -> None:
    bits = np.dtype(f"u{pointee(op.pointers).itemsize}")
    result = _result(frame, op.result, frame[op.expected])

    def swapped(old: Array, expected: Array, desired: Array) -> Array:
        return np.where(old.view(bits) == expected.view(bits), desired, old)

    _read_modify_write(frame, op.pointers, op.mask, (op.expected, op.desired), swapped, result, op)
    frame[op.result], frame[op.result_token] = result, _NO_TOKEN


@runs(AtomicReduceOp)
def _atomic_reduce(frame: Frame, op: AtomicReduceOp) -> None:
    view = op.view.type
    assert isinstance(view, ViewType)
    back = [view.order.index(axis) for axis in range(len(view.order))]
    tile = np.transpose(frame[op.tile], (0, *[1 + axis for axis in back]))
    for tensor, row, starts, counts in places(frame, op, frame.size):
        where = tuple([slice(s, s + n) for s, n in zip(starts, counts, strict=True)])
        content = tile[row % len(tile)][tuple([slice(n) for n in counts])]
        if frame.machine.watch is not None:
            tensor.touch(frame, op, row, frame.size, starts, counts, "update")
        window = tensor.window(row, "write")
        window[where] = _combine(op.mode, window[where], content, view.tensor.dtype)
    frame[op.result_token] = _NO_TOKEN
