"""Simplifying strided copies: the plan moves the same bytes as the copy it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_async.driver.cuda._strided import MAX_KERNEL_AXES, CopyPlan, plan_copy, split_axes
from cuda_async.errors import DriverError

BASE = 1 << 20  # so that the simulated addresses are as aligned as real ones


def run(plan: CopyPlan | None, memory: np.ndarray) -> None:
    """Do a plan on bytes, one unit at a time."""
    if plan is None:
        return
    for index in np.ndindex(*plan.shape):
        d = plan.dst - BASE + sum(i * s for i, s in zip(index, plan.dst_strides))
        s = plan.src - BASE + sum(i * s for i, s in zip(index, plan.src_strides))
        memory[d : d + plan.unit] = memory[s : s + plan.unit]


def offset_range(shape, strides, itemsize):
    """(lowest, end) of the bytes an array touches, from its address."""
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides))
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides))
    return low, high + itemsize


@st.composite
def copies(draw):
    """A copy between a destination with distinct elements and any source, placed in one memory."""
    axes = draw(st.integers(0, 4))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(axes))
    itemsize = draw(st.sampled_from([1, 2, 3, 4, 8, 12, 16]))
    # destination: a permuted dense array with gaps and signs
    strides = [0] * axes
    step = itemsize + draw(st.sampled_from([0, 0, 1, itemsize]))
    for axis in draw(st.permutations(range(axes))):
        strides[axis] = step * draw(st.sampled_from([1, 1, -1]))
        step = step * shape[axis] + draw(st.sampled_from([0, 0, itemsize, 4]))
    source = [draw(st.sampled_from([0, itemsize, -itemsize, 2 * itemsize, 40, 7])) for _ in range(axes)]
    if draw(st.booleans()):
        source = list(strides)
    d_low, d_end = offset_range(shape, strides, itemsize)
    s_low, s_end = offset_range(shape, source, itemsize)
    dst = -d_low + draw(st.sampled_from([0, 1, 4, 16]))
    src = dst + d_end - s_low + draw(st.sampled_from([0, 2, 8]))
    return dst, tuple(strides), src, tuple(source), shape, itemsize, src + s_end


@given(copies())
def test_plan_moves_the_same_bytes(copy):
    dst, dst_strides, src, src_strides, shape, itemsize, size = copy
    memory = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    expected = memory.copy()
    for index in np.ndindex(*shape):
        d = dst + sum(i * s for i, s in zip(index, dst_strides))
        s = src + sum(i * s for i, s in zip(index, src_strides))
        expected[d : d + itemsize] = memory[s : s + itemsize]
    plan = plan_copy(BASE + dst, dst_strides, BASE + src, src_strides, shape, itemsize)
    assert plan is not None
    for address in (plan.dst, plan.src, *plan.dst_strides, *plan.src_strides):
        assert address % plan.unit == 0
    run(plan, memory)
    assert np.array_equal(memory, expected)


@pytest.mark.parametrize(
    ("shape", "dst", "src", "itemsize", "size"),
    [
        ((), (), (), 4, 4),
        ((6,), (4,), (4,), 4, 24),
        ((2, 3, 4), (48, 16, 4), (48, 16, 4), 4, 96),
        ((2, 1, 4), (16, 999, 4), (16, 0, 4), 4, 32),
        ((4, 3), (2, 8), (2, 8), 2, 24),  # both transposed alike
        ((5,), (3,), (3,), 3, 15),
    ],
)
def test_same_layout_is_one_run(shape, dst, src, itemsize, size):
    plan = plan_copy(BASE, dst, 2 * BASE, src, shape, itemsize)
    assert plan is not None
    assert plan.run_bytes == size


def test_rows_with_a_pitch():
    plan = plan_copy(BASE, (64, 4), 2 * BASE, (128, 4), (5, 10), 4)
    assert plan is not None
    assert plan.rows == (40, 5)
    assert plan.unit == 8


def test_rows_that_overlap_in_the_source_are_no_rows():
    plan = plan_copy(BASE, (64, 4), 2 * BASE, (8, 4), (5, 10), 4)
    assert plan is not None
    assert plan.rows is None
    broadcast = plan_copy(BASE, (40, 4), 2 * BASE, (0, 4), (5, 10), 4)
    assert broadcast is not None
    assert broadcast.rows is None


def test_unit_grows_with_alignment_and_shrinks_without():
    aligned = plan_copy(BASE, (64, 4), 2 * BASE, (128, 4), (5, 8), 4)
    odd = plan_copy(BASE + 2, (64, 4), 2 * BASE, (128, 4), (5, 8), 4)
    assert aligned is not None
    assert odd is not None
    assert (aligned.unit, aligned.shape) == (16, (5, 2))
    assert (odd.unit, odd.shape) == (2, (5, 16))


def test_axes_are_ordered_by_destination():
    """So that neighbouring threads write neighbouring elements."""
    plan = plan_copy(BASE, (4, 40), 2 * BASE, (44, 4), (10, 9), 4)
    assert plan is not None
    assert plan.dst_strides == (40, 4)


def test_many_axes_are_split():
    shape = (2,) * 10
    dst = tuple(8 << (2 * k) for k in range(10))
    plan = plan_copy(BASE, dst, 8 * BASE, tuple(4 << k for k in range(10)), shape, 4)
    assert plan is not None
    pieces = list(split_axes(plan))
    assert {len(piece.shape) for piece in pieces} == {MAX_KERNEL_AXES}
    assert len(pieces) == 2 ** (len(plan.shape) - MAX_KERNEL_AXES)
    assert sum(piece.count for piece in pieces) == plan.count == 1024
    assert len({piece.dst for piece in pieces}) == len(pieces)


def test_empty_copy_has_no_plan():
    assert plan_copy(BASE, (4, 4), BASE, (4, 4), (3, 0), 4) is None


@pytest.mark.parametrize(
    ("shape", "dst", "src", "itemsize", "message"),
    [
        ((2, 3), (4,), (4, 4), 4, "each axis needs a stride"),
        ((2, 3), (0, 4), (4, 4), 4, "a stride of 0 in the destination"),
        ((-1,), (4,), (4,), 4, "extents cannot be negative"),
        ((1,), (4,), (4,), 0, "nor the item size 0"),
    ],
)
def test_bad_copies(shape, dst, src, itemsize, message):
    with pytest.raises(DriverError, match=message):
        plan_copy(BASE, dst, BASE, src, shape, itemsize)
