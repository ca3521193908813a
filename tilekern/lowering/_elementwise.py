"""Element-by-element operations."""

from __future__ import annotations

import math

from ..dtypes import DType, bfloat16, bool_, float4_e2m1fn, float16, float32, float64, int32
from ..ir import (
    AbsOp,
    AddOp,
    AndOp,
    Atan2Op,
    BitcastOp,
    CastOp,
    CeilOp,
    CompareOp,
    CoshOp,
    CosOp,
    DivOp,
    Exp2Op,
    ExpOp,
    FloorDivOp,
    FloorOp,
    FmaOp,
    Log2Op,
    LogOp,
    MaxOp,
    MinOp,
    ModOp,
    MulHiOp,
    MulOp,
    NegOp,
    NotOp,
    OrOp,
    PowOp,
    RsqrtOp,
    SelectOp,
    ShiftLeftOp,
    ShiftRightOp,
    SinhOp,
    SinOp,
    SqrtOp,
    SubOp,
    TanhOp,
    TanOp,
    TileType,
    TruncDivOp,
    UnaryOp,
    Value,
    XorOp,
)
from ..tileir import ComparisonOrdering, ComparisonPredicate, IntegerOverflow, RoundingMode, Signedness, types
from ..tileir import Value as TileValue
from ._lowerer import HANDLERS, Lowerer, element_type, lowers, signedness

__all__ = ["ROUNDINGS", "convert", "dtype_of_value"]

ROUNDINGS = {
    "nearest_even": RoundingMode.NEAREST_EVEN,
    "nearest_away": RoundingMode.NEAREST_AWAY,
    "zero": RoundingMode.ZERO,
    "negative_inf": RoundingMode.NEGATIVE_INF,
    "positive_inf": RoundingMode.POSITIVE_INF,
    "approx": RoundingMode.APPROX,
    "full": RoundingMode.FULL,
}
"""How Tile IR calls the ways to round."""

_PREDICATES = {
    "eq": ComparisonPredicate.EQUAL,
    "ne": ComparisonPredicate.NOT_EQUAL,
    "lt": ComparisonPredicate.LESS_THAN,
    "le": ComparisonPredicate.LESS_THAN_OR_EQUAL,
    "gt": ComparisonPredicate.GREATER_THAN,
    "ge": ComparisonPredicate.GREATER_THAN_OR_EQUAL,
}
_LESS = ComparisonPredicate.LESS_THAN
_INTEGERS = {16: types.i16, 32: types.i32, 64: types.i64}
_NOT_EQUAL = ComparisonPredicate.NOT_EQUAL


def dtype_of_value(value: Value) -> DType:
    """The element type of a tile of numbers."""
    assert isinstance(value.type, TileType)
    return value.type.number


# ------------------------------------------------------------------ one operand


def _plain_unary(op: type[UnaryOp], name: str) -> None:
    def handler(b: Lowerer, op: UnaryOp) -> None:
        b[op.result] = b.fn.unary(name, b[op.source])

    HANDLERS[op] = handler


for _op, _name in (
    (LogOp, "log"),
    (Log2Op, "log2"),
    (SinOp, "sin"),
    (CosOp, "cos"),
    (TanOp, "tan"),
    (SinhOp, "sinh"),
    (CoshOp, "cosh"),
    (FloorOp, "floor"),
    (CeilOp, "ceil"),
):
    _plain_unary(_op, _name)


@lowers(Exp2Op)
def _exp2(b: Lowerer, op: Exp2Op) -> None:
    b[op.result] = b.fn.unary("exp2", b[op.source], flush_to_zero=op.flush_to_zero)


@lowers(RsqrtOp)
def _rsqrt(b: Lowerer, op: RsqrtOp) -> None:
    b[op.result] = b.fn.unary("rsqrt", b[op.source], flush_to_zero=op.flush_to_zero)


@lowers(ExpOp)
def _exp(b: Lowerer, op: ExpOp) -> None:
    b[op.result] = b.fn.exp(b[op.source], ROUNDINGS[op.rounding])


@lowers(TanhOp)
def _tanh(b: Lowerer, op: TanhOp) -> None:
    b[op.result] = b.fn.tanh(b[op.source], ROUNDINGS[op.rounding])


@lowers(SqrtOp)
def _sqrt(b: Lowerer, op: SqrtOp) -> None:
    b[op.result] = b.fn.sqrt(b[op.source], ROUNDINGS[op.rounding], op.flush_to_zero)


@lowers(NegOp)
def _neg(b: Lowerer, op: NegOp) -> None:
    if dtype_of_value(op.source).is_float:
        b[op.result] = b.fn.unary("negf", b[op.source])
    else:
        b[op.result] = _negated(b, b[op.source])


def _negated(b: Lowerer, source: TileValue) -> TileValue:
    return b.fn.unary("negi", source, overflow=IntegerOverflow.NONE)


@lowers(AbsOp)
def _abs(b: Lowerer, op: AbsOp) -> None:
    """By hand for integers: the assembler takes `absi` never to be negative, as the smallest one's is."""
    dtype = dtype_of_value(op.source)
    source = b[op.source]
    if dtype.is_float:
        b[op.result] = b.fn.unary("absf", source)
    elif dtype.is_signed:
        is_negative = b.fn.cmpi(_LESS, source, b.fn.constant(b.tile(op.source), 0))
        b[op.result] = b.fn.select(is_negative, _negated(b, source), source)
    else:
        b[op.result] = source


@lowers(NotOp)
def _not(b: Lowerer, op: NotOp) -> None:
    ones = b.fn.constant(b.tile(op.source), True if dtype_of_value(op.source) is bool_ else -1)
    b[op.result] = b.fn.binary("xori", b[op.source], ones)


# ------------------------------------------------------------------ two operands


@lowers(AddOp)
def _add(b: Lowerer, op: AddOp) -> None:
    if dtype_of_value(op.lhs).is_float:
        b[op.result] = b.fn.addf(b[op.lhs], b[op.rhs], ROUNDINGS[op.rounding], op.flush_to_zero)
    else:
        b[op.result] = b.fn.addi(b[op.lhs], b[op.rhs])


@lowers(SubOp)
def _sub(b: Lowerer, op: SubOp) -> None:
    if dtype_of_value(op.lhs).is_float:
        b[op.result] = b.fn.subf(b[op.lhs], b[op.rhs], ROUNDINGS[op.rounding], op.flush_to_zero)
    else:
        b[op.result] = b.fn.subi(b[op.lhs], b[op.rhs])


@lowers(MulOp)
def _mul(b: Lowerer, op: MulOp) -> None:
    if dtype_of_value(op.lhs).is_float:
        b[op.result] = b.fn.mulf(b[op.lhs], b[op.rhs], ROUNDINGS[op.rounding], op.flush_to_zero)
    else:
        b[op.result] = b.fn.muli(b[op.lhs], b[op.rhs])


@lowers(DivOp)
def _div(b: Lowerer, op: DivOp) -> None:
    b[op.result] = b.fn.divf(b[op.lhs], b[op.rhs], ROUNDINGS[op.rounding], op.flush_to_zero)


@lowers(FloorDivOp)
def _floordiv(b: Lowerer, op: FloorDivOp) -> None:
    """By -1 it is the negation: the assembler takes a `divi` by what it sees to be -1 never to wrap."""
    dtype, divisor = dtype_of_value(op.lhs), b.number(op.rhs)
    lhs, rhs = b[op.lhs], b[op.rhs]
    if not dtype.is_signed:  # of these both roundings are the same, and only this one is accepted
        b[op.result] = b.fn.divi(lhs, rhs, Signedness.UNSIGNED, RoundingMode.ZERO)
    elif divisor == -1:
        b[op.result] = _negated(b, lhs)
    elif divisor is not None:
        b[op.result] = b.fn.divi(lhs, rhs, Signedness.SIGNED, RoundingMode.NEGATIVE_INF)
    else:
        one, minus_one = (b.fn.constant(b.tile(op.rhs), number) for number in (1, -1))
        negates = b.fn.cmpi(ComparisonPredicate.EQUAL, rhs, minus_one)
        other = b.fn.select(negates, one, rhs)
        quotient = b.fn.divi(lhs, other, Signedness.SIGNED, RoundingMode.NEGATIVE_INF)
        b[op.result] = b.fn.select(negates, _negated(b, lhs), quotient)


@lowers(TruncDivOp)
def _truncdiv(b: Lowerer, op: TruncDivOp) -> None:
    """Of places by counts, as the front end makes them: by 1 or more."""
    b[op.result] = b.fn.divi(b[op.lhs], b[op.rhs], signedness(dtype_of_value(op.lhs)), RoundingMode.ZERO)


@lowers(ModOp)
def _mod(b: Lowerer, op: ModOp) -> None:
    """C's remainder has the sign of the dividend: the divisor is added where that is the other one."""
    dtype = dtype_of_value(op.lhs)
    lhs, rhs = b[op.lhs], b[op.rhs]
    if dtype.is_float:
        b[op.result] = _float_mod(b, op)
        return
    divisor = b.number(op.rhs)
    if isinstance(divisor, int) and divisor > 0 and divisor & (divisor - 1) == 0:
        b[op.result] = b.fn.binary("andi", lhs, b.fn.constant(b.tile(op.lhs), divisor - 1))
        return
    rest = b.fn.remi(lhs, rhs, signedness(dtype))
    if dtype.kind == "uint":
        b[op.result] = rest
        return
    zero = b.fn.constant(b.tile(op.lhs), 0)
    wrong_sign = b.fn.cmpi(_LESS, b.fn.binary("xori", rest, rhs), zero)
    is_rest = b.fn.cmpi(_NOT_EQUAL, rest, zero)
    correction = b.fn.select(b.fn.binary("andi", wrong_sign, is_rest), rhs, zero)
    b[op.result] = b.fn.addi(rest, correction)


def _float_mod(b: Lowerer, op: ModOp) -> TileValue:
    """As NumPy: a rest of zero has the sign of the divisor."""
    lhs, rhs = b[op.lhs], b[op.rhs]
    kind = b.tile(op.lhs)
    zero, minus_zero = b.fn.constant(kind, 0.0), b.fn.constant(kind, -0.0)
    rest = b.fn.binary("remf", lhs, rhs)
    divisor_is_negative = b.fn.cmpf(_LESS, rhs, zero)
    wrong_sign = b.fn.binary("xori", b.fn.cmpf(_LESS, rest, zero), divisor_is_negative)
    shifted = b.fn.select(wrong_sign, b.fn.addf(rest, rhs), rest)
    is_zero = b.fn.cmpf(ComparisonPredicate.EQUAL, rest, zero)
    return b.fn.select(is_zero, b.fn.select(divisor_is_negative, minus_zero, zero), shifted)


@lowers(PowOp)
def _pow(b: Lowerer, op: PowOp) -> None:
    b[op.result] = b.fn.binary("fpowf", b[op.lhs], b[op.rhs])


@lowers(MaxOp)
def _max(b: Lowerer, op: MaxOp) -> None:
    dtype = dtype_of_value(op.lhs)
    if dtype.is_float:
        b[op.result] = b.fn.maxf(b[op.lhs], b[op.rhs], op.propagate_nan, op.flush_to_zero)
    else:
        b[op.result] = b.fn.maxi(b[op.lhs], b[op.rhs], signedness(dtype))


@lowers(MinOp)
def _min(b: Lowerer, op: MinOp) -> None:
    dtype = dtype_of_value(op.lhs)
    if dtype.is_float:
        b[op.result] = b.fn.minf(b[op.lhs], b[op.rhs], op.propagate_nan, op.flush_to_zero)
    else:
        b[op.result] = b.fn.mini(b[op.lhs], b[op.rhs], signedness(dtype))


@lowers(Atan2Op)
def _atan2(b: Lowerer, op: Atan2Op) -> None:
    """tileiras 13.5 makes NaN of two zeros that it knows, so two zeros are told apart by their signs here."""
    y, x = b[op.lhs], b[op.rhs]
    kind = y.tile_type
    bits = _INTEGERS[dtype_of_value(op.lhs).bits]
    none = b.fn.constant(kind.with_element(bits), 0)
    zero = b.fn.constant(kind, 0.0)
    equal = ComparisonPredicate.EQUAL
    both = b.fn.binary("andi", b.fn.cmpf(equal, y, zero), b.fn.cmpf(equal, x, zero))
    y_negative, x_negative = (b.fn.cmpi(_LESS, b.fn.bitcast(v, bits), none) for v in (y, x))
    half_turn = b.fn.select(y_negative, b.fn.constant(kind, -math.pi), b.fn.constant(kind, math.pi))
    of_zeros = b.fn.select(x_negative, half_turn, y)
    b[op.result] = b.fn.select(both, of_zeros, b.fn.binary("atan2", y, x))


@lowers(MulHiOp)
def _mulhi(b: Lowerer, op: MulHiOp) -> None:
    """Tile IR's is of unsigned numbers; read so, a negative factor counts the other one 2^width times too often."""
    lhs, rhs = b[op.lhs], b[op.rhs]
    high = b.fn.binary("mulhii", lhs, rhs)
    if dtype_of_value(op.lhs).is_signed:
        zero = b.fn.constant(b.tile(op.lhs), 0)
        for factor, other in ((lhs, rhs), (rhs, lhs)):
            high = b.fn.subi(high, b.fn.select(b.fn.cmpi(_LESS, factor, zero), other, zero))
    b[op.result] = high


@lowers(AndOp)
def _and(b: Lowerer, op: AndOp) -> None:
    b[op.result] = b.fn.binary("andi", b[op.lhs], b[op.rhs])


@lowers(OrOp)
def _or(b: Lowerer, op: OrOp) -> None:
    b[op.result] = b.fn.binary("ori", b[op.lhs], b[op.rhs])


@lowers(XorOp)
def _xor(b: Lowerer, op: XorOp) -> None:
    b[op.result] = b.fn.binary("xori", b[op.lhs], b[op.rhs])


@lowers(ShiftLeftOp)
def _shl(b: Lowerer, op: ShiftLeftOp) -> None:
    b[op.result] = b.fn.shli(b[op.lhs], b[op.rhs])


@lowers(ShiftRightOp)
def _shr(b: Lowerer, op: ShiftRightOp) -> None:
    b[op.result] = b.fn.shri(b[op.lhs], b[op.rhs], signedness(dtype_of_value(op.lhs)))


@lowers(FmaOp)
def _fma(b: Lowerer, op: FmaOp) -> None:
    b[op.result] = b.fn.fma(b[op.lhs], b[op.rhs], b[op.acc], ROUNDINGS[op.rounding], op.flush_to_zero)


@lowers(CompareOp)
def _compare(b: Lowerer, op: CompareOp) -> None:
    dtype, predicate = dtype_of_value(op.lhs), _PREDICATES[op.predicate]
    if dtype.is_float:
        # with a NaN only "not equal" is true
        is_ne = op.predicate == "ne"
        ordering = ComparisonOrdering.UNORDERED if is_ne else ComparisonOrdering.ORDERED
        b[op.result] = b.fn.cmpf(predicate, b[op.lhs], b[op.rhs], ordering)
    else:
        b[op.result] = b.fn.cmpi(predicate, b[op.lhs], b[op.rhs], signedness(dtype))


@lowers(SelectOp)
def _select(b: Lowerer, op: SelectOp) -> None:
    b[op.result] = b.fn.select(b[op.condition], b[op.if_true], b[op.if_false])


# ------------------------------------------------------------------ conversions


@lowers(CastOp)
def _cast(b: Lowerer, op: CastOp) -> None:
    have, want = dtype_of_value(op.source), dtype_of_value(op.result)
    b[op.result] = convert(b, b[op.source], have, want, op.rounding)


@lowers(BitcastOp)
def _bitcast(b: Lowerer, op: BitcastOp) -> None:
    target = element_type(dtype_of_value(op.result))
    source = b[op.source]
    b[op.result] = source if source.tile_type.element == target else b.fn.bitcast(source, target)


def convert(
    b: Lowerer, source: TileValue, have: DType, want: DType, rounding: str = "nearest_even"
) -> TileValue:
    """Numbers of one element type as another."""
    if have is want:
        return source
    if have is bool_ and want.is_float:
        kind = source.tile_type.with_element(element_type(want))
        return b.fn.select(source, b.fn.constant(kind, 1.0), b.fn.constant(kind, 0.0))
    if have.is_float and want.is_float:
        return _float_to_float(b, source, have, want, rounding)
    if have.is_float:
        return _float_to_integer(b, source, have, want)
    if want is bfloat16 and have.bits >= 32:
        return _integer_to_bfloat16(b, source, have)
    if want.is_float:
        return b.fn.itof(source, element_type(want), signedness(have))
    if want.bits > have.bits:
        return b.fn.exti(source, element_type(want), signedness(have))
    if want.bits < have.bits:
        return b.fn.trunci(source, element_type(want))
    return source  # the same bits, read with another sign


def _integer_to_bfloat16(b: Lowerer, source: TileValue, have: DType) -> TileValue:
    """By way of float32 or float64 without rounding there, as some targets would round to float32 first.

    Integers too long for that float have their low bits made one first, which it keeps: all that a much later rounding
    needs to know of them.
    """
    by, kept, lowest = (float64, 40, 16) if have.bits == 64 else (float32, 24, 9)
    kind = source.tile_type
    zero, mask, odd = (b.fn.constant(kind, n) for n in (0, (1 << lowest) - 1, 1 << (lowest - 1)))
    low = b.fn.binary("andi", source, mask)
    sticky = b.fn.select(b.fn.cmpi(_NOT_EQUAL, low, zero), odd, zero)
    jammed = b.fn.binary("ori", b.fn.binary("xori", source, low), sticky)
    high = b.fn.shri(source, b.fn.constant(kind, kept), signedness(have))
    is_long = b.fn.cmpi(_NOT_EQUAL, high, zero)
    if have.is_signed:
        is_long = b.fn.binary("andi", is_long, b.fn.cmpi(_NOT_EQUAL, high, b.fn.constant(kind, -1)))
    wide = b.fn.itof(b.fn.select(is_long, jammed, source), element_type(by), signedness(have))
    return _float_to_float(b, wide, by, bfloat16, "nearest_even")


def _float_to_float(b: Lowerer, source: TileValue, have: DType, want: DType, rounding: str) -> TileValue:
    mode = ROUNDINGS[rounding]
    if want is float4_e2m1fn or (have is float64 and want.bits < 32 and want is not float16):
        source, have = _as_float32(b, source, have), float32
    # neither of two types of 16 bits or less holds the other: by way of float32, which holds both
    elif have.bits <= 19 and want.bits <= 19:
        source, have = b.fn.ftof(source, element_type(float32)), float32
    return source if have is want else b.fn.ftof(source, element_type(want), mode)


def _as_float32(b: Lowerer, source: TileValue, have: DType) -> TileValue:
    """A float as float32; float64 rounded to odd, so that another rounding to something narrow is the only one.

    Some targets would round to nearest twice.
    """
    if have is float32:
        return source
    if have is not float64:
        return b.fn.ftof(source, element_type(float32))
    near = b.fn.ftof(source, element_type(float32), RoundingMode.ZERO)
    inexact = b.fn.cmpf(_NOT_EQUAL, b.fn.ftof(near, element_type(float64)), source)
    bits = b.fn.bitcast(near, element_type(int32))
    odd = b.fn.exti(inexact, element_type(int32), Signedness.UNSIGNED)
    return b.fn.bitcast(b.fn.binary("ori", bits, odd), element_type(float32))


def _float_to_integer(b: Lowerer, source: TileValue, have: DType, want: DType) -> TileValue:
    """Out of range is undefined in Tile IR: such elements are replaced before and after."""
    if have.bits < 32:
        source, have = b.fn.ftof(source, element_type(float32)), float32
    if want.bits < 32:
        wide = _float_to_integer(b, source, have, int32)
        kind = wide.tile_type
        wide = b.fn.maxi(wide, b.fn.constant(kind, want.lowest))
        wide = b.fn.mini(wide, b.fn.constant(kind, want.highest))
        return b.fn.trunci(wide, element_type(want))
    kind = source.tile_type
    # below: truncation reaches the lowest value from just above the next lower whole number
    least, beyond = float(want.lowest), float(want.highest + 1)
    low = b.fn.cmpf(ComparisonPredicate.LESS_THAN_OR_EQUAL, source, b.fn.constant(kind, least))
    high = b.fn.cmpf(ComparisonPredicate.GREATER_THAN_OR_EQUAL, source, b.fn.constant(kind, beyond))
    is_nan = b.fn.cmpf(_NOT_EQUAL, source, source, ComparisonOrdering.UNORDERED)
    outside = b.fn.binary("ori", b.fn.binary("ori", low, high), is_nan)
    inside = b.fn.select(outside, b.fn.constant(kind, 0.0), source)
    whole = b.fn.ftoi(inside, element_type(want), signedness(want))
    result = whole.tile_type
    whole = b.fn.select(low, b.fn.constant(result, want.lowest), whole)
    return b.fn.select(high, b.fn.constant(result, _as_signed(want.highest, want)), whole)


def _as_signed(number: int, dtype: DType) -> int:
    """The signed integer with the same bits."""
    return number - (1 << dtype.bits) if number >> (dtype.bits - 1) else number
