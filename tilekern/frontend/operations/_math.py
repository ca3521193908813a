"""Element-by-element functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ...dtypes import bool_, float4_e2m1fn, int32
from ...ir import (
    AbsOp,
    AddOp,
    Atan2Op,
    CeilOp,
    CompareOp,
    CoshOp,
    CosOp,
    DivOp,
    Exp2Op,
    ExpOp,
    FloorOp,
    FmaOp,
    Log2Op,
    LogOp,
    MaxOp,
    MinOp,
    MulHiOp,
    MulOp,
    RoundedBinaryOp,
    RsqrtOp,
    SelectOp,
    SinhOp,
    SinOp,
    SqrtOp,
    SubOp,
    TanhOp,
    TanOp,
    TileType,
    UnaryOp,
    Value,
)
from .._operators import binary, compare, emit_binary, unary
from .._pointers import broadcast_pointers
from .._promotion import as_float, as_tile, broadcast_shape, broadcast_to, cast, exact, promote
from .._values import Loose, describe, is_loose, is_number, is_pointer, pointee, tile_type
from ._options import flush_option, rounding_option
from ._registry import HANDLERS, implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__: list[str] = []


def _float_function(function: object, op: type[UnaryOp]) -> None:
    name = getattr(function, "__name__", "")

    def handler(t: Translator, x: object) -> object:
        value = as_float(t, x, f"the argument of {name}")
        return t.add(op(source=value, result=Value(value.type))).result

    HANDLERS[function] = handler


for _function, _op in (
    (language.log, LogOp),
    (language.log2, Log2Op),
    (language.sin, SinOp),
    (language.cos, CosOp),
    (language.tan, TanOp),
    (language.sinh, SinhOp),
    (language.cosh, CoshOp),
):
    _float_function(_function, _op)


def _rounded_function(
    t: Translator,
    op: type[ExpOp | TanhOp | SqrtOp | Exp2Op | RsqrtOp],
    x: object,
    rounding_mode: object = None,
    flush_to_zero: object = False,
) -> Value:
    value = as_float(t, x, f"the argument of {op.mnemonic}")
    dtype = tile_type(value).number
    made = op(
        source=value,
        rounding=rounding_option(t, rounding_mode, f"{op.mnemonic} of {dtype.name}", dtype, op.roundings),
        flush_to_zero=flush_option(t, flush_to_zero, op.mnemonic, dtype),
        result=Value(value.type),
    )
    return t.add(made).result


@implements(language.exp)
def exp(t: Translator, x: object, rounding_mode: object) -> object:
    return _rounded_function(t, ExpOp, x, rounding_mode)


@implements(language.tanh)
def tanh(t: Translator, x: object, rounding_mode: object) -> object:
    return _rounded_function(t, TanhOp, x, rounding_mode)


@implements(language.sqrt)
def sqrt(t: Translator, x: object, rounding_mode: object, flush_to_zero: object) -> object:
    return _rounded_function(t, SqrtOp, x, rounding_mode, flush_to_zero)


@implements(language.exp2)
def exp2(t: Translator, x: object, flush_to_zero: object) -> object:
    return _rounded_function(t, Exp2Op, x, flush_to_zero=flush_to_zero)


@implements(language.rsqrt)
def rsqrt(t: Translator, x: object, flush_to_zero: object) -> object:
    return _rounded_function(t, RsqrtOp, x, flush_to_zero=flush_to_zero)


def _rounding_function(function: object, op: type[UnaryOp]) -> None:
    def handler(t: Translator, x: object) -> object:
        value = as_tile(t, x)
        if tile_type(value).number.is_integer:
            return value
        value = as_float(t, value, f"the argument of {getattr(function, '__name__', '')}")
        return t.add(op(source=value, result=Value(value.type))).result

    HANDLERS[function] = handler


_rounding_function(language.floor, FloorOp)
_rounding_function(language.ceil, CeilOp)


def _operator_function(function: object, symbol: str) -> None:
    def handler(t: Translator, x: object, y: object) -> object:
        x = as_tile(t, x) if is_number(x) and is_number(y) else x
        return (compare if symbol in "== != <= >=" else binary)(t, symbol, x, y)

    HANDLERS[function] = handler


for _operator, _symbol in (
    (language.floordiv, "//"),
    (language.mod, "%"),
    (language.pow, "**"),
    (language.bitwise_and, "&"),
    (language.bitwise_or, "|"),
    (language.bitwise_xor, "^"),
    (language.bitwise_lshift, "<<"),
    (language.bitwise_rshift, ">>"),
    (language.equal, "=="),
    (language.not_equal, "!="),
    (language.less, "<"),
    (language.less_equal, "<="),
    (language.greater, ">"),
    (language.greater_equal, ">="),
):
    _operator_function(_operator, _symbol)


def _arithmetic_function(function: object, symbol: str, op: type[RoundedBinaryOp]) -> None:
    name = getattr(function, "__name__", "")

    def handler(t: Translator, x: object, y: object, rounding_mode: object, flush_to_zero: object) -> object:
        x = as_tile(t, x) if is_number(x) and is_number(y) else x
        if rounding_mode is None and flush_to_zero is False:
            return binary(t, symbol, x, y)
        lhs, rhs = promote(t, x, y)
        dtype = tile_type(lhs).number
        if dtype.restricted:
            raise t.wrong_type(
                f"{name} does not take {dtype.name}; convert first, as in x.astype(tk.float32)"
            )
        if op is DivOp:
            lhs, rhs = as_float(t, lhs, name), as_float(t, rhs, name)
            dtype = tile_type(lhs).number
        rounding = rounding_option(t, rounding_mode, f"{name} of {dtype.name}", dtype, op.roundings)
        flush = flush_option(t, flush_to_zero, name, dtype)
        if not dtype.is_float:
            return binary(t, symbol, lhs, rhs)
        return t.add(
            op(lhs=lhs, rhs=rhs, rounding=rounding, flush_to_zero=flush, result=Value(lhs.type))
        ).result

    HANDLERS[function] = handler


for _operator, _symbol, _class in (
    (language.add, "+", AddOp),
    (language.sub, "-", SubOp),
    (language.mul, "*", MulOp),
    (language.truediv, "/", DivOp),
):
    _arithmetic_function(_operator, _symbol, _class)


@implements(language.divmod)
def divide(t: Translator, x: object, y: object) -> object:
    x = as_tile(t, x) if is_number(x) and is_number(y) else x
    return binary(t, "//", x, y), binary(t, "%", x, y)


@implements(language.mulhi)
def mulhi(t: Translator, x: object, y: object) -> object:
    lhs, rhs = promote(t, x, y)
    dtype = tile_type(lhs).number
    if not dtype.is_integer:
        raise t.wrong_type(f"mulhi takes integers, got {dtype.name}")
    return emit_binary(t, MulHiOp, lhs, rhs)


@implements(language.atan2)
def atan2(t: Translator, y: object, x: object) -> object:
    lhs, rhs = (as_float(t, v, "an argument of atan2") for v in promote(t, y, x))
    return emit_binary(t, Atan2Op, lhs, rhs)


@implements(language.negative)
def negative(t: Translator, x: object) -> object:
    return unary(t, "-", as_tile(t, x))


@implements(language.bitwise_not)
def bitwise_not(t: Translator, x: object) -> object:
    return unary(t, "~", as_tile(t, x))


@implements(language.abs)
def absolute(t: Translator, x: object) -> object:
    value = x if isinstance(x, Loose) else as_tile(t, x)
    exact(t, value)
    dtype = tile_type(value).number
    if dtype.restricted:
        raise t.wrong_type(f"abs does not take {dtype.name}; convert first, as in x.astype(tk.float32)")
    if dtype is bool_:
        value = cast(t, value, int32)
    if tile_type(value).number.kind == "uint":
        return value
    make = Loose if isinstance(x, Loose) else Value
    return t.add(AbsOp(source=value, result=make(value.type))).result


@implements(language.isnan)
def isnan(t: Translator, x: object) -> object:
    value = as_float(t, x, "the argument of isnan")
    result = Value(TileType(bool_, tile_type(value).shape))
    return t.add(CompareOp(lhs=value, rhs=value, predicate="ne", result=result)).result


@implements(language.minimum)
def minimum(t: Translator, x: object, y: object, propagate_nan: object, flush_to_zero: object) -> object:
    return _extremum(t, MinOp, x, y, propagate_nan, flush_to_zero)


@implements(language.maximum)
def maximum(t: Translator, x: object, y: object, propagate_nan: object, flush_to_zero: object) -> object:
    return _extremum(t, MaxOp, x, y, propagate_nan, flush_to_zero)


def _extremum(
    t: Translator,
    op: type[MinOp] | type[MaxOp],
    x: object,
    y: object,
    propagate_nan: object,
    flush_to_zero: object,
) -> object:
    propagate = t.static_bool(propagate_nan, "propagate_nan")
    loose = is_loose(x) and is_loose(y)
    if loose:
        exact(t, x, y)
    lhs, rhs = promote(t, x, y, keep_loose=loose)
    dtype = tile_type(lhs).number
    if dtype.restricted:
        raise t.wrong_type(f"min and max do not take {dtype.name}; convert first, as in x.astype(tk.float32)")
    if dtype is bool_:
        return binary(t, "&" if op is MinOp else "|", lhs, rhs)
    make = Loose if loose else Value
    flush = flush_option(t, flush_to_zero, op.mnemonic, dtype)
    made = op(lhs=lhs, rhs=rhs, propagate_nan=propagate, flush_to_zero=flush, result=make(lhs.type))
    return t.add(made).result


@implements(language.fma)
def fma(
    t: Translator, x: object, y: object, z: object, rounding_mode: object, flush_to_zero: object
) -> object:
    lhs, rhs, acc = promote(t, x, y, z)
    dtype = tile_type(lhs).number
    if not dtype.is_float or dtype.restricted:
        raise t.wrong_type(f"fma takes floats, got {dtype.name}")
    made = FmaOp(
        lhs=lhs,
        rhs=rhs,
        acc=acc,
        rounding=rounding_option(t, rounding_mode, f"fma of {dtype.name}", dtype, FmaOp.roundings),
        flush_to_zero=flush_option(t, flush_to_zero, "fma", dtype),
        result=Value(lhs.type),
    )
    return t.add(made).result


@implements(language.where)
def where(t: Translator, condition: object, x: object, y: object) -> object:
    choice = cast(t, as_tile(t, condition, "the condition of where"), bool_)
    if is_pointer(x) and is_pointer(y):
        return _where_pointers(t, choice, x, y)
    if_true, if_false = promote(t, x, y)
    if tile_type(if_true).number is float4_e2m1fn:
        raise t.wrong_type("where does not take float4_e2m1fn; convert first, as in x.astype(tk.float32)")
    shape = broadcast_shape(t, tile_type(choice).shape, tile_type(if_true).shape)
    choice, if_true, if_false = (broadcast_to(t, v, shape) for v in (choice, if_true, if_false))
    op = SelectOp(condition=choice, if_true=if_true, if_false=if_false, result=Value(if_true.type))
    return t.add(op).result


def _where_pointers(t: Translator, choice: Value, x: Value, y: Value) -> Value:
    if pointee(x) is not pointee(y):
        raise t.wrong_type(f"where takes pointers to one type, got {describe(x)} and {describe(y)}")
    shape = tile_type(choice).shape
    for value in (x, y):
        shape = broadcast_shape(t, shape, tile_type(value).shape)
    if_true, if_false = (broadcast_pointers(t, v, shape) for v in (x, y))
    condition = broadcast_to(t, choice, shape)
    op = SelectOp(condition=condition, if_true=if_true, if_false=if_false, result=Value(if_true.type))
    return t.add(op).result
