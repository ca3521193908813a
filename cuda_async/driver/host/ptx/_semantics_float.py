"""f32 and f64 arithmetic: section 9.7.3, the correctly rounded and the sign-and-choice instructions.

`.ftz` flushes subnormal f32 operands and results, `.sat` clamps to [+0, 1] with NaN becoming +0.
`min` and `max` treat -0 as less than +0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._semantics_forms import Array, Form, LaneFunction, Operation, Picks, form
from ._semantics_rounding import (
    add_f32,
    add_f64,
    divide_f32,
    divide_f64,
    fma_f32,
    fma_f64,
    multiply_f32,
    multiply_f64,
    square_root_f32,
    square_root_f64,
)
from ._semantics_values import flush_f32, pack_f32, pack_f64, words

__all__ = ["FORMS", "choose_float", "on_f32", "saturate_f32"]

_ZERO32 = np.float32(0)
_ONE32 = np.float32(1)
_TINY32 = np.finfo(np.float32).tiny
_SIGN32 = np.uint32(1 << 31)


def saturate_f32(values: Array) -> Array:
    """Clamp to [+0, 1]; NaN and -0 give +0."""
    return np.where(values > 0, np.minimum(values, _ONE32), _ZERO32)


def on_f32(
    compute: Callable[..., Array],
    operands: int,
    flush: bool,
    saturate: bool,
    toward_zero: Callable[..., Array] | None = None,
) -> LaneFunction:
    """The register function of one on f32 values, with `.ftz` and `.sat` around it.

    The hardware flushes a result whose exact value is below the smallest normal, even if rounding would
    bring it there; `toward_zero`, the same function rounded towards zero, tells those apart.
    """
    if not flush and not saturate:
        if operands == 1:
            return lambda a: (pack_f32(compute(a.view(np.float32))),)
        if operands == 2:
            return lambda a, b: (pack_f32(compute(a.view(np.float32), b.view(np.float32))),)

    def run(*bits: Array) -> tuple[Array, ...]:
        if flush:
            bits = tuple(flush_f32(b) for b in bits)
        operands = [b.view(np.float32) for b in bits]
        values = compute(*operands)
        if flush and toward_zero is not None and np.count_nonzero(np.abs(values) == _TINY32):
            below = (np.abs(values) == _TINY32) & (np.abs(toward_zero(*operands)) < _TINY32)
            values = np.where(below, np.copysign(_ZERO32, values), values)
        result = pack_f32(saturate_f32(values) if saturate else values)
        return (flush_f32(result) if flush else result,)

    return run


_Rounded = Callable[..., Array]
_ARITHMETIC: dict[str, tuple[_Rounded, _Rounded, int]] = {
    "add": (add_f32, add_f64, 2),
    "sub": (lambda a, b, mode: add_f32(a, -b, mode), lambda a, b, mode: add_f64(a, -b, mode), 2),
    "mul": (multiply_f32, multiply_f64, 2),
    "fma": (fma_f32, fma_f64, 3),
    "mad": (fma_f32, fma_f64, 3),
    "div": (divide_f32, divide_f64, 2),
    "rcp": (
        lambda a, mode: divide_f32(np.ones(1, np.float32), a, mode),
        lambda a, mode: divide_f64(np.ones(1), a, mode),
        1,
    ),
    "sqrt": (square_root_f32, square_root_f64, 1),
}
# To nearest these are one NumPy call each, worth skipping the mode dispatch for.
_NEAREST: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": lambda a: np.divide(a.dtype.type(1), a),
}


def _compute(picks: Picks, wide: bool) -> tuple[Callable[..., Array], int]:
    opcode, mode = picks["opcode"], picks.get("rnd", "rn")
    in_f32, in_f64, operands = _ARITHMETIC[opcode]
    rounded = in_f64 if wide else in_f32
    if mode == "rn" and opcode in _NEAREST:
        return _NEAREST[opcode], operands
    return (lambda *values: rounded(*values, mode)), operands


def _registers_f32(picks: Picks) -> tuple[LaneFunction, int]:
    compute, operands = _compute(picks, wide=False)
    toward_zero, _ = _compute({**picks, "rnd": "rz"}, wide=False)
    return on_f32(compute, operands, "ftz" in picks, "sat" in picks, toward_zero), operands


def _arithmetic_f32(picks: Picks) -> Operation:
    fn, operands = _registers_f32(picks)
    return Operation(fn, ("f32",) * operands, ("f32",))


def _arithmetic_f32x2(picks: Picks) -> Operation:
    fn, operands = _registers_f32(picks)
    return Operation(words(fn, operands), ("f32x2",) * operands, ("f32x2",))


def _arithmetic_f64(picks: Picks) -> Operation:
    compute, operands = _compute(picks, wide=True)

    def run(*bits: Array) -> tuple[Array, ...]:
        values = [b.view(np.float64) for b in bits]
        return (pack_f64(compute(*values), *values),)

    def divide(a: Array, b: Array) -> tuple[Array, ...]:
        # A routine on the hardware, which passes on the dividend's NaN first.
        x, y = a.view(np.float64), b.view(np.float64)
        return (pack_f64(compute(x, y), y, x),)

    fn: LaneFunction = divide if picks["opcode"] == "div" else run
    return Operation(fn, ("f64",) * operands, ("f64",))


def _test_property(picks: Picks) -> Operation:
    """testp; zeros count as normal."""
    dtype: type[np.floating] = np.float32 if picks["type"] == "f32" else np.float64
    tiny = np.finfo(dtype).tiny
    test: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: x == x,
        "notanumber": lambda x: x != x,
        "normal": lambda x: np.isfinite(x) & ((np.abs(x) >= tiny) | (x == 0)),
        "subnormal": lambda x: (np.abs(x) < tiny) & (x != 0),
    }
    chosen = test[picks["op"]]
    return Operation(lambda a: (chosen(a.view(dtype)),), (picks["type"],), ("pred",))


def _sign_operation(picks: Picks) -> Operation:
    """abs and neg; NaN comes out canonical, in f64 quieted and with its sign."""
    ptx_type, flush = picks["type"], "ftz" in picks
    change = np.abs if picks["opcode"] == "abs" else np.negative
    if ptx_type == "f32":
        return Operation(on_f32(change, 1, flush, False), ("f32",), ("f32",))

    def run(a: Array) -> tuple[Array, ...]:
        values = a.view(np.float64)
        return (pack_f64(change(values), values),)

    return Operation(run, ("f64",), ("f64",))


def _copy_sign(picks: Picks) -> Operation:
    ptx_type = picks["type"]
    sign = np.uint64(1 << 63) if ptx_type == "f64" else np.uint32(1 << 31)
    return Operation(lambda a, b: ((a & sign) | (b & ~sign),), (ptx_type, ptx_type), (ptx_type,))


def choose_float(largest: bool, nan: bool) -> Callable[[Array, Array], Array]:
    """min or max of float arrays: -0 below +0; NaN wins (`nan`) or loses.

    Not `numpy.fmin`: it takes a signalling NaN for the result where it works element by element.
    """
    ufunc: Callable[[Array, Array], Array] = np.maximum if largest else np.minimum

    def choose(a: Array, b: Array) -> Array:
        chosen = ufunc(a, b)
        if not nan:
            lost = chosen != chosen
            if np.count_nonzero(lost):
                chosen = np.where(lost, np.where(a != a, b, a), chosen)
        tied = (chosen == 0) & (a == b)
        if np.count_nonzero(tied):
            # Only zeros of different sign are equal and differ: their sum is +0, the negated sum of
            # their negations is -0.
            zero = a + b if largest else -((-a) + (-b))
            chosen = np.where(tied, zero, chosen)
        return chosen

    return choose


def _min_or_max(picks: Picks) -> Operation:
    flush, operands = "ftz" in picks, 3 if picks["opcode"].endswith("3") else 2
    choose = choose_float(picks["opcode"].startswith("max"), "NaN" in picks)
    xorsign, absolute = "xorsign" in picks, "abs" in picks

    def run(*bits: Array) -> tuple[Array, ...]:
        if flush:
            bits = tuple(flush_f32(b) for b in bits)
        signs = bits[0] ^ bits[1] if xorsign else None
        if absolute:
            bits = tuple(b & ~_SIGN32 for b in bits)
        chosen = choose(bits[0].view(np.float32), bits[1].view(np.float32))
        if operands == 3:
            chosen = choose(chosen, bits[2].view(np.float32))
        result = pack_f32(chosen)
        if signs is not None:
            result = np.where(chosen != chosen, result, result | (signs & _SIGN32))
        return (result,)

    return Operation(run, ("f32",) * operands, ("f32",))


def _min_or_max_f64(picks: Picks) -> Operation:
    choose = choose_float(picks["opcode"] == "max", nan=False)

    def run(a: Array, b: Array) -> tuple[Array, ...]:
        x, y = a.view(np.float64), b.view(np.float64)
        return (pack_f64(choose(x, y), x, y),)

    return Operation(run, ("f64", "f64"), ("f64",))


def _min_or_max_of_three(picks: Picks) -> Operation:
    return _min_or_max({**picks, "opcode": picks["opcode"] + "3"})


_MODES = "rn rz rm rp"

FORMS: list[Form] = [
    *form("add sub mul", "{.rnd}{.ftz}{.sat}.f32", _arithmetic_f32, rnd=_MODES),
    *form("add sub mul", "{.rnd}.f64", _arithmetic_f64, rnd=_MODES),
    *form("add sub mul", "{.rnd}{.ftz}.f32x2", _arithmetic_f32x2, rnd=_MODES),
    *form("fma", ".rnd{.ftz}{.sat}.f32", _arithmetic_f32, rnd=_MODES),
    *form("fma", ".rnd.f64", _arithmetic_f64, rnd=_MODES),
    *form("fma", ".rnd{.ftz}.f32x2", _arithmetic_f32x2, rnd=_MODES),
    *form("mad", ".rnd{.ftz}{.sat}.f32", _arithmetic_f32, rnd=_MODES),
    *form("mad", ".rnd.f64", _arithmetic_f64, rnd=_MODES),
    *form("div rcp sqrt", ".rnd{.ftz}.f32", _arithmetic_f32, rnd=_MODES),
    *form("div rcp sqrt", ".rnd.f64", _arithmetic_f64, rnd=_MODES),
    *form(
        "testp",
        ".op.type",
        _test_property,
        op="finite infinite number notanumber normal subnormal",
        type="f32 f64",
    ),
    *form("abs neg", "{.ftz}.type", _sign_operation, type="f32"),
    *form("abs neg", ".type", _sign_operation, type="f64"),
    *form("copysign", ".type", _copy_sign, type="f32 f64"),
    *form("min max", "{.ftz}{.NaN}.type", _min_or_max, type="f32", operands=2),
    *form("min max", "{.ftz}{.NaN}.xorsign.abs.type", _min_or_max, type="f32", operands=2),
    *form("min max", ".f64", _min_or_max_f64, operands=2),
    *form("min max", "{.ftz}{.NaN}{.abs}.type", _min_or_max_of_three, type="f32", operands=3),
]
