"""Element-by-element operations against NumPy in higher precision, over element types, with special values."""

import ml_dtypes
import numpy as np
import pytest

import tilekern as tk

FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
INTS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
NUMBERS = [*FLOATS.values(), *INTS]


def ids(dtype):
    return np.dtype(dtype).name


@tk.kernel
def unary(out: tk.Tile1D, x: tk.Tensor1D, f: tk.Constant[object]):
    out.store(f(tk.load_like(x, out)))


@tk.kernel
def binary(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D, f: tk.Constant[object]):
    out.store(f(tk.load_like(x, out), tk.load_like(y, out)))


def floats(dtype, seed=0, n=200):
    rng = np.random.default_rng(seed)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5, -2.5, 0.5]
    values = np.concatenate([special, rng.standard_normal(n) * 3, rng.standard_normal(n) * 1e-3])
    return values.astype(dtype)


def ulp_error(result, exact, dtype):
    """Distance in units of the last place of the correctly rounded result; NaN and infinity must be the same."""
    rounded = exact.astype(dtype)
    wide, wanted = result.astype(np.float64), rounded.astype(np.float64)
    assert np.array_equal(np.isnan(wide), np.isnan(wanted))
    finite = np.isfinite(wanted)
    assert np.array_equal(wide[~finite & ~np.isnan(wanted)], wanted[~finite & ~np.isnan(wanted)])
    spacing = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    return (np.abs(wide[finite] - exact.astype(np.float64)[finite]) / spacing).max(initial=0)


TRANSCENDENTAL = {
    **{tk.exp: np.exp, tk.exp2: np.exp2, tk.log: np.log, tk.log2: np.log2, tk.sqrt: np.sqrt, tk.sin: np.sin},
    **{tk.cos: np.cos, tk.tan: np.tan, tk.sinh: np.sinh, tk.cosh: np.cosh, tk.tanh: np.tanh},
    tk.rsqrt: lambda x: 1 / np.sqrt(x),
}


UNITS = {tk.sinh: 3, tk.tan: 4}
"""Units in the last place that docs/language.md allows on a GPU; 2 for the others, 1 of 16-bit floats."""


@pytest.mark.parametrize("function", TRANSCENDENTAL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=ids)
def test_float_function(function, dtype, run, device):
    """Rounded once from the exact value on the host device; as the documentation says on a GPU."""
    x = floats(dtype)
    with np.errstate(all="ignore"):
        exact = TRANSCENDENTAL[function](x.astype(np.longdouble))
        error = ulp_error(run(unary, (x.shape, dtype, 64), x, function), exact, dtype)
    limit = 0.51 if dtype is not np.float64 else 1.0
    allowed = 1 if np.dtype(dtype).itemsize == 2 else UNITS.get(function, 2)
    assert error <= (limit if device.kind == "host" else allowed)


EXACT_UNARY = {tk.floor: np.floor, tk.ceil: np.ceil, tk.abs: np.abs, tk.negative: np.negative}


@pytest.mark.parametrize("function", EXACT_UNARY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=ids)
def test_exact_float_function(function, dtype, run):
    x = floats(dtype)
    result = run(unary, (x.shape, dtype, 64), x, function)
    expected = EXACT_UNARY[function](x.astype(np.float64)).astype(dtype)
    assert_same_bits(result, expected)


def assert_same_bits(result, expected):
    """Equal to the bit, but for which NaN it is."""
    bits = f"u{result.dtype.itemsize}"
    nan = np.isnan(expected.astype(np.float64))
    assert np.array_equal(np.isnan(result.astype(np.float64)), nan)
    assert np.array_equal(result.view(bits)[~nan], expected.view(bits)[~nan])


ARITHMETIC = {
    "add": (lambda x, y: x + y, np.add),
    "sub": (lambda x, y: x - y, np.subtract),
    "mul": (lambda x, y: x * y, np.multiply),
    "div": (lambda x, y: x / y, np.divide),
}


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=ids)
def test_float_arithmetic_is_rounded_once(name, dtype, run):
    ours, numpy = ARITHMETIC[name]
    x, y = floats(dtype, 1), floats(dtype, 2)
    x, y = np.concatenate([x, x]), np.concatenate([y, y[::-1]])
    with np.errstate(all="ignore"):
        expected = numpy(x.astype(np.longdouble), y.astype(np.longdouble)).astype(np.float64).astype(dtype)
        assert_same_bits(run(binary, (x.shape, dtype, 64), x, y, ours), expected)


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=ids)
def test_float_minimum_and_maximum(dtype, run):
    x, y = floats(dtype, 1)[:40], floats(dtype, 2)[:40]
    x, y = np.repeat(x, 40), np.tile(y, 40)
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    for function, numpy, ignoring in ((tk.minimum, np.minimum, np.fmin), (tk.maximum, np.maximum, np.fmax)):
        assert np.array_equal(
            run(binary, (x.shape, dtype, 64), x, y, function).astype("f8"),
            numpy(wide_x, wide_y),
            equal_nan=True,
        )
        quiet = run(binary, (x.shape, dtype, 64), x, y, lambda a, b, f=function: f(a, b, propagate_nan=False))
        assert np.array_equal(quiet.astype("f8"), ignoring(wide_x, wide_y), equal_nan=True)


def test_larger_zero_is_the_positive_one(run):
    x, y = np.array([0.0, -0.0, 0.0, -0.0], "f4"), np.array([-0.0, 0.0, 0.0, -0.0], "f4")
    assert np.signbit(run(binary, ((4,), "f4", 4), x, y, tk.maximum)).tolist() == [False, False, False, True]
    assert np.signbit(run(binary, ((4,), "f4", 4), x, y, tk.minimum)).tolist() == [True, True, False, True]


COMPARE = {
    "eq": (lambda x, y: x == y, np.equal),
    "ne": (lambda x, y: x != y, np.not_equal),
    "lt": (lambda x, y: x < y, np.less),
    "le": (lambda x, y: x <= y, np.less_equal),
    "gt": (lambda x, y: x > y, np.greater),
    "ge": (lambda x, y: x >= y, np.greater_equal),
}


@pytest.mark.parametrize("name", COMPARE)
@pytest.mark.parametrize("dtype", NUMBERS, ids=ids)
def test_comparison(name, dtype, run):
    """With a NaN only `!=` is true."""
    ours, numpy = COMPARE[name]
    x, y = some_numbers(dtype, 1), some_numbers(dtype, 2)
    x, y = np.concatenate([x, x]), np.concatenate([y, x])
    wide = np.float64 if np.dtype(dtype).kind not in "iu" else dtype
    assert np.array_equal(run(binary, (x.shape, bool, 64), x, y, ours), numpy(x.astype(wide), y.astype(wide)))


def some_numbers(dtype, seed):
    if np.dtype(dtype).kind in "iu":
        return integers(dtype, seed)
    return floats(dtype, seed, 30)


def integers(dtype, seed, n=60):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    special = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, 2, 3]
    small = rng.integers(max(info.min, -20), min(info.max, 20), n)
    return np.concatenate(
        [np.array(special, dtype), small.astype(dtype), rng.integers(info.min, info.max, n, dtype)]
    )


def wrap(values, dtype):
    bits = np.dtype(dtype).itemsize * 8
    mask = (1 << bits) - 1
    wrapped = [int(v) & mask for v in values]
    if np.dtype(dtype).kind == "i":
        wrapped = [v - (1 << bits) if v >> (bits - 1) else v for v in wrapped]
    return np.array(wrapped, dtype)


INTEGER = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "max": lambda x, y: max(x, y),
    "min": lambda x, y: min(x, y),
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
}


@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.parametrize("dtype", INTS)
def test_integers_like_python_modulo_their_width(name, dtype, run):
    function = INTEGER[name]
    x, y = integers(dtype, 1), integers(dtype, 2)
    if name in ("//", "%"):
        y = np.where(y == 0, np.array(3, dtype), y)
        overflow = (x == np.iinfo(dtype).min) & (y.astype("i8") == -1)
        x = np.where(overflow, np.array(5, dtype), x)
    expected = wrap([function(int(a), int(b)) for a, b in zip(x, y)], dtype)
    assert np.array_equal(run(binary, (x.shape, dtype, 64), x, y, function), expected)


@pytest.mark.parametrize("dtype", INTS)
def test_integer_unary_and_shifts(dtype, run):
    x = integers(dtype, 3)
    bits = np.dtype(dtype).itemsize * 8
    for function in (lambda v: -v, lambda v: ~v, lambda v: abs(v), lambda v: v**3, lambda v: v << 3):
        expected = wrap([function(int(v)) for v in x], dtype)
        assert np.array_equal(run(unary, (x.shape, dtype, 64), x, function), expected)
    expected = np.array([int(v) >> (bits - 2) for v in x], dtype)
    assert np.array_equal(run(unary, (x.shape, dtype, 64), x, lambda v: v >> (bits - 2)), expected)


@pytest.mark.parametrize("dtype", INTS)
def test_cdiv_is_the_quotient_rounded_up(dtype, run):
    limits = np.iinfo(dtype)
    x = np.array([limits.min + 1, limits.max, 0, 1, 2, 3, 4, 7, 100], dtype)
    y = np.array([3, 2, 5, 3, 2, 3, 5, 1, 100], dtype)
    expected = [-(-int(a) // int(b)) for a, b in zip(x, y, strict=True)]
    assert run(binary, (x.shape, dtype, 16), x, y, tk.cdiv).tolist() == expected
    by_three = run(unary, (x.shape, dtype, 16), x, lambda t: tk.cdiv(t, 3))
    assert by_three.tolist() == [-(-int(a) // 3) for a in x]


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
def test_cdiv_of_unsigned_numbers_by_floats(dtype, run):
    x = np.array([0, 1, 7, 200], dtype)
    for by in (2.0, 0.0):
        with np.errstate(all="ignore"):
            expected = np.ceil(x / np.float64(by))
        result = run(unary, (x.shape, "f4", 4), x, lambda t, by=by: tk.float32(tk.cdiv(t, by)))
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [(np.uint8(7), 2), (np.uint32(7), np.uint32(2)), (np.int8(-128), np.int8(3)), (7, np.uint32(2))],
)
def test_cdiv_of_numbers_of_numpy(a, b, run):
    expected = -(-int(a) // int(b))
    assert tk.cdiv(a, b) == expected
    result = run(unary, ((1,), "i4", 1), np.zeros(1, "i4"), lambda t: t + int(tk.cdiv(a, b)))
    assert result.tolist() == [expected]


def test_cdiv_of_floats_by_zero_is_infinite(run):
    x = np.array([1.0, -1.0], "f4")
    assert run(unary, (x.shape, "f4", 2), x, lambda t: tk.cdiv(t, 0.0)).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=ids)
def test_float_modulo_like_python(dtype, run):
    x = np.array([5.5, -5.5, 5.5, -5.5, 4.0, -4.0, 4.0, -4.0, 0.0, 7.25], dtype)
    y = np.array([3.0, 3.0, -3.0, -3.0, 2.0, 2.0, -2.0, -2.0, 3.0, 0.5], dtype)
    expected = np.array([float(a) % float(b) for a, b in zip(x, y)]).astype(dtype)
    assert_same_bits(run(binary, (x.shape, dtype, 16), x, y, lambda a, b: a % b), expected)
    expected = np.array([float(a) // float(b) for a, b in zip(x, y)]).astype(dtype)
    assert np.array_equal(run(binary, (x.shape, dtype, 16), x, y, lambda a, b: a // b), expected)


@pytest.mark.parametrize("dtype", ["f2", ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_half_floats_are_divided_in_float32_before_they_are_rounded_down(dtype, run):
    random = np.random.default_rng(5)
    x, y = (random.uniform(-200, 200, 256).astype(dtype) for _ in range(2))
    x[:2], y[:2] = (-125.9, 7.5), (-1.124, 0.001)
    expected = np.floor(x.astype("f4") / y.astype("f4")).astype(dtype)
    assert np.array_equal(run(binary, (x.shape, dtype, 64), x, y, lambda a, b: a // b), expected)


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=ids)
def test_power(dtype, run, device):
    x = np.linspace(0.25, 4, 64).astype(dtype)
    y = np.linspace(-3, 3, 64).astype(dtype)
    exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    error = ulp_error(run(binary, ((64,), dtype, 64), x, y, lambda a, b: a**b), exact, dtype)
    assert error <= (1.0 if device.kind == "host" else 16.0)
    assert np.array_equal(run(unary, ((64,), dtype, 64), x, lambda a: a**2), (x * x))


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=ids)
def test_fma_rounds_once(dtype, run):
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal(128).astype(dtype) for _ in range(2))
    acc = (-x.astype("f8") * y.astype("f8")).astype(dtype)
    from fractions import Fraction

    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, acc)]

    @tk.kernel
    def fused(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D, acc: tk.Tensor1D):
        out.store(tk.fma(tk.load_like(x, out), tk.load_like(y, out), tk.load_like(acc, out)))

    result = run(fused, ((128,), dtype, 64), x, y, acc)
    # these are exact in float64: what one rounding of the product loses
    assert np.array_equal(result.astype("f8"), np.array([float(e) for e in exact]).astype(dtype).astype("f8"))


def test_where_and_isnan(run):
    x = floats("f4")
    result = run(unary, (x.shape, "f4", 64), x, lambda v: tk.where(tk.isnan(v), -7, v))
    assert np.array_equal(result, np.where(np.isnan(x), np.float32(-7), x))


def test_bool_logic(run):
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for function in (
        lambda a, b: a & b,
        lambda a, b: a | b,
        lambda a, b: a ^ b,
        lambda a, b: a == b,
        lambda a, b: a != b,
    ):
        assert np.array_equal(run(binary, ((4,), bool, 4), x, y, function), function(x, y))
    assert np.array_equal(run(unary, ((4,), bool, 4), x, lambda a: ~a), ~x)
    assert np.array_equal(run(binary, ((4,), "i4", 4), x, y, lambda a, b: a + b), [0, 1, 1, 2])


CASTABLE = ["?", *INTS, *FLOATS.values(), ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("source", CASTABLE, ids=ids)
@pytest.mark.parametrize("target", CASTABLE, ids=ids)
def test_cast(source, target, run, device):
    """Round to nearest even; to integers without the fraction, saturating; integers keep low bits."""
    source, target = np.dtype(source), np.dtype(target)
    if device.kind == "cuda" and "float8" in source.name + target.name and device.compute_capability < (8, 9):
        pytest.skip("no fp8 here")
    x = cast_values(source)
    kind = next(
        d for d in (getattr(tk, n) for n in tk.__all__) if isinstance(d, tk.DType) and d.dtype == target
    )
    result = run(unary, (x.shape, target, 16), x, lambda v: v.astype(kind))
    expected = [cast_one(v, source, target) for v in x]
    for value, got, want in zip(x, result, expected):
        assert (np.isnan(float(got)) and np.isnan(float(want))) or got == want, (value, got, want)


def cast_values(source):
    if source.kind == "b":
        return np.array([0, 1, 1, 0], bool)
    if source.kind in "iu":
        return integers(source, 9, 10)
    values = [
        0,
        1,
        -1,
        2.5,
        -2.5,
        3.5,
        0.1,
        127.5,
        -129,
        255.9,
        300,
        -1e4,
        65504,
        7e4,
        448,
        500,
        np.inf,
        -np.inf,
    ]
    values += [np.nan, 3e9, -3e9, 2.0**63, 1e20, 1 + 2**-12, 1 + 2**-11 + 2**-30, 1e-8]
    with np.errstate(over="ignore"):
        return np.array(values).astype(source)


def cast_one(value, source, target):
    if source == target:
        return value
    if target.kind == "b":
        return bool(float(value) != 0) if source.kind not in "iu" else bool(value != 0)
    if target.kind in "iu":
        if source.kind in "iub":
            return wrap([int(value)], target)[0]
        number = float(value)
        info = np.iinfo(target)
        if np.isnan(number):
            return target.type(0)
        return target.type(
            info.min if number <= info.min else info.max if number >= info.max else int(number)
        )
    if "float8" in target.name:
        largest = float(ml_dtypes.finfo(target).max)
        return np.float64(np.clip(float(value), -largest, largest)).astype(target)
    if source.kind in "iu":
        return round_integer(int(value), target)
    with np.errstate(over="ignore"):
        return np.float64(float(value)).astype(target)


def round_integer(value, target):
    """An integer rounded to nearest even to a float type, exactly."""
    digits = ml_dtypes.finfo(target).nmant + 1
    size = abs(value).bit_length() - digits
    if size > 0:
        half, low = 1 << (size - 1), abs(value) & ((1 << size) - 1)
        kept = abs(value) >> size
        kept += low > half or (low == half and kept & 1)
        value = (kept << size) * (1 if value > 0 else -1)
    with np.errstate(over="ignore"):
        return np.float64(value).astype(target)


@pytest.mark.parametrize("dtype", ["i4", "i8", "u8"])
@pytest.mark.parametrize("target", [np.float16, ml_dtypes.bfloat16, np.float32], ids=ids)
def test_integers_near_ties_are_rounded_once(dtype, target, run):
    digits = ml_dtypes.finfo(target).nmant + 1
    values = []
    for exponent in range(digits, np.iinfo(dtype).bits - 1):
        half = 1 << (exponent - digits)
        for mantissa in (1 << (digits - 1), (1 << (digits - 1)) + 1, (1 << digits) - 1):
            tie = (mantissa << (exponent - digits + 1)) + half
            values += [tie - 1, tie, tie + 1]
    x = np.array([v for v in values if v <= np.iinfo(dtype).max], dtype)
    kind = next(d for d in (tk.float16, tk.bfloat16, tk.float32) if d.dtype == np.dtype(target))
    expected = np.array([round_integer(int(v), target) for v in x])
    assert np.array_equal(run(unary, (x.shape, target, 64), x, lambda v: v.astype(kind)), expected)


def test_bitcast(run):
    x = np.array([1.0, -2.0, 0.5, np.inf], "f4")
    assert np.array_equal(run(unary, ((4,), "i4", 4), x, lambda v: tk.bitcast(v, tk.int32)), x.view("i4"))
    assert np.array_equal(run(unary, ((4,), "u4", 4), x, lambda v: tk.bitcast(v, tk.uint32)), x.view("u4"))


def test_operator_functions(run):
    x, y = np.array([7, -7, 9, 4], "i4"), np.array([2, 2, -4, 3], "i4")
    for ours, python in (
        (tk.add, lambda a, b: a + b),
        (tk.sub, lambda a, b: a - b),
        (tk.mul, lambda a, b: a * b),
        (tk.floordiv, lambda a, b: a // b),
        (tk.mod, lambda a, b: a % b),
        (tk.bitwise_and, lambda a, b: a & b),
        (tk.bitwise_or, lambda a, b: a | b),
        (tk.bitwise_xor, lambda a, b: a ^ b),
    ):
        assert np.array_equal(run(binary, ((4,), "i4", 4), x, y, ours), python(x, y))
    for ours, python in (
        (tk.equal, np.equal),
        (tk.not_equal, np.not_equal),
        (tk.less, np.less),
        (tk.less_equal, np.less_equal),
        (tk.greater, np.greater),
        (tk.greater_equal, np.greater_equal),
    ):
        assert np.array_equal(run(binary, ((4,), bool, 4), x, y, ours), python(x, y))
    assert np.allclose(run(binary, ((4,), "f4", 4), x, y, tk.truediv), x / y)
