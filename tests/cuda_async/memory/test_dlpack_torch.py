"""torch's CPU tensors, both ways."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca

torch = pytest.importorskip("torch", reason="torch is not installed; `make interop` adds it")

TYPES = {
    name: getattr(torch, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    )
}
SHAPES = [(), (5,), (2, 3), (0,), (0, 3), (3, 0)]


@pytest.fixture(autouse=True)
def on_host():
    with ca.use_device("host:0") as device:
        yield device


@pytest.mark.parametrize("name", TYPES)
def test_every_type_goes_and_comes_back(name):
    array = np.arange(12).reshape(3, 4).astype(ca.zeros(1, name).sync().dtype)
    t = ca.from_host(array).sync()
    theirs = torch.from_dlpack(t)
    assert theirs.dtype == TYPES[name]
    assert theirs.data_ptr() == t._address
    assert theirs.to(torch.float64).tolist() == array.astype(np.float64).tolist()
    back = ca.from_dlpack(theirs.clone()[:, 1::2])
    assert back.dtype == t.dtype
    assert back.strides == (4, 2)
    np.testing.assert_array_equal(back.to_host().sync(), array[:, 1::2])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_goes_and_comes_back(shape):
    t = ca.full(shape, 3, "int16").sync()
    theirs = torch.from_dlpack(t)
    assert theirs.shape == shape
    back = ca.from_dlpack(theirs.clone())
    assert (back.shape, back.dtype) == (shape, t.dtype)
    assert (back.to_host().sync() == 3).all()


def test_bfloat16_bits_are_exact():
    values = np.array([0.5, -1.5, 3.0, 257.0]).astype(ml_dtypes.bfloat16)
    theirs = torch.from_dlpack(ca.from_host(values).sync())
    bits = [0x3F00, 0xBFC0 - 0x10000, 0x4040, 0x4380]
    assert theirs.view(torch.int16).tolist() == bits
    assert ca.from_dlpack(theirs).to_host().sync().view(np.int16).tolist() == bits


def test_views_go_as_they_lie():
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    t = ca.from_host(array).sync()
    assert torch.from_dlpack(t[1::2, ::3]).tolist() == array[1::2, ::3].tolist()
    assert torch.from_dlpack(t.T).tolist() == array.T.tolist()


def test_reversed_view_is_refused_before_torch_ends_the_process():
    with pytest.raises(BufferError, match="negative"):
        torch.from_dlpack(ca.zeros((4,)).sync()[::-1])


def test_both_sides_keep_the_memory():
    device = ca.Device("host:0")
    before = device.memory_stats().used_bytes
    theirs = torch.from_dlpack(ca.ones((1000,)).sync())
    assert float(theirs.sum()) == 1000
    del theirs
    gc.collect()
    assert device.memory_stats().used_bytes == before
    ours = ca.from_dlpack(torch.arange(1000))
    gc.collect()
    assert ours.to_host().sync().tolist() == list(range(1000))


def test_error_in_flight_survives_the_deleter():
    with pytest.raises(TypeError, match="argument 'other'"):
        torch.add(torch.from_dlpack(ca.ones((3,)).sync()), "x")


def test_unknown_type_is_named():
    with pytest.raises(TypeError, match=r"code 5 \(complex\), 64 bits, 1 lanes is not supported"):
        ca.from_dlpack(torch.zeros(3, dtype=torch.complex64))


def test_what_torch_refuses_to_give_is_its_error():
    with pytest.raises(BufferError, match="gradient"):
        ca.from_dlpack(torch.zeros(3, requires_grad=True))
