"""Elements and rows by their indices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ...dtypes import bool_, int32, int64
from ...ir import (
    AndOp,
    ElementPointersOp,
    InBoundsOp,
    LoadPointersOp,
    LoadSparseOp,
    MakeViewOp,
    PointerType,
    SparseViewType,
    StorePointersOp,
    StoreSparseOp,
    TileType,
    TokenType,
    Value,
)
from .._pointers import place_tile
from .._promotion import broadcast_to, cast
from .._values import TensorValue, describe, is_scalar, is_tile, tile_type
from ._access import (
    fill_tile,
    hint_options,
    latency_option,
    mask_tile,
    ordering_option,
    padding_option,
    shapes_together,
    stored_value,
    tensor_argument,
    writable_tensor,
)
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__ = ["element_pointers", "load_pointers", "store_pointers"]


def element_pointers(
    t: Translator, tensor: TensorValue, indices: object, mask: object, check_bounds: object, *beside: object
) -> tuple[Value, Value | None]:
    """The addresses of elements, in the shape that indices, mask and `beside` have together, and a mask for them."""
    parts = indices if isinstance(indices, tuple) else (indices,)
    if len(parts) != tensor.rank:
        raise t.wrong_value(f"{tensor.name} has rank {tensor.rank}, there are {len(parts)} indices")
    tiles = [place_tile(t, part, "an index") for part in parts]
    wide = any(tile_type(tile).number is int64 for tile in tiles)
    shape = shapes_together(t, *tiles, mask, *beside)
    index = tuple([broadcast_to(t, cast(t, tile, int64 if wide else int32), shape) for tile in tiles])
    chosen = mask_tile(t, mask, shape)
    checked = t.static_bool(check_bounds, "check_bounds")
    op = ElementPointersOp(
        tensor=tensor.value,
        index=index,
        mask=None if checked else chosen,
        promised=not checked,
        result=Value(TileType(PointerType(tensor.dtype), shape)),
    )
    pointers = t.add(op).result
    if not checked:
        return pointers, chosen
    kind = TileType(bool_, shape)
    inside = t.add(InBoundsOp(tensor=tensor.value, index=index, result=Value(kind))).result
    if chosen is not None:
        inside = t.add(AndOp(lhs=inside, rhs=chosen, result=Value(kind))).result
    return pointers, inside


def load_pointers(
    t: Translator,
    pointers: Value,
    mask: Value | None,
    padding_value: object,
    name: str,
    latency: object,
    order: object,
    scope: object,
) -> Value:
    """What pointers point to."""
    ordering, within = ordering_option(t, "load", order, scope)
    kind = tile_type(pointers)
    assert isinstance(kind.dtype, PointerType)
    dtype = kind.dtype.pointee
    padding = None if mask is None else fill_tile(t, padding_value, dtype, name, kind.shape)
    op = LoadPointersOp(
        pointers=pointers,
        mask=mask,
        padding=padding,
        latency=latency_option(t, latency),
        ordering=ordering,
        scope=within,
        result=Value(TileType(dtype, kind.shape)),
        result_token=Value(TokenType()),
    )
    return t.add(op).result


def store_pointers(
    t: Translator,
    pointers: Value,
    mask: Value | None,
    value: object,
    name: str,
    latency: object,
    order: object,
    scope: object,
) -> None:
    """Write through pointers."""
    ordering, within = ordering_option(t, "store", order, scope)
    kind = tile_type(pointers)
    assert isinstance(kind.dtype, PointerType)
    op = StorePointersOp(
        pointers=pointers,
        tile=stored_value(t, value, kind.dtype.pointee, name, kind.shape),
        mask=mask,
        latency=latency_option(t, latency),
        ordering=ordering,
        scope=within,
        result_token=Value(TokenType()),
    )
    t.add(op)


@implements(language.gather)
def gather(
    t: Translator,
    array: object,
    indices: object,
    mask: object,
    padding_value: object,
    check_bounds: object,
    latency: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    tensor = tensor_argument(t, array, "gather")
    pointers, chosen = element_pointers(t, tensor, indices, mask, check_bounds)
    t.effects.loaded.add(tensor.name)
    return load_pointers(t, pointers, chosen, padding_value, tensor.name, latency, memory_order, memory_scope)


@implements(language.scatter)
def scatter(
    t: Translator,
    array: object,
    indices: object,
    value: object,
    mask: object,
    check_bounds: object,
    latency: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    tensor = writable_tensor(t, array, "scatter")
    pointers, chosen = element_pointers(t, tensor, indices, mask, check_bounds, value)
    t.effects.stored.add(tensor.name)
    store_pointers(t, pointers, chosen, value, tensor.name, latency, memory_order, memory_scope)
    return None


# ------------------------------------------------------------------ rows


def _sparse_index(
    t: Translator, tensor: TensorValue, indices: object
) -> tuple[int, tuple[int, ...], tuple[Value, ...]]:
    """The axis of the row numbers, the shape of the tile, and the index."""
    if not isinstance(indices, tuple) or len(indices) != tensor.rank:
        raise t.wrong_value(
            f"{tensor.name} has rank {tensor.rank}; give {tensor.rank} indices: one tile of row numbers, and a "
            f"tk.Slice for every other axis; got {describe(indices)}"
        )
    axes = [axis for axis, part in enumerate(indices) if is_tile(part) and tile_type(part).rank == 1]
    if len(axes) != 1:
        raise t.wrong_value(
            f"exactly one index is a tile of rank 1, the others are tk.Slice; got {describe(indices)}"
        )
    shape: list[int] = []
    index: list[Value] = []
    for axis, part in enumerate(indices):
        if axis == axes[0]:
            rows = place_tile(t, part, "row numbers")
            shape.append(tile_type(rows).shape[0])
            index.append(rows)
            continue
        if not isinstance(part, language.Slice):
            raise t.wrong_type(f"index {axis} is a tk.Slice(start, length), got {describe(part)}")
        (length,) = t.static_shape(part.length)
        if type(part.start) is int and part.start < 0:
            raise t.wrong_value(f"a slice starts at element 0 or later, got {part.start}")
        start = place_tile(t, part.start, "the start of a slice")
        if not is_scalar(start):
            raise t.wrong_type(f"a slice starts at one element, got {describe(part.start)}")
        shape.append(length)
        index.append(start)
    # Tile IR reads indices as unsigned: in 64 bits, negative ones are beyond every extent
    wide = tensor.is_wide or any(tile_type(value).number is int64 for value in index)
    return axes[0], tuple(shape), tuple([cast(t, value, int64 if wide else int32) for value in index])


def _sparse_view(
    t: Translator, tensor: TensorValue, axis: int, shape: tuple[int, ...], padding: str
) -> Value:
    t.static_shape(shape)
    kind = SparseViewType(shape, tensor.type, axis, padding)
    return t.add(MakeViewOp(tensor=tensor.value, result=Value(kind))).result


@implements(language.load_advanced_indexing)
def load_advanced_indexing(
    t: Translator,
    array: object,
    indices: object,
    padding_mode: object,
    latency: object,
    allow_tma: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    tensor = tensor_argument(t, array, "load_advanced_indexing")
    axis, shape, index = _sparse_index(t, tensor, indices)
    steps, tma = hint_options(t, latency, allow_tma)
    ordering, within = ordering_option(t, "load", memory_order, memory_scope)
    t.effects.loaded.add(tensor.name)
    op = LoadSparseOp(
        view=_sparse_view(t, tensor, axis, shape, padding_option(t, tensor, padding_mode)),
        index=index,
        latency=steps,
        allow_tma=tma,
        ordering=ordering,
        scope=within,
        result=Value(TileType(tensor.dtype, shape)),
        result_token=Value(TokenType()),
    )
    return t.add(op).result


@implements(language.store_advanced_indexing)
def store_advanced_indexing(
    t: Translator,
    array: object,
    indices: object,
    tile: object,
    latency: object,
    allow_tma: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    tensor = writable_tensor(t, array, "store_advanced_indexing")
    axis, shape, index = _sparse_index(t, tensor, indices)
    steps, tma = hint_options(t, latency, allow_tma)
    ordering, within = ordering_option(t, "store", memory_order, memory_scope)
    t.effects.stored.add(tensor.name)
    op = StoreSparseOp(
        view=_sparse_view(t, tensor, axis, shape, "zero"),
        tile=stored_value(t, tile, tensor.dtype, tensor.name, shape),
        index=index,
        latency=steps,
        allow_tma=tma,
        ordering=ordering,
        scope=within,
        result_token=Value(TokenType()),
    )
    t.add(op)
    return None
