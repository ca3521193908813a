"""Sizes and options drawn at random, against NumPy in float64."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cuda_async as ca
import tilekern as tk

k = tk.kernels
drawn = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def sizes(largest):
    return st.integers(1, largest)


def operands(seed, *shapes):
    """(tensors, the same numbers in float64)."""
    random = np.random.default_rng(seed)
    arrays = [random.standard_normal(shape).astype("f4") for shape in shapes]
    return [ca.from_host(a).sync() for a in arrays], [a.astype("f8") for a in arrays]


@drawn
@given(sizes(90), sizes(90), sizes(90), st.sampled_from([None, 1, 2, 5]), st.booleans(), sizes(1 << 20))
def test_products(host, m, n, depth, splits, transposed, seed):
    (a, b), (a64, b64) = operands(seed, (m, depth), (n, depth) if transposed else (depth, n))
    b, b64 = (b.T, b64.T) if transposed else (b, b64)
    for how in ({"splits": splits}, {"persistent": True}):
        result = k.matmul(a, b, **how).to_host().sync()
        np.testing.assert_allclose(result, a64 @ b64, rtol=0, atol=1e-5 * math.sqrt(depth) + 1e-6)


@drawn
@given(sizes(6), sizes(150), sizes(90), sizes(1 << 20))
def test_layers(host, rows, n, depth, seed):
    (x, w, b), (x64, w64, b64) = operands(seed, (rows, depth), (n, depth), (n,))
    result = k.linear(x, w, b).to_host().sync()
    np.testing.assert_allclose(result, x64 @ w64.T + b64, rtol=0, atol=1e-5 * math.sqrt(depth) + 1e-6)


@drawn
@given(sizes(5), sizes(300), sizes(1 << 20))
def test_rows(host, rows, columns, seed):
    (x, w), (x64, w64) = operands(seed, (rows, columns), (columns,))
    e = np.exp(x64 - x64.max(1, keepdims=True))
    np.testing.assert_allclose(
        k.softmax(x).to_host().sync(), e / e.sum(1, keepdims=True), rtol=3e-6, atol=1e-7
    )
    centred = x64 - x64.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-3) * w64
    np.testing.assert_allclose(k.layer_norm(x, w, eps=1e-3).to_host().sync(), expected, rtol=2e-5, atol=2e-5)
    assert k.argmax(x).to_host().sync().tolist() == x64.argmax(1).tolist()
    assert np.array_equal(k.transpose(x).to_host().sync(), x64.T)


@drawn
@given(
    st.sampled_from([(1, 1), (2, 1), (6, 2)]),
    sizes(100),
    sizes(100),
    sizes(40),
    st.sampled_from(["all", "causal", "window"]),
    sizes(60),
    st.booleans(),
    sizes(1 << 20),
)
def test_attention(host, heads, queries, keys, size, kind, window, has_lengths, seed):
    if kind != "all":
        keys = max(keys, queries)
    (q, key, value), (q64, key64, value64) = operands(
        seed, (2, heads[0], queries, size), (2, heads[1], keys, size), (2, heads[1], keys, size)
    )
    lengths = np.random.default_rng(seed).integers(0, keys + 5, 2).astype("i4") if has_lengths else None
    options = {"causal": kind != "all", "window": window if kind == "window" else None}
    group = heads[0] // heads[1]
    scores = q64 @ np.repeat(key64, group, 1).transpose(0, 1, 3, 2) / math.sqrt(size)
    i, j = np.arange(queries)[:, None] + keys - queries, np.arange(keys)[None, :]
    sees = np.broadcast_to((j <= i) | (kind == "all"), (2, 1, queries, keys)).copy()
    sees &= (j > i - window) | (kind != "window")
    if lengths is not None:
        sees &= j < lengths[:, None, None, None]
    weights = np.where(sees, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    total = weights.sum(-1, keepdims=True)
    expected = weights @ np.repeat(value64, group, 1) / np.where(total == 0, 1, total)
    result = k.attention(q, key, value, lengths=None if lengths is None else ca.from_host(lengths), **options)
    np.testing.assert_allclose(result.to_host().sync(), expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("shape", [(0,), (0, 4)])
def test_nothing_gives_nothing(host, shape):
    x = ca.zeros(shape).sync()
    assert k.add(x, x).to_host().sync().shape == shape
    assert k.gelu(x).to_host().sync().shape == shape
    if len(shape) == 2:
        assert k.softmax(x).to_host().sync().shape == shape
        assert k.rms_norm(x, ca.ones(4)).to_host().sync().shape == shape
