"""Embedding, transposition, pooling, sampling and loss of the library."""

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

k = tk.kernels


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize(("entries", "columns"), [(11, 70), (5, 600), (1, 513), (4, 1500), (0, 600), (0, 3)])
def test_embedding_takes_rows(values, kind, entries, columns):
    table, table64 = values(entries, columns)
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    ids = np.array([[3, 10, 0, least], [entries - 1, -1, entries, most]], kind)
    expected = np.zeros((2, 4, columns))
    for place in np.argwhere((ids >= 0) & (ids < entries)):
        expected[*place] = table64[ids[*place]]
    values.close(k.embedding(ca.from_host(ids), table), expected)


def test_embedding_of_many_rows(values):
    """Several rows in a block, and a last block that is not full."""
    table, table64 = values(50, 700)
    ids = np.random.default_rng(5).integers(-2, 52, 1501, dtype=np.int32)
    is_there = ((ids >= 0) & (ids < 50))[:, None]
    values.close(k.embedding(ca.from_host(ids), table), np.where(is_there, table64[ids.clip(0, 49)], 0.0))


def test_transpose(values):
    x, x64 = values(70, 130)
    assert np.array_equal(k.transpose(x).to_host().sync().astype("f8"), x64.T)


def test_transpose_of_each_matrix_of_a_batch(values):
    x, x64 = values(3, 70, 130)
    expected = x64.transpose(0, 2, 1)
    assert np.array_equal(k.transpose(x).to_host().sync().astype("f8"), expected)
    back = ca.empty((3, 70, 130), values.dtype).sync()
    k.transpose(x, out=ca.empty((3, 130, 70), values.dtype).sync()).then(
        lambda turned: k.transpose(turned, out=back)
    ).sync()
    assert np.array_equal(back.to_host().sync().astype("f8"), x64)
    with pytest.raises(ValueError, match=r"transpose: x has the shape \(70,\)"):
        k.transpose(x[0, :, 0])


def test_mean_pool(values):
    x, x64 = values(3, 45, 150)
    lengths = np.int32([45, 33, 0])
    expected = np.stack([x64[0].mean(0), x64[1, :33].mean(0), np.zeros(150)])
    values.close(k.mean_pool(x, ca.from_host(lengths)), expected, scale=1, terms=2)
    values.close(k.mean_pool(x), x64.mean(1), scale=1, terms=2)


def test_mean_pool_of_lengths_that_there_are_not(values):
    x, x64 = values(2, 45, 150)
    expected = np.stack([x64[0].mean(0), np.zeros(150)])
    values.close(k.mean_pool(x, ca.from_host(np.int32([99, -3]))), expected, scale=1, terms=2)


@pytest.mark.parametrize("columns", [5, 2048, 5000])
def test_argmax(values, columns):
    x, x64 = values(3, columns)
    assert k.argmax(x).to_host().sync().tolist() == x64.argmax(1).tolist()


def test_argmax_of_nan_infinities_and_equals(host):
    x = np.zeros((3, 5000), "f4")
    x[0, 4100] = np.nan
    x[1] = -np.inf
    x[2, [2500, 4800]] = 1
    assert k.argmax(ca.from_host(x)).to_host().sync().tolist() == [4100, 0, 2500]


def probabilities(x64, count, temperature, top_p):
    """Of each column, from the definition."""
    order = np.argsort(-x64, kind="stable")[:count]
    p = np.exp((x64[order] - x64[order[0]]) / temperature)
    p /= p.sum()
    p[np.cumsum(p) - p >= top_p] = 0
    full = np.zeros_like(x64)
    full[order] = p / p.sum()
    return full


@pytest.mark.parametrize(("count", "temperature", "top_p"), [(5, 1.5, 1.0), (3, 0.7, 0.8)])
def test_samples_have_the_chances_of_the_softmax(device, count, temperature, top_p):
    """Each row draws for itself: 1000 rows of the same scores, counted."""
    one = np.random.default_rng(3).standard_normal(37).astype("f4")
    expected = probabilities(one.astype("f8"), count, temperature, top_p)
    logits = ca.from_host(np.tile(one, (1000, 1)))
    counters = ca.zeros(1000, "int32")
    op = k.sample_top_k(logits, counters, k=count, temperature=temperature, top_p=top_p, seed=5)
    drawn = np.bincount(op.to_host().sync(), minlength=37) / 1000
    assert set(np.nonzero(drawn)[0]) == set(np.nonzero(expected)[0])
    np.testing.assert_allclose(drawn, expected, atol=0.06)  # 4 standard deviations


def test_samples_come_from_all_chunks(values):
    x, x64 = values(4, 5000)
    counters = ca.from_host(np.arange(4, dtype=np.int32)).sync()
    best = np.argsort(-x64, axis=1, kind="stable")[:, :4]
    drawn = k.sample_top_k(x, counters, k=4, seed=1).to_host().sync()
    assert all(d in b for d, b in zip(drawn, best))
    again = k.sample_top_k(x, counters, k=4, seed=1).to_host().sync()
    assert drawn.tolist() == again.tolist()
    assert k.sample_top_k(x, counters, temperature=0).to_host().sync().tolist() == best[:, 0].tolist()
    assert k.sample_top_k(x, counters, k=1).to_host().sync().tolist() == best[:, 0].tolist()


@pytest.mark.parametrize("columns", [2, 3, 100, 5000])
def test_what_is_no_number_is_not_drawn(device, columns):
    random = np.random.default_rng(columns)
    x = random.standard_normal((8, columns)).astype("f4")
    nans = random.integers(0, columns, 8)
    x[np.arange(8), nans] = np.nan
    counters = ca.from_host(np.arange(8, dtype="i4")).sync()
    best = np.nanargmax(x, 1)
    logits = ca.from_host(x).sync()
    assert k.sample_top_k(logits, counters, k=1).to_host().sync().tolist() == best.tolist()
    assert k.sample_top_k(logits, counters, k=2, temperature=1e-4).to_host().sync().tolist() == best.tolist()
    drawn = k.sample_top_k(logits, counters, k=2, temperature=3e38).to_host().sync()
    assert (drawn != nans).all()


def test_an_infinite_logit_is_drawn(device):
    x = np.array([[1, np.inf, 2], [-np.inf, 1, -np.inf], [-np.inf] * 3], "f4")
    counters = ca.from_host(np.arange(3, dtype="i4")).sync()
    drawn = k.sample_top_k(ca.from_host(x).sync(), counters, k=3).to_host().sync()
    assert drawn[:2].tolist() == [1, 1]
    assert 0 <= drawn[2] < 3


def test_temperatures_are_of_float32(device):
    x = ca.from_host(np.array([[-np.inf, 1, 2]] * 4, "f4")).sync()
    counters = ca.from_host(np.arange(4, dtype="i4")).sync()
    for temperature in (0, 1e-300, 1e-46, 1e-30):
        assert k.sample_top_k(x, counters, k=3, temperature=temperature).to_host().sync().tolist() == [2] * 4
    for top_p in (1e-300, 1e-46, 1e-45, 1e-30):
        assert k.sample_top_k(x, counters, k=3, top_p=top_p).to_host().sync().tolist() == [2] * 4
    for temperature in (3.5e38, float("inf"), float("nan"), -1.0):
        with pytest.raises(ValueError, match="temperature is a float32 from 0 on"):
            k.sample_top_k(x, counters, k=3, temperature=temperature)


@pytest.mark.parametrize("classes", [7, 5000])
def test_cross_entropy(values, classes):
    x, x64 = values(5, classes, scale=2.0)
    labels = np.array([0, classes - 1, -100, 3, 2])
    losses = np.log(np.exp(x64).sum(1)) - x64[np.arange(5), labels.clip(0)]
    losses[2] = 0
    for kind in ("int32", "int64"):
        op = k.cross_entropy(x, ca.from_host(labels.astype(kind)), reduction="none")
        np.testing.assert_allclose(op.to_host().sync(), losses, rtol=2e-6, atol=2e-6)
    on_device = ca.from_host(labels).sync()
    np.testing.assert_allclose(k.cross_entropy(x, on_device).to_host().sync(), [losses.sum() / 4], rtol=2e-6)
    total = k.cross_entropy(x, on_device, reduction="sum").to_host().sync()
    np.testing.assert_allclose(total, [losses.sum()], rtol=2e-6)


def test_a_label_that_is_no_class_gives_nan(host):
    losses = (
        k.cross_entropy(ca.ones((2, 3)), ca.from_host(np.int32([3, 0])), reduction="none").to_host().sync()
    )
    assert np.isnan(losses).tolist() == [True, False]


def test_losses_where_every_label_is_ignored(device):
    """As in torch: a mean of nothing is NaN, a sum of nothing 0."""
    x, labels = ca.ones((2, 3)).sync(), ca.full((2,), -100, "int32").sync()
    expected = {"mean": [np.nan], "sum": [0.0], "none": [0.0, 0.0]}
    for reduction, losses in expected.items():
        found = k.cross_entropy(x, labels, reduction=reduction).to_host().sync()
        np.testing.assert_array_equal(found, losses)


def test_wrong_sampling_is_refused(host):
    x, counters = ca.ones((2, 30)).sync(), ca.zeros(2, "int32").sync()
    with pytest.raises(ValueError, match="k is 40, a row has 30"):
        k.sample_top_k(x, counters, k=40)
    with pytest.raises(ValueError, match="from 1 to 128"):
        k.sample_top_k(x, counters, k=0)
    with pytest.raises(ValueError, match="top_p"):
        k.sample_top_k(x, counters, top_p=0.0)
    with pytest.raises(TypeError, match="ids is float32"):
        k.embedding(x, x)
