"""Rounding modes and flushing, against exact rational arithmetic rounded here."""

from fractions import Fraction
from math import isqrt

import ml_dtypes
import numpy as np
import pytest

import tilekern as tk
from tilekern.dtypes import dtype_of

FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
DIRECTED = ["RN", "RZ", "RM", "RP"]
RM = tk.RoundingMode


@tk.kernel
def binary(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D, f: tk.Constant[object]):
    out.store(f(tk.load_like(x, out), tk.load_like(y, out)))


@tk.kernel
def ternary(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D, z: tk.Tensor1D, f: tk.Constant[object]):
    out.store(f(tk.load_like(x, out), tk.load_like(y, out), tk.load_like(z, out)))


def rounded(exact, dtype, mode, zero=0.0):
    """An exact number in a float type: by its digits, with exponents as far as they go."""
    if exact == 0:
        return zero
    info = ml_dtypes.finfo(dtype)
    size, sign = abs(exact), 1 if exact > 0 else -1
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, info.minexp) - info.nmant)
    units, rest = divmod(size, unit)
    up = {"RN": 2 * rest > unit or (2 * rest == unit and units % 2), "RZ": False}.get(
        mode, rest > 0 and (mode == "RP") == (sign > 0)
    )
    value = (units + bool(up)) * unit
    if value > Fraction(float(info.max)):
        away = mode == "RN" or ((mode == "RP") == (sign > 0) and mode != "RZ")
        return sign * (np.inf if away else float(info.max))
    return sign * float(value)


def values(dtype, seed, n=48):
    rng = np.random.default_rng(seed)
    tiny, huge = float(ml_dtypes.finfo(dtype).smallest_subnormal), float(ml_dtypes.finfo(dtype).max)
    special = [tiny, -tiny, huge, -huge, 1.0, -1.0, 3.0, 1.5]
    spread = rng.standard_normal(n) * 2.0 ** rng.integers(-12, 12, n)
    return np.concatenate([special, spread]).astype(dtype)


OPERATIONS = {
    "add": (tk.add, lambda a, b: a + b),
    "sub": (tk.sub, lambda a, b: a - b),
    "mul": (tk.mul, lambda a, b: a * b),
    "truediv": (tk.truediv, lambda a, b: a / b),
}


@pytest.mark.parametrize("mode", DIRECTED)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_arithmetic_in_every_mode(dtype, name, mode, run):
    ours, exact = OPERATIONS[name]
    x, y = values(dtype, 1), values(dtype, 2)[::-1].copy()
    result = run(binary, (x.shape, dtype, 64), x, y, lambda a, b: ours(a, b, rounding_mode=RM[mode]))
    for a, b, got in zip(x, y, result.astype("f8")):
        number = exact(Fraction(float(a)), Fraction(float(b)))
        assert got == rounded(number, dtype, mode), (a, b)


@pytest.mark.parametrize("mode", DIRECTED)
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_fma_in_every_mode(dtype, mode, run):
    x, y = values(dtype, 1), values(dtype, 2)
    with np.errstate(over="ignore"):
        z = (-x.astype("f8") * y.astype("f8")).astype(dtype)
    z = np.where(np.isfinite(z.astype("f8")), z, dtype(1))
    result = run(
        ternary, (x.shape, dtype, 64), x, y, z, lambda a, b, c: tk.fma(a, b, c, rounding_mode=RM[mode])
    )
    for a, b, c, got in zip(x, y, z, result.astype("f8")):
        number = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        assert got == rounded(number, dtype, mode), (a, b, c)


@pytest.mark.parametrize("mode", DIRECTED)
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_square_root_in_every_mode(dtype, mode, run):
    x = np.abs(values(dtype, 3))
    result = run(binary, (x.shape, dtype, 64), x, x, lambda a, b: tk.sqrt(a, rounding_mode=RM[mode]))
    for a, got in zip(x, result.astype("f8")):
        # the root, to far more digits than any of these have; a last bit of one where it goes on
        number = Fraction(float(a)) * Fraction(4) ** 700
        root = isqrt(number.numerator // number.denominator)
        exact = Fraction(2 * root + (root * root != number), 2) / Fraction(2) ** 700
        assert got == rounded(exact, dtype, mode), a


def test_zeros_have_the_sign_of_the_mode(run):
    x, y = np.array([1.0, 0.0, -0.0, 0.0], "f4"), np.array([-1.0, -0.0, -0.0, 0.0], "f4")
    for mode, signs in (("RN", [0, 0, 1, 0]), ("RM", [1, 1, 1, 0]), ("RP", [0, 0, 1, 0])):
        result = run(binary, ((4,), "f4", 4), x, y, lambda a, b, m=mode: tk.add(a, b, rounding_mode=RM[m]))
        assert (result == 0).all()
        assert np.signbit(result).astype(int).tolist() == signs
        result = run(binary, ((4,), "f4", 4), x, -y, lambda a, b, m=mode: tk.sub(a, b, rounding_mode=RM[m]))
        assert np.signbit(result).astype(int).tolist() == signs


@pytest.mark.parametrize("mode", DIRECTED)
def test_infinity_and_nan_in_every_mode(mode, run):
    x, y = np.array([np.inf, np.inf, np.nan, 1, -1], "f4"), np.array([1, -np.inf, 1, 0, 0], "f4")
    for ours, numpy in ((tk.add, np.add), (tk.mul, np.multiply), (tk.truediv, np.divide)):
        with np.errstate(all="ignore"):
            expected = numpy(x, y)
        result = run(binary, ((5,), "f4", 8), x, y, lambda a, b, f=ours: f(a, b, rounding_mode=RM[mode]))
        assert np.array_equal(result, expected, equal_nan=True)


def test_small_numbers_are_flushed(run):
    small = np.float32(2.0**-127)
    x, y = np.array([small, -small, 2.0**-100, 1], "f4"), np.array([1, 1, 2.0**-30, 1], "f4")
    result = run(binary, ((4,), "f4", 4), x, y, lambda a, b: tk.mul(a, b, flush_to_zero=True))
    assert result.tolist() == [0, 0, 0, 1]
    assert np.signbit(result).tolist() == [False, True, False, False]
    kept = run(binary, ((4,), "f4", 4), x, y, tk.mul)
    assert kept.tolist() == [small, -small, 2.0**-130, 1]
    for function in (tk.minimum, tk.maximum):
        flushed = run(binary, ((4,), "f4", 4), x, x, lambda a, b, f=function: f(a, b, flush_to_zero=True))
        assert flushed.tolist() == [0, 0, 2.0**-100, 1]
    flushed = run(binary, ((4,), "f4", 4), x, x, lambda a, b: tk.sqrt(tk.abs(a), flush_to_zero=True))
    assert flushed.tolist() == [0, 0, 2.0**-50, 1]
    fused = run(binary, ((4,), "f4", 4), x, y, lambda a, b: tk.fma(a, b, a, flush_to_zero=True))
    assert fused.tolist() == [0, 0, 2.0**-100, 2]
    roots = run(binary, ((4,), "f4", 4), np.abs(x), y, lambda a, b: tk.rsqrt(a, flush_to_zero=True))
    assert roots.tolist() == [np.inf, np.inf, 2.0**50, 1]
    powers = np.array([-127, -126, 0, 1], "f4")
    assert run(binary, ((4,), "f4", 4), powers, y, lambda a, b: tk.exp2(a, flush_to_zero=True)).tolist() == [
        0,
        2.0**-126,
        1,
        2,
    ]


@pytest.mark.parametrize("function", [tk.exp, tk.tanh, tk.sqrt])
def test_approximation_is_near(function, run):
    x = np.linspace(0.125, 4, 64).astype("f4")
    result = run(binary, ((64,), "f4", 64), x, x, lambda a, b: function(a, rounding_mode=RM.APPROX))
    exact = {tk.exp: np.exp, tk.tanh: np.tanh, tk.sqrt: np.sqrt}[function](x.astype("f8"))
    assert np.allclose(result, exact, rtol=2e-3)
    for mode in (RM.APPROX, RM.FULL):
        result = run(
            binary, ((64,), "f4", 64), x, 3 - x, lambda a, b, m=mode: tk.truediv(a, b, rounding_mode=m)
        )
        assert np.allclose(result, x.astype("f8") / (3 - x), rtol=1e-6)


# ------------------------------------------------------------------ conversions

CONVERSIONS = [
    *[(np.float64, np.float32, mode) for mode in DIRECTED],
    *[
        (s, t, m)
        for s in (np.float64, np.float32)
        for t in (np.float16, ml_dtypes.bfloat16)
        for m in ("RN", "RZ")
    ],
]


@pytest.mark.parametrize(("source", "target", "mode"), CONVERSIONS, ids=lambda v: getattr(v, "__name__", v))
def test_conversion_in_every_mode(source, target, mode, run):
    rng = np.random.default_rng(5)
    x = np.concatenate(
        [
            rng.standard_normal(50) * 2.0 ** rng.integers(-30, 30, 50),
            [1 + 2.0**-11, 1 + 2.0**-24, 1 + 2.0**-8 + 2.0**-40, 65519.9, -7e4, 3.4e38, -3.4028235e38, 1e-46],
        ]
    ).astype(source)
    kind = dtype_of(target)
    result = run(binary, (x.shape, target, 64), x, x, lambda a, b: a.astype(kind, rounding_mode=RM[mode]))
    for value, got in zip(x, result.astype("f8")):
        expected = rounded(Fraction(float(value)), target, mode, float(value))
        assert got == expected, value


NARROW = [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("target", [*NARROW, ml_dtypes.float4_e2m1fn], ids=lambda t: t.__name__)
def test_double_near_a_tie_is_rounded_once(target, run, device):
    """A tie, and what is off it by less than float32 can tell."""
    kind = dtype_of(target)
    if kind.restricted:
        needs(device, 10 if kind is tk.float4_e2m1fn else 9)
    step = 2.0 ** -ml_dtypes.finfo(target).nmant
    ties = [1 + step / 2, 1 + 3 * step / 2, -(1 + step / 2), 2 + 3 * step]
    x = np.array([tie + off for tie in ties for off in (0, 2.0**-40, -(2.0**-40))])
    result = run(binary, ((12,), "f4", 16), x, x, lambda a, b: a.astype(kind).astype(tk.float32))
    expected = [rounded(Fraction(float(value)), target, "RN") for value in x]
    assert result.tolist() == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("RZ", [1, 1, 1, 2, 2.0**-127, 2.0**127, 2.0**127, 2.0**-126]),
        ("RP", [1, 2, 2, 4, 2.0**-127, 2.0**127, 2.0**127, 2.0**-126]),
    ],
)
def test_scales_are_powers_of_two(mode, expected, run, device):
    """Magnitudes, rounded down or up to a power of two that there is."""
    needs(device, 10)
    x = np.array([1, 1.5, -1.25, 3, 0, np.inf, 3e38, 2.0**-126], "f4")
    result = run(
        binary,
        ((8,), "f4", 8),
        x,
        x,
        lambda a, b: a.astype(tk.float8_e8m0fnu, rounding_mode=RM[mode]).astype(tk.float32),
    )
    assert result.tolist() == expected


def needs(device, major):
    if device.kind == "cuda" and device.compute_capability < (major, 0):
        pytest.skip("no such element type here")


def test_numbers_of_four_bits(run, device):
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to the even one; larger ones and NaN give 6."""
    needs(device, 10)
    x = np.array([0.25, 0.75, 1.25, 2.5, 5, 100, -7, np.nan, -0.2, 0.26, 1.75, 3.5, 0.1, 6, -1, -2.6], "f4")
    result = run(binary, ((16,), "f4", 16), x, x, lambda a, b: a.astype(tk.float4_e2m1fn).astype(tk.float32))
    assert result.tolist() == [0, 1, 1, 2, 4, 6, -6, 6, 0, 0.5, 2, 4, 0, 6, -1, -3]


def test_ties_away_from_zero_to_tf32(run):
    x = np.array([1 + 2.0**-11, -(1 + 2.0**-11), 1 + 3 * 2.0**-11, 1 + 2.0**-12, np.inf], "f4")
    result = run(
        binary,
        ((5,), "f4", 8),
        x,
        x,
        lambda a, b: a.astype(tk.tfloat32, rounding_mode=RM.RA).astype(tk.float32),
    )
    assert result.tolist() == [1 + 2.0**-10, -(1 + 2.0**-10), 1 + 2.0**-9, 1, np.inf]


# ------------------------------------------------------------------ what is refused

REFUSED = [
    (lambda a: tk.add(a, a, rounding_mode=RM.APPROX), "f4", "RN, RZ, RM, RP, got APPROX"),
    (lambda a: tk.add(a, a, rounding_mode=RM.RZ), "i4", "add of int32 is exact or wraps"),
    (
        lambda a: tk.add(a, a, flush_to_zero=True),
        "f2",
        "flush_to_zero is for float32; add here is of float16",
    ),
    (lambda a: tk.exp(a, rounding_mode=RM.APPROX), "f8", "takes the rounding modes FULL, got APPROX"),
    (lambda a: tk.exp(a, rounding_mode="fast"), "f4", "rounding_mode is one of tk.RoundingMode, got 'fast'"),
    (
        lambda a: a.astype(tk.float16, rounding_mode=RM.RP),
        "f4",
        "float32 to float16 takes the rounding modes RN, RZ",
    ),
    (lambda a: a.astype(tk.float16, rounding_mode=RM.RZI), "f4", "RZI is for floats that become integers"),
    (lambda a: tk.mulhi(a, a), "f4", "mulhi takes integers, got float32"),
]


@pytest.mark.parametrize(("function", "dtype", "message"), REFUSED)
def test_option_that_does_not_fit_is_refused(function, dtype, message):
    t = tk.meta(8, dtype)
    with pytest.raises(tk.KernelError, match=message):
        binary.ir(t.partition(8), t, t, lambda a, b: function(a))
