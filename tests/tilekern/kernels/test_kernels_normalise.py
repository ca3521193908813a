"""Softmax and normalisations, of rows that fit into a tile and of rows that do not."""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.kernels import _normalise as rows

k = tk.kernels
SHAPES = [(5, 10), (2, 3, 577), (2, 8193)]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def layer_norm(x, w, b, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax(values, shape):
    x, x64 = values(*shape, scale=4.0)
    values.close(k.softmax(x), softmax(x64), terms=16)


def test_softmax_of_long_rows_that_begin_with_minus_infinity(host):
    x = np.full((2, 9000), -np.inf, "f4")
    x[0, 5000:] = 1.0
    result = k.softmax(ca.from_host(x)).to_host().sync()
    np.testing.assert_allclose(result[0, 5000:], 1 / 4000, rtol=1e-6)
    assert (result[0, :5000] == 0).all()
    assert np.isnan(result[1]).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(values, shape):
    x, x64 = values(*shape, scale=3.0)
    w, w64 = values(shape[-1])
    values.close(k.rms_norm(x, w, eps=1e-5), rms_norm(x64, w64, 1e-5), terms=4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(values, shape):
    x, x64 = values(*shape, scale=3.0)
    x64 = (x64 + 2.0).astype(values.dtype).astype("f8")
    x = ca.from_host(x64.astype(values.dtype)).sync()
    w, w64 = values(shape[-1])
    b, b64 = values(shape[-1])
    scale = np.abs(layer_norm(x64, w64, 0, 1e-5)) + np.abs(b64) + 1
    values.close(k.layer_norm(x, w, b, eps=1e-5), layer_norm(x64, w64, b64, 1e-5), terms=9, scale=scale)
    values.close(k.layer_norm(x, w), layer_norm(x64, w64, 0, 1e-5), terms=9, scale=scale)


def test_add_rms_norm_gives_the_sum_too(values):
    x, x64 = values(3, 4, 100)
    r, r64 = values(3, 4, 100)
    w, w64 = values(100)
    out, total = k.add_rms_norm(x, r, w, eps=1e-6).sync()
    total64 = values.close(ca.copy(total), x64 + r64).astype("f8")
    values.close(ca.copy(out), rms_norm(total64, w64, 1e-6), terms=4)


def test_add_layer_norm(values):
    x, x64 = values(6, 384)
    r, r64 = values(6, 384)
    w, w64 = values(384)
    b, b64 = values(384)
    expected = layer_norm(x64 + r64, w64, b64, 1e-12)
    values.close(k.add_layer_norm(x, r, w, b, eps=1e-12), expected, terms=9, scale=np.abs(expected) + 3)


@pytest.fixture
def few_blocks(monkeypatch):
    """As if the device had one multiprocessor: few rows are many then."""
    monkeypatch.setattr("tilekern.kernels._normalise.multiprocessors", lambda x: 1)


@pytest.mark.parametrize("shape", [(3, 50, 577), (33, 4097)], ids=str)
def test_many_rows_are_walked(values, shape, few_blocks):
    x, x64 = values(*shape, scale=3.0)
    r, r64 = values(*shape)
    w, w64 = values(shape[-1])
    b, b64 = values(shape[-1])
    values.close(k.softmax(x), softmax(x64), terms=16)
    values.close(k.rms_norm(x, w, eps=1e-5), rms_norm(x64, w64, 1e-5), terms=4)
    place, total = ca.empty(x.shape, x.dtype).sync(), ca.empty(x.shape, x.dtype).sync()
    k.add_rms_norm(x, r, w, eps=1e-6, out=place, total=total).sync()
    total64 = values.close(ca.copy(total), x64 + r64).astype("f8")
    values.close(ca.copy(place), rms_norm(total64, w64, 1e-6), terms=4)
    expected = layer_norm(x64, w64, b64, 1e-5)
    values.close(k.layer_norm(x, w, b), expected, terms=9, scale=np.abs(expected) + 3)
    expected = layer_norm(x64 + r64, w64, b64, 1e-5)
    values.close(k.add_layer_norm(x, r, w, b, eps=1e-5), expected, terms=9, scale=np.abs(expected) + 3)
    names = [planned(family, x) for family in FAMILIES]
    assert names == ([f"persistent_{name}" for name in NAMES] if x.dtype.itemsize == 2 else NAMES)


FAMILIES = ("SOFTMAX", "RMS_NORM", "ADD_RMS_NORM", "LAYER_NORM", "ADD_LAYER_NORM")
NAMES = ["row_softmax", "rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"]


def planned(family, x):
    kernel, _ = rows._planned(getattr(rows, family), x.reshape((-1, x.shape[-1])))
    return kernel.name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("columns", [1, 60, 513, 1500, 3000, 8192])
def test_blocks_that_walk_have_tiles_each(host, few_blocks, family, columns):
    """More blocks than tiles would be refused. 60,000 elements for a multiprocessor are many."""
    rows_of_it = -(-60_000 // columns)
    enough = ca.zeros((rows_of_it, columns), np.float16).sync()
    too_few = ca.zeros((rows_of_it - 1, columns), np.float16).sync()
    assert not planned(family, too_few).startswith("persistent_")
    least = 513 if family == "SOFTMAX" else 65
    is_slower = columns < least or (family == "ADD_RMS_NORM" and 1024 < columns <= 4096)
    assert planned(family, enough).startswith("persistent_") != is_slower
    if not is_slower:
        _, cut = rows._planned(getattr(rows, family), enough)
        assert 2 <= cut(ca.empty(enough.shape, enough.dtype)).sync().tile_blocks <= 8


def test_persistent_kernels_take_float32_too(device):
    random = np.random.default_rng(0)
    x64, w64 = random.standard_normal((67, 300)), random.standard_normal(300)
    x, w = (ca.from_host(array.astype("f4")).sync() for array in (x64, w64))
    tiles = ca.empty(x.shape, "f4").partition((4, 512)).map_partition((1, 1), 5)
    made = k.raw.persistent_rms_norm(tiles, x, w, 1e-5).first().unpartition().to_host().sync()
    np.testing.assert_allclose(made, rms_norm(x64, w64, 1e-5), rtol=2e-6)
    tiles = ca.empty(x.shape, "f4").partition((4, 512)).map_partition((1, 1), 5)
    made = k.raw.persistent_row_softmax(tiles, x).first().unpartition().to_host().sync()
    np.testing.assert_allclose(made, softmax(x64), rtol=2e-6)


def test_softmax_of_rows_with_masks_and_without_a_largest_element(device, few_blocks):
    """The lowest number there is as a mask, in a part of a row or in all of it, is no infinity."""
    for dtype in (np.dtype("f4"), np.dtype(ml_dtypes.bfloat16)):
        mask = float(ml_dtypes.finfo(dtype).min)
        x = np.zeros((40, 3000), dtype)
        x[0, :] = -np.inf
        x[1, 7] = np.nan
        x[2, 2900] = np.inf
        x[3, :] = mask
        x[4, 1000:] = mask
        x[5, 1000:] = -np.inf
        x[6, 5] = -mask
        found = k.softmax(ca.from_host(x)).to_host().sync().astype("f4")
        assert np.isnan(found[:3]).all()
        of_all, of_a_part = np.float32(dtype.type(1 / 3000)), np.float32(dtype.type(1 / 1000))
        np.testing.assert_allclose(found[3], of_all, rtol=1e-6)
        np.testing.assert_allclose(found[4:6, :1000], of_a_part, rtol=1e-6)
        assert (found[4:6, 1000:] == 0).all()
        assert found[6, 5] == 1
        assert (np.delete(found[6], 5) == 0).all()
        np.testing.assert_allclose(found[7:], of_all, rtol=1e-6)


def test_weights_of_another_length_are_refused(host):
    with pytest.raises(ValueError, match=r"rms_norm: weight has the shape \(5,\), it must be \(6,\)"):
        k.rms_norm(ca.ones((2, 6)).sync(), ca.ones(5).sync())
    with pytest.raises(ValueError, match="add first"):
        k.add_rms_norm(ca.ones((1, 9000)).sync(), ca.ones((1, 9000)).sync(), ca.ones(9000).sync())


@pytest.mark.parametrize("columns", [8193, 20_000, 700_001])
def test_softmax_of_few_long_rows(values, columns):
    """Blocks share a row; a share of nothing but -inf weighs nothing."""
    x, x64 = values(2, columns, scale=3.0)
    masked = ca.copy(x).to_host().sync()
    masked[1, 300:6000] = -np.inf
    x64[1, 300:6000] = -np.inf
    terms = 40
    values.close(k.softmax(ca.from_host(masked)), softmax(x64), terms=terms)
    place = ca.empty(x.shape, x.dtype).sync()
    values.close(k.softmax(ca.from_host(masked), out=place), softmax(x64), terms=terms)


def test_softmax_of_long_rows_without_a_largest_element(device):
    x = np.zeros((4, 10_000), "f4")
    x[0, :] = -np.inf
    x[1, 7] = np.nan
    x[2, 9000] = np.inf
    found = k.softmax(ca.from_host(x)).to_host().sync()
    assert np.isnan(found[:3]).all()
    assert (found[3] == np.float32(1e-4)).all()


def test_long_rows_take_as_many_chunks_as_they_need(values):
    """The kernels themselves, with chunks that divide nothing."""
    raw = k.raw
    x, x64 = values(3, 700, scale=2.0)
    w, w64 = values(700)
    scale = np.abs(w64) * 9 + 1

    def out():
        return ca.empty(x.shape, x.dtype).map(ca.mut)

    values.close(raw.long_softmax(out(), x, 256).grid(3).first(), softmax(x64), terms=16)
    rms = raw.long_rms_norm(out(), x, w, 1e-5, 256).grid(3).first()
    values.close(rms, rms_norm(x64, w64, 1e-5), terms=4)
    layer = raw.long_layer_norm(out(), x, w, w, 1e-5, 256).grid(3).first()
    values.close(layer, layer_norm(x64, w64, w64, 1e-5), terms=9, scale=scale)
