"""cvt between scalar types, and mov: section 9.7.9.

Integer to integer wraps or saturates; float to integer rounds and clamps to the destination's range, and
NaN gives 0, or the destination's top bit alone where source or destination has 64 bits. Float to float
widens exactly and narrows with one rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._semantics_float import saturate_f32
from ._semantics_forms import (
    Array,
    Form,
    LaneFunction,
    Operation,
    Picks,
    bits_dtype,
    form,
    type_bits,
    value_dtype,
)
from ._semantics_half import HALVES, f32_to_bf16, f32_to_f16, f64_to_f16
from ._semantics_rounding import narrow, narrow_odd
from ._semantics_softfloat import FORMATS, narrow_exact, round_pack
from ._semantics_values import flush_f32, pack_f32

__all__ = ["FORMS", "finite_bits", "to_bits", "to_f64"]

_INTEGERS = "u8 s8 u16 s16 u32 s32 u64 s64"
_ROUND: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def to_f64(bits: Array, ptx_type: str, flush: bool = False) -> Array:
    """The values of a register of any float type, as f64, exactly."""
    if ptx_type == "f64":
        return bits.view(np.float64)
    if ptx_type == "f32":
        return (flush_f32(bits) if flush else bits).view(np.float32).astype(np.float64)
    return HALVES[ptx_type].to_f32(bits).astype(np.float64)


def to_bits(values: Array, ptx_type: str, mode: str) -> Array:
    """f64 values rounded to a float type, as bits; NaN is canonical."""
    if ptx_type == "f64":
        return values.view(np.uint64)
    if ptx_type == "f32":
        return pack_f32(narrow(values, np.float32, mode))
    if ptx_type == "f16" and mode == "rn":
        return f64_to_f16(values)
    if ptx_type == "bf16" and mode == "rn":
        return f32_to_bf16(narrow_odd(values))
    return narrow_exact(values, FORMATS[ptx_type], mode).astype(bits_dtype(ptx_type))


def _between_integers(picks: Picks) -> Operation:
    dtype, atype = picks["dtype"], picks["atype"]
    source, target, out = value_dtype(atype), value_dtype(dtype), bits_dtype(dtype)
    low = max(np.iinfo(source).min, np.iinfo(target).min)
    high = min(np.iinfo(source).max, np.iinfo(target).max)

    def wrapping(a: Array) -> tuple[Array, ...]:
        return (a.view(source).astype(target).view(out),)

    def saturating(a: Array) -> tuple[Array, ...]:
        return (np.minimum(np.maximum(a.view(source), low), high).astype(target).view(out),)

    return Operation(saturating if "sat" in picks else wrapping, (atype,), (dtype,))


def _saturate(bits: Array, ptx_type: str) -> Array:
    """[+0, 1] on any float type."""
    if ptx_type == "f32":
        return saturate_f32(bits.view(np.float32)).view(np.uint32)
    values = to_f64(bits, ptx_type)
    clamped = np.where(values > 0, np.minimum(values, 1.0), 0.0)
    return to_bits(clamped, ptx_type, "rz")


def _integer_to_float(picks: Picks) -> Operation:
    dtype, atype, mode = picks["dtype"], picks["atype"], picks.get("rnd", "rn")
    source, fmt, out = value_dtype(atype), FORMATS[dtype], bits_dtype(dtype)

    def nearest(a: Array) -> Array:
        return a.view(source).astype(value_dtype(dtype)).view(out)

    def nearest_f16(a: Array) -> Array:
        # Integers that f32 does not hold exactly are beyond f16's range anyway.
        return f32_to_f16(a.view(source).astype(np.float32))

    def exact(a: Array) -> Array:
        values = a.view(source)
        negative = values < 0
        magnitude = values.astype(np.int64 if source.kind == "i" else np.uint64).view(np.uint64)
        magnitude = np.where(negative, np.negative(magnitude), magnitude)
        zero = np.zeros(1, np.int64)
        return round_pack(negative, magnitude, zero, False, fmt, mode).astype(out)

    convert = exact
    if mode == "rn" and dtype != "bf16":
        convert = nearest_f16 if dtype == "f16" else nearest
    if "sat" in picks:
        return Operation(lambda a: (_saturate(convert(a), dtype),), (atype,), (dtype,))
    return Operation(lambda a: (convert(a),), (atype,), (dtype,))


def _float_to_integer(picks: Picks) -> Operation:
    dtype, atype = picks["dtype"], picks["atype"]
    rounding, flush = _ROUND[picks["irnd"]], "ftz" in picks
    target: np.dtype[Any] = value_dtype(dtype)
    out, bits = bits_dtype(dtype), type_bits(dtype)
    limits = np.iinfo(target)
    on_nan = out.type(1 << (bits - 1)) if atype == "f64" or bits == 64 else out.type(0)

    def narrow_target(a: Array) -> Array:
        values = rounding(to_f64(a, atype, flush))
        nan = values != values
        clamped = np.minimum(np.maximum(values, limits.min), limits.max)
        if np.count_nonzero(nan):
            clamped[nan] = 0
            return np.where(nan, on_nan, clamped.astype(target).view(out))
        result: Array = clamped.astype(target)
        return result.view(out)

    def wide_target(a: Array) -> Array:
        values = rounding(to_f64(a, atype, flush))
        top = 2.0**63 if target.kind == "i" else 2.0**64
        inside = (values >= float(limits.min)) & (values < top)
        result = np.where(inside, values, 0.0).astype(target).view(out)
        if np.count_nonzero(inside) != inside.size:
            ends = np.where(values > 0, out.type(limits.max), out.type(limits.min & (2**64 - 1)))
            result = np.where(inside, result, np.where(values != values, on_nan, ends))
        return result

    convert = wide_target if bits == 64 else narrow_target
    return Operation(lambda a: (convert(a),), (atype,), (dtype,))


def _float_to_float(picks: Picks) -> Operation:
    """Widening, narrowing and rounding to an integral value, with their clamping modifiers."""
    dtype, atype = picks["dtype"], picks["atype"]
    mode = picks.get("rnd", "rn")
    steps = [_float_conversion(dtype, atype, mode, picks)]
    if "ftz" in picks and dtype == "f32":
        steps.append(flush_f32)
    if "satfinite" in picks:
        steps.append(lambda bits: finite_bits(bits, dtype))
    if "sat" in picks:
        steps.append(lambda bits: _saturate(bits, dtype))
    if "relu" in picks:
        steps.append(lambda bits: relu(bits, dtype))

    def run(a: Array) -> tuple[Array, ...]:
        for step in steps:
            a = step(a)
        return (a,)

    fn: LaneFunction = run if len(steps) > 1 else lambda a: (steps[0](a),)
    return Operation(fn, (atype,), (dtype,))


def _float_conversion(dtype: str, atype: str, mode: str, picks: Picks) -> Callable[[Array], Array]:
    flush = "ftz" in picks
    if "irnd" in picks:
        rounding = _ROUND[picks["irnd"]]
        return lambda a: to_bits(rounding(to_f64(a, atype, flush)), dtype, "rn")
    if dtype == atype:
        if dtype == "f32" and flush:
            return _flushed_f32
        return (lambda a: _canonical(a, dtype)) if dtype in HALVES else lambda a: a
    if dtype == "f32" and atype == "bf16" and not flush:
        # A shift on the hardware, NaN included.
        return lambda a: HALVES["bf16"].to_f32(a).view(np.uint32)
    if dtype == "f32" and atype in HALVES:
        to_f32 = HALVES[atype].to_f32
        return lambda a: pack_f32(to_f32(a))
    if dtype == "f64" and atype == "f32" and flush:
        return lambda a: (
            pack_f32(flush_f32(a).view(np.float32).copy()).view(np.float32).astype(np.float64).view(np.uint64)
        )
    if atype == "f64":
        return lambda a: _with_payload(to_bits(a.view(np.float64), dtype, mode), dtype, a)
    if dtype in HALVES and atype == "f32" and mode == "rn":
        from_f32 = HALVES[dtype].from_f32
        return lambda a: from_f32((flush_f32(a) if flush else a).view(np.float32))
    return lambda a: to_bits(to_f64(a, atype, flush), dtype, mode)


def _flushed_f32(bits: Array) -> Array:
    """f32 through the arithmetic unit: subnormals flushed, NaN canonical."""
    return pack_f32(flush_f32(bits).view(np.float32).copy())


def _canonical(bits: Array, ptx_type: str) -> Array:
    """A half with NaN made canonical."""
    fmt = FORMATS[ptx_type]
    assert fmt.infinity is not None
    nan = (bits & np.uint16(0x7FFF)) > np.uint16(fmt.infinity)
    return np.where(nan, np.uint16(0x7FFF), bits) if np.count_nonzero(nan) else bits


def _with_payload(bits: Array, ptx_type: str, source: Array) -> Array:
    """Narrowing f64 keeps the sign and the upper payload bits of NaN, quieted."""
    nan = (source & np.uint64(2**63 - 1)) > np.uint64(0x7FF << 52)
    if not np.count_nonzero(nan):
        return bits
    fmt = FORMATS[ptx_type]
    assert fmt.infinity is not None
    payload = (source >> np.uint64(52 - fmt.fraction_bits)) & np.uint64((1 << fmt.fraction_bits) - 1)
    sign = (source >> np.uint64(63)) << np.uint64(fmt.sign_bit)
    quiet = np.uint64(fmt.infinity | 1 << (fmt.fraction_bits - 1))
    return np.where(nan, (sign | payload | quiet).astype(bits.dtype), bits)


def finite_bits(bits: Array, ptx_type: str) -> Array:
    """Infinities become the largest finite value of their sign."""
    fmt, word = FORMATS[ptx_type], bits_dtype(ptx_type).type
    assert fmt.infinity is not None
    sign = word(1 << fmt.sign_bit)
    infinite = (bits & ~sign) == word(fmt.infinity)
    return bits - infinite.astype(bits.dtype) if np.count_nonzero(infinite) else bits


def relu(bits: Array, ptx_type: str) -> Array:
    """Negative values become +0; NaN stays."""
    fmt, word = FORMATS[ptx_type], bits_dtype(ptx_type).type
    assert fmt.infinity is not None
    sign = word(1 << fmt.sign_bit)
    negative = ((bits & sign) != 0) & ((bits & ~sign) <= word(fmt.infinity))
    return np.where(negative, word(0), bits)


def _move(picks: Picks) -> Operation:
    return Operation(lambda a: (a,), (picks["type"],), (picks["type"],))


_FLOATS = "f16 bf16 f32 f64"
_MODES = "rn rz rm rp"
_INTEGRAL = "rni rzi rmi rpi"


def _fits(picks: Picks) -> bool:
    """.ftz is about f32, on either side; .sat is for results that may need it, and not for bf16."""
    types = (picks["dtype"], picks["atype"])
    return ("ftz" not in picks or "f32" in types) and ("sat" not in picks or "bf16" not in types)


def _may_overflow(picks: Picks) -> bool:
    target, source = (np.iinfo(value_dtype(picks[t])) for t in ("dtype", "atype"))
    return "sat" not in picks or source.min < target.min or source.max > target.max


def _narrows(picks: Picks) -> bool:
    """Whether the conversion needs a rounding mode: not every value of the source exists in the result."""
    dtype, atype = type_bits(picks["dtype"]), type_bits(picks["atype"])
    return (dtype < atype or (dtype == atype and picks["dtype"] != picks["atype"])) and _fits(picks)


def _keeps(picks: Picks) -> bool:
    return _fits(picks) and not _narrows(picks)


def _same(picks: Picks) -> bool:
    return picks["dtype"] == picks["atype"] and _fits(picks)


_MOVABLE = "pred b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64"

FORMS: list[Form] = [
    *form("mov", ".type", _move, type=_MOVABLE),
    *form(
        "cvt",
        "{.sat}.dtype.atype",
        _between_integers,
        dtype=_INTEGERS,
        atype=_INTEGERS,
        accepts=_may_overflow,
        note="`.sat` where the result may not hold the value",
    ),
    *form("cvt", ".rnd{.ftz}{.sat}.dtype.atype", _integer_to_float, rnd=_MODES, dtype="f32", atype=_INTEGERS),
    *form("cvt", ".rnd{.sat}.dtype.atype", _integer_to_float, rnd=_MODES, dtype="f16 f64", atype=_INTEGERS),
    *form("cvt", ".rnd.dtype.atype", _integer_to_float, rnd=_MODES, dtype="bf16", atype=_INTEGERS),
    *form(
        "cvt",
        ".irnd{.ftz}{.sat}.dtype.atype",
        _float_to_integer,
        irnd=_INTEGRAL,
        dtype=_INTEGERS,
        atype=_FLOATS,
        accepts=_fits,
        note="`.ftz` from f32, `.sat` not from bf16",
    ),
    *form(
        "cvt",
        ".irnd{.ftz}{.sat}.dtype.atype",
        _float_to_float,
        irnd=_INTEGRAL,
        dtype=_FLOATS,
        atype=_FLOATS,
        accepts=_same,
        note="to the same type",
    ),
    *form(
        "cvt",
        "{.ftz}{.sat}.dtype.atype",
        _float_to_float,
        dtype=_FLOATS,
        atype=_FLOATS,
        accepts=_keeps,
        note="to the same or a wider type; `.ftz` with f32, `.sat` not with bf16",
    ),
    *form(
        "cvt",
        ".rnd{.ftz}{.sat}.dtype.atype",
        _float_to_float,
        rnd=_MODES,
        dtype=_FLOATS,
        atype=_FLOATS,
        accepts=_narrows,
        note="to a type that does not hold every value; `.ftz` with f32, `.sat` not with bf16",
    ),
    *form(
        "cvt",
        ".rnd{.relu}{.satfinite}.dtype.atype",
        _float_to_float,
        rnd="rn rz",
        dtype="f16 bf16",
        atype="f32",
    ),
]
