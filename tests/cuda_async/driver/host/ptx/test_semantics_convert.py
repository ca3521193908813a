"""Conversions that do not round to a float: integers, float to integer, widening, clamping, packing."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from cuda_async.driver.host.ptx._semantics import bits_dtype, is_signed, operation, type_bits

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
ROUND = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


def limits(name: str) -> tuple[int, int]:
    bits = type_bits(name)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed(name) else (0, (1 << bits) - 1)


def registers(values: list[int], name: str) -> np.ndarray:
    mask = (1 << type_bits(name)) - 1
    return np.array([v & mask for v in values], dtype=bits_dtype(name))


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_integer_conversions_wrap_or_saturate(target: str, source: str) -> None:
    low, high = limits(source)
    values = [
        v
        for v in (0, 1, -1, 127, 128, -128, -129, 255, 256, 2**15, 2**31, 2**63, low, high)
        if low <= v <= high
    ]
    given = registers(values, source)
    (result,) = operation("cvt", (target, source)).fn(given)
    assert result.tolist() == registers(values, target).tolist()
    target_low, target_high = limits(target)
    if low < target_low or high > target_high:
        (result,) = operation("cvt", ("sat", target, source)).fn(given)
        clamped = [max(target_low, min(target_high, v)) for v in values]
        assert result.tolist() == registers(clamped, target).tolist()


def floats(source: str) -> tuple[np.ndarray, list[float]]:
    """Patterns of a float type and their values."""
    rng = np.random.default_rng(3)
    numbers = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -1.5,
        0.49999997,
        126.5,
        127.5,
        255.5,
        -128.5,
        65535.5,
        2.0**31,
    ]
    numbers += [
        2.0**31 - 128,
        -(2.0**31),
        2.0**32,
        2.0**63,
        -(2.0**63),
        2.0**64,
        1e30,
        -1e30,
        math.inf,
        -math.inf,
    ]
    numbers += [
        math.nan,
        2.0**52 + 1,
        4503599627370497.5,
        *(rng.standard_normal(200) * 2.0 ** rng.integers(-3, 66, 200)),
    ]
    dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}[source]
    with np.errstate(over="ignore"):
        held = np.array(numbers).astype(dtype)
    return held.view(bits_dtype(source)), [float(v) for v in held]


def on_nan(target: str, source: str) -> int:
    """The manual: 0 unless source or destination has 64 bits, then the destination's top bit."""
    return 1 << (type_bits(target) - 1) if source == "f64" or type_bits(target) == 64 else 0


@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("target", INTEGERS)
def test_float_to_integer_rounds_and_clamps(target: str, source: str) -> None:
    given, values = floats(source)
    low, high = limits(target)
    for mode, rounding in ROUND.items():
        (result,) = operation("cvt", (mode, target, source)).fn(given)
        for value, got in zip(values, result.tolist()):
            if math.isnan(value):
                want = on_nan(target, source)
            elif math.isinf(value):
                want = high if value > 0 else low
            else:
                want = max(low, min(high, rounding(Fraction(value))))
            assert got == want & ((1 << type_bits(target)) - 1), (mode, value)


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_rounding_to_integral_values(name: str) -> None:
    given, values = floats(name)
    sign = 1 << (type_bits(name) - 1)
    for mode, rounding in ROUND.items():
        (result,) = operation("cvt", (mode, name, name)).fn(given)
        decoded = decode(result, name)
        for bits, value, got, out in zip(given.tolist(), values, decoded, result.tolist()):
            if math.isnan(value):
                assert math.isnan(got)
            elif math.isinf(value):
                assert got == value
            else:
                assert Fraction(got) == rounding(Fraction(value))
                assert out & sign == bits & sign  # a zero keeps the sign


def decode(bits: np.ndarray, name: str) -> list[float]:
    dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}[name]
    with np.errstate(invalid="ignore"):
        return [float(v) for v in bits.view(dtype)]


@pytest.mark.parametrize(
    ("target", "source"), [("f32", "f16"), ("f64", "f16"), ("f32", "bf16"), ("f64", "bf16"), ("f64", "f32")]
)
def test_widening_is_exact(target: str, source: str) -> None:
    if source == "f32":
        given = np.random.default_rng(5).integers(0, 2**32, 4000, dtype=np.uint64).astype(np.uint32)
    else:
        given = np.arange(65536).astype(np.uint16)
    (result,) = operation("cvt", (target, source)).fn(given)
    before, after = np.array(decode(given, source)), np.array(decode(result, target))
    assert np.array_equal(before, after, equal_nan=True)
    assert np.array_equal(np.signbit(before) & ~np.isnan(before), np.signbit(after) & ~np.isnan(after))


def test_every_f16_survives_the_way_there_and_back() -> None:
    every = np.arange(65536).astype(np.uint16)
    for half in ("f16", "bf16"):
        (wide,) = operation("cvt", ("f32", half)).fn(every)
        (back,) = operation("cvt", ("rn", half, "f32")).fn(wide)
        nan = np.isnan(decode(every, half))
        assert np.array_equal(back[~nan], every[~nan])
        assert (back[nan] == 0x7FFF).all()


def single(modifiers: tuple[str, ...], *bits: int) -> int:
    op = operation("cvt", modifiers)
    operands = [np.array([b], bits_dtype(t)) for b, t in zip(bits, op.operand_types)]
    return int(op.fn(*operands)[0][0])


def f32(value: float) -> int:
    return int(np.array([value], np.float32).view(np.uint32)[0])


@pytest.mark.parametrize(
    ("modifiers", "bits", "want"),
    [
        (("sat", "f32", "f32"), f32(2.5), f32(1)),
        (("sat", "f32", "f32"), f32(-2.5), 0),
        (("sat", "f32", "f32"), 0x80000000, 0),
        (("sat", "f32", "f32"), 0x7FC00000, 0),
        (("sat", "f32", "f32"), f32(0.25), f32(0.25)),
        (("ftz", "f32", "f32"), 0x80000001, 0x80000000),
        (("rn", "sat", "f16", "f32"), f32(3), 0x3C00),
        (("rn", "relu", "f16", "f32"), f32(-3), 0),
        (("rn", "relu", "f16", "f32"), f32(3), 0x4200),
        (("rn", "relu", "bf16", "f32"), 0xFFC00000, 0x7FFF),
        (("rn", "satfinite", "f16", "f32"), f32(1e6), 0x7BFF),
        (("rn", "satfinite", "f16", "f32"), f32(-math.inf), 0xFBFF),
        (("rn", "f16", "f32"), f32(1e6), 0x7C00),
        (("rn", "f16", "f32"), f32(65519), 0x7BFF),
        (("rn", "f16", "f32"), f32(65520), 0x7C00),
        (("rz", "f16", "f32"), f32(1e6), 0x7BFF),
        (("rp", "f16", "f32"), f32(-1e6), 0xFBFF),
        (("rz", "f16", "f32"), f32(math.inf), 0x7C00),
        (("rzi", "ftz", "s32", "f32"), 0x00000001, 0),
        (("rpi", "s32", "f32"), 0x00000001, 1),
        (("rpi", "ftz", "s32", "f32"), 0x00000001, 0),
        (("rn", "ftz", "f32", "f64"), 0x36A0000000000000, 0),
        (("rn", "f32", "f64"), 0x36A0000000000000, 1),
        (("rn", "f32", "f64"), 0xFFF8000000000000, 0xFFC00000),
        (("rna", "tf32", "f32"), 0x3F801000, 0x3F802000),
        (("rn", "tf32", "f32"), 0x3F801000, 0x3F800000),
        (("rz", "tf32", "f32"), 0x3F801FFF, 0x3F800000),
        (("rn", "relu", "tf32", "f32"), f32(-1), 0),
    ],
    ids=str,
)
def test_clamping_and_flushing(modifiers: tuple[str, ...], bits: int, want: int) -> None:
    assert single(modifiers, bits) == want


def test_two_sources_go_to_upper_and_lower_half() -> None:
    assert single(("rn", "f16x2", "f32"), f32(1), f32(2)) == 0x3C004000
    assert single(("rn", "bf16x2", "f32"), f32(1), f32(2)) == 0x3F804000
    assert single(("rz", "relu", "f16x2", "f32"), f32(-1), f32(2)) == 0x4000
    assert single(("rn", "satfinite", "e4m3x2", "f32"), f32(1), f32(-1000)) == 0x38FE
    assert single(("rn", "satfinite", "e5m2x2", "f16x2"), 0x3C00FC00) == 0x3CFB
    assert single(("rn", "satfinite", "relu", "e4m3x2", "f32"), f32(-1), f32(math.nan)) == 0x007F
    assert single(("rn", "satfinite", "e2m1x2", "f32"), f32(6), f32(-100)) == 0x7F
    assert single(("rn", "satfinite", "e2m1x2", "f32"), f32(math.nan), f32(0)) == 0x70


@pytest.mark.parametrize(
    ("name", "dtype"), [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)]
)
def test_fp8_agrees_with_ml_dtypes(name: str, dtype: type) -> None:
    patterns = np.arange(256).astype(np.uint8)
    (wide,) = operation("cvt", ("rn", "f16x2", f"{name}x2")).fn(patterns.astype(np.uint16) << 8)
    with np.errstate(invalid="ignore"):
        want = patterns.view(dtype).astype(np.float16)
    got = (wide >> 16).astype(np.uint16).view(np.float16)
    assert np.array_equal(got, want, equal_nan=True)
    top = float(ml_dtypes.finfo(dtype).max)
    numbers = np.clip(np.random.default_rng(1).standard_normal(3000) * 100, -top, top).astype(np.float32)
    (narrow,) = operation("cvt", ("rn", "satfinite", f"{name}x2", "f32")).fn(
        np.zeros(1, np.uint32), numbers.view(np.uint32)
    )
    assert np.array_equal(narrow.astype(np.uint8), numbers.astype(dtype).view(np.uint8))


@pytest.mark.parametrize(
    ("name", "dtype", "width"),
    [
        ("e2m3", ml_dtypes.float6_e2m3fn, 8),
        ("e3m2", ml_dtypes.float6_e3m2fn, 8),
        ("e2m1", ml_dtypes.float4_e2m1fn, 4),
    ],
)
def test_small_formats_decode_as_ml_dtypes(name: str, dtype: type, width: int) -> None:
    patterns = np.arange(64 if width == 8 else 16).astype(np.uint8)
    for target, view in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        op = operation("cvt", ("rn", target, f"{name}x2"))
        (wide,) = op.fn(patterns.astype(bits_dtype(op.operand_types[0])))
        assert np.array_equal(wide.astype(np.uint16).view(view), patterns.view(dtype).astype(view))


def test_ue8m0_is_the_exponent() -> None:
    """Values of the CUDA header's host code for `__nv_cvt_float_to_e8m0`."""
    assert single(("rz", "ue8m0x2", "f32"), f32(1), f32(3)) == 0x7F80
    assert single(("rp", "ue8m0x2", "f32"), f32(1), f32(3)) == 0x7F81
    assert single(("rp", "satfinite", "ue8m0x2", "f32"), f32(math.inf), f32(math.nan)) == 0xFEFF
    assert single(("rz", "ue8m0x2", "f32"), f32(-3), f32(2.0**-127)) == 0x8000
    assert single(("rn", "bf16x2", "ue8m0x2"), 0x7F00) == 0x3F800040
    assert single(("rp", "ue8m0x2", "bf16x2"), 0x3F813F80) == 0x807F


def test_pack_saturates_each_part() -> None:
    assert single(("pack", "sat", "s16", "s32"), 70000, -70000 & 0xFFFFFFFF) == 0x7FFF8000
    assert single(("pack", "sat", "u16", "s32"), 70000, -1 & 0xFFFFFFFF) == 0xFFFF0000
    assert single(("pack", "sat", "u8", "s32", "b32"), 300, 7, 0x11223344) == 0x3344FF07
    assert single(("pack", "sat", "s4", "s32", "b32"), 100, -100 & 0xFFFFFFFF, 0xAB) == 0xAB78


def test_moves_give_the_operand() -> None:
    for ptx_type in ("pred", "b16", "u32", "f64"):
        given = np.ones(3, bits_dtype(ptx_type))
        assert np.array_equal(operation("mov", (ptx_type,)).fn(given)[0], given)
