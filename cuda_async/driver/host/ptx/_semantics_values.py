"""Bits to floating-point values and back: NaN patterns, flushing of subnormals, packed halves.

NaN, as the hardware gives it (seen on an H100): an f32 result that is NaN is 0x7fffffff, an f16 or bf16
one 0x7fff. f64 passes the last NaN operand on, quieted, and makes 0xfff8000000000000 where there is none.
`.ftz` turns subnormal f32 inputs and results into zeros of the same sign.
"""

from __future__ import annotations

import numpy as np

from ._semantics_forms import Array, LaneFunction, same_lanes

__all__ = [
    "bf16_to_f32",
    "f16_to_f32",
    "flush_f32",
    "halves",
    "pack_f32",
    "pack_f64",
    "words",
]

_EXPONENT = np.uint32(0x7F800000)
_SIGN = np.uint32(0x80000000)
_NAN32 = np.uint32(0x7FFFFFFF)
_NEW_NAN64 = np.uint64(0xFFF8000000000000)
_QUIET64 = np.uint64(1 << 51)


def flush_f32(bits: Array) -> Array:
    """Bits of f32 values with subnormals replaced by zeros of their sign."""
    small = (bits & _EXPONENT) == 0
    if not np.count_nonzero(small):
        return bits
    return np.where(small, bits & _SIGN, bits)


def pack_f32(values: Array) -> Array:
    """Bits of freshly computed f32 values, NaN made canonical in place."""
    bits: Array = values.view(np.uint32)
    nan = values != values
    if np.count_nonzero(nan):
        bits[nan] = _NAN32
    return bits


def pack_f64(values: Array, *operands: Array) -> Array:
    """Bits of f64 values computed from f64 operands; of NaN operands the last is passed on."""
    bits: Array = values.view(np.uint64)
    nan = values != values
    if np.count_nonzero(nan):
        payload: Array = np.full(1, _NEW_NAN64)
        for operand in operands:
            payload = np.where(operand != operand, operand.view(np.uint64) | _QUIET64, payload)
        bits = np.where(nan, payload, bits)
    return bits


def f16_to_f32(bits: Array) -> Array:
    """f16 bits as f32 values, exactly."""
    return bits.view(np.float16).astype(np.float32)


def bf16_to_f32(bits: Array) -> Array:
    """bf16 bits as f32 values, exactly: bf16 is the upper half of f32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _split(fn: LaneFunction, part: type[np.generic], whole: type[np.generic], operands: int) -> LaneFunction:
    def unary(a: Array) -> tuple[Array, ...]:
        return tuple(r.view(whole) for r in fn(np.ascontiguousarray(a).view(part)))

    def general(*values: Array) -> tuple[Array, ...]:
        return tuple(r.view(whole) for r in fn(*[v.view(part) for v in same_lanes(*values)]))

    return unary if operands == 1 else general


def halves(fn: LaneFunction, operands: int) -> LaneFunction:
    """A function of 16-bit registers applied to both halves of 32-bit registers."""
    return _split(fn, np.uint16, np.uint32, operands)


def words(fn: LaneFunction, operands: int) -> LaneFunction:
    """A function of 32-bit registers applied to both halves of 64-bit registers (`.f32x2`)."""
    return _split(fn, np.uint32, np.uint64, operands)
