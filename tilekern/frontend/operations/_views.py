"""Tiled views, slices, and memory behind a pointer as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ..._terms import Term, argument, constant, encoded
from ...dtypes import DType, int32, int64
from ...ir import (
    AssertOp,
    AssumeBoundedOp,
    AssumeDivByOp,
    AtomicReduceOp,
    MakeTensorOp,
    OffsetOp,
    SelectOp,
    TensorType,
    TokenType,
    Value,
)
from .._checks import Requires
from .._operators import binary, compare
from .._pointers import place_tile
from .._promotion import cast
from .._values import TensorValue, TiledViewValue, describe, is_pointer, is_scalar, pointee, tile_type
from ._access import ordering_option, padding_option, stored_value, tensor_argument
from ._atomics import check_atomic_type
from ._memory import count_tiles, load_tile, store_tile, tile_index, tile_view
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__ = ["MAX_CHOICES", "choose_tensor"]

MAX_CHOICES = 64
"""Most tensors of a tuple that an index known at run time only chooses from: each costs a comparison."""


def _view(t: Translator, value: object, name: str) -> TiledViewValue:
    if not isinstance(value, TiledViewValue):
        raise t.wrong_type(f"{name} is a method of tiled views, got {describe(value)}")
    return value


@implements(language.Tensor.tiled_view)
def tiled_view(
    t: Translator,
    self: object,
    tile_shape: object,
    padding_mode: object,
    traversal_steps: object,
    order: object,
) -> object:
    tensor = tensor_argument(t, self, "tiled_view")
    steps: tuple[int, ...] = ()
    if traversal_steps is not None:
        steps = t.static_ints(traversal_steps, "traversal_steps")
        if len(steps) != tensor.rank or min(steps) < 1:
            raise t.wrong_value(
                f"traversal_steps are {tensor.rank} numbers of 1 or more for {tensor.name}, got {steps}"
            )
        if steps == t.static_ints(tile_shape, "a tile's shape"):
            steps = ()
    padding = padding_option(t, tensor, padding_mode)
    return TiledViewValue(tensor, tile_view(t, tensor, tile_shape, order, padding, steps))


@implements(language.TiledView.num_tiles)
def num_tiles(t: Translator, self: object, axis: object) -> object:
    view = _view(t, self, "num_tiles")
    return count_tiles(t, view.tensor, view.value, t.axis(axis, view.tensor.rank))


@implements(language.TiledView.load)
def load(
    t: Translator,
    self: object,
    index: object,
    check_bounds: object,
    latency: object,
    allow_tma: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    view = _view(t, self, "load")
    numbers = tile_index(t, view.tensor, index)
    return load_tile(
        t, view.tensor, view.value, numbers, check_bounds, latency, allow_tma, memory_order, memory_scope
    )


def _writable(t: Translator, value: object, name: str) -> TiledViewValue:
    view = _view(t, value, name)
    if not view.tensor.writable:
        raise t.wrong_type(f"{view.name} is given for reading; give it as ca.mut({view.name}) to store to it")
    return view


@implements(language.TiledView.store)
def store(
    t: Translator,
    self: object,
    index: object,
    tile: object,
    check_bounds: object,
    latency: object,
    allow_tma: object,
    memory_order: object,
    memory_scope: object,
) -> object:
    view = _writable(t, self, "store")
    numbers = tile_index(t, view.tensor, index)
    value = stored_value(t, tile, view.tensor.dtype, view.name, view.type.tile_shape)
    store_tile(
        t,
        view.tensor,
        view.value,
        numbers,
        value,
        check_bounds,
        latency,
        allow_tma,
        memory_order,
        memory_scope,
    )
    return None


def _implement(mode: str) -> None:
    name = f"atomic_store_{mode}"

    @implements(getattr(language.TiledView, name))
    def atomic_store(
        t: Translator, self: object, index: object, tile: object, memory_scope: object
    ) -> object:
        view = _writable(t, self, name)
        check_atomic_type(t, name, mode, view.tensor.dtype, view.name)
        scopes = (language.MemoryScope.BLOCK, language.MemoryScope.DEVICE)
        _, scope = ordering_option(t, "atomic", language.MemoryOrder.RELAXED, memory_scope, scopes)
        t.effects.stored.add(view.name)
        op = AtomicReduceOp(
            view=view.value,
            tile=stored_value(t, tile, view.tensor.dtype, view.name, view.type.tile_shape),
            index=tile_index(t, view.tensor, index),
            mode=mode,
            scope=scope,
            result_token=Value(TokenType()),
        )
        t.add(op)
        return None


for _mode in ("add", "max", "min", "and", "or", "xor"):
    _implement(_mode)


# ------------------------------------------------------------------ slices


def _bound(t: Translator, value: object, what: str) -> Value | int:
    """An end of a slice: a number where it is known."""
    if type(value) is int:
        return value
    scalar = place_tile(t, value, what)
    if not is_scalar(scalar):
        raise t.wrong_type(f"{what} of a slice is a whole number or integer scalar, got {describe(value)}")
    return scalar


@implements(language.Tensor.slice)
def slice_(t: Translator, self: object, axis: object, start: object, stop: object) -> object:
    tensor = tensor_argument(t, self, "slice")
    along = t.axis(axis, tensor.rank)
    first, last = _bound(t, start, "start"), _bound(t, stop, "stop")
    _check_slice(t, tensor, along, first, last)
    extent = _minus(t, last, first)
    wide = tensor.is_wide or any(tile_type(v).number is int64 for v in (first, last) if isinstance(v, Value))
    dtype = int64 if wide else int32
    shape = [*tensor.shape]
    if isinstance(extent, Value):
        extent = cast(t, extent, dtype)
    shape[along] = _not_negative(t, extent)
    strides = [*tensor.strides]
    if wide:
        shape = [cast(t, v, dtype) if isinstance(v, Value) else v for v in shape]
        strides = [cast(t, v, dtype) if isinstance(v, Value) else v for v in strides]
    base = tensor.base
    if first != 0 or isinstance(first, Value):
        place = binary(t, "*", first, strides[along])
        moved = place_tile(t, place, "start")
        base = t.add(OffsetOp(pointers=base, elements=moved, result=Value(base.type))).result
    flat = [*tensor.flat]
    flat[along] = None
    return _tensor(t, tensor.name, base, shape, strides, tensor.writable, tuple(flat))


def _minus(t: Translator, a: Value | int, b: Value | int) -> Value | int:
    difference = binary(t, "-", a, b)
    return difference if isinstance(difference, int) else place_tile(t, difference, "a slice")


def _check_slice(
    t: Translator, tensor: TensorValue, axis: int, start: Value | int, stop: Value | int
) -> None:
    """Refuse a slice that is not in the tensor, or check in the kernel that it is."""
    extent = tensor.shape[axis]
    what = f"slice [{_shown(start)}:{_shown(stop)}] along axis {axis} of {tensor.name}"
    for low, high in ((0, start), (start, stop), (stop, extent)):
        if isinstance(low, int) and isinstance(high, int):
            if low > high:
                known = f", whose extent is {extent}" if isinstance(extent, int) else ""
                raise t.wrong_value(f"{what} is not in it{known}: 0 <= start <= stop <= extent")
            continue
        if high is extent and isinstance(low, int) and low == 0:
            continue
        terms = [_term(t, value, tensor, axis) for value in (low, high, extent)]
        if None not in terms and t.builder.block is t.body:
            least, most, size = [term for term in terms if term is not None]
            flats = {atom.position for term in (least, most, size) for atom in term.atoms()}  # type: ignore[union-attr]  # arguments all
            t.checks.append(
                Requires(
                    at_least=encoded((most - least,)),
                    guards=(),
                    decides=False,
                    reason=f"{what} is not in it, its extent is {{}}: "
                    "0 <= start <= stop <= extent, but not {} <= {}",
                    shown=encoded((size, least, most)),
                    flats=tuple(sorted(flats)),
                    location=t.location,
                )
            )
            continue
        condition = compare(t, "<=", low, high)
        assert isinstance(condition, Value)
        t.add(AssertOp(condition=condition, message=f"{what} is not in it: 0 <= start <= stop <= extent"))


def _term(t: Translator, value: Value | int, tensor: TensorValue, axis: int) -> Term | None:
    """A number as the launch knows it, if it does."""
    if isinstance(value, int):
        return constant(value)
    flat = tensor.flat[axis] if value is tensor.shape[axis] else t.entry.get(value)
    if flat is None:
        return None
    name = f"{tensor.name}_shape{axis}" if value is tensor.shape[axis] else value.name
    return argument(flat, name)


def _shown(value: Value | int) -> str:
    return str(value) if isinstance(value, int) else value.name or "..."


def _tensor(
    t: Translator,
    name: str,
    base: Value,
    shape: list[Value | int],
    strides: list[Value | int],
    writable: bool,
    flat: tuple[int | None, ...],
    overlapping: bool = False,
) -> TensorValue:
    dtype = pointee(base)
    # the IR knows no extent of 0 and no stride below 1 that is a number
    element = (
        int64
        if any(isinstance(v, Value) and tile_type(v).number is int64 for v in (*shape, *strides))
        else int32
    )
    dims = [t.constant(v, element) if isinstance(v, int) and v < 1 else v for v in shape]
    steps = [t.constant(v, element) if isinstance(v, int) and v < 1 else v for v in strides]
    kind = TensorType(
        dtype,
        tuple([v if isinstance(v, int) else None for v in dims]),
        tuple([v if isinstance(v, int) else None for v in steps]),
    )
    op = MakeTensorOp(
        base=base,
        shape=tuple([v for v in dims if isinstance(v, Value)]),
        strides=tuple([v for v in steps if isinstance(v, Value)]),
        overlapping=overlapping,
        result=Value(kind, f"{name}_tensor"),
    )
    made = t.add(op).result
    return TensorValue(name, made, tuple(shape), tuple(strides), writable, flat, base, is_derived=True)


# ------------------------------------------------------------------ one of several


def choose_tensor(t: Translator, tensors: tuple[TensorValue, ...], index: Value) -> TensorValue:
    """The tensor at a position that is known at run time only: its address, extents and strides are chosen."""
    number = place_tile(t, index, "an index")
    if not is_scalar(number):
        raise t.wrong_type(f"one tensor is chosen by an integer scalar, got {describe(index)}")
    first = tensors[0]
    kinds = {(tensor.dtype.name, tensor.rank) for tensor in tensors}
    if len(kinds) > 1:
        shown = ", ".join([f"{name} of rank {rank}" for name, rank in sorted(kinds)])
        raise t.wrong_type(
            f"tensors that a run-time index chooses from have one element type and rank, got {shown}"
        )
    if len(tensors) > MAX_CHOICES:
        raise t.wrong_value(
            f"a run-time index chooses from at most {MAX_CHOICES} tensors, got {len(tensors)}"
        )
    name = f"{first.name.rpartition('[')[0] or first.name}[...]"
    for condition in (compare(t, ">=", number, 0), compare(t, "<", number, len(tensors))):
        assert isinstance(condition, Value)
        t.add(AssertOp(condition=condition, message=f"{name} has {len(tensors)} tensors, counted from 0"))
    chosen = [compare(t, "==", number, position) for position in range(1, len(tensors))]
    dtype = int64 if any(tensor.is_wide for tensor in tensors) else int32

    def choose(values: list[Value | int]) -> Value | int:
        if all(isinstance(value, int) and value == values[0] for value in values):
            return values[0]
        made = [_as_choice(t, value, dtype) for value in values]
        result = made[0]
        for condition, value in zip(chosen, made[1:], strict=True):
            assert isinstance(condition, Value)
            op = SelectOp(condition=condition, if_true=value, if_false=result, result=Value(value.type))
            result = t.add(op).result
        divisor = min(_known_divisor(t, value) for value in values)
        if divisor == 1:
            return result
        return t.add(AssumeDivByOp(source=result, divisor=divisor, result=Value(result.type))).result

    base = choose([tensor.base for tensor in tensors])
    assert isinstance(base, Value)
    shape = [
        _not_negative(t, choose([tensor.shape[axis] for tensor in tensors])) for axis in range(first.rank)
    ]
    strides = [choose([tensor.strides[axis] for tensor in tensors]) for axis in range(first.rank)]
    writable = all(tensor.writable for tensor in tensors)
    return _tensor(t, name, base, shape, strides, writable, (None,) * first.rank)


def _as_choice(t: Translator, value: Value | int, dtype: DType) -> Value:
    if isinstance(value, int):
        return t.constant(value, dtype)
    return value if is_pointer(value) else cast(t, value, dtype)


def _known_divisor(t: Translator, value: Value | int) -> int:
    """A power of two, at most 16, that a number or parameter is known to be a multiple of."""
    if isinstance(value, int):
        return min(16, value & -value) if value else 16
    maker = next((op for op in t.body.ops if value in op.results), None)
    return maker.divisor if isinstance(maker, AssumeDivByOp) else 1


def _not_negative(t: Translator, extent: Value | int) -> Value | int:
    if isinstance(extent, int):
        return extent
    op = AssumeBoundedOp(source=extent, lower=0, upper=None, result=Value(extent.type))
    return t.add(op).result


# ------------------------------------------------------------------ behind a pointer


@implements(language.make_tensor)
def make_tensor(t: Translator, pointer: object, shape: object, strides: object) -> object:
    if not is_pointer(pointer) or tile_type(pointer).shape:
        raise t.wrong_type(f"make_tensor takes one pointer, got {describe(pointer)}")
    dims = _sizes(t, shape, "shape", 0)
    if not dims:
        raise t.wrong_value("a tensor has rank 1 or more, got shape ()")
    if strides is None:
        steps: list[Value | int] = [1]
        for extent in dims[:0:-1]:
            product = binary(t, "*", steps[0], extent)
            assert isinstance(product, Value | int)
            steps.insert(0, product)
    else:
        steps = _sizes(t, strides, "strides", 1)
    if len(steps) != len(dims):
        raise t.wrong_value(f"{len(steps)} strides for {len(dims)} axes; give one for each")
    return _tensor(
        t,
        pointer.name or "memory",
        pointer,
        dims,
        steps,
        writable=True,
        flat=(None,) * len(dims),
        overlapping=strides is not None,
    )


def _sizes(t: Translator, values: object, what: str, least: int) -> list[Value | int]:
    """Extents or strides, numbers or scalars of 64 bits."""
    found: list[Value | int] = []
    for part in values if isinstance(values, tuple) else (values,):
        if type(part) is int:
            if part < least:
                raise t.wrong_value(f"each number of {what} is {least} or more, got {part}")
            found.append(part)
            continue
        value = place_tile(t, part, f"each number of {what}")
        if not is_scalar(value):
            raise t.wrong_type(f"{what} is made of whole numbers and integer scalars, got {describe(part)}")
        found.append(cast(t, value, int64))
    return found
