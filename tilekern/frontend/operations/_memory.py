"""Loads and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ...dtypes import int32, int64
from ...ir import IndexSpaceOp, LoadOp, MakeViewOp, StoreOp, TokenType, Value, ViewType, scalar
from .._mapped import MappedTilesValue, TileIndexValue
from .._pointers import place_tile
from .._promotion import cast
from .._values import OwnedTileValue, TensorValue, describe, is_number, is_scalar, is_tile, tile_type
from ._access import (
    hint_options,
    ordering_option,
    padding_option,
    stored_value,
    tensor_argument,
    writable_tensor,
)
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__ = ["axis_order", "count_tiles", "load_tile", "store_tile", "tile_index", "tile_view"]


def axis_order(t: Translator, order: object, rank: int) -> tuple[int, ...]:
    """The tensor axis of each tile axis."""
    if order in ("C", "F"):
        axes = tuple(range(rank))
        return axes if order == "C" else axes[::-1]
    axes = tuple([t.axis(a, rank, "order") for a in t.static_ints(order, "order")])
    if sorted(axes) != list(range(rank)):
        raise t.wrong_value(f"order is 'C', 'F' or names every axis once, got {order}")
    return axes


def tile_view(
    t: Translator,
    tensor: TensorValue,
    shape: object,
    order: object,
    padding: str,
    steps: tuple[int, ...] = (),
) -> Value:
    """The tensor cut into tiles of `shape`."""
    tile_shape = t.static_shape(shape)
    if len(tile_shape) != tensor.rank:
        raise t.wrong_value(
            f"{tensor.name} has rank {tensor.rank} and takes tiles of {tensor.rank} sides, got shape {tile_shape}"
        )
    kind = ViewType(tile_shape, tensor.type, axis_order(t, order, tensor.rank), padding, steps)
    return t.add(MakeViewOp(tensor=tensor.value, result=Value(kind))).result


def tile_index(t: Translator, tensor: TensorValue, index: object) -> tuple[Value, ...]:
    """Tile numbers as integer scalars of one type."""
    if isinstance(index, TileIndexValue):
        raise t.wrong_type(
            f"an index of a walk is for the partitions that are walked; for {tensor.name} take its numbers, "
            "index.components()"
        )
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) != tensor.rank:
        raise t.wrong_value(f"{tensor.name} has rank {tensor.rank}, the index has {len(parts)} numbers")
    values: list[Value] = []
    for part in parts:
        if type(part) is int and part < 0:
            raise t.wrong_value(f"tile {part} of {tensor.name} is before its first one; tiles count from 0")
        value = place_tile(t, part, "an index")
        if not is_scalar(value):
            raise t.wrong_type(f"an index is of whole numbers and integer scalars, got {describe(part)}")
        values.append(value)
    wide = any(tile_type(v).number is int64 for v in values)
    return tuple([cast(t, v, int64 if wide else int32) for v in values])


@implements(language.load)
def load(
    t: Translator,
    array: object,
    index: object,
    shape: object,
    order: object,
    padding_mode: object,
    check_bounds: object,
    latency: object,
    allow_tma: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    tensor = tensor_argument(t, array, "load")
    numbers = tile_index(t, tensor, index)
    view = tile_view(t, tensor, shape, order, padding_option(t, tensor, padding_mode))
    return load_tile(t, tensor, view, numbers, check_bounds, latency, allow_tma, memory_order, memory_scope)


def load_tile(
    t: Translator,
    tensor: TensorValue,
    view: Value,
    index: tuple[Value, ...],
    check_bounds: object = True,
    latency: object = None,
    allow_tma: object = None,
    order: object = language.MemoryOrder.WEAK,
    scope: object = None,
) -> Value:
    """The tile of a view at an index."""
    assert isinstance(view.type, ViewType)
    steps, tma = hint_options(t, latency, allow_tma)
    ordering, within = ordering_option(t, "load", order, scope)
    t.effects.loaded.add(tensor.name)
    op = LoadOp(
        view=view,
        index=index,
        latency=steps,
        allow_tma=tma,
        ordering=ordering,
        scope=within,
        contained=not t.static_bool(check_bounds, "check_bounds"),
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
    check_bounds: object,
    latency: object,
    allow_tma: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    tensor = writable_tensor(t, array, "store")
    numbers = tile_index(t, tensor, index)
    if is_tile(tile) and tile_type(tile).rank == tensor.rank:
        shape = tile_type(tile).shape
    elif is_number(tile) or is_scalar(tile):
        shape = (1,) * tensor.rank
    else:
        raise t.wrong_type(
            f"{tensor.name} has rank {tensor.rank} and takes tiles of it, got {describe(tile)}"
        )
    value = stored_value(t, tile, tensor.dtype, tensor.name, shape)
    view = tile_view(t, tensor, shape, order, "zero")
    store_tile(t, tensor, view, numbers, value, check_bounds, latency, allow_tma, memory_order, memory_scope)
    return None


def store_tile(
    t: Translator,
    tensor: TensorValue,
    view: Value,
    index: tuple[Value, ...],
    tile: Value,
    check_bounds: object = True,
    latency: object = None,
    allow_tma: object = None,
    order: object = language.MemoryOrder.WEAK,
    scope: object = None,
) -> None:
    """Write a tile of a view."""
    steps, tma = hint_options(t, latency, allow_tma)
    ordering, within = ordering_option(t, "store", order, scope)
    t.effects.stored.add(tensor.name)
    t.add(
        StoreOp(
            view=view,
            tile=tile,
            index=index,
            latency=steps,
            allow_tma=tma,
            ordering=ordering,
            scope=within,
            contained=not t.static_bool(check_bounds, "check_bounds"),
            result_token=Value(TokenType()),
        )
    )


# ------------------------------------------------------------------ partitions


def _own_tile(t: Translator, out: object, name: str) -> OwnedTileValue:
    if isinstance(out, MappedTilesValue):
        raise t.wrong_type(
            f"{out.name} is a mapped partition, of which a block walks several tiles; loop over "
            f"{out.name}.iter_indices() and use {out.name}.load(index), {out.name}.store(tile, index) and tk.load"
        )
    if not isinstance(out, OwnedTileValue):
        raise t.wrong_type(f"{name} takes a partition parameter, got {describe(out)}")
    return out


@implements(language.load_like)
def load_like(
    t: Translator,
    array: object,
    out: object,
    padding_mode: object,
    latency: object = None,
    allow_tma: object = None,
) -> object:
    own = _own_tile(t, out, "load_like")
    if isinstance(array, OwnedTileValue):
        if array.tile_shape != own.tile_shape:
            raise t.wrong_value(
                f"tiles of {array.name} have shape {array.tile_shape}, those of {own.name} {own.tile_shape}"
            )
        return load_own(t, array, latency, allow_tma)
    tensor = tensor_argument(t, array, "load_like")
    if tensor.rank != own.tensor.rank:
        raise t.wrong_value(f"{tensor.name} has rank {tensor.rank}, {own.name} has rank {own.tensor.rank}")
    view = tile_view(t, tensor, own.tile_shape, "C", padding_option(t, tensor, padding_mode))
    return load_tile(t, tensor, view, own.index, latency=latency, allow_tma=allow_tma)


@implements(language.OwnedTile.load)
def load_own(t: Translator, self: object, latency: object, allow_tma: object) -> object:
    own = _own_tile(t, self, "load")
    view = tile_view(t, own.tensor, own.tile_shape, "C", "zero")
    return load_tile(t, own.tensor, view, own.index, latency=latency, allow_tma=allow_tma)


@implements(language.OwnedTile.store)
def store_own(t: Translator, self: object, tile: object, latency: object, allow_tma: object) -> object:
    own = _own_tile(t, self, "store")
    value = stored_value(t, tile, own.tensor.dtype, own.name, own.tile_shape)
    view = tile_view(t, own.tensor, own.tile_shape, "C", "zero")
    store_tile(t, own.tensor, view, own.index, value, latency=latency, allow_tma=allow_tma)
    return None


@implements(language.num_tiles)
def num_tiles(t: Translator, array: object, axis: object, shape: object, order: object) -> object:
    if isinstance(array, OwnedTileValue):
        array = array.tensor
    tensor = tensor_argument(t, array, "num_tiles")
    return count_tiles(t, tensor, tile_view(t, tensor, shape, order, "zero"), t.axis(axis, tensor.rank))


def count_tiles(t: Translator, tensor: TensorValue, view: Value, axis: int) -> object:
    """The number of tiles of a view along a tile axis."""
    kind = view.type
    assert isinstance(kind, ViewType)
    extent = tensor.shape[kind.order[axis]]
    if isinstance(extent, int):
        return -(-extent // kind.starts_every[axis])
    dtype = int64 if tensor.is_wide else int32
    counts = tuple([Value(scalar(dtype)) for _ in kind.tile_shape])
    t.add(IndexSpaceOp(view=view, counts=counts))
    return counts[axis]
