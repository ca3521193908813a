"""Loads and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ...dtypes import bool_, int32, int64
from ...ir import IndexSpaceOp, LoadOp, MakeViewOp, StoreOp, TokenType, Value, ViewType, scalar
from .._checks import CoversGrid
from .._promotion import as_tile, broadcast_to, cast, common_dtype, loose_dtype, meet
from .._values import (
    Loose,
    OwnedTileValue,
    TensorValue,
    describe,
    is_loose,
    is_number,
    is_scalar,
    is_tile,
    tile_type,
)
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__: list[str] = []


def _tensor(t: Translator, array: object, name: str) -> TensorValue:
    if isinstance(array, OwnedTileValue):
        raise t.wrong_type(
            f"{array.name} is a partition, and a block has only its own tile of it: use {array.name}.load() "
            f"and {array.name}.store(tile)"
        )
    if not isinstance(array, TensorValue):
        raise t.wrong_type(f"{name} takes a tensor parameter, got {describe(array)}")
    return array


def _order(t: Translator, order: object, rank: int) -> tuple[int, ...]:
    if order in ("C", "F"):
        axes = tuple(range(rank))
        return axes if order == "C" else axes[::-1]
    axes = tuple([t.axis(a, rank, "order") for a in t.static_ints(order, "order")])
    if sorted(axes) != list(range(rank)):
        raise t.wrong_value(f"order is 'C', 'F' or names every axis once, got {order}")
    return axes


def _padding(t: Translator, tensor: TensorValue, mode: object) -> str:
    if not isinstance(mode, language.PaddingMode):
        raise t.wrong_type(f"padding_mode is one of tk.PaddingMode, got {describe(mode)}")
    padding = "zero" if mode is language.PaddingMode.UNDETERMINED else mode.value
    if padding != "zero" and not tensor.dtype.is_float:
        raise t.wrong_type(f"padding {mode.name} is for floats; {tensor.name} holds {tensor.dtype.name}")
    return padding


def _view(t: Translator, tensor: TensorValue, shape: object, order: object, padding: str) -> Value:
    tile_shape = t.static_shape(shape)
    if len(tile_shape) != tensor.rank:
        raise t.wrong_value(
            f"{tensor.name} has rank {tensor.rank} and takes tiles of {tensor.rank} sides, got shape {tile_shape}"
        )
    kind = ViewType(tile_shape, tensor.type, _order(t, order, tensor.rank), padding)
    return t.add(MakeViewOp(tensor=tensor.value, result=Value(kind))).result


def _index(t: Translator, tensor: TensorValue, index: object) -> tuple[Value, ...]:
    """Tile numbers as integer scalars of one type."""
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) != tensor.rank:
        raise t.wrong_value(f"{tensor.name} has rank {tensor.rank}, the index has {len(parts)} numbers")
    values: list[Value] = []
    for part in parts:
        if type(part) is int and part < 0:
            raise t.wrong_value(f"tile {part} of {tensor.name} is before its first one; tiles count from 0")
        value = as_tile(t, part, "an index number")
        if not is_scalar(value) or not tile_type(value).number.is_integer:
            raise t.wrong_type(f"an index is of whole numbers and integer scalars, got {describe(part)}")
        values.append(value)
    wide = any(tile_type(v).number.bits == 64 or tile_type(v).number.name == "uint32" for v in values)
    return tuple([cast(t, v, int64 if wide else int32) for v in values])


def _hints(t: Translator, latency: object, allow_tma: object) -> tuple[int | None, bool | None]:
    steps = None if latency is None else t.static_int(latency, "latency")
    if steps is not None and not 1 <= steps <= 10:
        raise t.wrong_value(f"latency is 1 to 10, got {steps}")
    return steps, None if allow_tma is None else t.static_bool(allow_tma, "allow_tma")


@implements(language.load)
def load(
    t: Translator,
    array: object,
    index: object,
    shape: object,
    order: object,
    padding_mode: object,
    latency: object,
    allow_tma: object,
) -> object:
    tensor = _tensor(t, array, "load")
    steps, tma = _hints(t, latency, allow_tma)
    numbers = _index(t, tensor, index)
    view = _view(t, tensor, shape, order, _padding(t, tensor, padding_mode))
    t.effects.loaded.add(tensor.name)
    return _load(t, view, numbers, steps, tma)


def _load(
    t: Translator, view: Value, index: tuple[Value, ...], latency: int | None = None, tma: bool | None = None
) -> Value:
    assert isinstance(view.type, ViewType)
    op = LoadOp(
        view=view,
        index=index,
        latency=latency,
        allow_tma=tma,
        result=Value(view.type.tile),
        result_token=Value(TokenType()),
    )
    return t.add(op).result


@implements(language.store)
def store(
    t: Translator,
    array: object,
    index: object,
    tile: object,
    order: object,
    latency: object,
    allow_tma: object,
) -> object:
    tensor = _tensor(t, array, "store")
    if not tensor.writable:
        raise t.wrong_type(
            f"{tensor.name} is given for reading; give it as ca.mut({tensor.name}) to store to it, or as a "
            "partition"
        )
    steps, tma = _hints(t, latency, allow_tma)
    numbers = _index(t, tensor, index)
    if is_tile(tile) and tile_type(tile).rank == tensor.rank:
        shape = tile_type(tile).shape
    elif is_number(tile) or is_scalar(tile):
        shape = (1,) * tensor.rank
    else:
        raise t.wrong_type(
            f"{tensor.name} has rank {tensor.rank} and takes tiles of it, got {describe(tile)}"
        )
    value = _stored(t, tile, tensor, shape)
    view = _view(t, tensor, shape, order, "zero")
    t.effects.stored.add(tensor.name)
    _store(t, view, numbers, value, steps, tma)
    return None


def _store(
    t: Translator,
    view: Value,
    index: tuple[Value, ...],
    tile: Value,
    latency: int | None = None,
    tma: bool | None = None,
) -> None:
    t.add(
        StoreOp(
            view=view,
            tile=tile,
            index=index,
            latency=latency,
            allow_tma=tma,
            result_token=Value(TokenType()),
        )
    )


def _stored(t: Translator, tile: object, tensor: TensorValue, shape: tuple[int, ...]) -> Value:
    """`tile` as stored to `tensor`: broadcast to `shape`; converted only where nothing is lost by rule."""
    dtype = tensor.dtype
    if is_loose(tile):
        if loose_dtype(tile).is_float and not dtype.is_float:
            raise t.wrong_type(f"{tensor.name} holds {dtype.name}, got {describe(tile)}; cast it first")
        if isinstance(tile, Loose):
            return broadcast_to(t, meet(t, tile, dtype), shape)
        return t.constant(tile, dtype, shape)
    value = as_tile(t, tile, "what is stored")
    own = tile_type(value).number
    if own is not dtype and (
        own.restricted or dtype.restricted or dtype is bool_ or common_dtype(t, own, dtype) is not dtype
    ):
        raise t.wrong_type(
            f"{tensor.name} holds {dtype.name}, got {describe(value)}; convert it: "
            f"tile.astype({tensor.name}.dtype)"
        )
    return broadcast_to(t, cast(t, value, dtype), shape)


# ------------------------------------------------------------------ partitions


def _own_tile(t: Translator, out: object, name: str) -> OwnedTileValue:
    if not isinstance(out, OwnedTileValue):
        raise t.wrong_type(f"{name} takes a partition parameter, got {describe(out)}")
    return out


@implements(language.load_like)
def load_like(t: Translator, array: object, out: object, padding_mode: object) -> object:
    own = _own_tile(t, out, "load_like")
    if isinstance(array, OwnedTileValue):
        if array.tile_shape != own.tile_shape:
            raise t.wrong_value(
                f"tiles of {array.name} have shape {array.tile_shape}, those of {own.name} {own.tile_shape}"
            )
        return load_own(t, array)
    tensor = _tensor(t, array, "load_like")
    if tensor.rank != own.tensor.rank:
        raise t.wrong_value(f"{tensor.name} has rank {tensor.rank}, {own.name} has rank {own.tensor.rank}")
    for axis, (extent, flat) in enumerate(zip(tensor.shape, tensor.flat, strict=True)):
        known = extent if isinstance(extent, int) else 0
        t.checks.append(CoversGrid(flat, known, own.tile_shape[axis], axis, tensor.name, axis, t.location))
    t.effects.loaded.add(tensor.name)
    view = _view(t, tensor, own.tile_shape, "C", _padding(t, tensor, padding_mode))
    return _load(t, view, own.index)


@implements(language.OwnedTile.load)
def load_own(t: Translator, self: object) -> object:
    own = _own_tile(t, self, "load")
    t.effects.loaded.add(own.name)
    return _load(t, _view(t, own.tensor, own.tile_shape, "C", "zero"), own.index)


@implements(language.OwnedTile.store)
def store_own(t: Translator, self: object, tile: object) -> object:
    own = _own_tile(t, self, "store")
    value = _stored(t, tile, own.tensor, own.tile_shape)
    t.effects.stored.add(own.name)
    _store(t, _view(t, own.tensor, own.tile_shape, "C", "zero"), own.index, value)
    return None


@implements(language.num_tiles)
def num_tiles(t: Translator, array: object, axis: object, shape: object, order: object) -> object:
    if isinstance(array, OwnedTileValue):
        array = array.tensor
    tensor = _tensor(t, array, "num_tiles")
    position = t.axis(axis, tensor.rank)
    sides = t.static_ints(shape, "shape")
    axes = _order(t, order, tensor.rank)
    extent = tensor.shape[axes[position]]
    if isinstance(extent, int) and len(sides) == tensor.rank:
        return -(-extent // sides[position])
    view = _view(t, tensor, shape, order, "zero")
    counts = tuple([Value(scalar(int32)) for _ in sides])
    t.add(IndexSpaceOp(view=view, counts=counts))
    return counts[position]
