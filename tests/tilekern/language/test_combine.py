"""Reductions and scans with a function of one's own, and the options of the built-in ones, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

import tilekern as tk

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
NUMBERS = [*FLOATS, "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
RM = tk.RoundingMode


def ids(value):
    return np.dtype(value).name if isinstance(value, type | str) else None


@tk.kernel
def apply(out, x, f: tk.Constant[object], shape: tk.Constant[tuple]):
    out.store(f(tk.load(x, (0,) * len(shape), shape)))


@pytest.fixture
def of(run):
    """`of(x, f, shape, dtype)`: what the kernel function f makes of the array x."""

    def compute(x, f, shape=None, dtype=None):
        shape = x.shape if shape is None else shape
        return run(apply, (shape, x.dtype if dtype is None else dtype, shape), x, f, x.shape)

    return compute


def small(dtype, shape=(4, 2, 8), seed=3):
    """Numbers of which no sum or product of eight is rounded."""
    return np.random.default_rng(seed).integers(1, 3, shape).astype(dtype)


@pytest.mark.parametrize("dtype", NUMBERS, ids=ids)
def test_reduction_with_a_function(dtype, of):
    x = small(dtype)
    wide = x.astype("f8") if np.dtype(dtype).kind not in "iu" else x
    for axis in (0, 1, -1):
        expected = np.sum(wide, axis, dtype=wide.dtype).astype(dtype)
        shape = expected.shape
        assert np.array_equal(
            of(x, lambda t, a=axis: tk.reduce(t, a, lambda p, q: p + q, 0), shape), expected
        )
    kept = of(x, lambda t: tk.reduce(t, 1, lambda p, q: p * q, 1, keepdims=True), (4, 1, 8))
    assert np.array_equal(kept, np.prod(wide, 1, keepdims=True, dtype=wide.dtype).astype(dtype))


@pytest.mark.parametrize("dtype", NUMBERS, ids=ids)
def test_scan_with_a_function(dtype, of):
    x = small(dtype, (4, 8))
    wide = x.astype("f8") if np.dtype(dtype).kind not in "iu" else x
    for axis in (0, 1):
        expected = np.cumprod(wide, axis, dtype=wide.dtype).astype(dtype)
        assert np.array_equal(of(x, lambda t, a=axis: tk.scan(t, a, lambda p, q: p * q, 1)), expected)
        expected = np.flip(np.cumsum(np.flip(wide, axis), axis, dtype=wide.dtype), axis).astype(dtype)
        assert np.array_equal(
            of(x, lambda t, a=axis: tk.scan(t, a, lambda p, q: p + q, 0, reverse=True)), expected
        )


def test_tiles_are_reduced_together(of):
    """The largest number and the last place it stands at."""
    x = np.random.default_rng(1).integers(0, 5, (4, 16)).astype("f4")

    def last_of_largest(t):
        place = tk.arange(16, dtype=tk.int32)[None, :]

        def later(a, i, b, j):
            takes = (b > a) | ((b == a) & (j > i))
            return tk.where(takes, b, a), tk.where(takes, j, i)

        value, index = tk.reduce((t, place), 1, later, (float("-inf"), -1))
        return tk.cat((value[:, None], index.astype(tk.float32)[:, None]), 1)

    expected = np.stack([x.max(1), 15 - np.argmax(x[:, ::-1], 1)], 1)
    assert np.array_equal(of(x, last_of_largest, (4, 2)), expected)


def test_order_of_a_scan_is_kept(of):
    """Composition of affine maps is associative and does not commute: y = a * y + b from left to right."""
    a = np.array([0.5, 2, -1, 4, 0.25, 1, -2, 1], "f4")
    b = np.arange(8).astype("f4")

    def recurrence(t):
        scale, shift = tk.extract(t, (0, 0), (1, 8)).reshape(8), tk.extract(t, (1, 0), (1, 8)).reshape(8)
        return tk.scan((scale, shift), 0, lambda s, h, u, k: (s * u, h * u + k), (1, 0))[1]

    expected, y = [], 0.0
    for s, h in zip(a, b):
        y = s * y + h
        expected.append(y)
    assert of(np.stack([a, b]), recurrence, (8,)).tolist() == expected


def test_function_may_branch_and_see_what_is_around(of):
    x = np.array([3, -1, 4, -1, 5, -9, 2, 6], "i4")

    def clipped(t):
        limit = t.max()

        def add(a, b):
            c = a + b
            if c > limit:
                c = limit
            return c

        return tk.reduce(t, 0, add, 0).reshape(1)

    assert of(np.abs(x), clipped, (1,)).tolist() == [9]


@tk.kernel
def block_sums(out: tk.Tile1D, x: tk.Tensor1D):
    shift = tk.bid(0)
    out.store(
        tk.reduce(tk.load(x, 0, 8), 0, lambda a, b: tk.maximum(a + 0, b + 0) + (shift - shift), -1) + shift
    )


def test_function_knows_its_block(run):
    """What differs between blocks goes into the function as well."""
    x = np.arange(8, dtype="i4")
    assert run(block_sums, ((4,), "i4", 1), x).tolist() == [7, 8, 9, 10]

    @tk.kernel
    def largest_up_to(out: tk.Tile1D, x: tk.Tensor1D):
        limit = tk.bid(0) + 2
        t = tk.load(x, 0, 8)
        best = tk.reduce(t, 0, lambda a, b: tk.where((b > a) & (b <= limit), b, a), -1)
        out.store(tk.scan(t, 0, lambda a, b: tk.minimum(a + b, limit), 0).max() + best - best)

    assert run(largest_up_to, ((4,), "i4", 1), x).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("mode", ["RZ", "RM", "RP"])
def test_sums_are_rounded_step_by_step(mode, of):
    """All small ones together are less than a unit of 1: lost, or one unit or more, in whatever order."""
    x = np.array([1] + [2.0**-26] * 7, "f4")
    low, high = np.float32(1), np.float32(1 + 2.0**-23)
    for function in (
        lambda t: tk.sum(t, 0, rounding_mode=RM[mode]).reshape(1),
        lambda t: tk.extract(tk.cumsum(t, 0, rounding_mode=RM[mode]), (7,), (1,)),
    ):
        (result,) = of(x, function, (1,))
        assert result >= high if mode == "RP" else result == low


def test_reductions_flush(of):
    small_one = np.float32(2.0**-127)
    x = np.array([[small_one] * 4, [1, 1, 1, 1]], "f4")
    for function in (tk.sum, tk.prod, tk.max, tk.min):
        flushed = of(x, lambda t, f=function: f(t, 1, flush_to_zero=True), (2,))
        assert flushed[0] == 0
        assert flushed[1] == function_of_ones(function)
    assert of(x, lambda t: tk.sum(t, 1), (2,)).tolist() == [4 * small_one, 4]
    assert of(x, lambda t: tk.cumsum(t, 1, flush_to_zero=True))[0].tolist() == [small_one, 0, 0, 0]


def function_of_ones(function):
    return 4 if function is tk.sum else 1


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
def test_arg_reductions_leave_nan_out_on_request(dtype, of):
    x = np.array([[1, np.nan, 3, np.nan], [np.nan] * 4, [-np.inf, np.nan, -np.inf, -np.inf], [3, 1, 3, 1]])
    x = x.astype(dtype)
    assert of(x, lambda t: tk.argmax(t, 1, propagate_nan=False), (4,), "i4").tolist() == [2, 0, 0, 0]
    assert of(x, lambda t: tk.argmin(t, 1, propagate_nan=False), (4,), "i4").tolist() == [0, 0, 0, 1]
    assert of(x, lambda t: tk.argmax(t, 1), (4,), "i4").tolist() == [1, 0, 1, 0]


# ------------------------------------------------------------------ what is refused


@tk.kernel
def refused(out, x, f: tk.Constant[object]):
    out.store(f(tk.load(x, 0, 8)))


def _prints(a, b):
    print(a, b)
    return a


REFUSED = [
    (lambda t: tk.reduce(t, 0, lambda a, b: 1.5, 0), "i4", "combines int32 scalars .* and gives 1.5"),
    (lambda t: tk.reduce(t, 0, lambda a, b: (a, b), 0), "i4", "gives 1 scalars, one per tile"),
    (lambda t: tk.reduce(t, 0, lambda a, b: a, (0, 0)), "i4", "takes as many identities, got 2"),
    (lambda t: tk.reduce(t, 0, lambda a, b: a, float("inf")), "i4", "use its largest number, 2147483647"),
    (lambda t: tk.reduce(t, 0, lambda a, b: a, t), "f4", "an identity is a number known at compile time"),
    (lambda t: tk.reduce(t, 0, _prints, 0), "f4", "only computes scalars"),
    (lambda t: tk.scan(t, 1, lambda a, b: a, 0), "f4", "axis is 1, but there are 1 axes"),
    (lambda t: tk.max(t, 0).sum(0), "f4", "axis is 0, but there are 0 axes"),
    (lambda t: tk.sum(t, 0, rounding_mode=RM.RZ), "i4", "sum of int32 is exact or wraps"),
]


@pytest.mark.parametrize(("function", "dtype", "message"), REFUSED)
def test_wrong_use_is_refused(function, dtype, message):
    t = tk.meta(8, dtype)
    with pytest.raises(tk.KernelError, match=message):
        refused.ir(t.partition(8), t, function)
