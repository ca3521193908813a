"""Tiled views, slices, promises and orders of loads and stores, 64-bit indices."""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


@tk.kernel
def windows(out, x, side: tk.Constant[int], step: tk.Constant[int], mode: tk.Constant[object]):
    view = x.tiled_view(side, traversal_steps=step, padding_mode=mode)
    tk.static_assert(view.tile_shape == (side,) and view.traversal_steps == (step,))
    tk.static_assert(view.dtype is x.dtype and view.ndim == 1)
    to = out.tiled_view((1, side))
    for i in range(view.num_tiles(0)):
        to.store((i, 0), view.load(i).reshape((1, side)))


@pytest.mark.parametrize(("side", "step"), [(4, 1), (4, 2), (4, 3), (4, 4), (2, 5), (8, 100)])
def test_tiles_overlap_or_leave_gaps(side, step, device):
    x = np.arange(11, dtype="f4")
    count = -(-11 // step)
    out = ca.zeros((count, side), "f4").sync()
    windows(ca.mut(out), ca.from_host(x), side, step, tk.PaddingMode.NAN).grid(1).sync()
    padded = np.concatenate([x, np.full(200, np.nan)])
    expected = np.stack([padded[k * step : k * step + side] for k in range(count)])
    assert np.array_equal(out.to_host().sync(), expected, equal_nan=True)


@tk.kernel
def transposed_windows(out, x):
    view = x.tiled_view((4, 2), order="F", traversal_steps=(2, 3))
    i, j = tk.bid(0), tk.bid(1)
    tk.store(out, (i, j, 0, 0), view.load((i, j)).reshape((1, 1, 4, 2)))


def test_order_and_steps_of_two_axes(device):
    x = np.arange(7 * 9, dtype="i4").reshape(7, 9)
    grid = (-(-9 // 2), -(-7 // 3))
    out = ca.zeros((*grid, 4, 2), "i4").sync()
    transposed_windows(ca.mut(out), ca.from_host(x)).grid(grid).sync()
    padded = np.pad(x, ((0, 8), (0, 8))).T
    for i, j in np.ndindex(*grid):
        expected = padded[2 * i : 2 * i + 4, 3 * j : 3 * j + 2]
        assert np.array_equal(out.to_host().sync()[i, j], expected)


@tk.kernel
def overlapping_stores(out):
    """In a loop each store comes after the one before, so the last one stays."""
    view = out.tiled_view(4, traversal_steps=2)
    for i in range(view.num_tiles(0)):
        view.store(i, tk.full((4,), i, tk.int32))


def test_overlapping_stores_are_in_program_order(device):
    out = ca.zeros((10,), "i4").sync()
    overlapping_stores(ca.mut(out)).grid(1).sync()
    assert out.to_host().sync().tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


@tk.kernel
def store_numbers(out):
    view = out.tiled_view((2, 4))
    view.store((0, 0), 1.5)
    view.store((1, 0), tk.arange(4, dtype=tk.float32))


def test_a_view_broadcasts_what_is_stored(device):
    out = ca.zeros((3, 3), "f4").sync()
    store_numbers(ca.mut(out)).grid(1).sync()
    assert out.to_host().sync().tolist() == [[1.5] * 3, [1.5] * 3, [0, 1, 2]]


REDUCTIONS = [
    *[("add", kind) for kind in ("i4", "u4", "i8", "u8", np.float16, ml_dtypes.bfloat16, "f4", "f8")],
    *[(mode, kind) for mode in ("max", "min", "and", "or", "xor") for kind in ("i4", "u8")],
]


@tk.kernel
def combine(out, x, mode: tk.Constant[str]):
    view = out.tiled_view((2, 4))
    tile = tk.load(x, (tk.bid(0), 0), (2, 4))
    if mode == "add":
        view.atomic_store_add((0, 1), tile)
    elif mode == "max":
        view.atomic_store_max((0, 1), tile)
    elif mode == "min":
        view.atomic_store_min((0, 1), tile)
    elif mode == "and":
        view.atomic_store_and((0, 1), tile)
    elif mode == "or":
        view.atomic_store_or((0, 1), tile)
    else:
        view.atomic_store_xor((0, 1), tile)


@pytest.mark.parametrize(
    ("mode", "dtype"), REDUCTIONS, ids=lambda v: np.dtype(v).name if isinstance(v, type) else v
)
def test_reductions_into_a_view(mode, dtype, device):
    """Three blocks combine into one tile, two columns of which are outside of the tensor."""
    if device.kind == "cuda" and dtype is ml_dtypes.bfloat16 and device.compute_capability < (8, 9):
        pytest.skip("no bfloat16 atomics here")
    rng = np.random.default_rng(1)
    before, x = rng.integers(1, 30, (2, 6)).astype(dtype), rng.integers(1, 30, (6, 4)).astype(dtype)
    out = ca.from_host(before).sync()
    combine(ca.mut(out), ca.from_host(x), mode).grid(3).sync()
    names = {
        "max": "maximum",
        "min": "minimum",
        "and": "bitwise_and",
        "or": "bitwise_or",
        "xor": "bitwise_xor",
    }
    expected = before.copy()
    parts = [before[:, 4:], *(x[2 * k : 2 * k + 2, :2] for k in range(3))]
    if mode == "add":
        expected[:, 4:] = sum(p.astype("f8") for p in parts).astype(dtype)
    else:
        function = getattr(np, names[mode])
        expected[:, 4:] = function.reduce(np.stack(parts))
    assert np.array_equal(out.to_host().sync(), expected)


# ------------------------------------------------------------------ slices


@tk.kernel
def parts(out, x, start: int):
    fixed = x.slice(1, 2, 6)
    tk.static_assert(fixed.shape[1] == 4)
    moving = x.slice(0, start, x.shape[0]).slice(1, start, start + 2)
    tk.store(out, (0, 0), tk.load(fixed, (0, 0), (4, 8)))
    tk.store(out, (1, 0), tk.load(moving, (0, 0), (4, 8)))
    tk.store(out.slice(0, 8, 9), (0, 0), moving.shape[0])


@pytest.mark.parametrize("start", [0, 1, 3])
def test_slices_have_edges_of_their_own(start, device):
    x = np.arange(1, 4 * 10 + 1, dtype="i4").reshape(4, 10)
    out = ca.zeros((9, 8), "i4").sync()
    parts(ca.mut(out), ca.from_host(x), start).grid(1).sync()
    result = out.to_host().sync()
    expected = np.zeros((9, 8))
    expected[:4, :4] = x[:, 2:6]
    expected[4 : 8 - start, :2] = x[start:, start : start + 2]
    expected[8, 0] = 4 - start
    assert np.array_equal(result, expected)


def test_slices_outside_are_refused_before_the_launch(device):
    x = ca.zeros((4, 5), "i4").sync()
    with pytest.raises(
        ca.LaunchError,
        match=r"slice \[2:6\] along axis 1 of x is not in it, its extent is 5: .*, but not 6 <= 5",
    ):
        parts(ca.mut(ca.zeros((9, 8), "i4").sync()), x, 0).grid(1).sync()
    wide = ca.zeros((4, 10), "i4").sync()
    for start, problem in ((-1, "0 <= -1"), (5, "5 <= 4")):
        told = rf"slice \[start:.*\] along axis 0 of x is not in it, its extent is 4: .*, but not {problem}"
        with pytest.raises(ca.LaunchError, match=told):
            parts(ca.mut(ca.zeros((9, 8), "i4").sync()), wide, start).grid(1).sync()


@tk.kernel
def slice_by_a_value(out, x, ends):
    y = x.slice(0, 0, tk.load(ends, 0, 1).item())
    out.store(tk.load(y, 0, 4))


def test_slices_by_values_of_the_kernel_are_checked_in_it(run_on_host):
    x = np.arange(8, dtype="i4")
    assert run_on_host(slice_by_a_value, ((4,), "i4", 4), x, np.array([3], "i4")).tolist() == [0, 1, 2, 0]
    with pytest.raises(tk.KernelAssertionError, match="along axis 0 of x is not in it"):
        run_on_host(slice_by_a_value, ((4,), "i4", 4), x, np.array([9], "i4"))


# ------------------------------------------------------------------ promises, orders


@tk.kernel
def contained(out, x, i: int):
    tk.store(out, 0, tk.load(x, i, 4, check_bounds=False), check_bounds=False)


def test_a_promise_that_a_tile_is_contained(device, host):
    out, x = ca.zeros((4,), "i4").sync(), ca.from_host(np.arange(10, dtype="i4")).sync()
    contained(ca.mut(out), x, 1).grid(1).sync()
    assert out.to_host().sync().tolist() == [4, 5, 6, 7]


def test_a_broken_promise_is_an_error_on_the_host_device(host):
    out, x = ca.zeros((4,), "i4").sync(), ca.from_host(np.arange(10, dtype="i4")).sync()
    with pytest.raises(
        tk.KernelIndexError, match="check_bounds=False promises that all of the tile is in it"
    ):
        contained(ca.mut(out), x, 2).grid(1).sync()


@tk.kernel
def handed_over(data, flags, out):
    """Block 0 writes data and raises a flag; the others look at what they see."""
    if tk.bid(0) == 0:
        tk.store(data, 0, tk.full((4,), 7, tk.int32))
        tk.store(flags, 0, 1, memory_order=tk.MemoryOrder.RELEASE, memory_scope=tk.MemoryScope.DEVICE)
    else:
        seen = tk.load(flags, 0, 1, memory_order=tk.MemoryOrder.ACQUIRE).item()
        value = tk.load(data, 0, 4, memory_order=tk.MemoryOrder.RELAXED, memory_scope=tk.MemoryScope.SYS)
        tk.store(out, tk.bid(0) - 1, tk.where(seen != 0, value, 7).reshape((1, 4)).reshape((4,)))


def test_released_data_is_seen_with_its_flag(device):
    data, flags = ca.zeros((4,), "i4").sync(), ca.zeros((1,), "i4").sync()
    out = ca.zeros((4 * 63,), "i4").sync()
    handed_over(ca.mut(data), ca.mut(flags), ca.mut(out)).grid(64).sync()
    assert set(out.to_host().sync().tolist()) == {7}


# ------------------------------------------------------------------ 64 bits


@tk.kernel
def far_apart(out, x, i: int):
    tk.store(out, 0, tk.load(x, i, 1))
    tk.store(out, 1, tk.gather(x, tk.full((), i, tk.int64)))
    tk.store(out, 2, tk.gather(x, i + 1, padding_value=-1))
    tk.store(x, i, 5)
    tk.scatter(x, i - 1, 6)
    tk.atomic_add(out, 3, x.strides[0].astype(tk.int64))


def test_elements_more_than_31_bits_apart(device):
    """A stride of 2**31: no page but two of the 4 GiB between is touched."""
    stride = 1 << 31
    try:
        whole = ca.empty((2 * stride + 1,), "i1").sync()
    except ca.OutOfMemoryError:
        pytest.skip("no 4 GiB here")
    x = whole[::stride]
    assert x.shape == (3,)
    out = ca.zeros((4,), "i8").sync()

    @tk.kernel
    def prepare(x):
        for i in range(3):
            tk.store(x, i, (10 + i).astype(tk.int8))

    prepare(ca.mut(x)).grid(1).sync()
    far_apart(ca.mut(out), ca.mut(x), 2).grid(1).sync()
    assert out.to_host().sync().tolist() == [12, 12, -1, stride]
    assert x.to_host().sync().tolist() == [10, 6, 5]


def test_wide_tensors_have_64_bit_extents_and_counts():
    @tk.kernel
    def sizes(out, x):
        out.store(out.load() + x.shape[0] + tk.num_tiles(x, 0, (4, 4)))

    text = sizes.ir(tk.meta((4,), "i8").partition(4), tk.meta((1 << 33, 4), "f4"))
    assert "%x_shape0: i64" in text
    assert "index_space" in text
    assert ": i64, i64" in text


# ------------------------------------------------------------------ what is refused


def view_of_wrong_rank(x):
    x.tiled_view((2, 2))


def steps_of_nothing(x):
    x.tiled_view(4, traversal_steps=0)


def store_to_an_input(x):
    x.tiled_view(4).store(0, 1.0)


def reduction_of_a_wrong_type(x):
    x.tiled_view(4).atomic_store_max(0, 1)


def reduction_over_the_system(x):
    x.tiled_view(4).atomic_store_add(0, 1.0, memory_scope=tk.MemoryScope.SYS)


def negative_slice(x):
    tk.store(x.slice(0, -1, 3), 0, 1.0)


def reversed_slice(x):
    tk.store(x.slice(0, 4, 3), 0, 1.0)


def no_such_attribute(x):
    x.tiled_view(4).shape  # noqa: B018


def load_that_releases(x):
    tk.load(x, 0, 4, memory_order=tk.MemoryOrder.RELEASE)


def store_that_acquires(x):
    tk.store(x, 0, 1.0, memory_order=tk.MemoryOrder.ACQUIRE)


def scope_of_text(x):
    tk.store(x, 0, 1.0, memory_order=tk.MemoryOrder.RELEASE, memory_scope="device")


def view_out_of_a_branch(x, n: int):
    view = x
    if n > 3:
        view = x.tiled_view(4)
    view.store(0, 1.0)


F = tk.meta((8,), "f4")


@pytest.mark.parametrize(
    ("body", "args", "message"),
    [
        (view_of_wrong_rank, (F,), "x has rank 1 and takes tiles of 1 sides"),
        (steps_of_nothing, (F,), "traversal_steps are 1 numbers of 1 or more for x"),
        (store_to_an_input, (F,), "x is given for reading"),
        (
            reduction_of_a_wrong_type,
            (F.mut(),),
            "atomic_store_max is for int32, int64, uint32, uint64; x holds",
        ),
        (reduction_over_the_system, (F.mut(),), "memory_scope is BLOCK, DEVICE here, got SYS"),
        (negative_slice, (F.mut(),), r"slice \[-1:3\] along axis 0 of x is not in it"),
        (reversed_slice, (F.mut(),), r"slice \[4:3\] along axis 0 of x is not in it"),
        (no_such_attribute, (F,), "a tiled view of x has no shape"),
        (load_that_releases, (F,), "the memory_order of a load is WEAK, RELAXED, ACQUIRE, got RELEASE"),
        (store_that_acquires, (F.mut(),), "the memory_order of a store is WEAK, RELAXED, RELEASE"),
        (scope_of_text, (F.mut(),), "memory_scope is one of tk.MemoryScope, got 'device'"),
        (view_out_of_a_branch, (F.mut(), 1), "view"),
    ],
)
def test_refused_at_the_line(body, args, message):
    with pytest.raises(tk.KernelError, match=message):
        tk.kernel(body).ir(*args)


def test_elements_that_may_be_the_same_cannot_be_stored_to():
    @tk.kernel
    def zero(out):
        out.store(0)

    with pytest.raises(
        tk.KernelArgumentError, match="some of its elements may be the same memory; copy it first"
    ):
        zero.ir(tk.meta((4, 4), "f4", strides=(0, 1)).partition((4, 4)))
    zero.ir(tk.meta((4, 1, 4), "f4", strides=(1, 0, 4)).partition((4, 1, 4)))


def test_hints_of_partitions_reach_the_accesses():
    @tk.kernel
    def copy(out, x):
        t = tk.load_like(x, out, latency=4) + out.load(latency=3, allow_tma=False)
        out.store(t, latency=2, allow_tma=True)

    text = copy.ir(F.partition(4), F)
    for hints in (" latency=4", " latency=3 allow_tma=false", " latency=2 allow_tma=true"):
        assert hints in text


def test_promised_elements_of_a_loop_without_turns_are_not_looked_at(host):
    @tk.kernel
    def pick(out, x, n: int, i: int):
        for _ in range(n):
            tk.store(out, 0, tk.gather(x, i, check_bounds=False))

    out, x = ca.zeros((1,), "f4").sync(), ca.zeros((4,), "f4").sync()
    pick(ca.mut(out), x, 0, 9).grid(1).sync()
    with pytest.raises(tk.KernelIndexError):
        pick(ca.mut(out), x, 1, 9).grid(1).sync()


def test_a_slice_made_in_a_branch_ends_with_it():
    @tk.kernel
    def kernel(out, x, n: int):
        y = x
        if n > 3:
            y = x.slice(0, 1, 3)
        tk.store(out, 0, tk.load(y, 0, 4))

    with pytest.raises(
        tk.KernelNameError, match="'y' is a tensor made of x or tensor x, depending on a run-time"
    ):
        kernel.ir(F.mut(), F, 3)


@tk.kernel
def slice_of_an_odd_name(out: tk.Tile1D, given, end):
    out.store(tk.load(given["{k} {0} {}"].slice(0, 1, end), 0, 4))


def test_names_with_braces_are_told_as_they_are(device):
    given = {"{k} {0} {}": ca.zeros(4, "i4").sync()}
    with pytest.raises(
        ca.LaunchError, match=r"\['\{k\} .*extent is .*: 0 <= start <= stop <= extent, but not"
    ):
        slice_of_an_odd_name(ca.zeros(4, "i4").partition(4), given, 9).sync()
