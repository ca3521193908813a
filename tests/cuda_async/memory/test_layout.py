"""Shapes and strides against NumPy's own views."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices
from numpy.lib.stride_tricks import as_strided

from cuda_async.memory import as_shape, contiguous_strides, extent
from cuda_async.memory._layout import index_view, is_contiguous, permuted, reshaped, shares_elements

SHAPES = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def layout_of(view: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return view.shape, tuple(s // view.itemsize for s in view.strides)


def offset_of(view: np.ndarray, base: np.ndarray) -> int:
    return (view.ctypes.data - base.ctypes.data) // base.itemsize


def elements(base: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """What a layout of ours selects of a one-dimensional array."""
    if math.prod(shape) == 0:
        return np.empty(shape, base.dtype)
    return as_strided(base[offset:], shape, tuple(s * base.itemsize for s in strides), writeable=False)


@st.composite
def views(draw):
    """(base, a view of it): sliced, reversed, permuted, with axes added and taken away."""
    shape = draw(SHAPES)
    base = np.arange(math.prod(shape), dtype=np.int32)
    view = base.reshape(shape)
    for _ in range(draw(st.integers(0, 2))):
        key = draw(basic_indices(view.shape, max_dims=5, allow_newaxis=True))
        key = key if isinstance(key, tuple) else (key,)
        # with an ellipsis the result is a view even when it has no axes
        view = view[key if ... in key else (*key, ...)]
        view = view.transpose(draw(st.permutations(range(view.ndim))))
    return base, view


@given(array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4))
def test_contiguous_strides_are_numpys(shape):
    assert contiguous_strides(shape) == layout_of(np.empty(shape, np.int8))[1]


@given(st.data(), views())
def test_indexing_is_numpys(data, base_and_view):
    base, view = base_and_view
    key = data.draw(basic_indices(view.shape, max_dims=5, allow_newaxis=True))
    expected = view[key]
    offset, shape, strides = index_view(*layout_of(view), key)
    assert shape == expected.shape
    start = offset_of(view, base) if view.size else 0
    np.testing.assert_array_equal(elements(base, start + offset, shape, strides), expected)


@given(st.data(), views())
def test_reshape_without_copy_is_numpys(data, base_and_view):
    base, view = base_and_view
    target = data.draw(st.permutations(regrouped(data, view.size)))
    try:
        expected = np.reshape(view, target, copy=False)
    except ValueError:
        with pytest.raises(ValueError, match="without a copy"):
            reshaped(*layout_of(view), target)
        return
    shape, strides = reshaped(*layout_of(view), target)
    start = offset_of(view, base) if view.size else 0
    np.testing.assert_array_equal(elements(base, start, shape, strides), expected)


def regrouped(data, size: int) -> list[int]:
    """Some shape of `size` elements."""
    if size == 0:
        return [0, *data.draw(st.lists(st.integers(0, 3), max_size=2))]
    dims = []
    while size > 1:
        dim = data.draw(st.sampled_from([d for d in range(2, size + 1) if size % d == 0]))
        dims.append(dim)
        size //= dim
    return dims + [1] * data.draw(st.integers(0, 2))


@pytest.mark.parametrize(
    ("shape", "new", "expected"),
    [((4, 6), (-1,), (24,)), ((4, 6), (2, -1, 3), (2, 4, 3)), ((0, 3), (-1, 3), (0, 3)), ((), (-1,), (1,))],
)
def test_reshape_fills_in_one_axis(shape, new, expected):
    assert reshaped(shape, contiguous_strides(shape), new)[0] == expected


@pytest.mark.parametrize(
    ("shape", "new", "message"),
    [
        ((4, 6), (-1, -1), "only one axis may be -1"),
        ((4, 6), (5, -1), r"cannot reshape \(4, 6\) \(24 elements\)"),
        ((4, 6), (5, 5), r"24 elements\) to \(5, 5\) \(25 elements"),
        ((0,), (0, -1), "cannot reshape"),
        ((4, 6), (4, -6), "axis 1 is -6; dimensions cannot be negative"),
    ],
)
def test_reshape_refuses(shape, new, message):
    with pytest.raises(ValueError, match=message):
        reshaped(shape, contiguous_strides(shape), new)


@given(st.data(), views())
def test_permuted_is_numpys(data, base_and_view):
    _, view = base_and_view
    axes = data.draw(
        st.permutations([a - data.draw(st.sampled_from([0, view.ndim])) for a in range(view.ndim)])
    )
    assert permuted(*layout_of(view), axes) == layout_of(view.transpose(axes))


@pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2), (0, 1, 2)])
def test_permuted_refuses(axes):
    with pytest.raises(ValueError, match="not a permutation of 0 to 1"):
        permuted((2, 3), (3, 1), axes)


@given(views())
def test_extent_bounds_every_element(base_and_view):
    _, view = base_and_view
    shape, strides = layout_of(view)
    positions = [
        sum(i * s for i, s in zip(index, strides)) for index in itertools.product(*(range(n) for n in shape))
    ]
    expected = (min(positions), max(positions) + 1) if positions else (0, 0)
    assert extent(shape, strides) == expected


@given(views())
def test_is_contiguous_is_numpys(base_and_view):
    _, view = base_and_view
    assert is_contiguous(*layout_of(view)) == view.flags.c_contiguous


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (5, IndexError, "index 5 is out of bounds for axis 0 with size 4"),
        ((0, -7), IndexError, "index -7 is out of bounds for axis 1 with size 6"),
        ((0, 0, 0), IndexError, "too many indices: 3 for a tensor of rank 2"),
        ((..., 0, ...), IndexError, "single ellipsis"),
        ([0, 1], TypeError, r"index \[0, 1\] on axis 0: tensors take ints, slices"),
        (True, TypeError, "index True on axis 0"),
        (np.True_, TypeError, "on axis 0: tensors take ints"),
        (np.array([0, 1]), TypeError, "on axis 0: tensors take ints"),
        (1.0, TypeError, "index 1.0 on axis 0"),
        ((0, "a"), TypeError, "index 'a' on axis 1"),
    ],
)
def test_index_refuses(key, error, message):
    with pytest.raises(error, match=message):
        index_view((4, 6), (6, 1), key)


@pytest.mark.parametrize("key", [np.int64(2), np.array(2)], ids=["scalar", "0-d array"])
def test_index_takes_numpy_ints(key):
    assert index_view((4, 6), (6, 1), key) == (12, (6,), (1,))


@pytest.mark.parametrize(
    ("given_shape", "expected"),
    [
        (3, (3,)),
        (np.int32(3), (3,)),
        ((2, 3), (2, 3)),
        ([np.int64(2), 3], (2, 3)),
        (np.array([2, 3]), (2, 3)),
        ((), ()),
        ((0, 3), (0, 3)),
        (range(3), (0, 1, 2)),
    ],
)
def test_as_shape_takes(given_shape, expected):
    result = as_shape(given_shape)
    assert result == expected
    assert all(type(n) is int for n in result)


@pytest.mark.parametrize(
    ("given_shape", "error", "message"),
    [
        (2.0, TypeError, "an int or a sequence of ints, got 2.0"),
        ((2, 2.0), TypeError, "axis 1 is 2.0; expected an integer"),
        ("23", TypeError, "got '23'"),
        ({}, TypeError, "got {}"),
        ({2, 3}, TypeError, "got {2, 3}"),
        ({2: 3}, TypeError, "got {2: 3}"),
        (None, TypeError, "got None"),
        ((2, -1), ValueError, "axis 1 is -1; dimensions cannot be negative"),
        ((2**40, 2**40), ValueError, "more than 2\\*\\*62 elements"),
    ],
)
def test_as_shape_refuses(given_shape, error, message):
    with pytest.raises(error, match=message):
        as_shape(given_shape)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-6, 6)), max_size=2))
def test_elements_that_share_memory(axes):
    """Of two axes exactly; of more, those that do so along two of them."""
    shape, strides = tuple(n for n, _ in axes), tuple(step for _, step in axes)
    places = [sum(i * s for i, s in zip(index, strides)) for index in np.ndindex(shape)]
    assert shares_elements(shape, strides) == (len(set(places)) < len(places))


@given(views())
def test_views_of_ours_have_places_of_their_own(base_and_view):
    _, view = base_and_view
    assert not shares_elements(*layout_of(view))
