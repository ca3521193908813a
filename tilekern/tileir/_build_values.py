"""Operations on tiles in registers: arithmetic, conversions, shapes, constants, matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import types
from ._attributes import Attribute
from ._constants import Scalar, check_constant_size, encode_elements
from ._emitter import OpEmitter
from ._enums import (
    ComparisonOrdering,
    ComparisonPredicate,
    IntegerOverflow,
    RoundingMode,
    Signedness,
)
from ._module import Value
from .errors import BytecodeError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ValueOps"]

_NEAREST = RoundingMode.NEAREST_EVEN


class ValueOps(OpEmitter):
    """One method per operation; result types are inferred from the operands where they can be."""

    # Constants and ids.

    def constant(self, kind: types.TileType, values: Scalar | Sequence[Any] | np.ndarray[Any, Any]) -> Value:
        """A tile filled with one number, or holding an array of its shape."""
        return self.constant_bytes(kind, encode_elements(kind, values))

    def constant_bytes(self, kind: types.TileType, data: bytes) -> Value:
        """A tile of raw elements: one, or all of them row-major, as `encode_elements` lays them out."""
        check_constant_size(kind, data)
        return self.emit_one("constant", (), kind, {"value": data})

    def iota(self, kind: types.TileType) -> Value:
        """0, 1, 2, ... as a 1-D integer tile."""
        if kind.rank != 1 or not _is_int(kind) or kind.size > 1 << _bits(kind):
            raise BytecodeError(f"iota: a 1-D integer tile that can hold 0 to n-1, got {kind}", "iota")
        return self.emit_one("iota", (), kind)

    def tile_block_id(self) -> tuple[Value, Value, Value]:
        """x, y, z of this tile block, as scalars of i32."""
        x, y, z = self.emit("get_tile_block_id", (), None, (types.tile(types.i32),) * 3)
        return x, y, z

    def num_tile_blocks(self) -> tuple[Value, Value, Value]:
        """The grid's x, y, z, as scalars of i32."""
        x, y, z = self.emit("get_num_tile_blocks", (), None, (types.tile(types.i32),) * 3)
        return x, y, z

    def assume(self, value: Value, predicate: Attribute) -> Value:
        """`value`, of which the compiler may assume `predicate`; use the result in its place."""
        return self.emit_one("assume", (value,), value.type, {"predicate": predicate})

    def get_global(self, name: str, element: types.NumberType) -> Value:
        """Pointer to the first element of a module global."""
        return self.emit_one("get_global", (), types.tile(types.ptr(element)), {"name": name})

    # Any operation that keeps the type of its operands.

    def unary(self, name: str, source: Value, **attributes: object) -> Value:
        """An op of one tile whose result has the same type (absf, ceil, sin, negi, exp2, sqrt, ...)."""
        return self.emit_one(name, (source,), source.type, attributes)

    def binary(self, name: str, lhs: Value, rhs: Value, **attributes: object) -> Value:
        """An op of two tiles of one type whose result has that type (andi, maxi, remf, fpowf, ...)."""
        self._same(name, lhs, rhs)
        return self.emit_one(name, (lhs, rhs), lhs.type, attributes)

    # Float arithmetic.

    def addf(self, lhs: Value, rhs: Value, rounding: RoundingMode = _NEAREST, ftz: bool = False) -> Value:
        return self.binary("addf", lhs, rhs, rounding_mode=rounding, flush_to_zero=ftz)

    def subf(self, lhs: Value, rhs: Value, rounding: RoundingMode = _NEAREST, ftz: bool = False) -> Value:
        return self.binary("subf", lhs, rhs, rounding_mode=rounding, flush_to_zero=ftz)

    def mulf(self, lhs: Value, rhs: Value, rounding: RoundingMode = _NEAREST, ftz: bool = False) -> Value:
        return self.binary("mulf", lhs, rhs, rounding_mode=rounding, flush_to_zero=ftz)

    def divf(self, lhs: Value, rhs: Value, rounding: RoundingMode = _NEAREST, ftz: bool = False) -> Value:
        return self.binary("divf", lhs, rhs, rounding_mode=rounding, flush_to_zero=ftz)

    def fma(
        self, lhs: Value, rhs: Value, acc: Value, rounding: RoundingMode = _NEAREST, ftz: bool = False
    ) -> Value:
        """lhs * rhs + acc, rounded once."""
        self._same("fma", lhs, rhs)
        self._same("fma", lhs, acc)
        attributes = {"rounding_mode": rounding, "flush_to_zero": ftz}
        return self.emit_one("fma", (lhs, rhs, acc), acc.type, attributes)

    def maxf(self, lhs: Value, rhs: Value, propagate_nan: bool = False, ftz: bool = False) -> Value:
        return self.binary("maxf", lhs, rhs, propagate_nan=propagate_nan, flush_to_zero=ftz)

    def minf(self, lhs: Value, rhs: Value, propagate_nan: bool = False, ftz: bool = False) -> Value:
        return self.binary("minf", lhs, rhs, propagate_nan=propagate_nan, flush_to_zero=ftz)

    def exp(self, source: Value, rounding: RoundingMode = RoundingMode.FULL) -> Value:
        return self.unary("exp", source, rounding_mode=rounding)

    def tanh(self, source: Value, rounding: RoundingMode = RoundingMode.FULL) -> Value:
        return self.unary("tanh", source, rounding_mode=rounding)

    def sqrt(self, source: Value, rounding: RoundingMode = _NEAREST, ftz: bool = False) -> Value:
        return self.unary("sqrt", source, rounding_mode=rounding, flush_to_zero=ftz)

    def cmpf(
        self,
        predicate: ComparisonPredicate,
        lhs: Value,
        rhs: Value,
        ordering: ComparisonOrdering = ComparisonOrdering.ORDERED,
    ) -> Value:
        """A tile of i1."""
        self._same("cmpf", lhs, rhs)
        attributes = {"comparison_predicate": predicate, "comparison_ordering": ordering}
        return self.emit_one("cmpf", (lhs, rhs), lhs.tile_type.with_element(types.i1), attributes)

    # Integer arithmetic.

    def addi(self, lhs: Value, rhs: Value, overflow: IntegerOverflow = IntegerOverflow.NONE) -> Value:
        return self.binary("addi", lhs, rhs, overflow=overflow)

    def subi(self, lhs: Value, rhs: Value, overflow: IntegerOverflow = IntegerOverflow.NONE) -> Value:
        return self.binary("subi", lhs, rhs, overflow=overflow)

    def muli(self, lhs: Value, rhs: Value, overflow: IntegerOverflow = IntegerOverflow.NONE) -> Value:
        return self.binary("muli", lhs, rhs, overflow=overflow)

    def divi(
        self,
        lhs: Value,
        rhs: Value,
        signedness: Signedness = Signedness.SIGNED,
        rounding: RoundingMode = RoundingMode.ZERO,
    ) -> Value:
        """Quotient rounded to ZERO (as in C), NEGATIVE_INF (floor; signed only) or POSITIVE_INF."""
        return self.binary("divi", lhs, rhs, signedness=signedness, rounding=rounding)

    def remi(self, lhs: Value, rhs: Value, signedness: Signedness = Signedness.SIGNED) -> Value:
        """Remainder with the dividend's sign (as in C)."""
        return self.binary("remi", lhs, rhs, signedness=signedness)

    def maxi(self, lhs: Value, rhs: Value, signedness: Signedness = Signedness.SIGNED) -> Value:
        return self.binary("maxi", lhs, rhs, signedness=signedness)

    def mini(self, lhs: Value, rhs: Value, signedness: Signedness = Signedness.SIGNED) -> Value:
        return self.binary("mini", lhs, rhs, signedness=signedness)

    def shli(self, lhs: Value, rhs: Value, overflow: IntegerOverflow = IntegerOverflow.NONE) -> Value:
        return self.binary("shli", lhs, rhs, overflow=overflow)

    def shri(self, lhs: Value, rhs: Value, signedness: Signedness = Signedness.SIGNED) -> Value:
        return self.binary("shri", lhs, rhs, signedness=signedness)

    def cmpi(
        self,
        predicate: ComparisonPredicate,
        lhs: Value,
        rhs: Value,
        signedness: Signedness = Signedness.SIGNED,
    ) -> Value:
        """A tile of i1."""
        self._same("cmpi", lhs, rhs)
        attributes = {"comparison_predicate": predicate, "signedness": signedness}
        return self.emit_one("cmpi", (lhs, rhs), lhs.tile_type.with_element(types.i1), attributes)

    # Conversions: to another element type, shape kept.

    def ftof(self, source: Value, to: types.NumberType, rounding: RoundingMode = _NEAREST) -> Value:
        return self.emit_one(
            "ftof", (source,), source.tile_type.with_element(to), {"rounding_mode": rounding}
        )

    def itof(self, source: Value, to: types.NumberType, signedness: Signedness = Signedness.SIGNED) -> Value:
        attributes = {"signedness": signedness, "rounding_mode": _NEAREST}
        return self.emit_one("itof", (source,), source.tile_type.with_element(to), attributes)

    def ftoi(
        self,
        source: Value,
        to: types.NumberType,
        signedness: Signedness = Signedness.SIGNED,
        saturating: bool = False,
    ) -> Value:
        """Truncate; out of range is undefined unless `saturating` (bytecode 13.4)."""
        attributes = {
            "signedness": signedness,
            "rounding_mode": RoundingMode.NEAREST_INT_TO_ZERO,
            "saturating": saturating,
        }
        return self.emit_one("ftoi", (source,), source.tile_type.with_element(to), attributes)

    def exti(self, source: Value, to: types.NumberType, signedness: Signedness = Signedness.SIGNED) -> Value:
        return self.emit_one("exti", (source,), source.tile_type.with_element(to), {"signedness": signedness})

    def trunci(
        self, source: Value, to: types.NumberType, overflow: IntegerOverflow = IntegerOverflow.NONE
    ) -> Value:
        return self.emit_one("trunci", (source,), source.tile_type.with_element(to), {"overflow": overflow})

    def bitcast(self, source: Value, to: types.NumberType) -> Value:
        return self.emit_one("bitcast", (source,), source.tile_type.with_element(to))

    # Shapes.

    def reshape(self, source: Value, shape: Sequence[int]) -> Value:
        """The same elements, row-major, in another shape."""
        result = source.tile_type.with_shape(shape)
        if result.size != source.tile_type.size:
            raise BytecodeError(f"reshape: {source.type} has not as many elements as {result}", "reshape")
        return self.emit_one("reshape", (source,), result)

    def broadcast(self, source: Value, shape: Sequence[int]) -> Value:
        """Repeat along axes of size 1; the rank stays."""
        kind = source.tile_type
        if len(shape) != kind.rank or any(old not in (1, new) for old, new in zip(kind.shape, shape)):
            raise BytecodeError(f"broadcast: {kind} does not widen to {tuple(shape)}", "broadcast")
        return self.emit_one("broadcast", (source,), kind.with_shape(shape))

    def splat(self, source: Value, shape: Sequence[int]) -> Value:
        """A scalar repeated to `shape`: reshape to ones, then broadcast."""
        if not tuple(shape):
            return source
        return self.broadcast(self.reshape(source, (1,) * len(shape)), shape)

    def permute(self, source: Value, permutation: Sequence[int]) -> Value:
        """Result axis i is source axis `permutation[i]`, as `numpy.transpose`."""
        kind = source.tile_type
        if sorted(permutation) != list(range(kind.rank)):
            raise BytecodeError(f"permute: {tuple(permutation)} is no order of the axes of {kind}", "permute")
        result = kind.with_shape([kind.shape[axis] for axis in permutation])
        return self.emit_one("permute", (source,), result, {"permutation": tuple(permutation)})

    def cat(self, lhs: Value, rhs: Value, dim: int) -> Value:
        """The two tiles side by side along `dim`."""
        kind, other = lhs.tile_type, rhs.tile_type
        shape = list(kind.shape)
        shape[dim] += other.shape[dim]
        return self.emit_one("cat", (lhs, rhs), kind.with_shape(shape), {"dim": dim})

    def extract(self, source: Value, indices: Sequence[Value], shape: Sequence[int]) -> Value:
        """Slice number `indices` (scalars of i32, counted in slices of `shape`) of the tile."""
        return self.emit_one("extract", (source, tuple(indices)), source.tile_type.with_shape(shape))

    def insert(self, source: Value, destination: Value, indices: Sequence[Value]) -> Value:
        """`destination` with slice number `indices` replaced by `source` (bytecode 13.4)."""
        return self.emit_one("insert", (source, destination, tuple(indices)), destination.type)

    def select(self, condition: Value, if_true: Value, if_false: Value) -> Value:
        """Per element `if_true` or `if_false`; the condition is a tile of i1 of the same shape."""
        self._same("select", if_true, if_false)
        return self.emit_one("select", (condition, if_true, if_false), if_true.type)

    # Pointers.

    def offset(self, pointer: Value, elements: Value) -> Value:
        """Pointers moved by a number of elements; a tile of pointers and integers of the same shape."""
        return self.emit_one("offset", (pointer, elements), pointer.type)

    def int_to_ptr(self, source: Value, pointee: types.NumberType) -> Value:
        return self.emit_one("int_to_ptr", (source,), source.tile_type.with_element(types.ptr(pointee)))

    def ptr_to_int(self, source: Value) -> Value:
        return self.emit_one("ptr_to_int", (source,), source.tile_type.with_element(types.i64))

    def ptr_to_ptr(self, source: Value, pointee: types.NumberType) -> Value:
        return self.emit_one("ptr_to_ptr", (source,), source.tile_type.with_element(types.ptr(pointee)))

    # Matrix products.

    def mmaf(self, lhs: Value, rhs: Value, acc: Value, fast_acc: bool = False) -> Value:
        """lhs @ rhs + acc; (M,K) (K,N) (M,N), or all three with a leading batch axis."""
        return self.emit_one("mmaf", (lhs, rhs, acc), acc.type, {"fast_acc": fast_acc})

    def mmai(
        self,
        lhs: Value,
        rhs: Value,
        acc: Value,
        signedness_lhs: Signedness = Signedness.SIGNED,
        signedness_rhs: Signedness = Signedness.SIGNED,
    ) -> Value:
        """lhs @ rhs + acc of i8 into i32."""
        attributes = {"signedness_lhs": signedness_lhs, "signedness_rhs": signedness_rhs}
        return self.emit_one("mmai", (lhs, rhs, acc), acc.type, attributes)

    def mmaf_scaled(self, lhs: Value, rhs: Value, acc: Value, lhs_scale: Value, rhs_scale: Value) -> Value:
        """Block-scaled product (bytecode 13.3, sm_100 and later)."""
        return self.emit_one("mmaf_scaled", (lhs, rhs, acc, lhs_scale, rhs_scale), acc.type)

    @staticmethod
    def _same(name: str, lhs: Value, rhs: Value) -> None:
        if lhs.type != rhs.type:
            raise BytecodeError(f"{name}: operands are of one type, got {lhs.type} and {rhs.type}", name)


def _is_int(kind: types.TileType) -> bool:
    return isinstance(kind.element, types.NumberType) and not kind.element.is_float


def _bits(kind: types.TileType) -> int:
    return kind.element.bits if isinstance(kind.element, types.NumberType) else 64
