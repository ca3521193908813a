"""Intrinsics of CUDA C++ through NVRTC, parser and engine: what a user's kernel gets for them.

Each kernel computes elementwise; expected values come from Python's integers, exact rationals, `ml_dtypes`, or
the math library in double precision.
"""

from __future__ import annotations

import math
import sysconfig
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

INCLUDE = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "include"
N = 500
RANDOM = np.random.default_rng(17)

needs_headers = pytest.mark.skipif(
    not (INCLUDE / "cuda_fp16.h").is_file(), reason="no CUDA headers (the nvidia-cuda-runtime wheel)"
)


C_TYPES = {
    **{"f": "float", "d": "double", "?": "bool", "b": "signed char", "B": "unsigned char", "i": "int"},
    **{"I": "unsigned", "l": "long long", "L": "unsigned long long"},
}
START = RANDOM.bit_generator.state


@pytest.fixture(autouse=True)
def same_values_in_any_order():
    """Every test draws the same values, whichever ran before it."""
    RANDOM.bit_generator.state = START


def elementwise(
    device, body: str, inputs: list[np.ndarray], outputs: list, *, arch="sm_80", header="", options=()
):
    """Run `body` for index `i` with arrays a, b, c... of the inputs and x, y, z... of the outputs.

    `outputs` are NumPy types; for types NumPy spells otherwise in C, (NumPy type, C type).
    """
    arrays = [*zip("abcde", inputs), *zip("xyzw", outputs)]
    parameters = []
    for name, thing in arrays:
        given, c_type = thing if isinstance(thing, tuple) else (thing, None)
        dtype = given.dtype if isinstance(given, np.ndarray) else np.dtype(given)
        parameters.append(f"{c_type or C_TYPES[dtype.char]}* {name}")
    source = f"""{header}
    extern "C" __global__ void kernel({", ".join(parameters)}, int n) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) {{ {body} }}
    }}"""
    if header:
        options = (*options, f"--include-path={INCLUDE}")
    function = device.cuda(source, *options, arch=arch)["kernel"]
    given = [thing[0] if isinstance(thing, tuple) else thing for _, thing in arrays]
    n = given[0].size
    places = [device.put(v) if isinstance(v, np.ndarray) else device.zeros(n, v) for v in given]
    device.run(function, -(-n // 128), 128, *places, n)
    results = [device.get(p, n, v) for p, v in zip(places, given) if not isinstance(v, np.ndarray)]
    return results[0] if len(results) == 1 else results


def rounded(exact: Fraction, dtype: type, mode: str) -> float:
    """An exact value rounded to f32 or f64; modes as in intrinsics: rn rz ru rd."""
    near = dtype(float(exact))
    # `float` rounds to nearest f64; step until the neighbours enclose the exact value.
    while Fraction(float(near)) > exact:
        near = np.nextafter(near, dtype(-np.inf))
    while Fraction(float(np.nextafter(near, dtype(np.inf)))) <= exact:
        near = np.nextafter(near, dtype(np.inf))
    if Fraction(float(near)) == exact:
        return float(near)
    above = np.nextafter(near, dtype(np.inf))
    if mode == "rn":
        low, high = exact - Fraction(float(near)), Fraction(float(above)) - exact
        even = near.view(np.uint32 if dtype is np.float32 else np.uint64) % 2 == 0
        return float(near if low < high or (low == high and even) else above)
    down = mode == "rd" or (mode == "rz" and exact > 0)
    return float(near if down else above)


@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd"])
@pytest.mark.parametrize(("suffix", "dtype"), [("f", np.float32), ("d", np.float64)])
def test_rounding_intrinsics(ptx_device, mode, suffix, dtype):
    a, b, c = (RANDOM.standard_normal(N).astype(dtype) for _ in range(3))
    names = {"f": ("fadd", "fmul", "fdiv", "fmaf", "frcp"), "d": ("dadd", "dmul", "ddiv", "fma", "drcp")}[
        suffix
    ]
    body = " ".join(
        f"{out}[i] = __{name}_{mode}({arguments});"
        for out, name, arguments in zip(
            "xyzw", names[:4], ("a[i], b[i]", "a[i], b[i]", "a[i], b[i]", "a[i], b[i], c[i]")
        )
    )
    results = elementwise(ptx_device, body, [a, b, c], [dtype] * 4)
    inverse = elementwise(ptx_device, f"x[i] = __{names[4]}_{mode}(a[i]);", [a], [dtype])
    for i in range(N):
        x, y, z = (Fraction(float(v[i])) for v in (a, b, c))
        exact = (x + y, x * y, x / y, x * y + z, 1 / x)
        got = [float(r[i]) for r in (*results, inverse)]
        assert got == [rounded(e, dtype, mode) for e in exact]


def test_square_roots_are_correctly_rounded(ptx_device):
    a = RANDOM.uniform(0, 1e6, N).astype("f4")
    down, up, near = elementwise(
        ptx_device, "x[i] = __fsqrt_rd(a[i]); y[i] = __fsqrt_ru(a[i]); z[i] = sqrtf(a[i]);", [a], ["f4"] * 3
    )
    for i in range(N):
        exact = Fraction(float(a[i]))
        assert Fraction(float(down[i])) ** 2 <= exact <= Fraction(float(up[i])) ** 2
        assert up[i] in (down[i], np.nextafter(down[i], np.float32(np.inf)))
        assert near[i] == np.float32(math.sqrt(float(a[i])))


def test_float_to_integer_intrinsics(ptx_device):
    a = np.concatenate([RANDOM.standard_normal(N - 8) * 2.0 ** RANDOM.integers(0, 40, N - 8),
                        [0.5, 1.5, -0.5, 2.0**31, -(2.0**40), math.inf, -math.inf, -0.0]]).astype("f4")  # fmt: skip
    limits = {"int": (-(2**31), 2**31 - 1), "uint": (0, 2**32 - 1), "ll": (-(2**63), 2**63 - 1)}
    types = {"int": np.int32, "uint": np.uint32, "ll": np.int64}
    for mode, rounding in {"rn": round, "rz": math.trunc, "ru": math.ceil, "rd": math.floor}.items():
        for name, (low, high) in limits.items():
            got = elementwise(ptx_device, f"x[i] = __float2{name}_{mode}(a[i]);", [a], [types[name]])
            want = [
                (high if v > 0 else low) if math.isinf(v) else max(low, min(high, rounding(Fraction(v))))
                for v in a.tolist()
            ]
            assert got.tolist() == want, (mode, name)


def test_nan_converts_to_zero(ptx_device):
    a = np.array([np.nan, -np.nan, 1], "f4")
    signed, unsigned = elementwise(ptx_device, "x[i] = (int)a[i]; y[i] = (unsigned)a[i];", [a], ["i4", "u4"])
    assert signed.tolist() == unsigned.tolist() == [0, 0, 1]


def test_saturating_narrow_conversions(ptx_device):
    a = RANDOM.integers(-70000, 70000, N).astype("i4")
    body = """asm("cvt.sat.s8.s32 %0, %1;" : "=r"(x[i]) : "r"(a[i]));
              asm("cvt.sat.u8.s32 %0, %1;" : "=r"(y[i]) : "r"(a[i]));
              asm("cvt.sat.u16.s32 %0, %1;" : "=r"(z[i]) : "r"(a[i]));"""
    signed, byte, half = elementwise(ptx_device, body, [a], ["i4"] * 3)
    assert np.array_equal(signed, np.clip(a, -128, 127))
    assert np.array_equal(byte, np.clip(a, 0, 255))
    assert np.array_equal(half, np.clip(a, 0, 65535))


def test_integer_intrinsics(ptx_device):
    a, b = (RANDOM.integers(-(2**31), 2**31, N).astype("i4") for _ in range(2))
    body = """x[i] = __mulhi(a[i], b[i]); y[i] = __umulhi(a[i], b[i]); z[i] = __hadd(a[i], b[i]);
              w[i] = __usad(a[i], b[i], 7u);"""
    high, unsigned_high, average, sad = elementwise(ptx_device, body, [a, b], ["i4", "u4", "i4", "u4"])
    wide_a, wide_b = a.astype("i8"), b.astype("i8")
    ua, ub = a.view("u4").astype("u8"), b.view("u4").astype("u8")
    assert np.array_equal(high, (wide_a * wide_b >> 32).astype("i4"))
    assert np.array_equal(unsigned_high, (ua * ub >> np.uint64(32)).astype("u4"))
    assert np.array_equal(average, (wide_a + wide_b >> 1).astype("i4"))
    assert np.array_equal(sad, (np.where(ua > ub, ua - ub, ub - ua) + 7).astype("u4"))


def test_bit_intrinsics(ptx_device):
    a = RANDOM.integers(0, 2**64, N, dtype="u8") >> RANDOM.integers(0, 64, N).astype("u8")
    a[:2] = 0, 2**64 - 1
    body = """x[i] = __popcll(a[i]); y[i] = __clzll(a[i]); z[i] = __ffsll(a[i]); w[i] = __brevll(a[i]);"""
    ones, zeros, first, reversed_bits = elementwise(ptx_device, body, [a], ["i4", "i4", "i4", "u8"])
    values = a.tolist()
    assert ones.tolist() == [v.bit_count() for v in values]
    assert zeros.tolist() == [64 - v.bit_length() for v in values]
    assert first.tolist() == [(v & -v).bit_length() for v in values]
    assert reversed_bits.tolist() == [int(f"{v:064b}"[::-1], 2) for v in values]


def test_byte_permutation_and_funnel_shifts(ptx_device):
    a, b, c = (RANDOM.integers(0, 2**32, N, dtype="u8").astype("u4") for _ in range(3))
    body = """x[i] = __byte_perm(a[i], b[i], c[i] & 0x7777); y[i] = __funnelshift_l(a[i], b[i], c[i]);
              z[i] = __funnelshift_rc(a[i], b[i], c[i] & 63); w[i] = __byte_perm(a[i], b[i], 0x6240);"""
    permuted, left, right, constant = elementwise(ptx_device, body, [a, b, c], ["u4"] * 4)
    for i in range(N):
        both, selector = int(b[i]) << 32 | int(a[i]), int(c[i])
        source = both.to_bytes(8, "little")
        assert int(permuted[i]).to_bytes(4, "little") == bytes(
            source[selector >> (4 * k) & 7] for k in range(4)
        )
        assert int(constant[i]).to_bytes(4, "little") == bytes(source[k] for k in (0, 4, 2, 6))
        assert int(left[i]) == both << (selector & 31) >> 32 & 0xFFFFFFFF
        assert int(right[i]) == both >> min(selector & 63, 32) & 0xFFFFFFFF


def test_dot_products(ptx_device):
    a, b = (RANDOM.integers(0, 2**32, N, dtype="u8").astype("u4") for _ in range(2))
    c = RANDOM.integers(-1000, 1000, N).astype("i4")
    body = """x[i] = __dp4a((int)a[i], (int)b[i], c[i]); y[i] = __dp4a(a[i], b[i], (unsigned)c[i]);
              z[i] = __dp2a_lo((int)a[i], (int)b[i], c[i]); w[i] = __dp2a_hi((int)a[i], (int)b[i], c[i]);"""
    signed, unsigned, low, high = elementwise(ptx_device, body, [a, b, c], ["i4", "u4", "i4", "i4"])
    bytes_a, bytes_b = (v.view("i1").reshape(-1, 4).astype("i8") for v in (a, b))
    assert np.array_equal(signed, c + (bytes_a * bytes_b).sum(axis=1))
    raw_a, raw_b = (v.view("u1").reshape(-1, 4).astype("i8") for v in (a, b))
    assert np.array_equal(unsigned, (c + (raw_a * raw_b).sum(axis=1)).astype("u4"))
    halves = a.view("i2").reshape(-1, 2).astype("i8")
    assert np.array_equal(low, c + (halves * bytes_b[:, :2]).sum(axis=1))
    assert np.array_equal(high, c + (halves * bytes_b[:, 2:]).sum(axis=1))


def test_video_intrinsics(ptx_device):
    a, b = (RANDOM.integers(0, 2**32, N, dtype="u8").astype("u4") for _ in range(2))
    body = """x[i] = __vabsdiffu4(a[i], b[i]); y[i] = __vsadu4(a[i], b[i]); z[i] = __vaddss2(a[i], b[i]);
              w[i] = __vcmpgtu4(a[i], b[i]);"""
    difference, total, saturated, greater = elementwise(ptx_device, body, [a, b], ["u4"] * 4)
    bytes_a, bytes_b = (v.view("u1").astype("i4") for v in (a, b))
    assert np.array_equal(difference.view("u1"), np.abs(bytes_a - bytes_b))
    assert np.array_equal(total, np.abs(bytes_a - bytes_b).reshape(-1, 4).sum(axis=1))
    halves_a, halves_b = (v.view("i2").astype("i4") for v in (a, b))
    assert np.array_equal(saturated.view("i2"), np.clip(halves_a + halves_b, -32768, 32767))
    assert np.array_equal(greater.view("u1"), np.where(bytes_a > bytes_b, 255, 0))


def test_128_bit_integers(ptx_device):
    """Carry chains of both kinds, and the compiler's 128-bit division."""
    a, b = (RANDOM.integers(0, 2**64, 2 * N, dtype="u8") for _ in range(2))
    b[1::2] >>= RANDOM.integers(0, 64, N).astype("u8")
    body = """if (i % 2 == 0) {
        unsigned __int128 p = (unsigned __int128)a[i + 1] << 64 | a[i], q = (unsigned __int128)b[i + 1] << 64 | b[i];
        unsigned __int128 r[4] = {p + q, p - q, p * q, p / q};
        x[i] = r[0]; x[i + 1] = r[0] >> 64; y[i] = r[1]; y[i + 1] = r[1] >> 64;
        z[i] = r[2]; z[i + 1] = r[2] >> 64; w[i] = r[3]; w[i + 1] = r[3] >> 64; }"""
    results = elementwise(ptx_device, body, [a, b], ["u8"] * 4, options=("--device-int128",))
    for i in range(0, 2 * N, 2):
        p, q = (int(v[i]) | int(v[i + 1]) << 64 for v in (a, b))
        got = [int(r[i]) | int(r[i + 1]) << 64 for r in results]
        assert got == [v % 2**128 for v in (p + q, p - q, p * q, p // q)]


def test_integer_division(ptx_device):
    a, b = (RANDOM.integers(-(2**63), 2**63, N) >> RANDOM.integers(0, 60, N) for _ in range(2))
    b[b == 0] = 1
    quotient, rest, short = elementwise(
        ptx_device,
        "x[i] = a[i] / b[i]; y[i] = a[i] % b[i]; z[i] = (int)a[i] / ((int)b[i] | 1);",
        [a, b],
        ["i8", "i8", "i4"],
    )
    for i in range(N):
        p, q = int(a[i]), int(b[i])
        assert (int(quotient[i]), int(rest[i])) == (int(Fraction(p, q)), p - q * int(Fraction(p, q)))
    p, q = a.astype("i4").astype("i8"), (b.astype("i4") | 1).astype("i8")
    assert np.array_equal(short, np.trunc(p / q).astype("i8").astype("i4"))


FUNCTIONS = {
    # name: (reference, low, high, relative error by the CUDA C++ guide in last places of f32)
    "expf": (math.exp, -80, 80, 2),
    "exp2f": (lambda v: 2.0**v, -100, 100, 2),
    "logf": (math.log, 1e-3, 1e3, 1),
    "log1pf": (math.log1p, -0.9, 10, 1),
    "sinf": (math.sin, -100, 100, 2),
    "cosf": (math.cos, -100, 100, 2),
    "tanf": (math.tan, -1, 1, 4),
    "atanf": (math.atan, -10, 10, 2),
    "tanhf": (math.tanh, -5, 5, 2),
    "sinhf": (math.sinh, -5, 5, 3),
    "erff": (math.erf, -3, 3, 2),
    "lgammaf": (math.lgamma, 0.1, 30, 6),
    "cbrtf": (np.cbrt, -1e3, 1e3, 1),
    "rsqrtf": (lambda v: 1 / math.sqrt(v), 1e-3, 1e3, 2),
    "expm1f": (math.expm1, -2, 5, 1),
    "acosf": (math.acos, -1, 1, 2),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_math_library(ptx_device, name):
    reference, low, high, places = FUNCTIONS[name]
    a = RANDOM.uniform(low, high, N).astype("f4")
    got = elementwise(ptx_device, f"x[i] = {name}(a[i]);", [a], ["f4"])
    want = np.array([float(reference(float(v))) for v in a])
    error = np.abs(got - want) / np.spacing(np.abs(want).astype("f4"))
    # lgamma near its zeros and trigonometric functions near theirs are held to an absolute error.
    assert ((error <= places + 0.5) | (np.abs(got - want) < 2e-7)).all()


@pytest.mark.parametrize(
    ("name", "reference", "low", "high"),
    [
        ("exp", math.exp, -50, 50),
        ("log", math.log, 1e-5, 1e5),
        ("sin", math.sin, -50, 50),
        ("tgamma", math.gamma, 0.5, 20),
        ("erfc", math.erfc, -2, 5),
        ("cbrt", np.cbrt, 0.1, 1e9),
        ("atan", math.atan, -9, 9),
    ],
)
def test_math_library_in_double(ptx_device, name, reference, low, high):
    a = RANDOM.uniform(low, high, N)
    got = elementwise(ptx_device, f"x[i] = {name}(a[i]);", [a], ["f8"])
    want = np.array([float(reference(float(v))) for v in a])
    np.testing.assert_allclose(got, want, rtol=4e-15, atol=1e-16)


def test_fast_math(ptx_device):
    a = RANDOM.uniform(0.1, 3, N).astype("f4")
    body = "x[i] = __sinf(a[i]); y[i] = __expf(a[i]); z[i] = __fdividef(1.0f, a[i]); w[i] = powf(a[i], 1.5f);"
    results = elementwise(ptx_device, body, [a], ["f4"] * 4, options=("--use_fast_math",))
    wide = a.astype("f8")
    for got, want in zip(results, (np.sin(wide), np.exp(wide), 1 / wide, wide**1.5)):
        np.testing.assert_allclose(got, want, rtol=1e-6)


HALF = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>"
HALF_TYPES = {
    "f16": (np.dtype(np.float16), "__half"),
    "bf16": (np.dtype(ml_dtypes.bfloat16), "__nv_bfloat16"),
}


def half_values(dtype: np.dtype, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(N) * 2.0 ** rng.integers(-4, 5, N)).astype(dtype)
    values[:4] = 0, 1, np.inf, -2
    return values


@needs_headers
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", list(HALF_TYPES))
def test_half_arithmetic(ptx_device, name, arch):
    dtype, c_type = HALF_TYPES[name]
    a, b, c = (half_values(dtype, seed) for seed in range(3))
    pair = f"{c_type}2"
    body = f"""x[i] = __hadd(a[i], b[i]); y[i] = __hmul(a[i], b[i]); z[i] = __hfma(a[i], b[i], c[i]);
        if (i % 2 == 0) (({pair}*)w)[i / 2] = __hfma2((({pair}*)a)[i / 2], (({pair}*)b)[i / 2], (({pair}*)c)[i / 2]);"""
    given = [(v, c_type) for v in (a, b, c)]
    total, product, fused, packed = elementwise(
        ptx_device, body, given, [(dtype, c_type)] * 4, arch=arch, header=HALF
    )
    with np.errstate(all="ignore"):
        wide = [v.astype("f8") for v in (a, b, c)]
        exact = wide[0] * wide[1] + wide[2]  # moderate exponents: exact in f64
        np.testing.assert_array_equal(total, (wide[0] + wide[1]).astype(dtype))
        np.testing.assert_array_equal(product, (wide[0] * wide[1]).astype(dtype))
        np.testing.assert_array_equal(fused, exact.astype(dtype))
    np.testing.assert_array_equal(packed, fused)


@needs_headers
@pytest.mark.parametrize("name", list(HALF_TYPES))
def test_half_comparison_and_choice(ptx_device, name):
    dtype, c_type = HALF_TYPES[name]
    a, b = half_values(dtype, 5), half_values(dtype, 6)
    b[::3] = a[::3]
    a[10], b[11] = np.nan, np.nan
    body = """x[i] = __hlt(a[i], b[i]); y[i] = __hgeu(a[i], b[i]);
              z[i] = __hmax(a[i], b[i]); w[i] = __hmin_nan(a[i], b[i]);"""
    less, not_less, largest, smallest = elementwise(
        ptx_device,
        body,
        [(a, c_type), (b, c_type)],
        ["?", "?", (dtype, c_type), (dtype, c_type)],
        header=HALF,
    )
    x, y = a.astype("f4"), b.astype("f4")
    np.testing.assert_array_equal(less, x < y)
    np.testing.assert_array_equal(not_less, ~(x < y))
    np.testing.assert_array_equal(largest.astype("f4"), np.fmax(x, y))
    np.testing.assert_array_equal(smallest.astype("f4"), np.minimum(x, y))


@needs_headers
@pytest.mark.parametrize("name", list(HALF_TYPES))
def test_half_conversions(ptx_device, name):
    dtype, c_type = HALF_TYPES[name]
    to = {"f16": "__float2half", "bf16": "__float2bfloat16"}[name]
    back = {"f16": "__half2", "bf16": "__bfloat162"}[name]
    a = (RANDOM.standard_normal(N) * 2.0 ** RANDOM.integers(-20, 18, N)).astype("f4")
    body = f"""x[i] = {to}_rn(a[i]); y[i] = {to}_rz(a[i]); z[i] = {back}float(x[i]); w[i] = {back}int_rz(x[i]);"""
    near, zero, wide, whole = elementwise(
        ptx_device, body, [a], [(dtype, c_type), (dtype, c_type), "f4", "i4"], header=HALF
    )
    with np.errstate(over="ignore"):
        want = a.astype(dtype)
    np.testing.assert_array_equal(near, want)
    assert (np.abs(zero.astype("f8")) <= np.abs(a.astype("f8"))).all()
    np.testing.assert_array_equal(wide, want.astype("f4"))
    values = np.nan_to_num(want.astype("f8"), posinf=2.0**31 - 1, neginf=-(2.0**31))
    np.testing.assert_array_equal(whole, np.clip(np.trunc(values), -(2.0**31), 2**31 - 1).astype("i4"))


@needs_headers
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("__NV_E4M3", ml_dtypes.float8_e4m3fn), ("__NV_E5M2", ml_dtypes.float8_e5m2)]
)
def test_fp8_conversions(ptx_device, kind, dtype, arch):
    """Emulated by the header below sm_89, one instruction from there on."""
    top = float(ml_dtypes.finfo(dtype).max)
    a = np.clip(RANDOM.standard_normal(N) * 2.0 ** RANDOM.integers(-8, 12, N), -top, top).astype("f4")
    body = f"""x[i] = __nv_cvt_float_to_fp8(a[i], __NV_SATFINITE, {kind});
               y[i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(x[i], {kind})));"""
    bits, back = elementwise(ptx_device, body, [a], ["u1", "f4"], arch=arch, header="#include <cuda_fp8.h>")
    np.testing.assert_array_equal(bits, a.astype(dtype).view("u1"))
    np.testing.assert_array_equal(back, a.astype(dtype).astype("f4"))


def test_packed_f32_of_the_newest_chips(ptx_device):
    """Two f32 operations at once in a 64-bit register."""
    a, b = (RANDOM.standard_normal(2 * N).astype("f4") for _ in range(2))
    body = """if (i % 2 == 0) {
        unsigned long long p = *(unsigned long long*)(a + i), q = *(unsigned long long*)(b + i), r;
        asm("fma.rn.f32x2 %0, %1, %2, %1;" : "=l"(r) : "l"(p), "l"(q));
        *(unsigned long long*)(x + i) = r; }"""
    got = elementwise(ptx_device, body, [a, b], ["f4"], arch="sm_100")
    exact = [Fraction(float(p)) * Fraction(float(q)) + Fraction(float(p)) for p, q in zip(a, b)]
    want = [rounded(e, np.float32, "rn") for e in exact]
    assert got.tolist() == want
