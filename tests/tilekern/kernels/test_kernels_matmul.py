"""Matrix products of the library."""

import math

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.kernels import _matmul as matmul_module
from tilekern.kernels import _plans
from tilekern.kernels._plans import ProductPlan

k = tk.kernels


def magnitude(a, b):
    """What the rounding of a sum of products grows with."""
    return np.abs(a) @ np.abs(b)


@pytest.mark.parametrize(("m", "n", "depth"), [(70, 130, 45), (1, 3, 200), (33, 16, 1)])
def test_matmul_of_ragged_sizes(values, m, n, depth):
    a, a64 = values(m, depth)
    b, b64 = values(depth, n)
    values.close(k.matmul(a, b), a64 @ b64, scale=magnitude(a64, b64))


def test_matmul_takes_transposed_views_and_slices(values):
    a, a64 = values(40, 60)
    b, b64 = values(50, 40)
    values.close(k.matmul(a.T, b.T), a64.T @ b64.T, scale=magnitude(a64.T, b64.T))
    values.close(k.matmul(a[:, 8:40], b.T[3:35]), a64[:, 8:40] @ b64.T[3:35], scale=40)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("none", lambda x: x),
        ("relu", lambda x: np.maximum(x, 0)),
        ("gelu", lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))),
        ("silu", lambda x: x / (1 + np.exp(-x))),
    ],
)
def test_bias_activation_and_residual_come_after_the_sum(values, activation, function):
    a, a64 = values(30, 40, scale=0.3)
    b, b64 = values(40, 50)
    bias, bias64 = values(50)
    residual, residual64 = values(30, 50)
    expected = function(a64 @ b64 + bias64) + residual64
    scale = magnitude(a64, b64) + 4
    for how in ({}, {"splits": 3}, {"persistent": True}):
        op = k.matmul(a, b, bias=bias, activation=activation, residual=residual, **how)
        values.close(op, expected, scale=scale)


def test_splits_beyond_the_common_axis_add_nothing(values):
    a, a64 = values(20, 40)
    b, b64 = values(40, 20)
    values.close(k.matmul(a, b, splits=9), a64 @ b64, scale=magnitude(a64, b64))


def test_persistent_blocks_walk_all_tiles(values):
    a, a64 = values(300, 20)
    b, b64 = values(20, 260)
    values.close(k.matmul(a, b, persistent=True), a64 @ b64, scale=magnitude(a64, b64))
    place = ca.zeros((300, 260), values.dtype).sync()
    values.close(k.matmul(a, b, persistent=True, out=place), a64 @ b64, scale=magnitude(a64, b64))


PLANS = {
    "pair": (ProductPlan(16, 32, 16, form="pair"), 144),
    "one pair": (ProductPlan(16, 32, 16, form="pair"), 48),
    "stationary": (ProductPlan(16, 32, 16, form="stationary"), 70),
    "stationary, one strip": (ProductPlan(32, 32, 64, form="stationary"), 20),
}


@pytest.mark.parametrize("given", [False, True], ids=["new", "out"])
@pytest.mark.parametrize("form", PLANS)
def test_products_in_other_forms(values, monkeypatch, form, given):
    """Pairs of tiles, and columns that a block keeps while it goes down the rows: ragged, with all that may follow."""
    plan, n = PLANS[form]
    a, a64 = values(109, 50, scale=0.3)
    w, w64 = values(n, 50)
    bias, bias64 = values(n)
    residual, residual64 = values(109, n)
    expected = np.maximum(a64 @ w64.T + bias64, 0) + residual64
    scale = magnitude(a64, w64.T) + 4
    monkeypatch.setattr(matmul_module, "product_plan", lambda *args, **more: plan)
    monkeypatch.setattr(matmul_module, "multiprocessors", lambda tensor: 7)
    place = ca.zeros((109, n), values.dtype).sync() if given else None
    for residuals, want in ((residual, expected), (None, expected - residual64)):
        op = k.matmul(a, w.T, bias=bias, activation="relu", residual=residuals, out=place)
        values.close(op, want, scale=scale)
    values.close(k.matmul(a, w.T), a64 @ w64.T, scale=scale)


@pytest.mark.parametrize(("m", "n", "depth"), [(130, 192, 40), (1100, 384, 300), (2000, 96, 1000)])
def test_products_of_many_rows(values, m, n, depth):
    a, a64 = values(m, depth)
    b, b64 = values(depth, n)
    values.close(k.matmul(a, b), a64 @ b64, scale=magnitude(a64, b64))


def test_factors_as_tfloat32_keep_ten_bits(device):
    a = np.float32([[1 + 2.0**-10, 1 + 2.0**-13]])
    op = k.matmul(ca.from_host(a), ca.from_host(np.eye(2, dtype="f4")), tf32=True)
    assert op.to_host().sync().tolist() == [[1 + 2.0**-10, 1.0]]


@pytest.mark.parametrize(("m", "n", "depth"), [(100, 70, 4096), (16, 33, 700), (600, 300, 64)])
def test_long_sums_of_positive_float32_are_as_exact_as_float32(device, m, n, depth):
    """Tensor cores cut their sums off towards zero: left to them, the first would be off by 3e-5."""
    random = np.random.default_rng(3)
    a, b = (np.abs(random.standard_normal(shape, dtype="f4")) for shape in ((m, depth), (depth, n)))
    x, by_rows = ca.from_host(a).sync(), ca.from_host(b).sync()
    by_columns = ca.from_host(b.T.copy()).sync().T
    products = [k.matmul(x, factor, splits=1) for factor in (by_rows, by_columns)]
    products.append(k.batched_matmul(x[None], by_rows[None]).reshape((m, n)))
    for product in products:
        assert np.abs(product.to_host().sync() / (a.astype("f8") @ b) - 1).max() < 2e-6


def test_float32_at_the_ends_of_its_range(device):
    inf, nan = np.inf, np.nan
    most = np.finfo("f4").max * (1 - 2.0**-20)  # what is above may round to infinity
    rows = np.float32(
        [
            [inf, 1, 0, 0, 0],
            [-inf, inf, 0, 0, 0],
            [nan, 0, 0, 0, 0],
            [most, -most, 0, 0, 0],
            [most, 0, 0, 0, 0],
            [-most, -1, 0, 0, 0],
            [2.0**-100, 2.0**-124, 0, 0, 0],
            [0, 0, 0, 0, inf],
            [1 + 2.0**-23, 0, 0, 0, 0],
        ]
    )
    b = np.zeros((5, 8), "f4")
    b[:2, 0], b[:2, 1], b[:2, 2], b[:, 3] = 1, (0.5, 2), (-1, 1), 1
    b[:2, 4] = most, 0.75
    with np.errstate(all="ignore"):
        expected = (rows[:, :, None] * b[None]).sum(1, dtype="f4")
    found = k.matmul(ca.from_host(rows), ca.from_host(b)).to_host().sync()
    np.testing.assert_allclose(found, expected, rtol=2.0**-22)


def test_whole_numbers_up_to_2048_multiply_exactly(device):
    random = np.random.default_rng(4)
    a, b = (random.integers(-2048, 2049, shape) for shape in ((70, 3), (3, 40)))
    found = k.matmul(ca.from_host(a.astype("f4")), ca.from_host(b.astype("f4"))).to_host().sync()
    np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize("rows", [1, 3, 4, 5])
def test_linear_takes_weights_as_models_store_them(values, rows):
    x, x64 = values(rows, 576)
    w, w64 = values(70, 576)
    b, b64 = values(70)
    r, r64 = values(rows, 70)
    scale = magnitude(x64, w64.T)
    values.close(k.linear(x, w, b, residual=r), x64 @ w64.T + b64 + r64, scale=scale)
    place = ca.empty((rows, 70), values.dtype).sync()
    values.close(k.linear(x, w, activation="relu", out=place), np.maximum(x64 @ w64.T, 0), scale=scale)


def test_linear_keeps_leading_axes(values):
    x, x64 = values(2, 3, 20)
    w, w64 = values(10, 20)
    values.close(k.linear(x, w), x64 @ w64.T, scale=20)
    values.close(k.linear(x[0, 0], w), x64[0, 0] @ w64.T, scale=20)


def test_matvec(values):
    w, w64 = values(45, 1100)
    x, x64 = values(1100)
    b, b64 = values(45)
    values.close(k.matvec(w, x, bias=b), w64 @ x64 + b64, scale=magnitude(w64, x64))


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(("turn_a", "turn_b"), [(True, False), (False, True), (True, True)])
def test_factors_that_lie_by_rows_are_copied_where_that_pays(device, monkeypatch, turn_a, turn_b, tf32):
    monkeypatch.setattr(_plans, "_COPY", (0, 0))
    monkeypatch.setattr(_plans, "_COPY_TF32", (0, 0))
    copied = []
    monkeypatch.setattr(matmul_module, "transpose", lambda x: copied.append(x.shape) or k.transpose(x))
    random = np.random.default_rng(1)
    a64, b64 = (random.integers(-8, 8, shape).astype("f8") for shape in ((2, 40, 70), (2, 70, 50)))
    a = ca.from_host((a64.transpose(0, 2, 1) if turn_a else a64).astype("f4", order="C")).sync()
    b = ca.from_host((b64 if turn_b else b64.transpose(0, 2, 1)).astype("f4", order="C")).sync()
    a = a.permute(0, 2, 1) if turn_a else a
    b = b if turn_b else b.permute(0, 2, 1)
    place = ca.empty((40, 50), "float32").sync()
    result = k.matmul(a[1], b[1], out=place, tf32=tf32, activation="relu").to_host().sync()
    assert np.array_equal(result, np.maximum(a64[1] @ b64[1], 0))
    assert np.array_equal(place.to_host().sync(), result)
    assert np.array_equal(k.batched_matmul(a, b, tf32=tf32).to_host().sync(), a64 @ b64)
    if device.compute_capability[0] == 9:
        one = [(70, 40)] * turn_a + [(70, 50)] * turn_b
        assert copied == [*one, *((2, *shape) for shape in one)]
    else:
        assert not copied


@pytest.mark.parametrize("copy", [(0, 0), (1 << 40, 1 << 40)])
def test_batched_products_do_not_go_to_their_factors(host, monkeypatch, copy):
    monkeypatch.setattr(_plans, "_COPY", copy)
    a, b = ca.ones((2, 48, 48)).sync(), ca.ones((2, 48, 48)).sync()
    for out in (a, b):
        with pytest.raises(ca.AliasError, match="batched_matmul"):
            k.batched_matmul(a.permute(0, 2, 1), b, out=out).sync()


def test_batched_matmul(values):
    a, a64 = values(3, 20, 37)
    b, b64 = values(3, 41, 37)
    values.close(k.batched_matmul(a, b.permute(0, 2, 1)), a64 @ b64.transpose(0, 2, 1), scale=60)


@pytest.mark.parametrize(("count", "m", "n", "depth"), [(5, 260, 140, 70), (70, 130, 200, 33), (3, 4, 5, 0)])
def test_batched_products_of_many_tiles(values, count, m, n, depth):
    a, a64 = values(count, m, depth)
    b, b64 = values(count, depth, n)
    values.close(k.batched_matmul(a, b), a64 @ b64, scale=60)
    place = ca.empty((count, m, n), values.dtype).sync()
    values.close(k.batched_matmul(a, b, out=place), a64 @ b64, scale=60)


def test_wrong_products_are_refused(host):
    a, b = ca.ones((3, 4)).sync(), ca.ones((5, 3)).sync()
    with pytest.raises(ValueError, match=r"matmul: these shapes do not go together: a \(3, 4\), b \(5, 3\)"):
        k.matmul(a, b)
    with pytest.raises(ValueError, match='activation is "none", "relu"'):
        k.matmul(b, a, activation="tanh")
    with pytest.raises(ValueError, match="splits is a whole number"):
        k.matmul(b, a, splits=0)
    with pytest.raises(ValueError, match="persistent"):
        k.matmul(b, a, splits=2, persistent=True)
    with pytest.raises(ValueError, match=r"bias has the shape \(3,\), it must be \(4,\)"):
        k.matmul(b, a, bias=ca.ones(3).sync())
    with pytest.raises(ValueError, match="linear: these shapes"):
        k.linear(a, b)
    with pytest.raises(tk.KernelError, match="precision is ieee, tf32 or tf32x3, got half"):
        k.raw.batched_matmul(ca.empty((1, 4, 4)).partition((1, 4, 4)), a[None], a.T[None], 4, "half").sync()
