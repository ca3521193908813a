"""Attention, caches and rotary positions of the library."""

import math

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

k = tk.kernels


def attention(q, key, value, *, causal=False, window=None, lengths=None, scale=None):
    """By the definition, in float64, with the matrix of scores."""
    group = q.shape[1] // key.shape[1]
    key, value = np.repeat(key, group, 1), np.repeat(value, group, 1)
    scores = q @ key.transpose(0, 1, 3, 2) * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    there = key.shape[2]
    j = np.arange(there)[None, :]
    i = np.arange(q.shape[2])[:, None] + there - q.shape[2]
    sees = np.ones((q.shape[0], 1, q.shape[2], there), bool)
    if causal:
        sees &= j <= i
    if window:
        sees &= j > i - window
    if lengths is not None:
        sees &= j < np.asarray(lengths)[:, None, None, None]
    weights = np.where(sees, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    total = weights.sum(-1, keepdims=True)
    return weights @ value / np.where(total == 0, 1, total)


def check(values, op, expected):
    """The weights are rounded to the type before they multiply the values, so a result is as exact as they are."""
    result = op.to_host().sync()
    assert result.dtype == values.dtype
    step = {"f32": 4e-6, "f16": 2e-3, "bf16": 1.6e-2}[values.name]
    np.testing.assert_allclose(result.astype("f8"), expected, rtol=0, atol=step)


@pytest.mark.parametrize(
    ("heads", "key_heads", "queries", "keys", "size", "options"),
    [
        (2, 2, 70, 150, 64, {}),
        (4, 2, 150, 150, 32, {"causal": True}),
        (1, 1, 20, 170, 128, {"causal": True}),
        (3, 1, 150, 150, 64, {"causal": True, "window": 70}),
        (1, 1, 5, 5, 40, {"causal": True, "window": 1, "scale": 0.3}),
    ],
    ids=["plain", "grouped-causal", "last-queries", "window", "small"],
)
def test_attention(values, heads, key_heads, queries, keys, size, options):
    q, q64 = values(2, heads, queries, size)
    key, key64 = values(2, key_heads, keys, size)
    value, value64 = values(2, key_heads, keys, size)
    check(values, k.attention(q, key, value, **options), attention(q64, key64, value64, **options))


@pytest.mark.parametrize("scale", [-0.7, 0.0, -0.0, 1e-40, 1e-31, 1.0, -1.0])
@pytest.mark.parametrize("options", [{}, {"causal": True, "window": 3}], ids=["plain", "window"])
def test_attention_with_any_scale(values, scale, options):
    q, q64 = values(1, 2, 40, 20)
    key, key64 = values(1, 2, 70, 20)
    value, value64 = values(1, 2, 70, 20)
    expected = attention(q64, key64, value64, scale=scale, **options)
    check(values, k.attention(q, key, value, scale=scale, **options), expected)


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 77777.0), ("float32", 1e18), ("float16", 1e4), ("bfloat16", 1e4)]
)
def test_attention_with_large_scores(device, dtype, size):
    """The weight of the largest is 1, whatever it is, and those of much smaller ones are 0."""
    q = ca.full((1, 1, 3, 1), size, dtype).sync()
    key = ca.from_host(np.array([1.0, 0.5, -1.0, 1.0]).reshape(1, 1, 4, 1) * size).astype(dtype).sync()
    value = ca.from_host(np.array([2.0, 7.0, 9.0, 4.0]).reshape(1, 1, 4, 1)).astype(dtype).sync()
    result = k.attention(q, key, value).to_host().sync().astype("f4")
    assert result.reshape(-1).tolist() == pytest.approx([3.0] * 3, rel=1e-6 if dtype == "float32" else 1e-2)


def test_attention_over_lengths_and_permuted_views(values):
    """Tensors as (batch, tokens, heads, head size), and sequences of several lengths, one empty."""
    x, x64 = values(3, 40, 3, 2, 32)
    q, key, value = (x[:, :, i].permute(0, 2, 1, 3) for i in range(3))
    q64, key64, value64 = (x64[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    lengths = ca.from_host(np.int32([40, 17, 0])).sync()
    expected = attention(q64, key64, value64, lengths=[40, 17, 0])
    check(values, k.attention(q, key, value, lengths=lengths), expected)


def test_attention_over_lengths_that_there_are_not(values):
    (q, q64), (key, key64), (value, value64) = (values(2, 1, 40, 32) for _ in range(3))
    expected = attention(q64, key64, value64, lengths=[40, 0])
    check(values, k.attention(q, key, value, lengths=ca.from_host(np.int32([99, -3]))), expected)


@pytest.mark.parametrize("window", [None, 20])
def test_what_lies_behind_the_keys_may_be_anything(values, window):
    """As in a cache of `ca.empty`."""
    q, q64 = values(2, 4, 70, 32)
    key, key64 = values(2, 2, 150, 32)
    value, value64 = values(2, 2, 150, 32)
    lengths = ca.from_host(np.array([70, 129], "i4")).sync()
    options = {"causal": True, "window": window} if window else {}
    expected = attention(q64, key64, value64, lengths=[70, 129], **options)
    for poison in (float("nan"), float("inf"), float("-inf")):
        for cache in (key, value):
            ca.fill(cache[0, :, 70:], poison).sync()
            ca.fill(cache[1, :, 129:], poison).sync()
        check(values, k.attention(q, key, value, lengths=lengths, **options), expected)
        one, one64 = q[:, :, 0], q64[:, :, :1]
        positions = ca.from_host(np.array([69, 128], "i4")).sync()
        if window:  # the query stands at the last key that is there
            begin = [70 - window, 129 - window]
            seen = [
                (key64[b : b + 1, :, s : s + window], value64[b : b + 1, :, s : s + window])
                for b, s in enumerate(begin)
            ]
            decoded = np.concatenate([attention(one64[b : b + 1], *seen[b]) for b in range(2)])
        else:
            decoded = attention(one64, key64, value64, lengths=[70, 129])
        op = k.attention_decode(one, key, value, positions, window=window)
        check(values, op, decoded[:, :, 0])


@pytest.mark.parametrize("position", [19, 100, 2**31 - 1])
def test_what_lies_before_the_window_may_be_anything(values, position):
    q, q64 = values(1, 2, 32)
    key, key64 = values(1, 1, 150, 32)
    value, value64 = values(1, 1, 150, 32)
    end = min(position + 1, 150)
    for cache in (key, value):
        ca.fill(cache[:, :, : end - 20], float("nan")).sync()
    positions = ca.from_host(np.array([position], "i4")).sync()
    expected = attention(q64[:, :, None], key64[:, :, end - 20 : end], value64[:, :, end - 20 : end])
    check(values, k.attention_decode(q, key, value, positions, window=20), expected[:, :, 0])


def test_attention_with_factors_as_tfloat32(device):
    q64, key64, value64 = np.random.default_rng(2).standard_normal((3, 1, 2, 70, 32))
    q, key, value = (ca.from_host(t.astype("f4")).sync() for t in (q64, key64, value64))
    result = k.attention(q, key, value, causal=True, tf32=True).to_host().sync()
    expected = attention(q64, key64, value64, causal=True)
    np.testing.assert_allclose(result, expected, rtol=0, atol=4e-3)
    exact = k.attention(q, key, value, causal=True).to_host().sync()
    np.testing.assert_allclose(exact, expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("splits", [None, 1, 3])
def test_decode_sees_the_cache_up_to_its_position(values, splits):
    q, q64 = values(2, 6, 64)
    keys, keys64 = values(2, 2, 300, 64)
    cached, cached64 = values(2, 2, 300, 64)
    positions = ca.from_host(np.int32([0, 200])).sync()
    op = k.attention_decode(q, keys, cached, positions, splits=splits)
    expected = attention(q64[:, :, None], keys64, cached64, lengths=[1, 201])[:, :, 0]
    check(values, op, expected)


@pytest.mark.parametrize("window", [None, 20])
def test_decode_at_positions_that_there_are_not(values, window):
    q, q64 = values(3, 2, 32)
    (keys, keys64), (cached, cached64) = (values(3, 2, 100, 32) for _ in range(2))
    positions = ca.from_host(np.int32([100, 2**31 - 1, -1]))
    first = 100 - (window or 100)
    expected = attention(q64[:, :, None], keys64[:, :, first:], cached64[:, :, first:], lengths=[100, 100, 0])
    check(values, k.attention_decode(q, keys, cached, positions, window=window), expected[:, :, 0])


def test_decode_with_a_window(values):
    q, q64 = values(1, 3, 32)
    keys, keys64 = values(1, 3, 200, 32)
    cached, cached64 = values(1, 3, 200, 32)
    op = k.attention_decode(q, keys, cached, ca.from_host(np.int32([149])), window=70)
    expected = attention(q64[:, :, None], keys64[:, :, 80:150], cached64[:, :, 80:150])[:, :, 0]
    check(values, op, expected)


def test_new_tokens_go_to_their_places(values):
    keys, keys64 = values(2, 3, 10, 20)
    cached, cached64 = values(2, 3, 10, 20)
    new, new64 = values(2, 4, 3, 20)
    k.update_cache(
        keys,
        cached,
        new.permute(0, 2, 1, 3),
        new.permute(0, 2, 1, 3),
        ca.from_host(np.int32([2, 8])),
    ).sync()
    for expected, made in ((keys64, keys), (cached64, cached)):
        expected[0, :, 2:6] = new64[0].transpose(1, 0, 2)
        expected[1, :, 8:10] = new64[1, :2].transpose(1, 0, 2)  # the others have no place
        assert np.array_equal(made.to_host().sync().astype("f8"), expected)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_turns_pairs(values, interleaved):
    x, x64 = values(4, 3, 24)
    tables = k.rotary_tables(50, 24, theta=500.0)
    positions = np.int32([0, 7, 49, 3])
    c, s = (t[positions][:, None, :].astype("f8") for t in tables)
    a, b = (x64[..., ::2], x64[..., 1::2]) if interleaved else (x64[..., :12], x64[..., 12:])
    turned = np.stack((a * c - b * s, b * c + a * s), -1 if interleaved else -2).reshape(x64.shape)
    cosine, sine = (ca.from_host(t).sync() for t in tables)
    on_device = ca.from_host(positions).sync()
    scale = np.abs(x64) + 3
    values.close(k.rotary(x, cosine, sine, on_device, interleaved=interleaved), turned, scale=scale)
    k.rotary(x[:, :2], cosine, sine, on_device, interleaved=interleaved, in_place=True).sync()
    expected = np.concatenate((turned[:, :2], x64[:, 2:]), 1)
    values.close(ca.copy(x), expected, scale=scale)


def test_rotary_tables_are_those_of_the_definition():
    cosine, sine = k.rotary_tables(9, 8, theta=100.0)
    np.testing.assert_allclose(cosine[5], np.cos(5 * 100.0 ** (-np.arange(4) / 4)), rtol=1e-6)
    np.testing.assert_allclose(sine[8], np.sin(8 * 100.0 ** (-np.arange(4) / 4)), rtol=1e-6)


def test_wrong_attention_is_refused(host):
    q, few = ca.ones((1, 3, 4, 8)).sync(), ca.ones((1, 2, 4, 8)).sync()
    with pytest.raises(ValueError, match="3 heads are no multiple of 2 key heads"):
        k.attention(q, few, few)
    with pytest.raises(ValueError, match="needs at least as many keys"):
        k.attention(q, q[:, :, :2], q[:, :, :2], causal=True)
    with pytest.raises(ValueError, match="a window"):
        k.attention(q, q, q, window=3)
    with pytest.raises(TypeError, match="positions is float32"):
        k.attention_decode(q[:, :, 0], q, q, ca.ones(1).sync())
    with pytest.raises(ValueError, match=r"cosine has the shape \(2, 3\)"):
        k.rotary(q[0], ca.ones((2, 3)).sync(), ca.ones((2, 3)).sync(), ca.zeros(3, "int32").sync())


def test_many_shares_of_large_heads_are_put_together_in_several_tiles(host):
    """One tile of all of them would be more than a tile may hold, which was found behind the first kernel."""
    random = np.random.default_rng(3)
    q = ca.from_host(random.standard_normal((1, 3, 256)).astype("f4")).sync()
    cache = ca.from_host(random.standard_normal((1, 1, 9600, 256)).astype("f4")).sync()
    last = ca.from_host(np.int32([9599])).sync()
    one, many = (k.attention_decode(q, cache, cache, last, splits=n).to_host().sync() for n in (1, 300))
    np.testing.assert_allclose(many, one, rtol=1e-4, atol=1e-5)
