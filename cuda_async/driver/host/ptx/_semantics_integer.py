"""Integer arithmetic: section 9.7.1 (add ... dp2a) and 9.7.2 (extended precision with carry).

Two's complement makes most of it independent of sign, so the functions work on the unsigned bits and
reinterpret them only where the sign matters. Where the manual leaves a result open we do what NVIDIA's
hardware does: division by zero yields all ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._semantics_forms import (
    Array,
    Form,
    LaneFunction,
    Operation,
    Picks,
    bits_dtype,
    form,
    is_signed,
    same_lanes,
    type_bits,
    value_dtype,
)
from ._semantics_wide import multiply_high, multiply_high_signed

__all__ = ["FORMS", "low_product", "saturate_to"]

_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _uniform(fn: LaneFunction, ptx_type: str, operands: int) -> Operation:
    return Operation(fn, (ptx_type,) * operands, (ptx_type,))


def saturate_to(wide: Array, ptx_type: str) -> Array:
    """Clamp signed 64-bit values to an integer type of at most 32 bits and give its bits."""
    limits = np.iinfo(value_dtype(ptx_type))
    clamped = np.minimum(np.maximum(wide, limits.min), limits.max)
    return clamped.astype(value_dtype(ptx_type)).view(bits_dtype(ptx_type))


_PARTS: dict[str, np.dtype[Any]] = {
    "u16x2": np.dtype(np.uint16),
    "s16x2": np.dtype(np.int16),
    "u8x4": np.dtype(np.uint8),
    "s8x4": np.dtype(np.int8),
}


def _on_parts(fn: Callable[..., Array], ptx_type: str, operands: int) -> Operation:
    """A function of small integers applied to the parts packed in 32-bit registers."""
    part = _PARTS[ptx_type]

    def run(*registers: Array) -> tuple[Array, ...]:
        return (fn(*[r.view(part) for r in same_lanes(*registers)]).view(np.uint32),)

    return _uniform(run, ptx_type, operands)


def _saturating(ufunc: Callable[..., Array], value: np.dtype[Any]) -> Callable[[Array, Array], Array]:
    """A sum or difference of integers of at most 32 bits, clamped to their type."""
    limits = np.iinfo(value)

    def run(x: Array, y: Array) -> Array:
        exact = ufunc(x.astype(np.int64), y)
        return np.minimum(np.maximum(exact, limits.min), limits.max).astype(value)

    return run


def _add_or_subtract(picks: Picks) -> Operation:
    ptx_type = picks["type"]
    ufunc: Callable[..., Array] = np.add if picks["opcode"] == "add" else np.subtract
    if ptx_type in _PARTS:
        return _on_parts(_saturating(ufunc, _PARTS[ptx_type]) if "sat" in picks else ufunc, ptx_type, 2)
    if "sat" not in picks:
        return _uniform(lambda a, b: (ufunc(a, b),), ptx_type, 2)
    value, dtype = value_dtype(ptx_type), bits_dtype(ptx_type)
    clamped = _saturating(ufunc, value)
    return _uniform(lambda a, b: (clamped(a.view(value), b.view(value)).view(dtype),), ptx_type, 2)


def low_product(a: Array, b: Array) -> Array:
    """The low half of a product of equally wide registers."""
    product: Array = np.multiply(a, b)
    return product


def _high_product(ptx_type: str) -> Callable[[Array, Array], Array]:
    bits = type_bits(ptx_type)
    if bits == 64:
        return multiply_high_signed if is_signed(ptx_type) else multiply_high
    value, wide = value_dtype(ptx_type), value_dtype(_WIDER[ptx_type])
    dtype = bits_dtype(ptx_type)

    def run(a: Array, b: Array) -> Array:
        product: Array = a.view(value).astype(wide) * b.view(value)
        return (product >> bits).astype(dtype)

    return run


def _wide_product(ptx_type: str) -> Callable[[Array, Array], Array]:
    value, wide = value_dtype(ptx_type), value_dtype(_WIDER[ptx_type])
    dtype = bits_dtype(_WIDER[ptx_type])

    def run(a: Array, b: Array) -> Array:
        product: Array = a.view(value).astype(wide) * b.view(value)
        return product.view(dtype)

    return run


def _product(picks: Picks) -> Callable[[Array, Array], Array]:
    if picks["mode"] == "lo":
        return low_product
    return _high_product(picks["type"]) if picks["mode"] == "hi" else _wide_product(picks["type"])


def _multiply(picks: Picks) -> Operation:
    ptx_type = picks["type"]
    result = _WIDER[ptx_type] if picks["mode"] == "wide" else ptx_type
    product = _product(picks)
    return Operation(lambda a, b: (product(a, b),), (ptx_type, ptx_type), (result,))


def _multiply_add(picks: Picks) -> Operation:
    ptx_type = picks["type"]
    result = _WIDER[ptx_type] if picks["mode"] == "wide" else ptx_type
    product = _product(picks)
    return Operation(lambda a, b, c: (product(a, b) + c,), (ptx_type, ptx_type, result), (result,))


def _multiply_add_saturating(picks: Picks) -> Operation:
    product = _high_product("s32") if picks["opcode"] == "mad" else _product24({"type": "s32", "mode": "hi"})

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        high = product(a, b).view(np.int32).astype(np.int64)
        return (saturate_to(high + c.view(np.int32), "s32"),)

    return _uniform(run, "s32", 3)


def _product24(picks: Picks) -> Callable[[Array, Array], Array]:
    """The low or high 32 of the 48 bits of a product of 24-bit numbers."""
    signed, shift = is_signed(picks["type"]), 16 if picks["mode"] == "hi" else 0

    def low24(a: Array) -> Array:
        if signed:
            extended: Array = (a << np.uint32(8)).view(np.int32) >> 8
            return extended.astype(np.int64)
        return (a & np.uint32(0xFFFFFF)).astype(np.int64)

    def run(a: Array, b: Array) -> Array:
        product: Array = low24(a) * low24(b)
        return (product >> shift).astype(np.uint32)

    return run


def _multiply24(picks: Picks) -> Operation:
    product = _product24(picks)
    return _uniform(lambda a, b: (product(a, b),), picks["type"], 2)


def _multiply_add24(picks: Picks) -> Operation:
    product = _product24(picks)
    return _uniform(lambda a, b, c: (product(a, b) + c,), picks["type"], 3)


def _sum_of_differences(picks: Picks) -> Operation:
    value, dtype = value_dtype(picks["type"]), bits_dtype(picks["type"])

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        x, y = a.view(value), b.view(value)
        return (c + np.subtract(np.maximum(x, y).view(dtype), np.minimum(x, y).view(dtype)),)

    return _uniform(run, picks["type"], 3)


def _magnitude(a: Array, value: np.dtype[Any]) -> Array:
    """|a| as unsigned bits; the most negative number is its own magnitude."""
    absolute: Array = np.abs(a.view(value))
    return absolute.view(a.dtype)


def _divide(picks: Picks) -> Operation:
    """Quotient towards zero; all ones where the divisor is zero, as the hardware's routine gives."""
    value, dtype = value_dtype(picks["type"]), bits_dtype(picks["type"])
    ones = dtype.type(np.iinfo(dtype).max)

    def unsigned(a: Array, b: Array) -> Array:
        zero = b == 0
        if np.count_nonzero(zero):
            quotient: Array = a // np.where(zero, dtype.type(1), b)
            return np.where(zero, ones, quotient)
        quotient = a // b
        return quotient

    def signed(a: Array, b: Array) -> Array:
        quotient = unsigned(_magnitude(a, value), _magnitude(b, value))
        flip = ((a ^ b).view(value) < 0) & (b != 0)
        return np.where(flip, np.negative(quotient), quotient)

    divide = signed if is_signed(picks["type"]) else unsigned
    return _uniform(lambda a, b: (divide(a, b),), picks["type"], 2)


def _remainder(picks: Picks) -> Operation:
    """Remainder with the dividend's sign; all ones where the divisor is zero, as the hardware gives."""
    value, dtype = value_dtype(picks["type"]), bits_dtype(picks["type"])
    ones = dtype.type(np.iinfo(dtype).max)

    def unsigned(a: Array, b: Array) -> Array:
        zero = b == 0
        if np.count_nonzero(zero):
            remainder: Array = a % np.where(zero, dtype.type(1), b)
            return np.where(zero, ones, remainder)
        remainder = a % b
        return remainder

    def signed(a: Array, b: Array) -> Array:
        remainder = unsigned(_magnitude(a, value), _magnitude(b, value))
        return np.where((a.view(value) < 0) & (b != 0), np.negative(remainder), remainder)

    rest = signed if is_signed(picks["type"]) else unsigned
    return _uniform(lambda a, b: (rest(a, b),), picks["type"], 2)


def _absolute(picks: Picks) -> Operation:
    value = value_dtype(picks["type"])
    return _uniform(lambda a: (_magnitude(a, value),), picks["type"], 1)


def _negate(picks: Picks) -> Operation:
    if picks["type"] in _PARTS:
        return _on_parts(np.negative, picks["type"], 1)
    return _uniform(lambda a: (np.negative(a),), picks["type"], 1)


def _min_or_max(picks: Picks) -> Operation:
    ptx_type, relu = picks["type"], "relu" in picks
    ufunc: Callable[..., Array] = np.minimum if picks["opcode"] == "min" else np.maximum

    def choose(x: Array, y: Array) -> Array:
        chosen = ufunc(x, y)
        return np.maximum(chosen, 0) if relu else chosen

    if ptx_type in _PARTS:
        return _on_parts(choose, ptx_type, 2)
    value, dtype = value_dtype(ptx_type), bits_dtype(ptx_type)
    return _uniform(lambda a, b: (choose(a.view(value), b.view(value)).view(dtype),), ptx_type, 2)


def _fields(a: Array, bits: int, signed: bool) -> list[Array]:
    """The 8- or 16-bit fields of 32-bit registers as 32-bit numbers, lowest first."""
    if signed:
        left = a.view(np.int32)
        return [(left << (32 - bits - at)) >> (32 - bits) for at in range(0, 32, bits)]
    return [((a >> np.uint32(at)) & np.uint32((1 << bits) - 1)).view(np.int32) for at in range(0, 32, bits)]


def _dot_product(picks: Picks) -> Operation:
    a_type, b_type = picks["atype"], picks["btype"]
    total_type = "u32" if (a_type, b_type) == ("u32", "u32") else "s32"
    pairs = picks["opcode"] == "dp2a"
    first = 2 if picks.get("mode") == "hi" else 0

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        left = _fields(a, 16 if pairs else 8, is_signed(a_type))
        right = _fields(b, 8, is_signed(b_type))[first:]
        total = c
        for x, y in zip(left, right):
            total = total + np.multiply(x, y).view(np.uint32)
        return (total,)

    return Operation(run, (a_type, b_type, total_type), (total_type,))


def _sum_with_carry(a: Array, b: Array, carry: Array | None) -> tuple[Array, Array]:
    total: Array = a + b
    out: Array = total < a
    if carry is not None:
        partial = total
        total = partial + carry.astype(total.dtype)
        out = out | (total < partial)
    return total, out


def _difference_with_carry(a: Array, b: Array, carry: Array | None) -> tuple[Array, Array]:
    """a + ~b + carry, where no carry given counts as one."""
    rest: Array = a - b
    out: Array = a >= b
    if carry is not None:
        borrow = ~carry
        partial = rest
        rest = partial - borrow.astype(rest.dtype)
        out = out & ~(borrow & (partial == 0))
    return rest, out


def _carrying(picks: Picks) -> Operation:
    """add.cc, addc, sub.cc, subc, mad.cc, madc.

    Subtraction adds the complement, so that its flag is clear where it borrowed. The manual speaks of a
    borrow flag, which would be the same as long as only subc read it, but compilers let `addc` read the
    flag of `sub.cc` (128-bit division of NVRTC does).
    """
    ptx_type, opcode = picks["type"], picks["opcode"]
    reads, writes = opcode.endswith("c"), "cc" in picks
    multiplies = opcode.startswith("mad")
    combine = _difference_with_carry if opcode.startswith("sub") else _sum_with_carry
    product = _product(picks) if multiplies else None

    def run(*operands: Array) -> tuple[Array, ...]:
        carry = operands[-1] if reads else None
        if product is None:
            value, flag = combine(operands[0], operands[1], carry)
        else:
            value, flag = combine(product(operands[0], operands[1]), operands[2], carry)
        return (value, flag) if writes else (value,)

    return Operation(run, (ptx_type,) * (3 if multiplies else 2), (ptx_type,), reads, writes)


_ALL = "u16 u32 u64 s16 s32 s64"
_SIGNED = "s16 s32 s64"
_CARRY = "u32 s32 u64 s64"

FORMS: list[Form] = [
    *form("add", ".type", _add_or_subtract, type=f"{_ALL} u16x2 s16x2 u8x4 s8x4"),
    *form("add", ".sat.type", _add_or_subtract, type="s32 u32 u16x2 s16x2 u8x4 s8x4"),
    *form("sub", ".type", _add_or_subtract, type=f"{_ALL} u8x4 s8x4"),
    *form("sub", ".sat.type", _add_or_subtract, type="s32 u8x4 s8x4"),
    *form("mul", ".mode.type", _multiply, mode="lo hi", type=_ALL),
    *form("mul", ".mode.type", _multiply, mode="wide", type="u16 s16 u32 s32"),
    *form("mad", ".mode.type", _multiply_add, mode="lo hi", type=_ALL),
    *form("mad", ".mode.type", _multiply_add, mode="wide", type="u16 s16 u32 s32"),
    *form("mad mad24", ".hi.sat.s32", _multiply_add_saturating),
    *form("mul24", ".mode.type", _multiply24, mode="lo hi", type="u32 s32"),
    *form("mad24", ".mode.type", _multiply_add24, mode="lo hi", type="u32 s32"),
    *form("sad", ".type", _sum_of_differences, type=_ALL),
    *form("div", ".type", _divide, type=_ALL),
    *form("rem", ".type", _remainder, type=_ALL),
    *form("abs", ".type", _absolute, type=_SIGNED),
    *form("neg", ".type", _negate, type=f"{_SIGNED} s8x4"),
    *form("min max", ".type", _min_or_max, type=f"{_ALL} u16x2 s16x2 u8x4 s8x4"),
    *form("min max", ".relu.type", _min_or_max, type="s32 s16x2 s8x4"),
    *form("dp4a", ".atype.btype", _dot_product, atype="u32 s32", btype="u32 s32"),
    *form("dp2a", ".mode.atype.btype", _dot_product, mode="lo hi", atype="u32 s32", btype="u32 s32"),
    *form("add sub", ".cc.type", _carrying, type=_CARRY),
    *form("addc subc", "{.cc}.type", _carrying, type=_CARRY),
    *form("mad", ".mode.cc.type", _carrying, mode="lo hi", type=_CARRY),
    *form("madc", ".mode{.cc}.type", _carrying, mode="lo hi", type=_CARRY),
]
