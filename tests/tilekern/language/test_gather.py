"""Elements and rows by their indices, against NumPy's fancy indexing."""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

DTYPES = ["?", "i1", "u2", "i4", "u8", np.float16, ml_dtypes.bfloat16, "f4", "f8", ml_dtypes.float8_e5m2]


def ids(value):
    return np.dtype(value).name if isinstance(value, type | str) else None


def no_fp8(device, dtype):
    if device.kind == "cuda" and "float8" in np.dtype(dtype).name and device.compute_capability < (8, 9):
        pytest.skip("no fp8 here")


@tk.kernel
def pick(out, x, index):
    out.store(tk.gather(x, tk.load_like(index, out), padding_value=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_gather_of_every_type(dtype, run, device):
    no_fp8(device, dtype)
    x = (np.arange(11) % 7).astype(dtype)
    index = np.array([3, 0, -1, 10, 11, 7, 1 << 30, -(1 << 31)], "i4")
    inside = (index >= 0) & (index < 11)
    expected = np.where(inside, x[np.where(inside, index, 0)], np.ones(1, dtype))
    assert np.array_equal(run(pick, ((8,), dtype, 8), x, index), expected)


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u4", "i8", "u8"])
def test_indices_of_every_integer_type(kind, run):
    x = np.arange(100, 150, dtype="f4")
    index = np.array([0, 49, 50, 127], kind)
    assert run(pick, ((4,), "f4", 4), x, index).tolist() == [100, 149, 1, 1]


def test_an_index_beyond_63_bits_is_outside(run):
    index = np.array([(1 << 64) - 1, 1 << 63, 2, 1 << 33], "u8")
    assert run(pick, ((4,), "f4", 4), np.arange(4, dtype="f4"), index).tolist() == [1, 1, 2, 1]


@tk.kernel
def transpose(out, x):
    i, j = tk.arange(8, dtype=tk.int32)[:, None], tk.arange(4, dtype=tk.int32)[None, :]
    out.store(tk.gather(x, (j, i + 1), padding_value=-5))


def test_indices_broadcast_and_follow_strides(run):
    x = np.arange(4 * 8, dtype="i4").reshape(4, 8)
    expected = np.full((8, 4), -5)
    expected[:7] = x.T[1:]
    assert np.array_equal(run(transpose, ((8, 4), "i4", (8, 4)), x), expected)


@tk.kernel
def masked(out, x, limit: int):
    i = tk.arange(8, dtype=tk.int32)
    out.store(tk.gather(x, i, mask=i < limit, padding_value=tk.arange(8, dtype=tk.float32) * 10))


def test_masked_elements_are_padding_tiles_too(run):
    x = np.arange(8, dtype="f4") + 0.5
    assert run(masked, ((8,), "f4", 8), x, 3).tolist() == [0.5, 1.5, 2.5, 30, 40, 50, 60, 70]
    assert run(masked, ((8,), "f4", 8), x[:2].copy(), 3).tolist() == [0.5, 1.5, 20, 30, 40, 50, 60, 70]


@tk.kernel
def spread(out, index, x):
    i = tk.load(index, 0, 8)
    tk.scatter(out, i, tk.load(x, 0, 8), mask=i != 3)


def test_scatter_skips_what_is_outside_or_masked(device):
    out = ca.from_host(np.full(6, 9, "i4")).sync()
    index = ca.from_host(np.array([5, 3, -1, 6, 0, 1 << 20, 2, -6], "i4"))
    spread(ca.mut(out), index, ca.from_host(np.arange(8, dtype="i4"))).grid(1).sync()
    assert out.to_host().sync().tolist() == [4, 9, 6, 9, 9, 0]


@tk.kernel
def fill_row(out, row: int):
    tk.scatter(out, (row, tk.arange(4, dtype=tk.int32)), 7)


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_scatter_of_a_number(dtype, device):
    no_fp8(device, dtype)
    out = ca.zeros((3, 5), dtype).sync()
    if np.dtype(dtype).name.startswith("float8"):
        pytest.skip("a number has no fp8 to take")
    fill_row(ca.mut(out), 1).grid(1).sync()
    expected = np.zeros((3, 5), dtype)
    expected[1, :4] = np.full(4, 7).astype(dtype)
    assert np.array_equal(out.to_host().sync(), expected)


@tk.kernel
def promised(out, x, offset: int, limit: int):
    i = tk.arange(4, dtype=tk.int32) + offset
    out.store(tk.gather(x, i, mask=i < limit, check_bounds=False))


def test_a_promise_of_bounds_is_checked_on_the_host_device(run_on_host):
    x = np.arange(6, dtype="f4")
    assert run_on_host(promised, ((4,), "f4", 4), x, 2, 100).tolist() == [2, 3, 4, 5]
    assert run_on_host(promised, ((4,), "f4", 4), x, 3, 6).tolist() == [3, 4, 5, 0]
    with pytest.raises(tk.KernelIndexError, match=r"element \(6,\) of x, whose shape is \(6,\)") as caught:
        run_on_host(promised, ((4,), "f4", 4), x, 3, 7)
    assert "tk.gather(x, i, mask=i < limit, check_bounds=False)" in str(caught.value)


def test_gather_sees_the_scatter_before_it(device):
    @tk.kernel
    def shift(out):
        for _ in range(3):
            i = tk.arange(8, dtype=tk.int32)
            tk.scatter(out, i + 1, tk.gather(out, i))

    out = ca.from_host(np.arange(8, dtype="i4")).sync()
    shift(ca.mut(out)).grid(1).sync()
    assert out.to_host().sync().tolist() == [0, 0, 0, 0, 1, 2, 3, 4]


# ------------------------------------------------------------------ rows


@tk.kernel
def rows(out, x, numbers, start: int):
    i = tk.load(numbers, 0, 4)
    out.store(tk.load_advanced_indexing(x, (i, tk.Slice(start, 8)), padding_mode=tk.PaddingMode.NEG_INF))


@pytest.mark.parametrize("dtype", [np.float16, "f4"], ids=ids)
def test_rows_by_number(dtype, run):
    x = np.arange(6 * 10).reshape(6, 10).astype(dtype)
    result = run(rows, ((4, 8), dtype, (4, 8)), x, np.array([5, 0, -1, 6], "i4"), 3)
    expected = np.full((4, 8), -np.inf)
    expected[:2, :7] = x[[5, 0], 3:]
    assert np.array_equal(result, expected)


@tk.kernel
def columns(out, x, numbers):
    i = tk.load(numbers, 0, 4)
    out.store(tk.load_advanced_indexing(x, (tk.Slice(2, 2), i, tk.Slice(0, 4))))


def test_rows_along_an_inner_axis(run):
    x = np.arange(5 * 7 * 4, dtype="i4").reshape(5, 7, 4)
    numbers = np.array([6, 6, 1, 0], "i4")
    assert np.array_equal(run(columns, ((2, 4, 4), "i4", (2, 4, 4)), x, numbers), x[2:4, numbers])


@tk.kernel
def put_rows(out, x, numbers):
    tile = tk.load(x, (0, 0), (4, 8))
    tk.store_advanced_indexing(out, (tk.load(numbers, 0, 4), tk.Slice(1, 8)), tile)


def test_store_of_rows_drops_what_is_outside(device):
    out = ca.zeros((5, 6), "f4").sync()
    x = np.arange(1, 33, dtype="f4").reshape(4, 8)
    put_rows(ca.mut(out), ca.from_host(x), ca.from_host(np.array([3, -2, 0, 5], "i4"))).grid(1).sync()
    expected = np.zeros((5, 6))
    expected[[3, 0], 1:] = x[[0, 2], :5]
    assert np.array_equal(out.to_host().sync(), expected)


def test_a_slice_begins_in_the_tensor(run_on_host):
    with pytest.raises(tk.KernelIndexError, match="along axis 1 of x starts at element 10; it has 10"):
        run_on_host(rows, ((4, 8), "f4", (4, 8)), np.ones((6, 10), "f4"), np.zeros(4, "i4"), 10)


# ------------------------------------------------------------------ what is refused


def wrong(body, *args):
    return tk.kernel(body).ir(*args)


F = tk.meta((8,), "f4")
F2 = tk.meta((8, 8), "f4")


def gather_by_floats(out, x):
    out.store(tk.gather(x, tk.arange(4, dtype=tk.float32)))


def gather_too_few(out, x):
    out.store(tk.gather(x, 1))


def gather_with_numbers_for_a_mask(out, x):
    out.store(tk.gather(x, tk.arange(4, dtype=tk.int32), mask=1))


def gather_with_a_wrong_order(out, x):
    i = tk.arange(4, dtype=tk.int32)
    out.store(tk.gather(x, i, memory_order=tk.MemoryOrder.RELEASE))


def scatter_to_an_input(out, x):
    tk.scatter(x, 0, 1.0)
    out.store(0)


def scatter_doubles(out, x):
    tk.scatter(x, 0, tk.full((), 1, tk.float64))
    out.store(0)


def rows_without_a_tile(out, x):
    out.store(tk.load_advanced_indexing(x, (tk.Slice(0, 4), tk.Slice(0, 4))))


def rows_with_a_number(out, x):
    i = tk.arange(4, dtype=tk.int32)
    out.store(tk.load_advanced_indexing(x, (i, 0)))


def rows_of_an_odd_slice(out, x):
    i = tk.arange(4, dtype=tk.int32)
    out.store(tk.load_advanced_indexing(x, (i, tk.Slice(0, 3))))


@pytest.mark.parametrize(
    ("body", "x", "message"),
    [
        (gather_by_floats, F, "an index is of whole numbers and integer tiles, got a float32 tile"),
        (gather_too_few, F2, "x has rank 2, there are 1 indices"),
        (gather_with_numbers_for_a_mask, F, "a mask is a bool tile, got 1"),
        (gather_with_a_wrong_order, F, "the memory_order of a load is WEAK, RELAXED, ACQUIRE, got RELEASE"),
        (scatter_to_an_input, F, "x is given for reading; give it as ca.mut"),
        (scatter_doubles, F.mut(), "x holds float32, got a float64 scalar; convert it: tile.astype"),
        (rows_without_a_tile, F2, "exactly one index is a tile of rank 1"),
        (rows_with_a_number, F2, r"index 1 is a tk.Slice\(start, length\), got 0"),
        (rows_of_an_odd_slice, F2, "every side of a tile is a power of two"),
    ],
)
def test_refused_at_the_line(body, x, message):
    with pytest.raises(tk.KernelError, match=message):
        wrong(body, tk.meta((4,), "f4").partition(4), x)
