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

__all__ = ["FORMS", "HALVES", "Half", "f32_to_bf16", "f32_to_f16"]

_NAN16 = np.uint16(0x7FFF)
_SIGN16 = np.uint16(0x8000)
_MAGNITUDE16 = np.uint16(0x7FFF)


def f32_to_f16(values: Array) -> Array:
    """f32 or f64 values to f16 bits, to nearest; NaN becomes canonical."""
    bits: Array = values.astype(np.float16).view(np.uint16)
    nan = values != values
    if np.count_nonzero(nan):
        bits[nan] = _NAN16
    return bits


def f32_to_bf16(values: Array) -> Array:
    """f32 values to bf16 bits, to nearest; NaN becomes canonical.

    Adding just under half of the last place, plus the last bit kept, carries exactly when rounding up.
    """
    bits: Array = values.view(np.uint32)
    rounded: Array = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    result = (rounded >> np.uint32(16)).astype(np.uint16)
    nan = values != values
    if np.count_nonzero(nan):
        result[nan] = _NAN16
    return result


def _fma_f16(a: Array, b: Array, c: Array) -> Array:
    return f32_to_f16(a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64))


def _fma_bf16(a: Array, b: Array, c: Array) -> Array:
    total = odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
    return f32_to_bf16(narrow_odd(total))


@dataclass(frozen=True, slots=True)
class Half:
    """A 16-bit format: how its bits become f32 values and back, and its fused multiply-add."""

    to_f32: Callable[[Array], Array]
    from_f32: Callable[[Array], Array]
    fma: Callable[[Array, Array, Array], Array]
    exponent_mask: int
    one: int


HALVES: dict[str, Half] = {
    "f16": Half(f16_to_f32, f32_to_f16, _fma_f16, 0x7C00, 0x3C00),
    "bf16": Half(bf16_to_f32, f32_to_bf16, _fma_bf16, 0x7F80, 0x3F80),
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


_BINARY: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _arithmetic(picks: Picks) -> Operation:
    half, ufunc = _half_of(picks["type"]), _BINARY[picks["opcode"]]
    to_f32, from_f32 = half.to_f32, half.from_f32
    return _finish(lambda a, b: (from_f32(ufunc(to_f32(a), to_f32(b))),), picks, 2)


def _fused(picks: Picks) -> Operation:
    half = _half_of(picks["type"])
    to_f32, fma = half.to_f32, half.fma
    return _finish(lambda a, b, c: (fma(to_f32(a), to_f32(b), to_f32(c)),), picks, 3)


def _sign_operation(picks: Picks) -> Operation:
    if picks["opcode"] == "abs":
        return _finish(lambda a: (a & _MAGNITUDE16,), picks, 1)
    return _finish(lambda a: (a ^ _SIGN16,), picks, 1)


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
    return _finish(lambda a: (f32_to_f16(function(half.to_f32(a).astype(np.float64))),), picks, 1)


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
