"""Tensors and views: facts, contents through views, and what is refused."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

import cuda_async as ca
from cuda_async.memory import Tensor, host_view


@pytest.fixture(autouse=True)
def on_host():
    with ca.use_device("host:0"):
        yield


def on_device(array: np.ndarray) -> Tensor:
    return ca.from_host(array).sync()


# ------------------------------------------------------------------------------------------ facts


def test_facts_of_a_tensor(empty):
    t = empty((4, 6), "int16")
    assert (t.shape, t.strides, t.dtype.name) == ((4, 6), (6, 1), "int16")
    assert (t.ndim, t.size, t.itemsize, t.nbytes, len(t)) == (2, 24, 2, 48, 4)
    assert t.is_contiguous
    assert t._address % 256 == 0


def test_facts_of_a_view(empty):
    v = empty((4, 6), "int16")[::2, 1::3]
    assert (v.shape, v.strides, v.size, v.nbytes) == ((2, 2), (12, 3), 4, 8)
    assert not v.is_contiguous


def test_tensor_without_axes(empty):
    t = empty((), "float64")
    assert (t.shape, t.strides, t.size, t.nbytes) == ((), (), 1, 8)
    with pytest.raises(TypeError, match=r"len\(\) of a tensor without axes"):
        len(t)


def test_making_one_by_hand_is_refused():
    with pytest.raises(TypeError, match=r"tensors are made by empty\(\)"):
        Tensor()


def test_iterating_is_refused(empty):
    with pytest.raises(TypeError, match="not iterable; bring one to the host"):
        list(empty((3,), "int8"))


def test_looking_from_the_host_is_refused(empty):
    t = empty((3,), "int8")
    with pytest.raises(TypeError, match="elements are on the device; bring them over"):
        np.asarray(t)
    assert not hasattr(t, "__array_interface__")


def test_repr_says_what_it_is(stepped, empty):
    device, _ = stepped
    t = empty((4, 6), "bfloat16")
    assert repr(t) == f"Tensor(shape=(4, 6), dtype=bfloat16, device='{device}')"
    assert repr(t.T) == f"Tensor(shape=(6, 4), dtype=bfloat16, strides=(1, 6), device='{device}')"
    t.free()
    assert repr(t) == f"Tensor(shape=(4, 6), dtype=bfloat16, device='{device}', freed)"


# ------------------------------------------------------------------------------------------ views


@settings(max_examples=40, deadline=None)
@given(st.data(), array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
def test_contents_of_views_are_numpys(data, shape):
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    with ca.use_device("host:0"):
        key = data.draw(basic_indices(shape, allow_newaxis=True))
        view = on_device(array)[key]
        expected = np.asarray(array[key])
        axes = data.draw(st.permutations(range(expected.ndim)))
        found = view.permute(*axes).to_host().sync()
        np.testing.assert_array_equal(found, expected.transpose(axes))


def test_views_share_memory():
    t = on_device(np.zeros((4, 6), np.int32))
    ca.fill(t[1:3, ::2], 7).sync()
    expected = np.zeros((4, 6), np.int32)
    expected[1:3, ::2] = 7
    np.testing.assert_array_equal(t.to_host().sync(), expected)


def test_writing_into_every_second_column():
    t = ca.zeros((4, 6), "int32").sync()
    data = np.arange(1, 13, dtype=np.int32).reshape(4, 3)
    ca.memcpy(t[:, ::2], data).sync()
    found = t.to_host().sync()
    np.testing.assert_array_equal(found[:, ::2], data)
    np.testing.assert_array_equal(found[:, 1::2], 0)


def test_view_keeps_memory_alive(stepped, empty):
    device, controls = stepped
    t = empty((8,), "int32")
    v = t[2:4]
    del t
    device.collect()
    controls.advance_all()
    assert not controls.freed
    del v
    device.collect()
    controls.advance_all()
    assert len(controls.freed) == 1


def test_permute_takes_ints(empty):
    with pytest.raises(TypeError, match=r"axes .* must be integers"):
        empty((4, 6), np.float32).permute(1, "a")
    with pytest.raises(TypeError, match=r"axes .* must be integers"):
        empty((4, 6), np.float32).permute({0, 1})  # which has no order
    with pytest.raises(ValueError, match="not a permutation"):
        empty((4, 6), np.float32).permute([])


def test_reshape_and_permute_spellings(empty):
    t = empty((4, 6), "int8")
    assert t.reshape(2, 12).shape == t.reshape((2, 12)).shape == t.reshape([2, -1]).shape == (2, 12)
    assert t.reshape(24).shape == t.reshape(-1).shape == t.reshape(np.int64(24)).shape == (24,)
    assert t.permute().shape == t.T.shape == t.permute(1, 0).shape == t.permute(-1, 0).shape == (6, 4)
    assert t.permute((1, 0)).shape == t.permute([1, 0]).shape == t.permute(np.array([1, 0])).shape == (6, 4)
    with pytest.raises(AttributeError, match=r"write t\.T, or t\.permute\(1, 0\)"):
        t.transpose()
    assert empty((), "int8").reshape(1, 1).shape == (1, 1)
    assert empty((1, 1), "int8").reshape(()).shape == ()


def test_reshape_that_needs_a_copy_says_how(empty):
    with pytest.raises(ValueError, match=r"without a copy; make it contiguous first with ca\.copy"):
        empty((4, 6), "int8").T.reshape(24)


@pytest.mark.parametrize(
    ("shape", "dtype", "new", "expected"),
    [
        ((4, 6), "int32", "float32", (4, 6)),
        ((4, 6), "int32", "uint8", (4, 24)),
        ((4, 6), "int16", "int32", (4, 3)),
        ((6,), "bfloat16", "uint16", (6,)),
        ((), "int32", "float32", ()),
        ((0, 4), "int8", "int32", (0, 1)),
        ((4, 0), "int32", "int8", (4, 0)),
    ],
)
def test_reinterpret_scales_the_last_axis(empty, shape, dtype, new, expected):
    t = empty(shape, dtype)
    v = t.reinterpret(new)
    assert (v.shape, v.dtype.name, v.nbytes, v._address) == (expected, new, t.nbytes, t._address)


def test_reinterpret_shows_the_same_bytes():
    array = np.array([0.5, -1.5, 3.0, 257.0]).astype(ml_dtypes.bfloat16)
    bits = on_device(array).reinterpret("uint16").to_host().sync()
    assert bits.tolist() == [0x3F00, 0xBFC0, 0x4040, 0x4380]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:, ::2].reinterpret("int16"), "needs a contiguous tensor, got strides"),
        (
            lambda t: t.reshape(8, 3).reinterpret("int16"),
            "last axis holds 3 bytes, which is no multiple of int16's 2",
        ),
        (lambda t: t[0, 0].reinterpret("int16"), "without axes cannot change from int8 to int16"),
        (lambda t: t.reshape(24)[1:5].reinterpret("int32"), "not aligned for int32"),
    ],
)
def test_reinterpret_refuses(empty, change, message):
    with pytest.raises(ValueError, match=message):
        change(empty((4, 6), "int8"))


def test_host_view_is_the_memory_itself():
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    t = on_device(array)
    np.testing.assert_array_equal(host_view(t[::-1, 1::2]), array[::-1, 1::2])
    assert host_view(t[0:0]).shape == (0, 6)


# --------------------------------------------------------------------------------------- lifetime


def test_freed_memory_cannot_be_used(stepped, empty):
    device, controls = stepped
    t = empty((8,), "int32")
    v = t[1:]
    t.free()
    t.free()
    with pytest.raises(ca.ClosedError, match="this tensor's memory was freed"):
        v._buffer.check_usable()
    device.collect()
    controls.advance_all()
    assert len(controls.freed) == 1
    del t, v
    gc.collect()
    device.collect()
    controls.advance_all()
    assert len(controls.freed) == 1


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_tensors_keep_shape_and_type(shape):
    array = np.empty(shape, np.int16)
    t = on_device(array)
    back = t.to_host().sync()
    assert (back.shape, back.dtype) == (shape, array.dtype)
    assert t.reshape(-1, 5).shape == (0, 5)
    assert t.is_contiguous
    assert t.T.is_contiguous


def test_try_partition_needs_the_only_reference(empty):
    t = empty((8,), "int32")
    assert t.try_partition((4,)).grid == (2,)
    v = t[:4]
    with pytest.raises(ca.AliasError, match=r"has 1 other live view\(s\)"):
        t.try_partition((4,))
    del v
    assert t.try_partition((4,)).grid == (2,)


@pytest.mark.parametrize("name", ["shape", "strides", "dtype", "_address", "anything"])
def test_a_tensor_is_fixed(device, name):
    """Another shape over the same memory would reach past it."""
    tensor = ca.zeros((2, 3)).sync()
    with pytest.raises(AttributeError, match=f"cannot set {name} of a tensor; reshape"):
        setattr(tensor, name, (100, 100))
    with pytest.raises(AttributeError, match=f"cannot delete {name}"):
        delattr(tensor, name)
    assert (tensor.shape, tensor.strides) == ((2, 3), (3, 1))
