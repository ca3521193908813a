"""cvt to and from packed and narrow types: f16x2, bf16x2, tf32, fp8, fp6, fp4, ue8m0, and cvt.pack.

Of two sources the first goes to the upper part. The narrow formats without infinity saturate; fp6 and fp4
have no NaN and give their largest value for it. `.rs` rounds up when adding the supplied random bits to
the discarded ones carries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from ._semantics_convert import finite_bits, to_f64
from ._semantics_forms import Array, Form, Operation, Picks, bits_dtype, form
from ._semantics_half import HALVES, f32_to_bf16, f32_to_f16, round_to_bf16
from ._semantics_integer import saturate_to
from ._semantics_softfloat import FORMATS, Format, narrow_exact
from ._semantics_values import bf16_to_f32, f16_to_f32

__all__ = ["FORMS"]


def _largest(fmt: Format) -> float:
    fraction = fmt.largest & ((1 << fmt.fraction_bits) - 1)
    exponent = (fmt.largest >> fmt.fraction_bits) - fmt.bias
    return float((1 + fraction * 2.0**-fmt.fraction_bits) * 2.0**exponent)


def _clamped(values: Array, fmt: Format, relu: bool, finite: bool) -> Array:
    """Values before rounding: negative ones to +0, the rest into the format's finite range."""
    if relu:
        values = np.where(values <= 0, 0.0, values)
    if finite:
        largest = _largest(fmt)
        values = np.minimum(np.maximum(values, -largest), largest)
    return values


def _narrower(name: str, mode: str, relu: bool, finite: bool, random_bits: int = 0) -> Callable[..., Array]:
    """f64 values (and random integers for `rs`) to bits of the format, as uint64."""
    fmt = FORMATS[name]

    def run(values: Array, random: Array | None = None) -> Array:
        pair = None if random is None else (random, random_bits)
        return narrow_exact(_clamped(values, fmt, relu, finite), fmt, mode, pair)

    return run


def _to_two_halves(picks: Picks) -> Operation:
    """f16x2 and bf16x2 from two f32."""
    name = picks["dtype"].removesuffix("x2")
    mode, relu, finite = picks["rnd"], "relu" in picks, "satfinite" in picks
    types = ("f32", "f32") if mode != "rs" else ("f32", "f32", "b32")
    random_bits = 13 if name == "f16" else 16
    narrower = _narrower(name, mode, relu, finite, random_bits)
    mask = np.uint32((1 << random_bits) - 1)

    def nearest_f16(a: Array, b: Array) -> tuple[Array, ...]:
        high, low = f32_to_f16(a.view(np.float32)), f32_to_f16(b.view(np.float32))
        return ((high.astype(np.uint32) << np.uint32(16)) | low,)

    def nearest_bf16(a: Array, b: Array) -> tuple[Array, ...]:
        x, y = a.view(np.float32), b.view(np.float32)
        if np.count_nonzero(x != x) or np.count_nonzero(y != y):
            return ((f32_to_bf16(x).astype(np.uint32) << np.uint32(16)) | f32_to_bf16(y),)
        return ((round_to_bf16(x) & np.uint32(0xFFFF0000)) | (round_to_bf16(y) >> np.uint32(16)),)

    def run(a: Array, b: Array, *random: Array) -> tuple[Array, ...]:
        extra = [(r >> np.uint32(16) & mask, r & mask) for r in random]
        high = narrower(to_f64(a, "f32"), *[e[0] for e in extra])
        low = narrower(to_f64(b, "f32"), *[e[1] for e in extra])
        return (((high << np.uint64(16)) | low).astype(np.uint32),)

    nearest = nearest_f16 if name == "f16" else nearest_bf16
    return Operation(nearest if mode == "rn" and not relu and not finite else run, types, (picks["dtype"],))


def _to_tf32(picks: Picks) -> Operation:
    """tf32: an f32 whose last 13 bits are zero, in NaN too (0x7fffe000)."""
    narrower = _narrower("tf32", picks["rnd"], "relu" in picks, "satfinite" in picks)

    def run(a: Array) -> tuple[Array, ...]:
        bits = (narrower(to_f64(a, "f32")) << np.uint64(13)).astype(np.uint32)
        return (bits,)

    return Operation(run, ("f32",), ("b32",))


def _split_halves(a: Array, ptx_type: str) -> tuple[Array, Array]:
    """Upper and lower half of a packed register as f64."""
    to_f32 = f16_to_f32 if ptx_type == "f16x2" else bf16_to_f32
    upper, lower = (a >> np.uint32(16)).astype(np.uint16), a.astype(np.uint16)
    return to_f32(upper).astype(np.float64), to_f32(lower).astype(np.float64)


def _place_bits(name: str) -> int:
    """Bits each element takes in the packed register: fp6 is padded to eight."""
    return 4 if name == "e2m1" else 8


def _to_two_narrow(picks: Picks) -> Operation:
    """fp8x2, fp6x2, fp4x2 from two f32 or one packed register of halves."""
    dtype, atype = picks["dtype"], picks["atype"]
    name = dtype.removesuffix("x2")
    narrower = _narrower(name, "rn", "relu" in picks, finite=True)
    shift, out = np.uint64(_place_bits(name)), bits_dtype(dtype)

    def pack(high: Array, low: Array) -> tuple[Array, ...]:
        return (((narrower(high) << shift) | narrower(low)).astype(out),)

    if atype == "f32":
        return Operation(lambda a, b: pack(to_f64(a, "f32"), to_f64(b, "f32")), ("f32", "f32"), (dtype,))
    return Operation(lambda a: pack(*_split_halves(a, atype)), (atype,), (dtype,))


def _to_four_narrow(picks: Picks) -> Operation:
    """fp8x4, fp6x4, fp4x4 from four f32, rounded stochastically; the first goes to the top."""
    dtype = picks["dtype"]
    name = dtype.removesuffix("x4")
    place, out = _place_bits(name), bits_dtype(dtype)
    random_bits = 8 if name == "e2m1" else 16
    narrower = _narrower(name, "rs", "relu" in picks, finite=True, random_bits=random_bits)
    mask = np.uint32((1 << random_bits) - 1)

    def run(a: Array, b: Array, e: Array, f: Array, random: Array) -> tuple[Array, ...]:
        if name == "e2m1":
            # Upper bytes of both halves serve a and b, lower bytes e and f.
            pieces = [(random >> np.uint32(s)) & mask for s in (24, 8, 16, 0)]
        else:
            upper, lower = random >> np.uint32(16), random & mask
            pieces = [upper, upper, lower, lower]
        total: Array = np.zeros(1, np.uint64)
        for values, piece in zip((a, b, e, f), pieces):
            total = (total << np.uint64(place)) | narrower(to_f64(values, "f32"), piece)
        return (total.astype(out),)

    return Operation(run, ("f32", "f32", "f32", "f32", "b32"), (dtype,))


@cache
def _decoded(name: str, target: str, relu: bool, finite: bool) -> Array:
    """The f16 or bf16 bits of every pattern of a narrow format."""
    fmt = FORMATS[name]
    sign = 1 << fmt.sign_bit
    table = np.zeros(256, np.float32)
    for pattern in range(256):
        magnitude = pattern & (sign - 1)
        field, fraction = magnitude >> fmt.fraction_bits, magnitude & ((1 << fmt.fraction_bits) - 1)
        implicit = (1 << fmt.fraction_bits) if field else 0
        value = (implicit + fraction) * 2.0 ** (fmt.lowest_exponent + max(field, 1) - 1)
        if magnitude > fmt.largest:
            value = np.inf if magnitude == fmt.infinity else np.nan
        value = -value if pattern & sign else value
        table[pattern] = 0.0 if relu and value <= 0 else value
    bits = HALVES[target].from_f32(table)
    if finite:
        bits = finite_bits(bits, target)
    bits.flags.writeable = False
    return bits


def _from_two_narrow(picks: Picks) -> Operation:
    """Exact: f16 and bf16 hold every narrow value."""
    atype, dtype = picks["atype"], picks["dtype"]
    name, target = atype.removesuffix("x2"), dtype.removesuffix("x2")
    place, relu, finite = _place_bits(name), "relu" in picks, "satfinite" in picks
    mask = (1 << place) - 1

    def run(a: Array) -> tuple[Array, ...]:
        table = _decoded(name, target, relu, finite)
        high, low = table[(a >> place) & mask], table[a & mask]
        return ((high.astype(np.uint32) << np.uint32(16)) | low,)

    return Operation(run, (atype,), (dtype,))


def _to_two_exponents(picks: Picks) -> Operation:
    """ue8m0x2: the exponent of the magnitude, towards zero or up to the next power of two."""
    atype, up, finite = picks["atype"], picks["rnd"] == "rp", "satfinite" in picks

    def exponent(bits: Array) -> Array:
        magnitude = bits & np.uint32(0x7FFFFFFF)
        field = magnitude >> np.uint32(23)
        nan = magnitude > np.uint32(0x7F800000)
        if up:
            between = (magnitude & np.uint32(0x7FFFFF) != 0) & (magnitude > np.uint32(0x400000))
            field = field + (between & (field < 255))
        if finite:
            field = np.where(nan, field, np.minimum(field, 254))
        return np.where(nan, np.uint16(0xFF), field.astype(np.uint16))

    def pack(high: Array, low: Array) -> tuple[Array, ...]:
        return ((exponent(high) << np.uint16(8)) | exponent(low),)

    if atype == "f32":
        return Operation(pack, ("f32", "f32"), ("ue8m0x2",))
    top = np.uint32(0xFFFF0000)
    return Operation(lambda a: pack(a & top, a << np.uint32(16)), ("bf16x2",), ("ue8m0x2",))


def _from_two_exponents(picks: Picks) -> Operation:
    """bf16x2 from ue8m0x2: powers of two from 2**-127 (subnormal in bf16); 0xff is NaN."""
    table = (np.arange(256, dtype=np.uint32) << np.uint32(7)).astype(np.uint16)
    table[0], table[255] = 0x0040, 0x7FFF

    def run(a: Array) -> tuple[Array, ...]:
        high, low = table[a >> np.uint16(8)], table[a & np.uint16(0xFF)]
        return ((high.astype(np.uint32) << np.uint32(16)) | low,)

    return Operation(run, ("ue8m0x2",), ("bf16x2",))


def _pack_two(picks: Picks) -> Operation:
    """cvt.pack to 16 bits: a saturated goes to the upper half."""
    dtype = picks["convert"]

    def run(a: Array, b: Array) -> tuple[Array, ...]:
        high = saturate_to(a.view(np.int32).astype(np.int64), dtype).astype(np.uint32)
        low = saturate_to(b.view(np.int32).astype(np.int64), dtype)
        return ((high << np.uint32(16)) | low,)

    return Operation(run, ("s32", "s32"), ("b32",))


def _pack_more(picks: Picks) -> Operation:
    """cvt.pack to at most 8 bits: a and b saturated at the bottom, c moved up above them."""
    dtype = picks["convert"]
    bits = int(dtype[1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype[0] == "s" else (0, (1 << bits) - 1)
    mask = np.uint32((1 << bits) - 1)

    def clamp(a: Array) -> Array:
        return np.minimum(np.maximum(a.view(np.int32), low), high).view(np.uint32) & mask

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        return ((c << np.uint32(2 * bits)) | (clamp(a) << np.uint32(bits)) | clamp(b),)

    return Operation(run, ("s32", "s32", "b32"), ("b32",))


_EIGHT = "e4m3x2 e5m2x2"
_SMALL = "e2m1x2 e2m3x2 e3m2x2"

FORMS: list[Form] = [
    *form(
        "cvt",
        ".rnd{.relu}{.satfinite}.dtype.atype",
        _to_two_halves,
        rnd="rn rz rs",
        dtype="f16x2 bf16x2",
        atype="f32",
    ),
    *form("cvt", ".rnd{.satfinite}.tf32.f32", _to_tf32, rnd="rna"),
    *form("cvt", ".rnd{.satfinite}{.relu}.tf32.f32", _to_tf32, rnd="rn rz"),
    *form("cvt", ".rn.satfinite{.relu}.dtype.atype", _to_two_narrow, dtype=_EIGHT, atype="f32 f16x2 bf16x2"),
    *form("cvt", ".rn.satfinite{.relu}.dtype.atype", _to_two_narrow, dtype=_SMALL, atype="f32 f16x2 bf16x2"),
    *form("cvt", ".rn{.relu}.dtype.atype", _from_two_narrow, dtype="f16x2", atype=f"{_EIGHT} {_SMALL}"),
    *form(
        "cvt",
        ".rn{.satfinite}{.relu}.dtype.atype",
        _from_two_narrow,
        dtype="bf16x2",
        atype=f"{_EIGHT} {_SMALL}",
    ),
    *form(
        "cvt",
        ".rs{.relu}.satfinite.dtype.f32",
        _to_four_narrow,
        dtype="e4m3x4 e5m2x4 e2m1x4 e2m3x4 e3m2x4",
    ),
    *form("cvt", ".rnd{.satfinite}.ue8m0x2.atype", _to_two_exponents, rnd="rz rp", atype="f32 bf16x2"),
    *form("cvt", ".rn.bf16x2.ue8m0x2", _from_two_exponents),
    *form("cvt", ".pack.sat.convert.s32", _pack_two, convert="u16 s16"),
    *form("cvt", ".pack.sat.convert.s32.b32", _pack_more, convert="u2 s2 u4 s4 u8 s8"),
]
