"""Committed PTX of nvcc (-O3 and -G), rustc (release and debug) and Triton; `data/make_ptx.py` made it."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from cuda_async.driver.host.ptx import KernelError

RANDOM = np.random.default_rng(3)
BUILDS = ["kernels_O3.ptx", "kernels_G.ptx"]

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")


@pytest.fixture(params=BUILDS, ids=["O3", "G"])
def nvcc(request, ptx_device):
    return ptx_device.data(request.param)


# -------------------------------------------------------------------------------------- nvcc


def signed(values) -> np.ndarray:
    """Whole numbers wrapped to 32 bits."""
    return np.asarray(values).astype("i8").astype("i4")


def test_switch(ptx_device, nvcc):
    n = 2000
    code, x = RANDOM.integers(-1, 12, n).astype("i4"), RANDOM.integers(-40000, 40000, n).astype("i4")
    out = ptx_device.zeros(n, "i4")
    ptx_device.run(nvcc["opcodes"], 8, 256, ptx_device.put(code), ptx_device.put(x), out, n)
    expected = np.full(n, -1)
    for i, (c, v) in enumerate(zip(code.tolist(), x.tolist())):
        bits = v & 0xFFFFFFFF
        expected[i] = {
            0: v + 7,
            1: v * v,
            2: v ^ 0x5555,
            3: abs(v),
            4: int(v / 3),
            5: int(np.fmod(v, 5)),
            6: sum(k * v for k in range(v & 15)),
            7: bits.bit_count(),
            8: 32 - bits.bit_length(),
            9: int(f"{bits:032b}"[::-1], 2),
        }.get(c, -1)
    np.testing.assert_array_equal(ptx_device.get(out, n, "i4"), signed(expected))


def test_recursion(ptx_device, nvcc):
    out = ptx_device.zeros(40, "u8")
    ptx_device.run(nvcc["binomials"], 1, 64, out, 40)
    row = [1]
    for k in range(10):
        row.append(row[-1] * (10 - k) // (k + 1))
    np.testing.assert_array_equal(ptx_device.get(out, 40, "u8"), np.array(row)[np.arange(40) % 11])


def test_struct_constants_and_dynamic_shared_memory(ptx_device, nvcc):
    n = 1000
    x = (RANDOM.standard_normal(n) * 10).astype("f4")
    struct = np.array([2.0, 1.0], "f4").tobytes() + np.array([-5, 20], "i4").tobytes()
    out = ptx_device.zeros(n, "f4")
    ptx_device.run(nvcc["blur"], 8, 128, ptx_device.put(x), out, n, struct, shared=4 * 132)
    blurred = np.convolve(x.astype("f8"), [0.0625, 0.25, 0.375, 0.25, 0.0625], "same")
    expected = np.clip(2 * blurred + 1, -5, 20)
    np.testing.assert_allclose(ptx_device.get(out, n, "f4"), expected, rtol=1e-5, atol=1e-5)


def test_local_arrays(ptx_device, nvcc):
    x = RANDOM.integers(0, 10**9, 600).astype("u4")
    out = ptx_device.zeros(600, "u4")
    ptx_device.run(nvcc["digits"], 3, 256, ptx_device.put(x), out, 600)
    expected = [int(str(v)[::-1]) for v in x.tolist()]
    np.testing.assert_array_equal(ptx_device.get(out, 600, "u4"), expected)


def test_double_precision_functions(ptx_device, nvcc):
    x = (RANDOM.standard_normal(300) * 20).astype("f8")
    x[:3] = 0, 1e5, -3e8  # large arguments of sin take another way
    out = ptx_device.zeros((300, 6), "f8")
    ptx_device.run(nvcc["functions"], 3, 128, ptx_device.put(x), out, 300)
    a = np.abs(x)
    columns = [
        np.sin(x),
        np.exp(np.minimum(x * 0.1, 700)),
        np.log(a + 1e-3),
        a**1.7,
        np.cbrt(x),
        np.arctan2(x, 2),
    ]
    got = ptx_device.get(out, (300, 6), "f8")
    got[:, 1] = np.where(x * 0.1 > 700, columns[1], got[:, 1])
    np.testing.assert_allclose(got, np.stack(columns, axis=1), rtol=1e-14, atol=1e-300)


def test_half_types(ptx_device, nvcc):
    n = 500
    x = RANDOM.standard_normal(n).astype("f2")
    y = RANDOM.standard_normal(n).astype(ml_dtypes.bfloat16)
    out, pairs = ptx_device.zeros(n, "f4"), ptx_device.zeros((n, 2), "f2")
    ptx_device.run(nvcc["halves"], 2, 256, ptx_device.put(x), ptx_device.put(y.view("u2")), out, pairs, n)
    h = (x.astype("f8") * 2 + 0.5).astype("f2")
    np.testing.assert_array_equal(ptx_device.get(out, n, "f4"), h.astype("f4") + y.astype("f4"))
    got = ptx_device.get(pairs, (n, 2), "f2")
    np.testing.assert_array_equal(got, np.stack([x, h], axis=1) * np.float16(0.5))


def test_last_block_with_wide_atomics(ptx_device, nvcc):
    x = RANDOM.integers(-(2**31), 2**31, 20000).astype("i4")
    sums, out = ptx_device.zeros(64, "u8"), ptx_device.zeros(1, "i8")
    ptx_device.run(nvcc["total"], 64, 96, ptx_device.put(x), sums, out, x.size)
    assert ptx_device.get(out, 1, "i8")[0] == x.astype("i8").sum()


def test_cooperative_grid(ptx_device, nvcc):
    n = 5000
    x = RANDOM.standard_normal(n).astype("f4")
    a, b = ptx_device.put(x), ptx_device.zeros(n, "f4")
    ptx_device.run(nvcc["relax"], 20, 256, a, b, n, 5, cooperative=True)
    expected = x.copy()
    for _ in range(5):
        expected[1:-1] = np.float32(0.5) * (expected[:-2] + expected[2:])
    np.testing.assert_array_equal(ptx_device.get(b, n, "f4"), expected)


def test_grid_barrier_needs_a_cooperative_launch(ptx_device, nvcc):
    a = ptx_device.zeros(64, "f4")
    with pytest.raises(KernelError, match="trap"):
        ptx_device.run(nvcc["relax"], 2, 32, a, a, 64, 1)


def test_tiles_of_half_warps(ptx_device, nvcc):
    x = RANDOM.integers(-20, 20, (4, 4, 16)).astype("i4")
    out = ptx_device.zeros(x.shape, "i4")
    ptx_device.run(nvcc["tiles"], 4, 64, ptx_device.put(x), out)
    sums = x.sum(axis=2, keepdims=True)
    expected = np.broadcast_to(np.where(sums > 100, -sums, sums), x.shape)
    np.testing.assert_array_equal(ptx_device.get(out, x.shape, "i4"), expected)


def test_tensor_tiles(ptx_device, nvcc):
    n = 48
    a, b = (RANDOM.standard_normal((n, n)).astype("f2") for _ in range(2))
    out = ptx_device.zeros((n, n), "f4")
    ptx_device.run(nvcc["tensor_tiles"], (3, 3), 32, ptx_device.put(a), ptx_device.put(b), out, n)
    expected = 0.5 * (a.astype("f8") @ b.astype("f8").T)
    np.testing.assert_allclose(ptx_device.get(out, (n, n), "f4"), expected, rtol=1e-5, atol=1e-5)


def test_barrier_object_and_asynchronous_copies(ptx_device):
    functions = ptx_device.data("kernels_O3.ptx")
    x = RANDOM.standard_normal((5, 128)).astype("f4")
    out = ptx_device.zeros((5, 128), "f4")
    ptx_device.run(functions["staged"], 1, 128, ptx_device.put(x), out, 5)
    np.testing.assert_array_equal(ptx_device.get(out, (5, 128), "f4"), x[:, ::-1])


def test_virtual_functions(ptx_device, nvcc):
    kind = RANDOM.integers(0, 2, 300).astype("i4")
    out = ptx_device.zeros(300, "f4")
    ptx_device.run(nvcc["areas"], 3, 128, ptx_device.put(kind), out, 300)
    i = np.arange(300, dtype="f4")
    np.testing.assert_array_equal(ptx_device.get(out, 300, "f4"), np.where(kind == 1, i * i, 3 * i * i))


def test_printf_and_assert(ptx_device, nvcc, capsys):
    ptx_device.run(nvcc["report"], 1, 4, 3, np.float32(1.5))
    assert capsys.readouterr().out == (
        "thread 0 of 3: 0.00 ok\nthread 1 of 3: 1.50 ok\nthread 2 of 3: 3.00 ok\n"
    )
    with pytest.raises(KernelError, match=r"assertion failed: 'n < 4'.*kernels\.cu:\d+.*kernel report"):
        ptx_device.run(nvcc["report"], 1, 4, 4, np.float32(1.5))


def test_debug_build_tells_source_lines(ptx_device):
    functions = ptx_device.data("kernels_G.ptx")
    with pytest.raises(Exception, match=r"kernel digits.*from kernels\.cu:\d+"):
        ptx_device.run(functions["digits"], 1, 32, 0, 0, 32)


# -------------------------------------------------------------------------------------- rust


@pytest.mark.parametrize("build", ["rust_release.ptx", "rust_debug.ptx"])
def test_rust_match(ptx_device, build):
    """An indexed branch, a call, a struct by value; the debug build checks every overflow."""
    n = 1500
    code, x = RANDOM.integers(-2, 9, n).astype("i4"), RANDOM.integers(0, 3000, n).astype("i4")
    struct = np.array([0.75], "f4").tobytes() + np.array([5, -6, 7, -8], "i4").tobytes()
    out = ptx_device.zeros(2 * n, "i4")
    functions = ptx_device.data(build)
    ptx_device.run(functions["dispatch"], 12, 128, ptx_device.put(code), ptx_device.put(x), out, n, struct)

    def collatz(v: int) -> int:
        steps = 0
        while v > 1:
            v = 3 * v + 1 if v & 1 else v >> 1
            steps += 1
        return steps

    def expected(c: int, v: int) -> int:
        results = {0: v + 7, 1: v * v, 2: v ^ 0x55, 3: collatz(v), 4: v - 3, 6: int(0.75 * v)}
        return results.get(c, [5, -6, 7, -8][v & 3] if c == 5 else -1)

    pairs = list(zip(code.tolist(), x.tolist()))
    got = ptx_device.get(out, 2 * n, "i4")
    np.testing.assert_array_equal(got[:n], [expected(c, v) for c, v in pairs])
    np.testing.assert_array_equal(got[n:], np.where(code == 1, 1, np.where(code == 4, 2, 0)))


# ------------------------------------------------------------------------------------ triton


def triton(ptx_device, name: str):
    """The function of a Triton build, and the dynamic shared memory it wants."""
    ((_, function),) = ptx_device.data(name).items()
    text = (ptx_device.folder / name).read_text()
    return function, int(re.match(r"// dynamic shared memory: (\d+)", text)[1])


def test_triton_softmax(ptx_device):
    function, shared = triton(ptx_device, "triton_softmax.ptx")
    x = RANDOM.standard_normal((17, 777)).astype("f4")
    out = ptx_device.zeros(x.shape, "f4")
    ptx_device.run(function, 17, 128, out, ptx_device.put(x), 777, 777, 0, 0, shared=shared)
    e = np.exp(x.astype("f8") - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        ptx_device.get(out, x.shape, "f4"), e / e.sum(axis=1, keepdims=True), rtol=1e-6
    )


def test_triton_layer_norm(ptx_device):
    function, shared = triton(ptx_device, "triton_layer_norm.ptx")
    x, w = RANDOM.standard_normal((5, 500)).astype("f2"), RANDOM.standard_normal(500).astype("f4")
    out = ptx_device.zeros(x.shape, "f2")
    arguments = [ptx_device.put(x), out, ptx_device.put(w), 500, np.float32(1e-5), 0, 0]
    ptx_device.run(function, 5, 128, *arguments, shared=shared)
    wide = x.astype("f8")
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(ptx_device.get(out, x.shape, "f2"), expected, rtol=1e-3, atol=1e-4)


def test_triton_scan_sort_and_atomics(ptx_device):
    function, shared = triton(ptx_device, "triton_scan_and_count.ptx")
    x = RANDOM.integers(-500, 1000, 1000).astype("i4")
    x[x < 0] = 0
    out, bins = ptx_device.zeros(1000, "i4"), ptx_device.zeros(16, "i4")
    ptx_device.run(function, 4, 128, ptx_device.put(x), out, bins, 1000, 0, 0, shared=shared)
    rows = np.concatenate([x, np.zeros(24, "i4")]).reshape(4, 256)
    expected = np.sort(np.cumsum(rows, axis=1), axis=1).reshape(-1)[:1000]
    np.testing.assert_array_equal(ptx_device.get(out, 1000, "i4"), expected)
    np.testing.assert_array_equal(ptx_device.get(bins, 16, "i4"), np.bincount(x % 16, minlength=16))


@pytest.mark.parametrize(
    ("name", "dtype", "rtol"),
    [
        ("triton_matmul_f16_sm80.ptx", np.float16, 1e-5),
        ("triton_matmul_bf16_sm90.ptx", ml_dtypes.bfloat16, 1e-5),
        ("triton_matmul_f32_sm90.ptx", np.float32, 4e-3),
    ],
    ids=["mma-f16", "wgmma-bf16", "wgmma-tf32"],
)
def test_triton_matmul(ptx_device, name, dtype, rtol):
    """mma.sync with ldmatrix on sm_80; wgmma with swizzled shared memory on sm_90."""
    function, shared = triton(ptx_device, name)
    m, n, k = 100, 136, 88
    a, b = RANDOM.standard_normal((m, k)).astype(dtype), RANDOM.standard_normal((k, n)).astype(dtype)
    out = ptx_device.zeros((m, n), "f4")
    arguments = [ptx_device.put(a.view("u1")), ptx_device.put(b.view("u1")), out, m, n, k, 0, 0]
    ptx_device.run(function, (2, 3), 128, *arguments, shared=shared)
    wide_a, wide_b = a.astype("f8"), b.astype("f8")
    scale = np.abs(wide_a) @ np.abs(wide_b)
    error = np.abs(ptx_device.get(out, (m, n), "f4") - wide_a @ wide_b) / scale
    assert error.max() < rtol
