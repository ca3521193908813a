"""Tiles from numbers, parts put into tiles, bytes of elements, and block-scaled products, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

import tilekern as tk
from tilekern.dtypes import dtype_of

PACKED = ["i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "i1", "u1"]
PACKED = [*map(np.dtype, PACKED), np.dtype(ml_dtypes.bfloat16)]


def needs(device, capability):
    if device.kind == "cuda" and device.compute_capability < capability:
        pytest.skip("no such element type here")


@tk.kernel
def create(out, f: tk.Constant[object]):
    out.store(f())


@tk.kernel
def apply(out, x, f: tk.Constant[object], shape: tk.Constant[tuple]):
    out.store(f(tk.load(x, (0,) * len(shape), shape)))


def test_tile_of_numbers(run):
    for function, expected in (
        (lambda: tk.astile((1, 2, 3, 4)), np.array([1, 2, 3, 4], "i4")),
        (lambda: tk.astile(((1, 2), (3, 4.5))), np.array([[1, 2], [3, 4.5]], "f4")),
        (lambda: tk.astile([[1], [2]], tk.int8), np.array([[1], [2]], "i1")),
        (lambda: tk.astile(((tk.bid(0), 1), (2, tk.bid(0) + 3))), np.array([[0, 1], [2, 3]], "i4")),
        (lambda: tk.astile((tk.bid(0) + 0.5, 2), tk.float16), np.array([0.5, 2], "f2")),
    ):
        assert np.array_equal(
            run(create, (expected.shape, expected.dtype, expected.shape), function), expected
        )


def test_part_is_replaced(run):
    x = np.arange(64, dtype="f4").reshape(8, 8)
    for index, rows, columns in (((1, 0), slice(2, 4), slice(0, 4)), ((3, 1), slice(6, 8), slice(4, 8))):
        expected = x.copy()
        expected[rows, columns] = -1
        result = run(
            apply,
            ((8, 8), "f4", (8, 8)),
            x,
            lambda t, i=index: t.insert((tk.bid(0) + i[0], i[1]), tk.full((2, 4), -1, tk.float32)),
            (8, 8),
        )
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_bytes_are_those_of_memory(dtype, run):
    x = np.frombuffer(np.random.default_rng(1).bytes(16 * dtype.itemsize), dtype).reshape(2, 8)
    kind = dtype_of(dtype)
    size = 16 * dtype.itemsize
    packed = run(apply, ((size,), "u1", size), x, tk.pack_to_bytes, (2, 8))
    assert packed.tobytes() == x.tobytes()
    again = run(apply, ((16,), dtype, 16), packed, lambda t: tk.unpack_from_bytes(t, kind), (size,))
    assert again.tobytes() == x.tobytes()


def packed_fp4(array):
    """Two in a byte, the first in the lower half."""
    codes = array.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def test_two_numbers_of_four_bits_share_a_byte(run, device):
    needs(device, (10, 0))
    x = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0], "f4")
    result = run(
        apply,
        ((16,), "f4", 16),
        packed_fp4(x),
        lambda t: tk.unpack_from_bytes(t, tk.float4_e2m1fn).astype(tk.float32),
        (8,),
    )
    assert result.tolist() == x.tolist()
    result = run(apply, ((8,), "u1", 8), x, lambda t: tk.pack_to_bytes(t.astype(tk.float4_e2m1fn)), (16,))
    assert result.tolist() == packed_fp4(x).tolist()


def test_scales_are_stored_and_loaded(run, device):
    needs(device, (10, 0))
    x = 2.0 ** np.arange(-4, 4)
    scales = x.astype(ml_dtypes.float8_e8m0fnu)
    stored = run(apply, ((8,), scales.dtype, 8), x.astype("f4"), lambda t: t.astype(tk.float8_e8m0fnu), (8,))
    assert stored.tobytes() == scales.tobytes()
    assert run(apply, ((8,), "f4", 8), scales, lambda t: t.astype(tk.float32), (8,)).tolist() == x.tolist()


# ------------------------------------------------------------------ block-scaled products

M, N, K = 16, 32, 64


@tk.kernel
def scaled(out, x, xs, y, ys, acc, kinds: tk.Constant[tuple], parts: tk.Constant[int]):
    data, scale = kinds
    if data is tk.float4_e2m1fn:
        a = tk.unpack_from_bytes(tk.load(x, 0, M * K // 2), data).reshape((M, K))
        b = tk.unpack_from_bytes(tk.load(y, 0, K * N // 2), data).reshape((K, N))
    else:
        a = tk.bitcast(tk.load(x, 0, M * K), data).reshape((M, K))
        b = tk.bitcast(tk.load(y, 0, K * N), data).reshape((K, N))
    a_scale = tk.bitcast(tk.load(xs, 0, M * parts), scale).reshape((M, parts))
    b_scale = tk.bitcast(tk.load(ys, 0, parts * N), scale).reshape((parts, N))
    out.store(tk.mma_scaled(a, a_scale, b, b_scale, tk.load(acc, (0, 0), (M, N))))


SCALED = [
    (tk.float8_e4m3fn, tk.float8_e8m0fnu, 32),
    (tk.float8_e5m2, tk.float8_e8m0fnu, 32),
    (tk.float4_e2m1fn, tk.float8_e8m0fnu, 32),
    (tk.float4_e2m1fn, tk.float8_e8m0fnu, 16),
    (tk.float4_e2m1fn, tk.float8_e4m3fn, 16),
]


@pytest.mark.parametrize(("data", "scale", "block"), SCALED, ids=str)
def test_scaled_product(data, scale, block, run, device):
    """Small whole numbers and powers of two: exact in any order."""
    needs(device, (10, 0))
    rng = np.random.default_rng(4)
    parts = K // block
    x, y = rng.integers(-2, 3, (M, K)).astype("f4"), rng.integers(-2, 3, (K, N)).astype("f4")
    xs, ys = 2.0 ** rng.integers(-3, 4, (M, parts)), 2.0 ** rng.integers(-3, 4, (parts, N))
    acc = rng.integers(-8, 9, (M, N)).astype("f4")
    expected = (x * np.repeat(xs, block, 1)) @ (y * np.repeat(ys, block, 0)) + acc

    def stored(array, kind):
        flat = array.reshape(-1)
        return packed_fp4(flat) if kind is tk.float4_e2m1fn else flat.astype(kind.dtype).view(np.uint8)

    operands = [stored(a, k) for a, k in ((x, data), (xs, scale), (y, data), (ys, scale))]
    result = run(scaled, ((M, N), "f4", (M, N)), *operands, acc, (data, scale), parts)
    assert np.array_equal(result, expected.astype("f4"))


@tk.kernel
def fast(out, x, y):
    out.store(
        tk.mma(
            tk.load(x, (0, 0), (16, 32)).astype(tk.float8_e4m3fn),
            tk.load(y, (0, 0), (32, 16)).astype(tk.float8_e4m3fn),
            tk.zeros((16, 16), tk.float32),
            use_fast_acc=True,
        )
    )


def test_fast_accumulation_of_small_numbers_is_exact(run, device):
    needs(device, (8, 9))
    rng = np.random.default_rng(2)
    x, y = rng.integers(-2, 3, (16, 32)).astype("f4"), rng.integers(-2, 3, (32, 16)).astype("f4")
    assert np.array_equal(run(fast, ((16, 16), "f4", (16, 16)), x, y), x @ y)


@pytest.mark.parametrize(
    ("left", "right"), [((1, 16, 32), (4, 32, 16)), ((16, 32), (4, 32, 16)), ((4, 16, 32), (32, 16))], ids=str
)
def test_one_factor_serves_a_batch(left, right, run):
    rng = np.random.default_rng(3)
    x, y = rng.integers(-3, 4, left).astype("f2"), rng.integers(-3, 4, right).astype("f2")

    @tk.kernel
    def product(out, x, y):
        a, b = tk.load(x, (0,) * len(left), left), tk.load(y, (0,) * len(right), right)
        out.store(tk.mma(a, b, tk.ones((4, 16, 16), tk.float32)))

    assert np.array_equal(run(product, ((4, 16, 16), "f4", (4, 16, 16)), x, y), np.matmul(x, y) + 1)


# ------------------------------------------------------------------ what is refused


def _scaled_wrong(t, data=tk.float8_e4m3fn, scale=tk.float8_e8m0fnu, parts=1, kept=tk.float32):
    x = tk.zeros((16, 32), data)
    y = tk.zeros((32, 16), data)
    xs, ys = tk.ones((16, parts), scale), tk.ones((parts, 16), scale)
    return tk.mma_scaled(x, xs, y, ys, tk.zeros((16, 16), kept))


REFUSED = [
    (lambda t: tk.insert(t, (0,), tk.zeros((4,), tk.int32)), "of its own element type"),
    (lambda t: tk.insert(t, (2,), tk.zeros((4,), tk.float32)), "index 2 along axis 0, which has 2 parts"),
    (lambda t: tk.astile((1, 2, 3)), "power of two, got shape \\(3,\\)"),
    (lambda t: tk.astile(((1, 2), (3,))), "nested tuples of equal lengths"),
    (lambda t: tk.astile((t, 1)), "takes numbers and scalars, got a float32 tile"),
    (lambda t: tk.pack_to_bytes(t > 0), "bool_ has no bytes of its own"),
    (lambda t: tk.unpack_from_bytes(t, tk.int16), "takes a tile of uint8, got a float32 tile"),
    (lambda t: tk.unpack_from_bytes(tk.zeros((2,), tk.uint8), tk.int32), "no whole number of int32"),
    (lambda t: _scaled_wrong(t, parts=2), "32 elements along K share a scale .* here 32 have 2 scales"),
    (lambda t: _scaled_wrong(t, scale=tk.float8_e4m3fn), "no float8_e4m3fn with scales of float8_e4m3fn"),
    (lambda t: _scaled_wrong(t, kept=tk.float16), "accumulates in float32, got float16"),
    (lambda t: t.reshape((8, 1)).sum().astype(tk.float4_e2m1fn), "has an even number of elements"),
    (
        lambda t: tk.mma(
            t.reshape((8, 1)), t.reshape((1, 8)), tk.zeros((8, 8), tk.float32), use_fast_acc=True
        ),
        "use_fast_acc is for fp8 factors, got float32",
    ),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_wrong_use_is_refused(function, message):
    @tk.kernel
    def wrong(out, x, f: tk.Constant[object]):
        f(tk.load(x, 0, 8))
        out.store(0)

    t = tk.meta(8, "f4")
    with pytest.raises(tk.KernelError, match=message):
        wrong.ir(t.partition(8), t, function)


def test_tensor_of_four_bits_is_refused():
    for dtype in (ml_dtypes.float4_e2m1fn, np.dtype(ml_dtypes.float4_e2m1fn), tk.float4_e2m1fn):
        with pytest.raises(TypeError, match="two float4_e2m1fn share a byte"):
            tk.meta(8, dtype)


@pytest.mark.parametrize("dtype", [tk.float8_e4m3fn, tk.float8_e5m2, tk.float8_e8m0fnu], ids=str)
def test_constants_are_rounded_as_conversions_are(dtype, run, device):
    needs(device, (10, 0) if dtype is tk.float8_e8m0fnu else (8, 9))
    for number in (1.3, 3.0, 1e-9, 1000.0, 1e30, 0.0):
        (constant,) = run(
            create, ((1,), "f4", 1), lambda n=number: tk.full((1,), n, dtype).astype(tk.float32)
        )
        x = np.array([number], "f4")
        (converted,) = run(apply, ((1,), "f4", 1), x, lambda t: t.astype(dtype).astype(tk.float32), (1,))
        assert constant == converted, number
