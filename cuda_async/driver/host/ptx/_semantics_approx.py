"""The approximate instructions: `.approx` and `.full` forms, sine to hyperbolic tangent.

The hardware's results are documented only by their largest error. Here every one is computed in f64 and
rounded once to the destination, so it is at least as accurate as documented but not the same bits.
Results that the manual fixes (infinities, zeros, domain errors, the range of `div.approx`) are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._semantics_float import on_f32
from ._semantics_forms import Array, Form, Operation, Picks, form
from ._semantics_values import pack_f64

__all__ = ["APPROXIMATIONS", "FORMS"]

_F64 = np.float64
_F32 = np.float32


def _inverse(x: Array) -> Array:
    return np.divide(1.0, x)


def _inverse_root(x: Array) -> Array:
    return np.divide(1.0, np.sqrt(x))


APPROXIMATIONS: dict[str, Callable[[Array], Array]] = {
    "rcp": _inverse,
    "sqrt": np.sqrt,
    "rsqrt": _inverse_root,
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}
"""What each instruction approximates, on f64 arrays."""


def _unary(picks: Picks) -> Operation:
    function = APPROXIMATIONS[picks["opcode"]]

    def compute(a: Array) -> Array:
        result: Array = function(a.astype(_F64)).astype(_F32)
        return result

    return Operation(on_f32(compute, 1, "ftz" in picks, False), ("f32",), ("f32",))


def _unary_f64(picks: Picks) -> Operation:
    """rsqrt.approx.f64 in full precision; the `.ftz` forms work on and yield the upper 32 bits only."""
    function, coarse = APPROXIMATIONS[picks["opcode"]], "ftz" in picks
    upper = np.uint64(0xFFFFFFFF00000000)
    exponent, sign = np.uint64(0x7FF0000000000000), np.uint64(1 << 63)

    def flushed(bits: Array) -> Array:
        return np.where((bits & exponent) == 0, bits & sign, bits)

    def run(a: Array) -> tuple[Array, ...]:
        if not coarse:
            return (pack_f64(function(a.view(_F64))),)
        result = flushed(pack_f64(function((flushed(a) & upper).view(_F64))))
        nan = (result & ~sign) > exponent
        return (np.where(nan, np.uint64(0x7FFFFFFF00000000), result & upper),)

    return Operation(run, ("f64",), ("f64",))


def _quotient(a: Array, b: Array) -> Array:
    result: Array = (a.astype(_F64) / b.astype(_F64)).astype(_F32)
    return result


def _quotient_by_inverse(a: Array, b: Array) -> Array:
    """div.approx is a * (1/b), and 1/b of |b| above 2**126 is zero: 0 for finite a, NaN for infinite."""
    result = _quotient(a, b)
    large = (np.abs(b) > _F32(2.0**126)) & np.isfinite(b)
    return np.where(large, a * np.copysign(_F32(0), b), result) if np.count_nonzero(large) else result


def _divide(picks: Picks) -> Operation:
    compute = _quotient if "full" in picks else _quotient_by_inverse
    return Operation(on_f32(compute, 2, "ftz" in picks, False), ("f32", "f32"), ("f32",))


FORMS: list[Form] = [
    *form("div", ".approx{.ftz}.f32", _divide),
    *form("div", ".full{.ftz}.f32", _divide),
    *form("rcp sqrt rsqrt sin cos lg2 ex2", ".approx{.ftz}.f32", _unary),
    *form("tanh", ".approx.f32", _unary),
    *form("rcp", ".approx.ftz.f64", _unary_f64),
    *form("rsqrt", ".approx{.ftz}.f64", _unary_f64),
]
