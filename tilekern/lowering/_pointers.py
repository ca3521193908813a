"""Pointers and atomics.

An element's place is its index times the strides, in the widest of the types that indices, extents and
strides have. Extents and strides are of 32 bits only where every element's place fits; what an index
that is not in the tensor gives does not matter.
"""

from __future__ import annotations

from ..ir import (
    AtomicCasOp,
    AtomicOp,
    AtomicReduceOp,
    ElementPointersOp,
    InBoundsOp,
    LoadPointersOp,
    OffsetOp,
    StorePointersOp,
    TensorType,
    TileType,
    Value,
)
from ..tileir import AtomicMode, ComparisonPredicate, Signedness, types
from ..tileir import Value as TileValue
from ._lowerer import Lowerer, lowers
from ._memory import as_read, as_stored, hints_of, ordering_of, scope_of, token_of

__all__: list[str] = []


@lowers(OffsetOp)
def _offset(b: Lowerer, op: OffsetOp) -> None:
    elements = b[op.elements]
    assert isinstance(op.elements.type, TileType)
    dtype = op.elements.type.number
    if not dtype.is_signed and dtype.bits < 64:  # Tile IR takes offsets for signed
        elements = b.fn.exti(elements, types.i64, Signedness.UNSIGNED)
    b[op.result] = b.fn.offset(b[op.pointers], elements)


def _index(b: Lowerer, op: ElementPointersOp | InBoundsOp) -> tuple[list[TileValue], types.TileType]:
    """The indices, in the type that the tensor's extents and strides fit too, and that type."""
    tensor = b.tensors[op.tensor]
    wide = [v.type.number.bits == 64 for v in (*op.index, *tensor.shape, *tensor.strides)]  # type: ignore[union-attr]  # integer tiles, by the verifier
    element = types.i64 if any(wide) else types.i32
    found = [_widened(b, b[v], element) for v in op.index]
    return found, found[0].tile_type


def _widened(b: Lowerer, value: TileValue, element: types.NumberType) -> TileValue:
    if value.tile_type.element == element:
        return value
    return b.fn.exti(value, element, Signedness.SIGNED)


def _numbers(
    b: Lowerer, known: tuple[int | None, ...], others: tuple[Value, ...], kind: types.TileType
) -> list[TileValue | int]:
    """Extents or strides: numbers where they are known, tiles of `kind` elsewhere."""
    rest = iter(others)
    element = kind.element
    assert isinstance(element, types.NumberType)
    return [b.fn.splat(_widened(b, b[next(rest)], element), kind.shape) if n is None else n for n in known]


@lowers(ElementPointersOp)
def _element_pointers(b: Lowerer, op: ElementPointersOp) -> None:
    tensor = b.tensors[op.tensor]
    assert isinstance(tensor.result.type, TensorType)
    index, kind = _index(b, op)
    place: TileValue | None = None
    for along, stride in zip(
        index, _numbers(b, tensor.result.type.strides, tensor.strides, kind), strict=True
    ):
        if isinstance(stride, int):
            part = along if stride == 1 else b.fn.muli(along, b.fn.constant(kind, stride))
        else:
            part = b.fn.muli(along, stride)
        place = part if place is None else b.fn.addi(place, part)
    assert place is not None
    b[op.result] = b.fn.offset(b.fn.splat(b[tensor.base], kind.shape), place)


@lowers(InBoundsOp)
def _in_bounds(b: Lowerer, op: InBoundsOp) -> None:
    tensor = b.tensors[op.tensor]
    assert isinstance(tensor.result.type, TensorType)
    index, kind = _index(b, op)
    inside: TileValue | None = None
    for along, extent in zip(index, _numbers(b, tensor.result.type.shape, tensor.shape, kind), strict=True):
        bound = b.fn.constant(kind, extent) if isinstance(extent, int) else extent
        # read as unsigned, negative numbers are beyond every extent
        part = b.fn.cmpi(ComparisonPredicate.LESS_THAN, along, bound, Signedness.UNSIGNED)
        inside = part if inside is None else b.fn.binary("andi", inside, part)
    assert inside is not None
    b[op.result] = inside


def _optional(b: Lowerer, value: Value | None) -> TileValue | None:
    return None if value is None else b[value]


@lowers(LoadPointersOp)
def _load_pointers(b: Lowerer, op: LoadPointersOp) -> None:
    tile, b[op.result_token] = b.fn.load_ptr(
        b[op.pointers],
        _optional(b, op.mask),
        None if op.padding is None else as_stored(b, op.padding),
        token_of(b, op),
        ordering=ordering_of(op),
        scope=scope_of(op),
        hints=hints_of(op.latency),
    )
    b[op.result] = as_read(b, op.result, tile)


@lowers(StorePointersOp)
def _store_pointers(b: Lowerer, op: StorePointersOp) -> None:
    b[op.result_token] = b.fn.store_ptr(
        b[op.pointers],
        as_stored(b, op.tile),
        _optional(b, op.mask),
        token_of(b, op),
        ordering=ordering_of(op),
        scope=scope_of(op),
        hints=hints_of(op.latency),
    )


# ------------------------------------------------------------------ atomics


def _mode(mode: str, tile: Value) -> AtomicMode:
    assert isinstance(tile.type, TileType)
    dtype = tile.type.number
    if mode == "add":
        return AtomicMode.ADDF if dtype.is_float else AtomicMode.ADD
    if mode in ("max", "min") and not dtype.is_signed:
        mode = f"u{mode}"
    return AtomicMode[mode.upper()]


@lowers(AtomicOp)
def _atomic(b: Lowerer, op: AtomicOp) -> None:
    scope = scope_of(op)
    assert scope is not None
    b[op.result], b[op.result_token] = b.fn.atomic_rmw(
        _mode(op.mode, op.tile),
        b[op.pointers],
        b[op.tile],
        _optional(b, op.mask),
        token_of(b, op),
        ordering=ordering_of(op),
        scope=scope,
    )


@lowers(AtomicCasOp)
def _atomic_cas(b: Lowerer, op: AtomicCasOp) -> None:
    scope = scope_of(op)
    assert scope is not None
    b[op.result], b[op.result_token] = b.fn.atomic_cas(
        b[op.pointers],
        b[op.expected],
        b[op.desired],
        _optional(b, op.mask),
        token_of(b, op),
        ordering=ordering_of(op),
        scope=scope,
    )


@lowers(AtomicReduceOp)
def _atomic_reduce(b: Lowerer, op: AtomicReduceOp) -> None:
    scope = scope_of(op)
    assert scope is not None
    b[op.result_token] = b.fn.atomic_red_view(
        _mode(op.mode, op.tile), b[op.view], b.all(op.index), b[op.tile], token_of(b, op), scope=scope
    )
