"""f16 and bf16 arithmetic, scalar and packed, and f32 arithmetic with a half operand: 9.7.4 and 9.7.5.

Sums and products of two halves are computed in f32 and rounded again, which is exact enough
(24 >= 2 * 11 + 2). `fma` needs f64: there an f16 result is never a tie by rounding alone, because a
product that is a tie and a smallest addend fit 53 bits together; a bf16 one can be, so its sum is
rounded to odd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ._semantics_approx import APPROXIMATIONS
from ._semantics_float import choose_float, on_f32
from ._semantics_forms import Array, Form, LaneFunction, Operation, Picks, form
from ._semantics_rounding import add_f32, fma_f32, narrow_odd, odd_sum
from ._semantics_values import bf16_to_f32, f16_to_f32, halves

__all__ = ["FORMS", "HALVES", "Half", "f32_to_bf16", "f32_to_f16", "f64_to_f16", "round_to_bf16"]

_NAN16 = np.uint16(0x7FFF)
_SIGN16 = np.uint16(0x8000)
_MAGNITUDE16 = np.uint16(0x7FFF)


def f32_to_f16(values: Array) -> Array:
    """f32 values to f16 bits, to nearest; NaN becomes canonical."""
    bits: Array = values.astype(np.float16).view(np.uint16)
    nan = values != values
    if np.count_nonzero(nan):
        bits[nan] = _NAN16
    return bits


def f64_to_f16(values: Array) -> Array:
    """f64 values to f16 bits, to nearest; NaN becomes canonical.

    NumPy converts f64 one by one in software, f32 in hardware. Rounding to f32 first goes wrong only where
    that yields a tie of f16 from something else; those few are done again.
    """
    near: Array = values.astype(np.float32)
    pattern = near.view(np.uint32)
    tie = (pattern & np.uint32(0x1FFF)) == np.uint32(0x1000)
    subnormal = (pattern << np.uint32(1)) < np.uint32(0x38800000 << 1)
    doubtful = (tie | subnormal) & (near != values)
    bits = f32_to_f16(near)
    if np.count_nonzero(doubtful):
        again = np.flatnonzero(doubtful)
        bits[again] = f32_to_f16(values[again])
    return bits


def round_to_bf16(values: Array) -> Array:
    """Bits of f32 values rounded to nearest at 16 bits: the upper half is the bf16. Not for NaN.

    Adding just under half of the last place, plus the last bit kept, carries exactly when rounding up.
    """
    bits: Array = values.view(np.uint32)
    rounded: Array = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return np.add(rounded, bits, out=rounded)


def f32_to_bf16(values: Array) -> Array:
    """f32 values to bf16 bits, to nearest; NaN becomes canonical."""
    result = (round_to_bf16(values) >> np.uint32(16)).astype(np.uint16)
    nan = values != values
    if np.count_nonzero(nan):
        result[nan] = _NAN16
    return result


def _fma_f16(a: Array, b: Array, c: Array) -> Array:
    total: Array = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return total


def _fma_bf16(a: Array, b: Array, c: Array) -> Array:
    """To nearest in f32, but to odd where that is a tie of bf16 and may not be one."""
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    result: Array = (product + addend).astype(np.float32)
    tie = (result.view(np.uint32) & np.uint32(0xFFFF)) == np.uint32(0x8000)
    if np.count_nonzero(tie):
        again = np.flatnonzero(tie)
        parts = [v[again] if v.size > 1 else v for v in (product, addend)]
        result[again] = narrow_odd(odd_sum(*parts))
    return result


@dataclass(frozen=True, slots=True)
class Half:
    """A 16-bit format.

    Attributes:
        to_f32: bits to f32 values.
        from_f32: f32 values to bits, to nearest.
        fma: a * b + c of f32 values that hold halves, to be rounded by `from_sum`.
        from_sum: what `fma` gives to bits, to nearest.
        exponent_mask: bits of infinity.
        one: bits of 1.
    """

    to_f32: Callable[[Array], Array]
    from_f32: Callable[[Array], Array]
    fma: Callable[[Array, Array, Array], Array]
    from_sum: Callable[[Array], Array]
    exponent_mask: int
    one: int


HALVES: dict[str, Half] = {
    "f16": Half(f16_to_f32, f32_to_f16, _fma_f16, f64_to_f16, 0x7C00, 0x3C00),
    "bf16": Half(bf16_to_f32, f32_to_bf16, _fma_bf16, f32_to_bf16, 0x7F80, 0x3F80),
}


def _half_of(ptx_type: str) -> Half:
    return HALVES[ptx_type.removesuffix("x2")]


def _flush(bits: Array, half: Half) -> Array:
    small = (bits & np.uint16(half.exponent_mask)) == 0
    return np.where(small, bits & _SIGN16, bits) if np.count_nonzero(small) else bits


def _is_nan(bits: Array, half: Half) -> Array:
    nan: Array = (bits & _MAGNITUDE16) > np.uint16(half.exponent_mask)
    return nan


def _saturate(bits: Array, half: Half) -> Array:
    """Clamp to [+0, 1] in bits: positive halves order like integers; negative and NaN give +0."""
    keep = ((bits & _SIGN16) == 0) & ~_is_nan(bits, half)
    return np.where(keep, np.minimum(bits, np.uint16(half.one)), np.uint16(0))


def _relu(bits: Array, half: Half) -> Array:
    """Negative values become +0, NaN stays NaN."""
    negative = ((bits & _SIGN16) != 0) & ~_is_nan(bits, half)
    return np.where(negative, np.uint16(0), bits)


def _finish(compute: LaneFunction, picks: Picks, operands: int) -> Operation:
    """The operation of a function of 16-bit registers, with its modifiers, on both halves if packed."""
    ptx_type = picks["type"]
    half = _half_of(ptx_type)
    flush, saturate, relu = "ftz" in picks, "sat" in picks, "relu" in picks

    def run(*bits: Array) -> tuple[Array, ...]:
        if flush:
            bits = tuple(_flush(b, half) for b in bits)
        (result,) = compute(*bits)
        if flush:
            result = _flush(result, half)
        if saturate:
            result = _saturate(result, half)
        return (_relu(result, half) if relu else result,)

    fn = run if flush or saturate or relu else compute
    if ptx_type.endswith("x2"):
        fn = halves(fn, operands)
    return Operation(fn, (ptx_type,) * operands, (ptx_type,))


def _flush_exact(wide: Array) -> Array:
    """Results to zero that would be subnormal when rounded to f16's 11 bits with any exponent.

    So an H100 has it, and IEEE 754 calls it tininess after rounding: from 2**-14 less half a step on, they are normal.
    """
    return np.where(np.abs(wide) < _SMALLEST_NORMAL, np.copysign(wide.dtype.type(0), wide), wide)


_SMALLEST_NORMAL = 2.0**-14 * (1 - 2.0**-12)


_BINARY: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _arithmetic(picks: Picks) -> Operation:
    half, ufunc = _half_of(picks["type"]), _BINARY[picks["opcode"]]
    to_f32, from_f32 = half.to_f32, half.from_f32
    if "ftz" in picks:
        return _finish(lambda a, b: (from_f32(_flush_exact(ufunc(to_f32(a), to_f32(b)))),), picks, 2)
    return _finish(lambda a, b: (from_f32(ufunc(to_f32(a), to_f32(b))),), picks, 2)


_OUT_OF_BOUNDS = np.uint16(0x7FF7)
"""The NaN, of either sign, that a tensor copy fills in for elements outside of the tensor and that
`.oob` takes for a factor of zero. Found on an H100 by trying all patterns; f16 and bf16 share it."""


def _fused(picks: Picks) -> Operation:
    half = _half_of(picks["type"])
    to_f32, fma, from_sum = half.to_f32, half.fma, half.from_sum
    flush, out_of_bounds = "ftz" in picks, "oob" in picks

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        wide = fma(to_f32(a), to_f32(b), to_f32(c))
        result = from_sum(_flush_exact(wide) if flush else wide)
        if out_of_bounds:
            outside = ((a & _MAGNITUDE16) == _OUT_OF_BOUNDS) | ((b & _MAGNITUDE16) == _OUT_OF_BOUNDS)
            result = np.where(outside, np.uint16(0), result)
        return (result,)

    return _finish(run, picks, 3)


def _sign_operation(picks: Picks) -> Operation:
    """abs and neg; NaN comes out canonical."""
    half, absolute = _half_of(picks["type"]), picks["opcode"] == "abs"

    def run(a: Array) -> tuple[Array, ...]:
        changed = a & _MAGNITUDE16 if absolute else a ^ _SIGN16
        nan = _is_nan(a, half)
        return (np.where(nan, _NAN16, changed) if np.count_nonzero(nan) else changed,)

    return _finish(run, picks, 1)


def _min_or_max(picks: Picks) -> Operation:
    half = _half_of(picks["type"])
    choose = choose_float(picks["opcode"] == "max", "NaN" in picks)
    to_f32, from_f32, xorsign = half.to_f32, half.from_f32, "xorsign" in picks

    def plain(a: Array, b: Array) -> tuple[Array, ...]:
        return (from_f32(choose(to_f32(a), to_f32(b))),)

    def signed(a: Array, b: Array) -> tuple[Array, ...]:
        (chosen,) = plain(a & _MAGNITUDE16, b & _MAGNITUDE16)
        return (np.where(_is_nan(chosen, half), chosen, chosen | ((a ^ b) & _SIGN16)),)

    return _finish(signed if xorsign else plain, picks, 2)


def _approximation(picks: Picks) -> Operation:
    half, function = _half_of(picks["type"]), APPROXIMATIONS[picks["opcode"]]
    if picks["type"].startswith("bf16"):
        return _finish(
            lambda a: (f32_to_bf16(narrow_odd(function(bf16_to_f32(a).astype(np.float64)))),), picks, 1
        )
    return _finish(lambda a: (f64_to_f16(function(half.to_f32(a).astype(np.float64))),), picks, 1)


def _mixed_add(picks: Picks) -> Operation:
    """add and sub of an f32 and a half: the half is widened, which is exact."""
    to_f32, mode, negate = HALVES[picks["atype"]].to_f32, picks.get("rnd", "rn"), picks["opcode"] == "sub"

    def compute(a: Array, c: Array) -> Array:
        return add_f32(a, -c if negate else c, mode)

    on_values = on_f32(compute, 2, False, "sat" in picks)
    return Operation(lambda a, c: on_values(to_f32(a), c), (picks["atype"], "f32"), ("f32",))


def _mixed_fused(picks: Picks) -> Operation:
    to_f32, mode = HALVES[picks["atype"]].to_f32, picks["rnd"]
    on_values = on_f32(lambda a, b, c: fma_f32(a, b, c, mode), 3, False, "sat" in picks)
    types = (picks["atype"], picks["atype"], "f32")
    return Operation(lambda a, b, c: on_values(to_f32(a), to_f32(b), c), types, ("f32",))


_MODES = "rn rz rm rp"
_F16 = "f16 f16x2"
_BF16 = "bf16 bf16x2"

FORMS: list[Form] = [
    *form("add sub mul", "{.rnd}{.ftz}{.sat}.type", _arithmetic, rnd="rn", type=_F16),
    *form("add sub mul", "{.rnd}.type", _arithmetic, rnd="rn", type=_BF16),
    *form("fma", ".rnd{.ftz}{.sat}.type", _fused, rnd="rn", type=_F16),
    *form("fma", ".rnd{.ftz}.relu.type", _fused, rnd="rn", type=_F16),
    *form("fma", ".rnd{.relu}.type", _fused, rnd="rn", type=_BF16),
    *form("fma", ".rnd.oob{.relu}.type", _fused, rnd="rn", type=f"{_F16} {_BF16}"),
    *form("abs neg", "{.ftz}.type", _sign_operation, type=_F16),
    *form("abs neg", ".type", _sign_operation, type=_BF16),
    *form("min max", "{.ftz}{.NaN}.type", _min_or_max, type=_F16),
    *form("min max", "{.ftz}{.NaN}.xorsign.abs.type", _min_or_max, type=_F16),
    *form("min max", "{.NaN}.type", _min_or_max, type=_BF16),
    *form("min max", "{.NaN}.xorsign.abs.type", _min_or_max, type=_BF16),
    *form("tanh", ".approx.type", _approximation, type=f"{_F16} {_BF16}"),
    *form("ex2", ".approx.type", _approximation, type=_F16),
    *form("ex2", ".approx.ftz.type", _approximation, type=_BF16),
    *form("add sub", "{.rnd}{.sat}.f32.atype", _mixed_add, rnd=_MODES, atype="f16 bf16"),
    *form("fma", ".rnd{.sat}.f32.atype", _mixed_fused, rnd=_MODES, atype="f16 bf16"),
]
