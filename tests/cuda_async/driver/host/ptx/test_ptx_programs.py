"""Programs of the kind users write in CUDA C++, on every device: what comes out is what NumPy or Python gives.

Each kernel of `data/programs.cu` and `data/programs_with_headers.cu` is compiled by NVRTC as it comes, with
`--use_fast_math`, and with `-G`. Numba's PTX is committed beside them.
"""

from __future__ import annotations

import math
import re
import sysconfig
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca

pytest.importorskip("cuda.bindings.nvrtc")

DATA = Path(__file__).parent / "data"
INCLUDE = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "include"
BUILDS = {"default": (), "fast": ("--use_fast_math",), "debug": ("-G",)}
TEMPLATES = {f"templated<{name}>": kind for name, kind in
             {"float": "f4", "double": "f8", "short": "i2", "unsigned char": "u1"}.items()}  # fmt: skip
M32, M64 = 2**32 - 1, 2**64 - 1


@cache
def module(source: str, build: str) -> ca.Module:
    return ca.Module.from_cuda_source(
        (DATA / source).read_text(),
        name=source,
        options=("--std=c++17", "--device-int128", *BUILDS[build]),
        name_expressions=tuple(TEMPLATES) if source == "programs.cu" else (),
    )


class Run:
    """Launches that wait: arrays go to the device and come back, the other arguments are passed as they are."""

    def __init__(self, module: ca.Module, device: ca.Device, build: str = "") -> None:
        self.module, self.device, self.build = module, device, build

    def __call__(self, name, grid, block, *arguments, **options):
        """The arrays after the launch, in order; the array, where there is one."""
        tensors = [ca.from_host(a).sync() if isinstance(a, np.ndarray) else None for a in arguments]
        values = [a if t is None else ca.mut(t) for a, t in zip(arguments, tensors)]
        self.module.function(name).launch(grid, block, *values, **options).sync()
        results = [t.to_host().sync() for t in tensors if t is not None]
        return results[0] if len(results) == 1 else results


@pytest.fixture(params=BUILDS)
def run(request, device) -> Run:
    return Run(module("programs.cu", request.param), device, request.param)


@pytest.fixture(params=["default", "debug"])
def run_with_headers(request, device) -> Run:
    if not (INCLUDE / "cuda_fp16.h").is_file():
        pytest.skip("no CUDA headers (the nvidia-cuda-runtime wheel)")
    return Run(module("programs_with_headers.cu", request.param), device, request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(41)


def signed(bits: int, width: int = 64) -> int:
    """The low bits of a whole number as a signed one."""
    bits &= (1 << width) - 1
    return bits - (1 << width) if bits >> (width - 1) else bits


# ------------------------------------------------------------------------------ warps and blocks


def test_warp_primitives(run, rng):
    x = rng.integers(-1500, 1500, 32 * 9).astype("i4")
    _, out = run("warp_primitives", 3, 96, x, np.zeros((x.size, 8), "i4"), x.size)
    w, lane = x.reshape(9, 32), np.arange(32)
    odd = w & 1
    wide = w[:, np.where(lane < 29, lane + 3, lane)] * np.int64(0x100000001)
    expected = [
        w.cumsum(1),
        odd.cumsum(1) - odd,
        np.argmax((w & 7)[:, :, None] == (w & 7)[:, None, :], 2),
        w[:, lane ^ 5],
        (wide >> 32).astype("i4") ^ wide.astype("i4"),
        w[:, (lane & 16) + (lane // 3) % 16],
        np.repeat((w > 1000).any(1, keepdims=True), 32, 1),
        np.repeat((w > -2000).all(1, keepdims=True), 32, 1),
    ]
    np.testing.assert_array_equal(out.reshape(9, 32, 8), np.stack(expected, 2))


def test_block_scan_packs_what_is_kept(run, rng):
    x = rng.standard_normal(5000).astype("f4")
    _, out, count = run("compact", 3, 256, x, np.zeros_like(x), np.zeros(1, "i4"), x.size)
    kept = x[x > 0.25]
    assert count[0] == kept.size
    np.testing.assert_array_equal(np.sort(out[: kept.size]), np.sort(kept))


def test_padded_transposition(run, rng):
    a = rng.standard_normal((45, 70))
    _, b = run("transpose", (5, 3), (16, 4), a, np.zeros((70, 45)), 45, 70)
    np.testing.assert_array_equal(b, a.T)


def test_online_softmax(run, rng):
    x = (rng.standard_normal((21, 100)) * 5).astype("f4")
    _, y = run("online_softmax", 6, (32, 4), x, np.zeros_like(x), 21, 100)
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=2e-5, atol=1e-9)


def test_layer_norm(run, rng):
    x = (rng.standard_normal((21, 100)) * 5).astype("f4")
    w, b = rng.standard_normal((2, 100)).astype("f4")
    *_, y = run("layer_norm", 21, 32, x, w, b, np.zeros_like(x), 25, np.float32(1e-5), shared_mem_bytes=256)
    d = x.astype("f8")
    expected = (d - d.mean(1, keepdims=True)) / np.sqrt(d.var(1, keepdims=True) + 1e-5) * w + b
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=2e-5)


# ------------------------------------------------------------------------------ atomics and locks


def test_many_atomics(run, rng):
    n = 3000
    x = (rng.standard_normal(n) * 2).astype("f4")
    words = np.array([10**6, -(10**6), 0, 0, -1, *[0] * 6], "i4")
    _, f, d, words, wide = run(
        "many_atomics", 12, 256, x, np.zeros(2, "f4"), np.zeros(1), words, np.zeros(17, "u8"), n
    )
    hundreds, index, wrapped = np.trunc(x * np.float32(100)).astype("i4"), np.arange(n), 0
    for _ in range(n):
        wrapped = 9 if wrapped == 0 else wrapped - 1
    np.testing.assert_allclose(f, [x.sum(dtype="f8"), x.max()], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(d[0], (x.astype("f8") ** 2).sum(), rtol=1e-12)
    expected = [hundreds.min(), hundreds.max(), np.bitwise_xor.reduce(index * 77), -1, ~0x7F, n % 13, wrapped]
    np.testing.assert_array_equal(words[:8], [*expected, -3 * n])
    np.testing.assert_array_equal(words[8:] % 3, [0, 1, 2])
    assert wide[0] == int((x * x * np.float32(1e6)).max())
    np.testing.assert_array_equal(wide[1:], np.bincount(np.trunc(x * 2).astype(int) & 15, minlength=16))


def test_lock_of_single_threads(run):
    _, total = run("critical", 3, 40, np.zeros(1, "i4"), np.zeros(1, "i4"))
    assert total[0] == 120


def test_lists_without_locks(run, rng):
    n = 600
    keys = rng.integers(-(10**6), 10**6, n).astype("i4")
    *_, out = run(
        "bucket_lists", 5, 128, keys, np.zeros((n, 2), "i4"), np.full(16, -1, "i4"), np.zeros(1, "u4"),
        np.zeros(32, "i4"), n,
    )  # fmt: skip
    bucket = [(int(k) * 2654435761 & M32) >> 28 for k in keys]
    np.testing.assert_array_equal(out[::2], np.bincount(bucket, minlength=16))
    np.testing.assert_array_equal(out[1::2], np.bincount(bucket, weights=keys, minlength=16))


def test_barriers_that_count(run, rng):
    x = rng.integers(-90, 70, 96).astype("i4")
    x[40] = 77
    _, out = run("counted_barriers", 1, 96, x, np.zeros(96, "i4"))
    expected = x.reshape(3, 32).copy()
    for row in expected:
        row[row & 1 == 1] = row[np.argmax(row & 1)]
    np.testing.assert_array_equal(out, (x > 0).sum() + 3000 + 10000 * (expected.reshape(-1) & 255))


# ------------------------------------------------------------------------------ calls


def test_recursion(run, rng):
    a = rng.integers(-99, 99, (40, 24)).astype("i4")
    result, out = run("recursion", 1, 40, a, 24, np.zeros((40, 2), "u4"))
    for t in range(40):
        a[t, : 24 - (t & 3)].sort()
    np.testing.assert_array_equal(result, a)
    t = np.arange(40)
    np.testing.assert_array_equal(out[:, 0], np.where(t & 1, 2 * (t % 5) + 3, t % 5 + 2))
    np.testing.assert_array_equal(out[:, 1], 1 - t % 2)


def test_function_pointers(run, rng):
    which, (a, b) = rng.integers(0, 3, 300).astype("i4"), rng.integers(0, 5, (2, 300)).astype("f4")
    *_, out = run("function_pointers", 3, 128, which, a, b, np.zeros_like(a), 300)
    expected = np.choose(which, [a + b, a * b, a**b]) + np.where(which & 1, a + 2, a * 2)
    np.testing.assert_array_equal(out, expected)


def test_virtual_calls(run, rng):
    which, a = rng.integers(0, 3, 300).astype("i4"), rng.integers(0, 5, 300).astype("f4")
    *_, out = run("virtual_calls", 3, 128, which, a, np.zeros_like(a), 300)
    shape, ring = a * a, 3 * a * a - 0.75
    own = np.choose(which, [shape, 3 * a * a, ring])
    np.testing.assert_array_equal(out, 2 * own + np.where(which, shape, ring))


def test_large_structs_as_arguments(run, rng):
    x = rng.integers(0, 20, 64).astype("i4")
    _, out = run("large_arguments", 1, 64, x, np.zeros((64, 2)))
    for t in range(64):
        a, by, s = [float(x[t] * i) for i in range(5)], t % 9, 0.0
        b = [*a[:2], 0.5, *a[3:]]
        for i in range(5):
            a[(i + by) % 5] = (-1 if t & 1 else 1) * (a[i] + b[4 - i])
        for v in a:
            s = s * 3 + v
        array = [1000 if i == t & 15 else (i * int(x[t])) ^ i for i in range(16)]
        assert out[t].tolist() == [s + 2 * t, sum(array[t & 7 :]) + ord("Z")]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_and_lambdas(run, rng, name):
    dtype = np.dtype(TEMPLATES[name])
    x, y = rng.integers(0, 200, (2, 100)).astype(dtype)
    _, out = run(name, 1, 64, dtype.type(3), x, y, 100)
    total = x.astype("i8") + y
    expected = total + 8 + np.arange(100) if dtype == "f8" else 2 * total + 7
    np.testing.assert_array_equal(out, expected.astype(dtype))


# ------------------------------------------------------------------------------ data


def test_struct_of_mixed_alignment(run):
    inner = np.dtype([("tag", "i1"), ("w", "f8"), ("s", "i2", 3)], align=True)
    fields = {"a": ("i1", 0), "b": ("i4", 4), "in": ((inner, 2), 8), "bits": ("u1", 56), "f": (("f4", 4), 64),
              "flag": ("?", 80), "wide": ("i8", 88), "xyz": ("u4", 96)}  # fmt: skip
    formats, offsets = zip(*fields.values())
    mixed = np.dtype({"names": [*fields], "formats": formats, "offsets": offsets, "itemsize": 112})
    p = np.zeros((), mixed)
    for name, value in {"a": -7, "b": 123456, "bits": 200, "flag": True, "wide": -(2**40)}.items():
        p[name] = value
    p["in"][0], p["in"][1] = (3, 0.5, (1, 2, 3)), (-4, 2.5, (-10, 20, -30))
    p["f"], p["xyz"] = [1, 2, 3, 4.5], 5 | 4000 << 3 | (-9 & 127) << 16
    word, triples = np.void(np.float32(-1.5).tobytes()), np.arange(6).astype("i2")
    _, out, back = run(
        "mixed_struct", 1, 32, p[()], np.int8(-3), word, triples, np.zeros(18), np.zeros(112, "u1")
    )
    first = [-7, 123456, 2.5, -30, 200, 4.5, 1, -(2**40), -3, 0xBFC0, 5, 4000, -9, 5]
    assert out.tolist() == [*first, 1 + 3, 20 - 4, 3 + 3, -10 - 4]
    q = back.view(mixed)[0]
    assert (q["b"], q["in"][0]["s"][1], q["in"][1]["w"], q["wide"]) == (-5, 99, 2.5, -(2**40))
    assert q["xyz"] & 0x7FFFFF == 5 | 1234 << 3 | (-3 & 127) << 16


def test_globals_constants_and_pointers_to_them(run):
    out = run("set_globals", 1, 64, np.zeros(64, "f4"))
    t = np.arange(64)
    expected = np.array([[1, 2], [3, 4], [-5, 6], [7, -8]], "f4")[t & 3, t >> 2 & 1][::-1].copy()
    expected[:5] += list(b"hello")
    np.testing.assert_array_equal(out, expected)
    out = run("read_globals", 1, 64, np.zeros(64))
    stored = t.astype("f4") * np.array([0.5, -1, 2.25, 0, 3e-2], "f4")[t % 5]
    expected = np.zeros(64)
    expected[:56] = stored[8:]
    expected[0] += 15
    expected[60:63] = 1e300, -math.inf, 0xFEDCBA98
    np.testing.assert_array_equal(out, expected)


def test_vector_types(run, rng):
    a, b = rng.standard_normal((64, 2)), rng.integers(-(2**62), 2**62, (64, 2))
    c, d = rng.integers(0, 256, (64, 4)).astype("u1"), rng.integers(-30000, 30000, (64, 4)).astype("i2")
    e = rng.integers(-100, 100, (64, 3)).astype("i1")
    given = [a, b, c, d, e]
    *_, o, p, q, r, s = run("vector_types", 1, 64, *given, *[np.zeros_like(v) for v in given])
    np.testing.assert_array_equal(o, np.stack([a[:, 1], -a[:, 0]], 1))
    np.testing.assert_array_equal(p, np.stack([b[:, 0] ^ b[:, 1], b.min(1)], 1))
    bytes4 = [c[:, 0] + c[:, 3], ~c[:, 1], c[:, 2] << 1, c[:, 3] > 100]
    np.testing.assert_array_equal(q, np.stack(bytes4, 1))
    shorts4 = [d[:, 3], -d[:, 2], np.trunc(d[:, 1] / 3), np.fmod(d[:, 0], 7)]
    np.testing.assert_array_equal(r, np.stack(shorts4, 1))
    np.testing.assert_array_equal(s, np.stack([e[:, 2], e[:, 1] * 2, e[:, 0] - 1], 1).astype("i1"))


def test_special_registers(run):
    out = run("special_registers", (2, 3, 2), (5, 4, 3), np.zeros((12, 60, 7), "u4"), shared_mem_bytes=64)
    t, b = np.arange(60), np.arange(12)
    lane, expected = t % 32, np.zeros((12, 60, 7), "u8")
    expected[..., :4] = np.stack([lane, (1 << lane) - 1, M32 + 1 - (1 << lane), 0 * lane + 64], 1)
    expected[..., 4] = (b // 6 * 100 + b // 2 % 3 * 10 + b % 2)[:, None]
    expected[..., 5], expected[..., 6] = 32 + t // 20, 1
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("build", BUILDS)
def test_printf_and_assert(host, build, capsys):
    run = Run(module("programs.cu", build), host)
    x = np.array([1.5, -2.25, 1000], "f4")
    run("print", 1, 32, x, 3)
    lines = [
        f"{i}: {'odd' if i & 1 else 'even'} {v:5.2f}|{i * 3:<6d}|{i * 255:06x}|{chr(97 + i)}|{i << 40}"
        f"|{v * np.float32(1e10):e}|%|4000000000|-5000000000"
        for i, v in enumerate(x)
    ]
    assert capsys.readouterr().out.splitlines() == lines
    with pytest.raises(ca.CudaAsyncError, match=r"assertion failed: .n < 10 \&\& .too many"):
        run("print", 1, 32, np.zeros(32, "f4"), 10)


# ------------------------------------------------------------------------------ integers


def quotient(x: int, y: int) -> int:
    """Rounded towards zero."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


OPCODES = {
    0: lambda x, y: x + y,
    1: lambda x, y: x - y,
    2: lambda x, y: x * y,
    3: lambda x, y: quotient(x, y) if y else -1,
    4: lambda x, y: x - y * quotient(x, y) if y else -2,
    5: lambda x, y: x << (y & 63),
    6: lambda x, y: x >> (y & 63),
    7: lambda x, y: (x & M64) >> (y & 63),
    8: lambda x, y: x * y >> 64,
    9: lambda x, y: (x & M64) * (y & M64) >> 64,
    10: lambda x, y: ((x & M64) // (y & M64) if y else 3) ^ x,
    11: lambda x, y: x,
    100: lambda x, y: (x & M64).bit_count() + 64 - (y & M64).bit_length(),
    101: lambda x, y: int(f"{x & M64:064b}"[::-1], 2),
    102: lambda x, y: (x & -x).bit_length(),
    1000: lambda x, y: max(x >> 1, y),
    1001: lambda x, y: max(0, y),
    1002: lambda x, y: x < y,
    1003: lambda x, y: (x & M64) < (y & M64),
    1004: lambda x, y: int(np.float32(x >> 2)) + int(float(y >> 2)),
    1005: lambda x, y: signed(x, 32) * signed(y, 32),
    1006: lambda x, y: signed(x, 16) * signed(y, 8),
    1007: lambda x, y: (x & M64) * (y & M64) >> 40,
    1008: lambda x, y: quotient(x << 30, y | 1),
}


def test_switch_over_64_and_128_bit_arithmetic(run, rng):
    n = 4000
    op = rng.choice([*OPCODES, 5000, -3, 12, 99], n).astype("i4")
    a, b = rng.integers(-(2**63), 2**63 - 1, (2, n)) >> rng.integers(0, 64, (2, n))
    a[:5], b[:5], op[2] = -(2**63), [0, 1, -1, 2**63 - 1, -(2**63)], 0
    *_, out = run("opcodes64", 32, 128, op, a, b, np.zeros(n, "i8"), n)
    expected = [
        signed(int(OPCODES.get(c, lambda x, y, c=c: -c)(x, y)))
        for c, x, y in zip(op.tolist(), a.tolist(), b.tolist())
    ]
    np.testing.assert_array_equal(out, expected)


def parts(word: int, width: int, sign: bool = False) -> list[int]:
    fields = [word >> at & ((1 << width) - 1) for at in range(0, 32, width)]
    return [signed(f, width) for f in fields] if sign else fields


def joined(fields: list[int], width: int) -> int:
    return sum((f & ((1 << width) - 1)) << width * i for i, f in enumerate(fields))


def bits_of(x: int, y: int) -> list[int]:
    """What `bit_tricks` gives."""
    s, sx, sy = y & 31, signed(x, 32), signed(y, 32)
    both = y << 32 | x
    set_bits = [k for k in range(s, 32) if x >> k & 1]
    results = [
        joined([both >> 8 * (x >> 4 * k & 7) & 255 for k in range(4)], 8),
        both << s >> 32,
        both >> min(y & 63, 32),
        x << s | x >> (32 - s & 31),
        (x & y).bit_count() + 32 - x.bit_length() + (y & -y).bit_length() + int(f"{x & 255:032b}"[::-1], 2),
        (x ^ x >> 1) * (y & 1),
        x * y >> 32,
        sx * sy >> 32,
        abs(x - y) + 3,
        abs(sx - sy) + 1,
        (x + y) >> 1,
        (sx + sy + 1) >> 1,
        joined([p + q for p, q in zip(parts(x, 8), parts(y, 8))], 8),
        joined([abs(p - q) for p, q in zip(parts(x, 16, True), parts(y, 16, True))], 16),
        joined([max(p, q) for p, q in zip(parts(x, 8), parts(y, 8))], 8),
        set_bits[1] if len(set_bits) > 1 else M32,
        sum((x >> k & 1) << 2 * k for k in range(16)),
        min(x, y),
    ]
    return [r & M32 for r in results]


def test_bit_tricks(run, rng):
    a, b = rng.integers(0, 2**32, (2, 256), dtype="u4")
    a[:4], b[:4] = [0, M32, 2**31, 1], [2**31, M32, 0, 7]
    *_, out = run("bit_tricks", 1, 256, a, b, np.zeros((256, 18), "u4"))
    np.testing.assert_array_equal(out, [bits_of(x, y) for x, y in zip(a.tolist(), b.tolist())])


def test_philox_and_normal_numbers(run):
    seed, offset = 0x123456789ABCDEF0, 2**32 - 100
    bits, normal = run(
        "random_numbers", 4, 128, np.zeros((512, 4), "u4"), np.zeros((512, 2), "f4"), seed, offset
    )
    counter = offset + np.arange(512, dtype="u8")
    c, key = [counter & M32, counter >> 32, np.uint64(7), np.uint64(9)], [seed & M32, seed >> 32]
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [q >> 32 ^ c[1] ^ np.uint64(key[0]), q & M32, p >> 32 ^ c[3] ^ np.uint64(key[1]), p & M32]
        key = [key[0] + 0x9E3779B9 & M32, key[1] + 0xBB67AE85 & M32]
    np.testing.assert_array_equal(bits, np.stack(c, 1))
    radius, angle = np.sqrt(-2 * np.log((bits[:, 0] + 1.0) / 2**32)), 2 * np.pi * (bits[:, 1] / 2**32)
    np.testing.assert_allclose(normal[:, 0], radius * np.sin(angle), atol=5e-5)
    np.testing.assert_allclose(normal[:, 1], radius * np.cos(angle), atol=5e-5)


# ------------------------------------------------------------------------------ control flow


def collatz(v: int) -> tuple[int, int]:
    top, steps = v, 0
    while v != 1:
        if steps > 300:
            return -1, top >> 2
        if v & 1:
            v = 3 * v + 1
            top = max(top, v)
        else:
            v >>= 1
            if v % 10 == 7:
                steps += 3
                continue
        steps += 1
    return steps, top >> 2


def test_divergent_breaks(run, rng):
    x = rng.integers(1, 100000, 700).astype("i4")
    _, out = run("collatz", 6, 128, x, np.zeros((700, 2), "i4"), 700)
    np.testing.assert_array_equal(out, [collatz(v) for v in x.tolist()])


def jumping(code: list[int], i: int) -> int:
    total, k, in_middle = 0, code[i] & 7, code[i] & 1
    while True:
        if not in_middle:
            total += code[i + k]
            if total & 4:
                break
        total, k = total * 3 + k, k - 1
        in_middle = total % 5 == 0
        if k < 0 or (not in_middle and total >= 3000):
            break
    return total * 10 + k


def test_jump_into_a_loop(run, rng):
    code = rng.integers(0, 256, 200).astype("u1")
    _, out = run("jump_into_loop", 1, 190, code, np.zeros(190, "i4"))
    np.testing.assert_array_equal(out, [jumping(code.tolist(), i) for i in range(190)])


def nested(t: int, n: int) -> int:
    c = 0
    for i in range(n):
        for j in range(i + 1):
            if (i * j + t) % 3 == 0:
                continue
            match (i + j) % 4:
                case 0:
                    c += 1
                case 1 if t & 1:
                    return c
                case 1:
                    c += 10
                case 2:
                    for k in range(t, 0, -5):
                        c ^= k
                case _:
                    c -= 3
        if c > 500:
            break
    return c


def test_nested_loops_with_ways_out(run, rng):
    x = rng.integers(0, 12, 64).astype("i4")
    _, out = run("nested_loops", 1, 64, x, np.zeros(65, "i4"))
    expected = [nested(t, n) for t, n in enumerate(x.tolist())]
    np.testing.assert_array_equal(out, [*expected, sum(expected)])


def test_barriers_without_those_who_left(run, rng):
    x = rng.integers(0, 40, 100).astype("i4")
    _, out = run("barriers_of_the_living", 1, 128, x, np.zeros(128, "i4"), 100)
    expected = [next((k for k in range(52) if k * k > s), -1) for s in x.cumsum()]
    np.testing.assert_array_equal(out, [*expected, *[0] * 28])


# ------------------------------------------------------------------------------ algorithms


def test_fft_with_three_arrays_in_dynamic_shared_memory(run, rng):
    x = (rng.standard_normal((3, 256)) + 1j * rng.standard_normal((3, 256))).astype("c8")
    size = 256 * 8 + 128 * 8 + 256 * 2
    _, y = run("fft", 3, 64, x.view("f4"), np.zeros((3, 512), "f4"), 8, shared_mem_bytes=size)
    np.testing.assert_allclose(y.view("c8"), np.fft.fft(x.astype("c16")), atol=5e-4)


def test_bitonic_sort(run, rng):
    keys = rng.integers(0, 2**32, 512, dtype="u4")
    np.testing.assert_array_equal(run("bitonic", 1, 128, keys, 512, shared_mem_bytes=512 * 5), np.sort(keys))


def test_convolution_with_a_halo(run, rng):
    image, w = rng.integers(-5, 5, (37, 50)).astype("f4"), rng.integers(-3, 3, (3, 3)).astype("f4")
    *_, out = run("convolution", (2, 3), (32, 16), image, w, np.zeros_like(image), 37, 50)
    padded = np.pad(image, 1)
    np.testing.assert_array_equal(
        out, sum(w[i, j] * padded[i : i + 37, j : j + 50] for i in range(3) for j in range(3))
    )


def test_wave_front_of_edit_distances(run, rng):
    a, b = rng.integers(97, 101, 40).astype("i1"), rng.integers(97, 101, 33).astype("i1")
    *_, out = run("edit_distance", 1, 64, a, b, 40, 33, np.zeros(1, "i4"), shared_mem_bytes=41 * 34 * 4)
    row = [*range(34)]
    for i in range(40):
        above, row = row, [i + 1]
        for j in range(33):
            row.append(min(above[j] + int(a[i] != b[j]), above[j + 1] + 1, row[-1] + 1))
    assert out[0] == row[-1]


def test_bodies_in_tiles(run, rng):
    p = rng.standard_normal((100, 4)).astype("f4")
    _, force = run("bodies", 2, 64, p, np.zeros((100, 3), "f4"), 100, shared_mem_bytes=64 * 16)
    wide = p.astype("f8")
    distance = wide[None, :, :3] - wide[:, None, :3]
    weight = wide[:, 3] * ((distance**2).sum(2) + 1e-2) ** -1.5
    np.testing.assert_allclose(force, (distance * weight[..., None]).sum(1), rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------------------ functions of reals

REALS = {
    "exp": (math.exp, -700, 700),
    "expm1": (math.expm1, -20, 50),
    "log": (math.log, 1e-300, 1e300),
    "log1p": (math.log1p, -0.999, 10),
    "log2": (math.log2, 1e-9, 1e9),
    "sin": (math.sin, -1e15, 1e15),
    "cos": (math.cos, -1e15, 1e15),
    "tan": (math.tan, -1e9, 1e9),
    "asin": (math.asin, -1, 1),
    "atan": (math.atan, -1e3, 1e3),
    "sinh": (math.sinh, -300, 300),
    "tanh": (math.tanh, -3, 3),
    "asinh": (math.asinh, -1e5, 1e5),
    "erf": (math.erf, -4, 4),
    "erfc": (math.erfc, -2, 20),
    "tgamma": (math.gamma, 0.1, 100),
    "lgamma": (math.lgamma, 3, 1000),
    "sqrt": (math.sqrt, 0, 1e300),
    "cbrt": (np.cbrt, -1e30, 1e30),
    "rint": (round, -1e6, 1e6),
    "round": (lambda x: math.copysign(math.floor(abs(x) + 0.5), x), -1e6, 1e6),
    "floor": (math.floor, -1e6, 1e6),
}


def test_functions_of_double_precision(run, rng):
    for name, (function, low, high) in REALS.items():
        x = (
            np.exp(rng.uniform(math.log(low), math.log(high), 200))
            if 0 < low < 1e-8
            else rng.uniform(low, high, 200)
        )
        _, out = run(f"{name}_of", 1, 200, x, np.zeros(200))
        expected = np.array([float(function(v)) for v in x.tolist()])
        slope = 1 + np.abs(expected) if name == "tan" else 1  # it magnifies the error of its argument
        error = np.abs(out - expected) / np.maximum(np.abs(expected), 1e-300) / slope
        assert error.max() < (2e-14 if name in ("erfc", "tgamma") else 2e-15), (name, x[error.argmax()])


def test_functions_of_two_doubles(run, rng):
    x, y = rng.standard_normal((2, 250)) * 8
    *_, out, whole = run("pairs_of_reals", 1, 250, x, y, np.zeros((250, 14)), np.zeros((250, 3), "i4"))
    t, (fraction, exponent) = np.trunc(y), np.frexp(x)
    remainder = [math.remainder(a, b) for a, b in zip(x, y)]
    expected = [np.abs(x) ** y, x**t, np.fmod(x, y), remainder, fraction, np.ldexp(x, t.astype(int) * 30),
                *np.modf(x), np.hypot(x, y), np.arctan2(x, y), np.sin(x * 1e5), np.cos(x * 1e5),
                np.nextafter(x, y), np.ldexp(x, -1060)]  # fmt: skip
    np.testing.assert_allclose(out, np.stack(expected, 1), rtol=3e-15, atol=0)
    np.testing.assert_array_equal(out[:, 13], np.ldexp(x, -1060))
    np.testing.assert_array_equal(
        whole, np.stack([exponent, np.rint(x * 1000), (exponent - 1) * 4 + 2 + (y < 0)], 1)
    )


def test_conversions_between_reals_and_integers(run, rng):
    f = (rng.standard_normal(200) * 10.0 ** rng.integers(-2, 12, 200)).astype("f4")
    d = rng.standard_normal(200) * 10.0 ** rng.integers(-2, 22, 200)
    f[:3], d[:3] = [0.5, -0.5, 2.5], [0.5, 1.5, -2.5]
    *_, out = run("conversions", 1, 200, f, d, np.zeros((200, 10), "i8"))

    def within(value: float, bits: int, sign: bool) -> int:
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if sign else (0, (1 << bits) - 1)
        return max(low, min(high, int(value)))

    for row, x, y in zip(out.tolist(), f.tolist(), d.tolist()):
        expected = [
            *(within(math.floor(x), 32, True), within(math.ceil(x), 32, False), within(round(x), 64, True)),
            *(signed(within(x, 64, False)), within(round(y), 32, True), within(math.floor(y), 32, False)),
            *(within(math.ceil(y), 64, True), signed(within(round(y), 64, False))),
            *(int(np.float64(y).view("i8")) >> 32, within(round(x), 32, True)),
        ]
        assert row == expected, (x, y)


# ------------------------------------------------------------------------------ the toolkit's headers


def test_cooperative_groups(run_with_headers, rng):
    x = (rng.standard_normal(1024) * 20).astype("f4")
    _, sums, scans, counts = run_with_headers(
        "groups", 4, (64, 4), x, np.zeros(128, "f4"), np.zeros(1024, "i4"), np.zeros(9, "i4"), 1024
    )
    np.testing.assert_allclose(sums, x.reshape(-1, 8).sum(1, dtype="f8"), rtol=1e-5, atol=1e-4)
    whole = np.trunc(x).astype("i4").reshape(-1, 32)
    np.testing.assert_array_equal(scans.reshape(-1, 32), whole.cumsum(1) - whole)
    odd = (whole & 1).sum()
    expected = [whole.max(), (x > 0).sum(), 1024 - odd, odd, *np.bincount(whole.ravel() & 3, minlength=4), 6]
    np.testing.assert_array_equal(counts, expected)


def test_grid_barriers(run_with_headers):
    a = np.zeros(200, "f4")
    result, _ = run_with_headers("relax", 3, 32, a, a, 200, 20, cooperative=True)
    for _ in range(20):
        a = (np.r_[0, a[:-1]] + np.r_[a[1:], 1]).astype("f4") / 2
    np.testing.assert_array_equal(result, a)


def test_clusters(run_with_headers, rng):
    if run_with_headers.device.compute_capability < (9, 0):
        pytest.skip("clusters came with sm_90")
    x = rng.integers(0, 100, (4, 4, 32)).astype("i4")
    _, out = run_with_headers("neighbours", (4, 4), 32, x, np.zeros_like(x))
    expected = np.zeros_like(x)
    for y, z in np.ndindex(4, 4):
        following = (y % 2 * 2 + z % 2 + 1) % 4
        expected[y, z] = (
            x[y // 2 * 2 + following // 2, z // 2 * 2 + following % 2, ::-1] + following
        ) * 10 + 1
        if following == 0:
            expected[y, z, 0] += 3 + 5 * 128
    np.testing.assert_array_equal(out, expected)


def test_asynchronous_copies(run_with_headers, rng):
    x, d = rng.integers(0, 50, 512).astype("f4"), rng.standard_normal(64)
    _, out = run_with_headers("copies_ahead", 1, 32, x, np.zeros(32, "f4"), 512)
    x = x.reshape(4, 128)
    x[1:, 126:] = 0
    np.testing.assert_array_equal(out, x[:, np.arange(32) * 7 % 128].sum(0) + x[:, 127].sum())
    _, out = run_with_headers("group_copy", 1, 64, d, np.zeros(64))
    np.testing.assert_array_equal(out, d[::-1] * 2)


def test_pairs_of_halves(run_with_headers, rng):
    a, b = rng.standard_normal((2, 400, 2)).astype("f2")
    *_, out, sums = run_with_headers(
        "half_pairs", 1, 400, a, b, np.zeros((400, 2), "f2"), np.zeros(400, "f4")
    )
    r = np.minimum(np.maximum((a.astype("f8") * b + 0.5).astype("f2"), np.float16(-1)), np.abs(b))
    r = np.where((a > b).all(1, keepdims=True), -r, r)
    np.testing.assert_array_equal(out, r)
    np.testing.assert_allclose(
        sums, r.sum(1, dtype="f4") + (a[:, 0] + b[:, 1]).astype("f4"), rtol=1e-6, atol=1e-6
    )
    p = rng.standard_normal((64, 2)).astype(ml_dtypes.bfloat16)
    _, q = run_with_headers("bfloat_pairs", 1, 64, p, np.zeros_like(p))
    np.testing.assert_array_equal(q, (p + p) * np.array([1.5, -0.75], p.dtype))


def test_atomics_on_halves(run_with_headers, rng):
    x, y = rng.integers(-3, 4, (2, 64)).astype("f2")
    *_, out = run_with_headers("half_dot", 1, 32, x, y, np.zeros(4, "f2"), 64)
    dot = (x * y).sum()
    np.testing.assert_array_equal(out, [dot, 0, dot, -dot])


def test_floats_of_eight_bits(run_with_headers, rng):
    x = (rng.standard_normal(200) * np.exp(rng.uniform(-7, 6, 200))).astype("f4")
    _, a, b, back = run_with_headers(
        "eight_bits", 1, 200, x, np.zeros(200, "u1"), np.zeros(200, "u1"), np.zeros((200, 2), "f4")
    )
    e4m3, e5m2 = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn), x.astype(ml_dtypes.float8_e5m2)
    np.testing.assert_array_equal(a, e4m3.view("u1"))
    np.testing.assert_array_equal(b, e5m2.view("u1"))
    np.testing.assert_array_equal(back, np.stack([e4m3.astype("f4"), e5m2.astype("f4")], 1))


def test_complex_numbers(run_with_headers, rng):
    a, b = rng.standard_normal((2, 32)) + 1j * rng.standard_normal((2, 32))
    *_, q, m = run_with_headers(
        "complex_quotients", 1, 32, a.view("f8"), b.view("f8"), np.zeros(64), np.zeros(32)
    )
    np.testing.assert_allclose(q.view("c16"), a / b.conj(), rtol=1e-13)
    np.testing.assert_allclose(m, np.abs(a * b + a / b.conj()), rtol=1e-13)


# ------------------------------------------------------------------------------ Numba's compiler


def numba(host, name: str, grid, block, *arrays: np.ndarray) -> list[np.ndarray]:
    """A launch as Numba does it: an array is owner, parent, size, item size, data, extents, strides in bytes."""
    text = (DATA / f"numba_{name}.ptx").read_text()
    tensors = [ca.from_host(a).sync() for a in arrays]
    values = []
    for a, t in zip(arrays, tensors):
        values += [0, 0, a.size, a.itemsize, ca.mut(t), *a.shape, *a.strides]
    entry = ca.Module.from_ptx(text).function(re.search(r"\.entry (\w+)", text)[1])
    entry.launch(grid, block, *values).sync()
    return [t.to_host().sync() for t in tensors]


def test_numba_matrix_product(host, rng):
    a, b = rng.integers(-4, 4, (20, 30)).astype("f4"), rng.integers(-4, 4, (30, 17)).astype("f4")
    *_, c = numba(host, "matmul", (3, 3), (8, 8), a, b, np.zeros((20, 17), "f4"))
    np.testing.assert_array_equal(c, a @ b)


def mixture(v: float, i: int) -> float:
    total, k = 0.0, 0
    while k < 20:
        k += 1
        if k % 3 == 0:
            continue
        if total > 50:
            break
        total += math.exp(v) * k // 1.5 - (k % -4) + v**3
    z, hundreds = complex(v, 1) ** 2, int(v * 100)
    third = i // 32 * 32 + 3 if i % 32 == 0 else 0
    return total + z.real * z.imag + math.erf(v) + abs(z) + hundreds // 7 + hundreds % -7 + i % 10 * i + third


def test_numba_keeps_the_rules_of_python(host, rng):
    x = rng.standard_normal(128)
    _, out, histogram = numba(host, "mixture", 4, 32, x, np.zeros(128), np.zeros(9, "i4"))
    np.testing.assert_allclose(out, [mixture(v, i) for i, v in enumerate(x.tolist())], rtol=1e-12, atol=1e-10)
    np.testing.assert_array_equal(histogram[:8], np.bincount((np.abs(x) * 4).astype(int) & 7, minlength=8))
    assert histogram[8] == int(x.max() * 100)
