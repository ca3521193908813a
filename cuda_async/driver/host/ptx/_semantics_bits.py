"""Logic, shifts, bit fields, byte permutation and bit counting: sections 9.7.1, 9.7.8 and 9.7.9.

NumPy defines a shift by the register's width or more as PTX's clamping shifts do: 0, or the sign for
signed values. Counts are unsigned, so they must not be narrowed before they are clamped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

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
from ._semantics_wide import bit_length

__all__ = ["FORMS"]

_ONES32 = np.uint32(0xFFFFFFFF)
_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _logic(picks: Picks) -> Operation:
    ptx_type, ufunc = picks["type"], _LOGIC[picks["opcode"]]
    return Operation(lambda a, b: (ufunc(a, b),), (ptx_type, ptx_type), (ptx_type,))


def _not(picks: Picks) -> Operation:
    return Operation(lambda a: (np.invert(a),), (picks["type"],), (picks["type"],))


def _logical_not(picks: Picks) -> Operation:
    dtype = bits_dtype(picks["type"])
    return Operation(lambda a: ((a == 0).astype(dtype),), (picks["type"],), (picks["type"],))


@lru_cache(maxsize=256)
def _truth_table(table: int) -> Callable[[Array, Array, Array], Array]:
    """The three-input function whose value for inputs (a, b, c) is bit `4a + 2b + c` of the table."""
    # As many terms as ones; the complement where that has fewer.
    inverted = table.bit_count() > 4
    terms = [i for i in range(8) if bool(table >> i & 1) != inverted]

    def run(a: Array, b: Array, c: Array) -> Array:
        total: Array | None = None
        for i in terms:
            term: Array = (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
            total = term if total is None else total | term
        if total is None:
            total = (a & 0) | (b & 0) | (c & 0)
        return ~total if inverted else total

    return run


_COMMON_TABLES: dict[int, Callable[[Array, Array, Array], Array]] = {
    0x80: lambda a, b, c: a & b & c,
    0xFE: lambda a, b, c: a | b | c,
    0x96: lambda a, b, c: a ^ b ^ c,
    0xE8: lambda a, b, c: (a & b) | (c & (a | b)),
    0xCA: lambda a, b, c: (a & b) | (~a & c),
    0xF8: lambda a, b, c: a | (b & c),
    0xEA: lambda a, b, c: (a & b) | c,
    0x78: lambda a, b, c: a ^ (b & c),
    0x6A: lambda a, b, c: (a & b) ^ c,
    0xE2: lambda a, b, c: (a & b) | (c & ~b),
}


def _lookup3(picks: Picks) -> Operation:
    """lop3; with a Boolean operation also the predicate `(d != 0) op q`."""
    combine = _LOGIC.get(picks.get("boolop", ""))

    def value(a: Array, b: Array, c: Array, table: Array) -> Array:
        number = int(table[0]) & 0xFF
        return (_COMMON_TABLES.get(number) or _truth_table(number))(a, b, c)

    if combine is None:
        return Operation(
            lambda a, b, c, table: (value(a, b, c, table),), ("b32", "b32", "b32", "u32"), ("b32",)
        )

    def run(a: Array, b: Array, c: Array, table: Array, q: Array) -> tuple[Array, ...]:
        d = value(a, b, c, table)
        return d, combine(d != 0, q)

    return Operation(run, ("b32", "b32", "b32", "u32", "pred"), ("b32", "pred"))


def _shift(picks: Picks) -> Operation:
    ptx_type = picks["type"]
    value, dtype = value_dtype(ptx_type), bits_dtype(ptx_type)
    ufunc: Callable[[Array, Array], Array] = np.left_shift if picks["opcode"] == "shl" else np.right_shift
    bits = type_bits(ptx_type)

    def short(a: Array, b: Array) -> tuple[Array, ...]:
        return (ufunc(a.view(value), np.minimum(b, 16).astype(value)).view(dtype),)

    def word_or_long(a: Array, b: Array) -> tuple[Array, ...]:
        return (ufunc(a, b),)

    def signed_word(a: Array, b: Array) -> tuple[Array, ...]:
        return (ufunc(a.view(np.int32), b.view(np.int32)).view(np.uint32),)

    def signed_long(a: Array, b: Array) -> tuple[Array, ...]:
        return (ufunc(a.view(np.int64), b).view(np.uint64),)

    fn: LaneFunction = short
    if bits > 16:
        fn = word_or_long if not is_signed(ptx_type) else signed_word if bits == 32 else signed_long
    return Operation(fn, (ptx_type, "u32"), (ptx_type,))


def _funnel_shift(picks: Picks) -> Operation:
    """32 of the 64 bits `b:a`, shifted by at most 32 (clamp) or by the amount modulo 32 (wrap)."""
    wraps, left = picks["mode"] == "wrap", picks["direction"] == "l"

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        n = c & np.uint32(31) if wraps else np.minimum(c, np.uint32(32))
        rest = np.uint32(32) - n
        return ((b << n) | (a >> rest) if left else (b << rest) | (a >> n),)

    return Operation(run, ("b32", "b32", "u32"), ("b32",))


# Selectors of the special modes by the low two bits of c, the lowest result byte in the lowest digit.
_PERMUTATIONS: dict[str, tuple[int, int, int, int]] = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def _permute(picks: Picks) -> Operation:
    """Four bytes of `b:a`; bit 3 of a selector replicates the byte's sign (generic form only)."""
    mode = picks.get("mode")
    table = None if mode is None else np.array(_PERMUTATIONS[mode], dtype=np.uint32)

    def constant(a: Array, b: Array, selector: int) -> Array:
        # Bytes that move by the same distance move together.
        masks: dict[tuple[bool, int], int] = {}
        signs: list[tuple[Array, int, int]] = []
        for place in range(4):
            digit = selector >> (4 * place)
            at = 8 * (digit & 3)
            if digit & 8:
                signs.append((b if digit & 4 else a, 24 - at, 0xFF << 8 * place))
            else:
                key = (bool(digit & 4), 8 * place - at)
                masks[key] = masks.get(key, 0) | 0xFF << 8 * place
        pieces: list[Array] = []
        for (second, move), mask in masks.items():
            source = b if second else a
            if move:
                source = source << move if move > 0 else source >> -move
            present = 0xFFFFFFFF << move & 0xFFFFFFFF if move >= 0 else 0xFFFFFFFF >> -move
            pieces.append(source if mask == present else source & mask)
        for source, up, mask in signs:
            spread: Array = (source << up).view(np.int32) >> 31
            pieces.append(spread.view(np.uint32) & mask)
        total = pieces[0]
        for piece in pieces[1:]:
            total = total | piece
        return total

    def general(a: Array, b: Array, selector: Array) -> Array:
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        total: Array = both.astype(np.uint32) & np.uint32(0)
        for place in range(4):
            digit = selector >> np.uint32(4 * place)
            byte = (both >> ((digit & np.uint32(7)) << np.uint32(3))).astype(np.uint8)
            sign = (byte.view(np.int8) >> 7).view(np.uint8)
            chosen = np.where(digit & np.uint32(8), sign, byte).astype(np.uint32)
            total = total | (chosen << np.uint32(8 * place))
        return total

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        selector = c if table is None else table[c & np.uint32(3)]
        if selector.size == 1:
            a, b = same_lanes(a, b)
            return (constant(a, b, int(selector[0])),)
        return (general(a, b, selector),)

    return Operation(run, ("b32", "b32", "b32"), ("b32",))


def _extract(picks: Picks) -> Operation:
    """bfe: `len` bits from `pos`, extended by zeros or by the field's (or register's) top bit.

    The field moves to the top and then down; what is beyond the register shifts in as zero or sign.
    """
    ptx_type = picks["type"]
    bits, dtype, value = type_bits(ptx_type), bits_dtype(ptx_type), value_dtype(ptx_type)
    word, signed = dtype.type, is_signed(ptx_type)

    def constant(a: Array, at: int, length: int) -> Array:
        end = min(at + length, bits)
        start = min(at, bits - 1 if signed else end)
        if length == 0:
            return np.zeros_like(a)
        if signed:
            end = max(end, start + 1)
        top: Array = (a << (bits - end)).view(value)
        field: Array = top >> (bits - (end - start))
        return field.view(dtype)

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        if b.size == 1 and c.size == 1:
            return (constant(a, int(b[0]) & 0xFF, int(c[0]) & 0xFF),)
        at = (b & np.uint32(0xFF)).astype(dtype)
        length = (c & np.uint32(0xFF)).astype(dtype)
        end = np.minimum(at + length, word(bits))
        if signed:
            start = np.minimum(at, word(bits - 1))
            end = np.maximum(end, start + word(1))
            top = (a << (word(bits) - end)).view(value)
            field = (top >> (word(bits) - (end - start)).view(value)).view(dtype)
            return (np.where(length == 0, word(0), field),)
        start = np.minimum(at, end)
        return ((a << (word(bits) - end)) >> (word(bits) - (end - start)),)

    return Operation(run, (ptx_type, "u32", "u32"), (ptx_type,))


def _insert(picks: Picks) -> Operation:
    """bfi: the low `len` bits of a over those of b from `pos` on."""
    dtype = bits_dtype(picks["type"])
    bits, word = type_bits(picks["type"]), dtype.type
    ones = (1 << bits) - 1

    def run(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, ...]:
        if c.size == 1 and d.size == 1:
            place = int(c[0]) & 0xFF
            field = ((1 << (int(d[0]) & 0xFF)) - 1) << place & ones
            # Beyond the register the field is empty, whatever a shifts to.
            return ((b & word(ones ^ field)) | ((a << word(place)) & word(field)),)
        at = (c & np.uint32(0xFF)).astype(dtype)
        length = np.minimum(d & np.uint32(0xFF), np.uint32(bits)).astype(dtype)
        mask = ~(~word(0) << length) << at
        return ((b & ~mask) | ((a << at) & mask),)

    return Operation(run, (picks["type"], picks["type"], "u32", "u32"), (picks["type"],))


def _population(picks: Picks) -> Operation:
    return Operation(lambda a: (np.bitwise_count(a).astype(np.uint32),), (picks["type"],), ("u32",))


def _length(a: Array) -> Array:
    """Number of bits without leading zeros, as uint32."""
    return bit_length(a.astype(np.uint64)).astype(np.uint32)


def _leading_zeros(picks: Picks) -> Operation:
    bits = np.uint32(type_bits(picks["type"]))
    return Operation(lambda a: (bits - _length(a),), (picks["type"],), ("u32",))


def _find_leading(picks: Picks) -> Operation:
    """bfind: position of the highest bit unlike the sign, or the shift that brings it to the top."""
    ptx_type, shift_amount = picks["type"], "shiftamt" in picks
    top = np.uint32(type_bits(ptx_type) - 1)
    value, dtype = value_dtype(ptx_type), bits_dtype(ptx_type)

    def run(a: Array) -> tuple[Array, ...]:
        if is_signed(ptx_type):
            a = a ^ (a.view(value) >> int(top)).view(dtype)
        length = _length(a)
        if shift_amount:
            return (np.where(length == 0, _ONES32, top + np.uint32(1) - length),)
        return (length - np.uint32(1),)

    return Operation(run, (ptx_type,), ("u32",))


_REVERSED_BYTES = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], dtype=np.uint8)


def _reverse(picks: Picks) -> Operation:
    dtype = bits_dtype(picks["type"])

    def run(a: Array) -> tuple[Array, ...]:
        swapped = np.ascontiguousarray(a.byteswap()).view(np.uint8)
        return (_REVERSED_BYTES[swapped].view(dtype),)

    return Operation(run, (picks["type"],), (picks["type"],))


def _find_nth_set(picks: Picks) -> Operation:
    """fns: position of the n-th set bit of the mask from `base` on, upwards or downwards."""

    def run(mask: Array, base: Array, offset: Array) -> tuple[Array, ...]:
        mask, base, offset = same_lanes(mask, base, offset)
        signed = offset.view(np.int32).astype(np.int64)
        step = np.where(signed < 0, -1, 1)
        # offset 0 asks for the base bit alone: one step, at which the first set bit counts.
        left = np.maximum(np.abs(signed), 1)
        position = base.astype(np.int64)
        found = np.full(mask.shape, _ONES32)
        for i in range(32):
            inside = (position >= 0) & (position < 32) & ((signed != 0) | (i == 0))
            bit = (mask >> np.clip(position, 0, 31).astype(np.uint32)) & np.uint32(1)
            left = left - (inside & (bit == 1))
            hit = inside & (bit == 1) & (left == 0)
            found[hit] = position[hit].astype(np.uint32)
            position = position + step
        return (found,)

    return Operation(run, ("b32", "b32", "s32"), ("b32",))


def _sign_or_zero_extend(picks: Picks) -> Operation:
    """szext: the low `b` bits of a; 32 and more are all of a (clamp) or count modulo 32 (wrap)."""
    signed, wraps = picks["type"] == "s32", picks["mode"] == "wrap"

    def run(a: Array, b: Array) -> tuple[Array, ...]:
        count = b & np.uint32(31) if wraps else np.minimum(b, np.uint32(32))
        move = np.uint32(32) - count
        if signed:
            return (((a << move).view(np.int32) >> move.view(np.int32)).view(np.uint32),)
        return ((a << move) >> move,)

    return Operation(run, (picks["type"], "u32"), (picks["type"],))


def _bit_mask(picks: Picks) -> Operation:
    """bmsk: `b` ones from position `a` on, cut off at the top."""
    wraps = picks["mode"] == "wrap"

    def run(a: Array, b: Array) -> tuple[Array, ...]:
        at, width = (a & np.uint32(31), b & np.uint32(31)) if wraps else (a, b)
        return (~(_ONES32 << width) << at,)

    return Operation(run, ("b32", "b32"), ("b32",))


FORMS: list[Form] = [
    *form("and or xor", ".type", _logic, type="pred b16 b32 b64"),
    *form("not", ".type", _not, type="pred b16 b32 b64"),
    *form("cnot", ".type", _logical_not, type="b16 b32 b64"),
    *form("lop3", "{.boolop}.b32", _lookup3, boolop="or and"),
    *form("shl", ".type", _shift, type="b16 b32 b64"),
    *form("shr", ".type", _shift, type="b16 b32 b64 u16 u32 u64 s16 s32 s64"),
    *form("shf", ".direction.mode.b32", _funnel_shift, direction="l r", mode="clamp wrap"),
    *form("prmt", ".b32{.mode}", _permute, mode="f4e b4e rc8 ecl ecr rc16"),
    *form("bfe", ".type", _extract, type="u32 u64 s32 s64"),
    *form("bfi", ".type", _insert, type="b32 b64"),
    *form("popc", ".type", _population, type="b32 b64"),
    *form("clz", ".type", _leading_zeros, type="b32 b64"),
    *form("bfind", "{.shiftamt}.type", _find_leading, type="u32 u64 s32 s64"),
    *form("brev", ".type", _reverse, type="b32 b64"),
    *form("fns", ".b32", _find_nth_set),
    *form("szext", ".mode.type", _sign_or_zero_extend, mode="clamp wrap", type="u32 s32"),
    *form("bmsk", ".mode.b32", _bit_mask, mode="clamp wrap"),
]
