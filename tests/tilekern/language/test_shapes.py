"""Creating tiles, moving elements, reductions, scans and products, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
INTS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


def ids(value):
    return np.dtype(value).name if isinstance(value, type | str) else None


@tk.kernel
def apply(out, x, f: tk.Constant[object], shape: tk.Constant[tuple]):
    """f of all of x, stored as all of out."""
    out.store(f(tk.load(x, (0,) * len(shape), shape)))


@pytest.fixture
def of(run):
    """`of(x, f, shape=None, dtype=None)`: what the kernel function f makes of the array x."""

    def compute(x, f, shape=None, dtype=None):
        shape = x.shape if shape is None else shape
        return run(apply, (shape, x.dtype if dtype is None else dtype, shape), x, f, x.shape)

    return compute


X = np.arange(64, dtype="f4").reshape(4, 2, 8)


@pytest.mark.parametrize(
    ("function", "numpy"),
    [
        (lambda t: t.reshape((8, 8)), lambda x: x.reshape(8, 8)),
        (lambda t: t.reshape((-1, 4)), lambda x: x.reshape(-1, 4)),
        (lambda t: tk.reshape(t, 64), lambda x: x.reshape(64)),
        (lambda t: t.permute((2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
        (lambda t: t.permute((-1, 0, -2)), lambda x: x.transpose(2, 0, 1)),
        (lambda t: t.transpose(0, 2), lambda x: x.swapaxes(0, 2)),
        (lambda t: t.reshape((8, 8)).transpose(), lambda x: x.reshape(8, 8).T),
        (lambda t: tk.cat((t, t + 1), axis=1), lambda x: np.concatenate([x, x + 1], 1)),
        (
            lambda t: tk.cat((t, t + 1, t + 2, t + 3), axis=-1),
            lambda x: np.concatenate([x, x + 1, x + 2, x + 3], 2),
        ),
        (lambda t: tk.extract(t, (1, 0, 3), (2, 2, 2)), lambda x: x[2:4, :, 6:8]),
        (lambda t: tk.extract(t, (tk.bid(0) + 1, 0, 3), (2, 2, 2)), lambda x: x[2:4, :, 6:8]),
        (
            lambda t: tk.sum(t, 0)[:, None],
            lambda x: x.sum(0)[:, None],
        ),
        (lambda t: t[..., None].reshape((64, 1, 1)), lambda x: x.reshape(64, 1, 1)),
        (lambda t: tk.expand_dims(tk.max(t, 1), (0, -1)), lambda x: x.max(1)[None, :, :, None]),
        (
            lambda t: tk.broadcast_to(tk.max(t, (0, 1)), (4, 8)),
            lambda x: np.broadcast_to(x.max((0, 1)), (4, 8)),
        ),
        (lambda t: tk.max(t).reshape((1,)) + 0, lambda x: x.max().reshape(1)),
        (lambda t: tk.broadcast_to(tk.item(tk.max(t, keepdims=True)), (2,)), lambda x: np.full(2, x.max())),
    ],
)
def test_shape_function(function, numpy, of):
    expected = numpy(X)
    if expected.ndim > 3:
        folded = expected.reshape(-1)
        result = of(X, lambda t: function(t).reshape(-1), folded.shape)
        assert np.array_equal(result, folded)
    else:
        assert np.array_equal(of(X, function, expected.shape), expected)


@pytest.mark.parametrize("number", [-2, -1, 4, 5])
@pytest.mark.parametrize("name", ["extract", "insert"])
def test_a_part_that_is_not_there(number, name, host):
    """Known at run time only: NumPy would count a negative one from the end, and cut one past it."""

    @tk.kernel
    def kernel(out, x, place: int):
        t = tk.load(x, (0, 0), (4, 8))
        if name == "extract":
            out.store(tk.extract(t, (0, place), (4, 2)))
        else:
            out.store(tk.extract(tk.insert(t, (0, place), tk.zeros((4, 2), t.dtype)), (0, 0), (4, 2)))

    x = ca.from_host(X.reshape(8, 8)[:4]).sync()
    with pytest.raises(
        tk.KernelIndexError, match=rf"{name} of part \(0, {number}\).*which has \(1, 4\) parts"
    ):
        kernel(ca.empty((4, 2), "f4").partition((4, 2)), x, number).sync()


@tk.kernel
def create(out, f: tk.Constant[object]):
    out.store(f())


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=ids)
def test_creation(dtype, run):
    kind = next(
        d for d in map(tk.__dict__.get, tk.__all__) if isinstance(d, tk.DType) and d.dtype == np.dtype(dtype)
    )
    for function, expected in (
        (lambda: tk.full((2, 8), 3, kind), np.full((2, 8), 3, dtype)),
        (lambda: tk.zeros((2, 8), kind), np.zeros((2, 8), dtype)),
        (lambda: tk.ones((2, 8), kind), np.ones((2, 8), dtype)),
        (lambda: tk.arange(16, dtype=kind).reshape((2, 8)), np.arange(16).astype(dtype).reshape(2, 8)),
        (
            lambda: tk.arange(16, start=5, step=3, dtype=kind).reshape((2, 8)),
            (5 + 3 * np.arange(16)).astype(dtype).reshape(2, 8),
        ),
    ):
        assert np.array_equal(run(create, ((2, 8), dtype, (2, 8)), function), expected)


def test_arange_of_a_byte(run):
    assert np.array_equal(
        run(create, ((256,), "u1", 256), lambda: tk.arange(256, dtype=tk.uint8)), np.arange(256)
    )


KEEP = [(0, False), (1, True), (-1, False), ((0, 2), True), (None, False), (None, True), ((1, 2), False)]


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=ids)
def test_reduction(name, dtype, of, device):
    rng = np.random.default_rng(3)
    x = (
        rng.integers(-3, 4, (4, 2, 8)) if np.dtype(dtype).kind != "u" else rng.integers(0, 4, (4, 2, 8))
    ).astype(dtype)
    if name == "prod":
        x = np.where(x == 0, np.array(1, dtype), x)
    numpy = getattr(np, name)
    for axis, keepdims in KEEP:
        wide = x.astype("f8") if np.dtype(dtype).kind not in "iu" else x
        extra = {"dtype": wide.dtype} if name in ("sum", "prod") else {}
        with np.errstate(over="ignore"):
            expected = np.asarray(numpy(wide, axis=axis, keepdims=keepdims, **extra)).astype(dtype)
        shape = expected.shape or (1,)
        result = of(x, lambda t, a=axis, k=keepdims: getattr(tk, name)(t, a, keepdims=k), shape)
        assert np.array_equal(result, expected.reshape(shape))


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
def test_long_float_sum_is_exact_to_the_last_place(dtype, of, device):
    """Sums are kept wider than their type; on a GPU float32 sums are of float32."""
    x = np.random.default_rng(1).standard_normal((2, 4096)).astype(dtype)
    exact = x.astype(np.longdouble).sum(1)
    result = of(x, lambda t: tk.sum(t, 1), (2,)).astype(np.longdouble)
    unit = np.spacing(np.abs(exact).astype(dtype)).astype(np.longdouble)
    assert (np.abs(result - exact) / unit).max() <= (
        0.51 if device.kind == "host" and dtype != np.float64 else 64
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
def test_nan_is_kept_by_reductions_unless_told_otherwise(dtype, of):
    x = np.array([[1, 2, np.nan, 4], [4, 3, 2, 1]]).astype(dtype)
    for function, quiet in ((tk.max, 4), (tk.min, 1)):
        result = of(x, lambda t, f=function: f(t, 1), (2,)).astype("f8")
        assert np.isnan(result[0])
        assert result[1] == quiet
        result = of(x, lambda t, f=function: f(t, 1, propagate_nan=False), (2,)).astype("f8")
        assert result.tolist() == [quiet, quiet]
    assert np.isnan(of(x, lambda t: tk.sum(t, 1), (2,)).astype("f8")).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=ids)
def test_arg_reductions(dtype, of):
    x = np.random.default_rng(2).integers(0, 5, (4, 16)).astype(dtype)
    for axis, shape in ((1, (4,)), (0, (16,)), (None, (1,))):
        for ours, numpy in ((tk.argmax, np.argmax), (tk.argmin, np.argmin)):
            result = of(x, lambda t, f=ours, a=axis: f(t, a), shape, "i4")
            assert np.array_equal(result, np.asarray(numpy(x.astype("f8"), axis=axis)).reshape(shape))
    assert np.array_equal(of(x, lambda t: tk.argmax(t, 1, keepdims=True), (4, 1), "i4"), x.argmax(1)[:, None])


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
@pytest.mark.parametrize("propagate", [True, False])
def test_reductions_take_plus_zero_as_larger(dtype, propagate, of):
    x = np.array([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [-0.0, -1.0], [0.0, 1.0]] + [[1, 2]] * 3).astype(
        dtype
    )
    signs = [np.signbit(row) for row in x]
    largest = of(x, lambda t, p=propagate: tk.max(t, 1, propagate_nan=p), (8,)).astype("f8")
    smallest = of(x, lambda t, p=propagate: tk.min(t, 1, propagate_nan=p), (8,)).astype("f8")
    assert np.signbit(largest)[:4].tolist() == [bool(s.all()) for s in signs[:4]]
    assert np.signbit(smallest)[[0, 1, 2, 4]].tolist() == [bool(signs[k].any()) for k in (0, 1, 2, 4)]


def test_arg_reductions_of_nan_and_infinity(of):
    x = np.array([[1, np.nan, 3, np.nan], [-np.inf] * 4, [2, 2, 2, 2], [3, 1, 3, 1]], "f4")
    assert of(x, lambda t: tk.argmax(t, 1), (4,), "i4").tolist() == [1, 0, 0, 0]
    assert of(x, lambda t: tk.argmin(t, 1), (4,), "i4").tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=ids)
def test_scan(dtype, of):
    x = np.random.default_rng(4).integers(1, 3, (4, 8)).astype(dtype)
    wide = x.astype("f8") if np.dtype(dtype).kind not in "iu" else x
    for axis in (0, 1):
        for ours, numpy in ((tk.cumsum, np.cumsum), (tk.cumprod, np.cumprod)):
            expected = numpy(wide, axis, dtype=wide.dtype).astype(dtype)
            assert np.array_equal(of(x, lambda t, f=ours, a=axis: f(t, a)), expected)
            expected = np.flip(numpy(np.flip(wide, axis), axis, dtype=wide.dtype), axis).astype(dtype)
            assert np.array_equal(of(x, lambda t, f=ours, a=axis: f(t, a, reverse=True)), expected)


@tk.kernel
def product(out, x, y, acc, shapes: tk.Constant[tuple]):
    a, b, c = shapes
    left = tk.load(x, (0,) * len(a), a)
    right = tk.load(y, (0,) * len(b), b)
    out.store(tk.mma(left, right, tk.load(acc, (0,) * len(c), c)))


MMA = [
    *[
        (np.float16, np.float16),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (np.float32, np.float32),
    ],
    *[(np.float64, np.float64), ("i1", "i4"), ("u1", "i4")],
    *[(ml_dtypes.float8_e4m3fn, np.float32), (ml_dtypes.float8_e5m2, np.float16)],
]


@pytest.mark.parametrize(("dtype", "kept"), MMA, ids=ids)
def test_mma_of_whole_numbers_is_exact(dtype, kept, run, device):
    if device.kind == "cuda" and "float8" in np.dtype(dtype).name and device.compute_capability < (8, 9):
        pytest.skip("no fp8 here")
    rng = np.random.default_rng(6)
    low = 0 if np.dtype(dtype).kind == "u" else -3
    for shapes in (((32, 16), (16, 8), (32, 8)), ((2, 16, 32), (2, 32, 16), (2, 16, 16))):
        x, y, acc = (rng.integers(low, 4, shape) for shape in shapes)
        result = run(
            product, (shapes[2], kept, shapes[2]), x.astype(dtype), y.astype(dtype), acc.astype(kept), shapes
        )
        assert np.array_equal(result.astype("i8"), x @ y + acc)


def test_mma_of_mixed_signs(run):
    x, y = np.array([[-100] * 16] * 16, "i1"), np.array([[200] * 16] * 16, "u1")
    acc = np.zeros((16, 16), "i4")
    shapes = ((16, 16),) * 3
    assert np.array_equal(
        run(product, ((16, 16), "i4", (16, 16)), x, y, acc, shapes), x.astype("i4") @ y.astype("i4")
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [((16, 32), (32, 16)), ((32,), (32, 16)), ((16, 32), (32,)), ((2, 16, 16), (16, 16)), ((32,), (32,))],
)
def test_matmul_like_numpy(left, right, run):
    rng = np.random.default_rng(7)
    x, y = rng.integers(-3, 4, left).astype("f4"), rng.integers(-3, 4, right).astype("f2")

    @tk.kernel
    def multiply(out, x, y):
        out.store(tk.load(x, (0,) * len(left), left) @ tk.load(y, (0,) * len(right), right))

    expected = x @ y.astype("f4")
    shape = expected.shape or (1,)
    assert np.array_equal(run(multiply, (shape, "f4", shape), x, y), expected.reshape(shape))


def test_tf32_product_drops_low_bits(run, device):
    """1 + 2**-12 is 1 in tfloat32."""

    @tk.kernel
    def multiply(out, x, y):
        a, b = tk.load(x, (0, 0), (16, 16)), tk.load(y, (0, 0), (16, 16))
        acc = tk.zeros((16, 16), tk.float32)
        out.store(tk.mma(a.astype(tk.tfloat32), b.astype(tk.tfloat32), acc))

    x = np.full((16, 16), 1 + 2.0**-12, "f4")
    assert np.array_equal(run(multiply, ((16, 16), "f4", (16, 16)), x, x), np.full((16, 16), 16, "f4"))


@pytest.mark.parametrize("index", [2**32 + 1, -(2**32) + 1, 8, -1])
def test_part_that_is_none_is_refused_whatever_its_type(host, index):
    """Not cut to 32 bits, which would name a part."""

    @tk.kernel
    def extracted(out: tk.Tile1D, x: tk.Tensor1D, n: int):
        out.store(tk.extract(tk.load(x, 0, 8), (n,), (1,)))

    @tk.kernel
    def inserted(out: tk.Tile1D, x: tk.Tensor1D, n: int):
        out.store(tk.insert(tk.load(x, 0, 8), (n,), tk.full((1,), 9, tk.int32)))

    x = ca.from_host(np.arange(8, dtype="i4")).sync()
    for kernel, size in ((extracted, 1), (inserted, 8)):
        with pytest.raises(tk.KernelIndexError):
            kernel(ca.empty(size, "i4").partition(size), x, index).sync()
        kernel(ca.empty(size, "i4").partition(size), x, 1).sync()
