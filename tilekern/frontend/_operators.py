"""Python's operators on tiles, as operations of the IR. Both sides known: Python computes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._terms import Term, constant
from ..dtypes import bool_, float32, float64, int32
from ..ir import (
    AddOp,
    AndOp,
    BinaryOp,
    CompareOp,
    DivOp,
    FloorDivOp,
    FloorOp,
    ModOp,
    MulOp,
    NegOp,
    NotOp,
    OrOp,
    PowOp,
    ShiftLeftOp,
    ShiftRightOp,
    SubOp,
    TileType,
    Value,
    XorOp,
)
from ._pointers import move_pointer
from ._promotion import as_tile, cast, exact, promote, reshape
from ._records import NOT_THERE, call_method, overloaded, overloaded_unary
from ._values import (
    InnerFunction,
    Loose,
    OwnedTileValue,
    RangeValue,
    RawMemoryValue,
    TensorValue,
    TiledViewValue,
    describe,
    is_loose,
    is_pointer,
    is_tile,
    tile_type,
)

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = ["binary", "compare", "emit_binary", "truth", "unary"]

# Any: Python's operators take whatever the program gives them
_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_PYTHON_UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
}

_ARITHMETIC: dict[str, type[BinaryOp]] = {"+": AddOp, "-": SubOp, "*": MulOp, "%": ModOp}
# Any: terms
_OF_TERMS: dict[str, Callable[[Any, Any], Term]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_BITWISE: dict[str, type[BinaryOp]] = {"&": AndOp, "|": OrOp, "^": XorOp}
_SHIFTS: dict[str, type[BinaryOp]] = {"<<": ShiftLeftOp, ">>": ShiftRightOp}
_PREDICATES = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_NOT_STATIC = (TensorValue, TiledViewValue, RawMemoryValue, OwnedTileValue, RangeValue, InnerFunction)

MAX_POWER = 64
"""Largest constant exponent of a whole-number power."""


def emit_binary(
    t: Translator, op: type[BinaryOp], lhs: Value, rhs: Value, make: type[Value] = Value
) -> Value:
    """`op` on two tiles of one type."""
    return t.add(op(lhs=lhs, rhs=rhs, result=make(lhs.type))).result


def binary(t: Translator, symbol: str, a: object, b: object) -> object:
    """`a symbol b` for an arithmetic or bitwise operator."""
    for side in (a, b):
        if isinstance(side, TensorValue):
            raise t.wrong_type(
                f"tensor {side.name} takes no {symbol}: arithmetic is on tiles; load one with tk.load or tk.load_like"
            )
        if isinstance(side, OwnedTileValue):
            raise t.wrong_type(
                f"partition {side.name} takes no {symbol}: load its tile with {side.name}.load()"
            )
    if is_pointer(a) or is_pointer(b):
        return move_pointer(t, symbol, a, b)
    if not is_tile(a) or not is_tile(b):
        own = overloaded(t, symbol, a, b)
        if own is not NOT_THERE:
            return own
        if not is_tile(a) and not is_tile(b):
            return _python(t, symbol, a, b)
    if symbol == "@":
        from .operations import matmul

        return matmul(t, a, b)
    if symbol == "**":
        return _power(t, a, b)
    loose = is_loose(a) and is_loose(b)
    make: type[Value] = Loose if loose else Value
    if loose and symbol not in _OF_TERMS:
        exact(t, a, b)
    lhs, rhs = promote(t, a, b, keep_loose=loose)
    dtype = tile_type(lhs).number
    if symbol in _BITWISE:
        if dtype.is_float:
            raise t.wrong_type(
                f"{symbol} takes integers or bools, got {dtype.name}; {symbol} binds tighter than comparisons, so "
                f"write (x > a) {symbol} (x < b); to work on the bits of a float, tk.bitcast it"
            )
        return emit_binary(t, _BITWISE[symbol], lhs, rhs, make)
    if symbol in _SHIFTS:
        if not dtype.is_integer:
            raise t.wrong_type(f"{symbol} takes integers, got {dtype.name}")
        _check_shift(t, symbol, b, dtype.bits)
        return emit_binary(t, _SHIFTS[symbol], lhs, rhs, make)
    if dtype.restricted:
        raise t.wrong_type(f"{symbol} does not take {dtype.name}; convert first, as in x.astype(tk.float32)")
    if dtype is bool_:
        dtype = int32
        lhs, rhs = cast(t, lhs, dtype), cast(t, rhs, dtype)
    if symbol in ("//", "%") and not isinstance(b, Value) and b == 0 and not dtype.is_float:
        raise t.wrong_value(f"{symbol} by zero")
    if symbol == "/":
        if not dtype.is_float:
            quotients = float64 if loose else float32
            lhs, rhs = cast(t, lhs, quotients), cast(t, rhs, quotients)
        return emit_binary(t, DivOp, lhs, rhs, make)
    if symbol == "//":
        if dtype.is_float:
            if dtype.bits == 16:
                lhs, rhs = cast(t, lhs, float32), cast(t, rhs, float32)
            quotient = emit_binary(t, DivOp, lhs, rhs)
            return cast(t, t.add(FloorOp(source=quotient, result=make(quotient.type))).result, dtype)
        return emit_binary(t, FloorDivOp, lhs, rhs, make)
    result = emit_binary(t, _ARITHMETIC[symbol], lhs, rhs, make)
    if loose and symbol in _OF_TERMS:
        first, second = _term(t, a), _term(t, b)
        if first is not None and second is not None:
            t.terms[result] = _OF_TERMS[symbol](first, second)
    return result


def _term(t: Translator, value: object) -> Term | None:
    """What a loose whole number is, if arguments alone tell."""
    if isinstance(value, Value):
        return t.terms.get(value)
    return constant(int(value)) if isinstance(value, int) else None


def _check_shift(t: Translator, symbol: str, amount: object, bits: int) -> None:
    if isinstance(amount, int) and not 0 <= amount < bits:
        raise t.wrong_value(f"{symbol} moves by 0 to {bits - 1} places here, got {amount}")


def _power(t: Translator, a: object, b: object) -> object:
    if isinstance(a, Loose) and type(b) is int and b == 0:
        return 1.0 if tile_type(a).number.is_float else 1
    loose = is_loose(a) and is_loose(b)
    make: type[Value] = Loose if loose else Value
    base = a if isinstance(a, Loose) else as_tile(t, a)
    if tile_type(base).number is bool_:
        base = cast(t, base, int32)
    if not isinstance(b, Value) and type(b) is int and not tile_type(base).number.restricted:
        if tile_type(base).number.is_integer and b < 0:
            raise t.wrong_value(
                f"whole numbers have powers of 0 and more, got exponent {b}; cast to a float first"
            )
        if tile_type(base).number.is_integer and b > MAX_POWER:
            raise t.wrong_value(f"whole-number powers go up to {MAX_POWER}, got exponent {b}")
        if tile_type(base).number.is_integer or b in (1, 2, 3, 4):
            product = _repeated_product(t, base, b, make)
            term = _term(t, a)
            if term is not None and b > 1:
                t.terms[product] = math.prod([term] * b, start=constant(1))
            return product
    lhs, rhs = promote(t, a, b, keep_loose=loose)
    if tile_type(lhs).number.restricted:
        raise t.wrong_type(
            f"** does not take {tile_type(lhs).number.name}; convert first, as in x.astype(tk.float32)"
        )
    if not tile_type(lhs).number.is_float:
        raise t.wrong_type("whole numbers have powers only with a constant exponent; cast to a float first")
    return emit_binary(t, PowOp, lhs, rhs, make)


def _repeated_product(t: Translator, base: Value, exponent: int, make: type[Value]) -> Value:
    result: Value | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else emit_binary(t, MulOp, result, base, make)
        exponent >>= 1
        if exponent:
            base = emit_binary(t, MulOp, base, base, make)
    kind = tile_type(base)
    return t.constant(1, kind.number, kind.shape) if result is None else result


def compare(t: Translator, symbol: str, a: object, b: object) -> object:
    """`a symbol b` for a comparison of tiles, or of what is known at compile time."""
    _refuse_pointers(t, symbol, a, b)
    if not is_tile(a) and not is_tile(b):
        return _python(t, symbol, a, b)
    loose = is_loose(a) and is_loose(b)
    if loose:
        exact(t, a, b)
    lhs, rhs = promote(t, a, b, keep_loose=loose)
    dtype = tile_type(lhs).number
    if dtype.restricted:
        raise t.wrong_type(f"{symbol} does not take {dtype.name}; convert first, as in x.astype(tk.float32)")
    if dtype is bool_:
        if symbol in ("==", "!="):
            differ = emit_binary(t, XorOp, lhs, rhs)
            return differ if symbol == "!=" else t.add(NotOp(source=differ, result=Value(differ.type))).result
        lhs, rhs = cast(t, lhs, int32), cast(t, rhs, int32)
    result = Value(TileType(bool_, tile_type(lhs).shape))
    return t.add(CompareOp(lhs=lhs, rhs=rhs, predicate=_PREDICATES[symbol], result=result)).result


def _refuse_pointers(t: Translator, symbol: str, *values: object) -> None:
    for value in values:
        if is_pointer(value):
            raise t.wrong_type(f"{symbol} does not take {describe(value)}; pointers take + and - alone")


def unary(t: Translator, symbol: str, a: object) -> object:
    """`-a`, `+a`, `~a` or `not a`."""
    if symbol == "not":
        condition = truth(t, a, "not")
        if isinstance(condition, bool):
            return not condition
        return t.add(NotOp(source=condition, result=Value(condition.type))).result
    _refuse_pointers(t, symbol, a)
    if not is_tile(a):
        own = overloaded_unary(t, symbol, a)
        if own is not NOT_THERE:
            return own
        if isinstance(a, _NOT_STATIC):
            raise t.wrong_type(f"{symbol} takes a tile or a number, got {describe(a)}")
        try:
            return _PYTHON_UNARY[symbol](a)
        except TypeError:
            raise t.wrong_type(f"{symbol} takes a tile or a number, got {describe(a)}") from None
    dtype = tile_type(a).number
    if dtype.restricted or (symbol == "~" and dtype.is_float):
        raise t.wrong_type(f"{symbol} does not take {dtype.name}")
    if symbol == "+":
        return a
    if symbol == "-" and dtype is bool_:
        a = cast(t, a, int32)
    if symbol == "~":
        exact(t, a)
    op = NegOp if symbol == "-" else NotOp
    result = t.add(op(source=a, result=Loose(a.type) if isinstance(a, Loose) else Value(a.type))).result
    if symbol == "-" and a in t.terms:
        t.terms[result] = -t.terms[a]
    return result


def truth(t: Translator, value: object, what: str) -> Value | bool:
    """The condition `value` is: a bool known at compile time, or a bool scalar."""
    _refuse_pointers(t, what, value)
    if not is_tile(value):
        if isinstance(value, _NOT_STATIC):
            raise t.wrong_type(f"{what} takes a condition, got {describe(value)}")
        own = call_method(t, value, "__bool__")
        return bool(value) if own is NOT_THERE else truth(t, own, what)
    kind = tile_type(value)
    if kind.shape and kind.size != 1:
        raise t.wrong_type(
            f"{what} takes one truth value, got {describe(value)}; reduce it (tk.max(x) for any, tk.min(x) "
            "for all) or choose element by element with tk.where"
        )
    exact(t, value)
    return cast(t, reshape(t, value, ()), bool_)


def _python(t: Translator, symbol: str, a: object, b: object) -> object:
    """Let Python compute an operator of two values known at compile time."""
    for side in (a, b):
        if isinstance(side, _NOT_STATIC):
            raise t.wrong_type(f"{symbol} takes tiles and numbers, got {describe(side)}")
    function = _PYTHON.get(symbol)
    if function is None:
        raise t.wrong_type(f"{symbol} takes tiles, got {describe(a)} and {describe(b)}")
    try:
        result: object = function(a, b)
        return tuple(result) if type(result) is list else result
    except (TypeError, ValueError, ArithmeticError) as error:
        raise t.wrong_value(f"{describe(a)} {symbol} {describe(b)}: {error}") from None
