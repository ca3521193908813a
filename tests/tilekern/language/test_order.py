"""Accesses to the same memory, one after another, by groups of warps that NVIDIA's assembler gives other work to."""

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


@tk.kernel
def load_and_clear(out: tk.Tile1D, other: tk.Tile1D, x: tk.Tensor1D, counts: tk.Tensor1D, number: int):
    """What is in x, which becomes `number`; in between, something else is done and waited for."""
    b = out.index[0]
    seen = tk.load(x, b, 4)
    before = tk.atomic_add(counts, b * 16 + tk.arange(16, dtype=tk.int32), tk.full((16,), 1, tk.int32))
    for _ in range(number):
        before = before * 3
    old = tk.load(x, (b,), (16,))
    tk.store(x, (b,), tk.full((16,), number, x.dtype))
    out.store(old)
    other.store(before + tk.sum(seen).astype(tk.int32) * 0)  # so that `seen` is loaded


@pytest.mark.parametrize("dtype", ["i8", "f4", "i2"])
def test_what_is_stored_over_was_loaded_before(device, dtype):
    x = ca.from_host(np.arange(100, 148).astype(dtype)).sync()
    counts = ca.from_host(np.arange(48, dtype="i4")).sync()
    out, other = ca.zeros((48,), dtype).sync(), ca.zeros((48,), "i4").sync()
    load_and_clear(out.partition(16), other.partition(16), ca.mut(x), ca.mut(counts), 2).sync()
    np.testing.assert_array_equal(out.to_host().sync(), np.arange(100, 148).astype(dtype))
    np.testing.assert_array_equal(x.to_host().sync(), np.full(48, 2, dtype))
    np.testing.assert_array_equal(other.to_host().sync(), np.arange(48) * 9)
    np.testing.assert_array_equal(counts.to_host().sync(), np.arange(48) + 1)


@tk.kernel
def shift_up(out: tk.Tile2D, sums: tk.Tile1D, x: tk.Tensor2D, y: tk.Tensor1D):
    """The tile of x before its rows move up by one; `sums` is y and a scan of it."""
    b = out.index[0]
    for k in range(4):
        tk.store(x, (b * 4 + k, 0), tk.load(x, (b * 4 + k, 0), (1, 4)) * 2)
    whole = tk.load(x, (b, 0), (4, 4))
    for k in range(3):
        tk.store(x, (b * 4 + k, 0), tk.load(x, (b * 4 + k + 1, 0), (1, 4)) + 1)
    t = tk.load_like(y, sums)
    sums.store(t + tk.cumsum(t, 0))
    again = sums.load()
    sums.store(again + again)
    out.store(whole)


@pytest.mark.parametrize("dtype", ["i8", "f4"])
def test_rows_that_move_behind_a_load_of_all_of_them(device, dtype):
    start = np.arange(48).reshape(12, 4).astype(dtype)
    x, y = ca.from_host(start).sync(), ca.from_host(np.arange(48, dtype="i4")).sync()
    out, sums = ca.zeros((12, 4), dtype).sync(), ca.zeros((48,), "i4").sync()
    shift_up(out.partition((4, 4)), sums.partition(16), ca.mut(x), y).sync()
    np.testing.assert_array_equal(out.to_host().sync(), start * 2)
    moved = (start * 2).reshape(3, 4, 4)
    moved[:, :3] = moved[:, 1:] + 1
    np.testing.assert_array_equal(x.to_host().sync(), moved.reshape(12, 4))
    numbers = np.arange(48).reshape(3, 16)
    np.testing.assert_array_equal(sums.to_host().sync(), (2 * (numbers + numbers.cumsum(1))).reshape(-1))


@tk.kernel
def add_in_place(x: tk.Tile2D, a: tk.Tensor2D, b: tk.Tensor2D):
    """x += a @ b, with x what the sum begins with."""
    rows, columns = x.shape
    i, j = x.index
    total = x.load()
    for k in range(tk.num_tiles(a, 1, (rows, 32))):
        total = tk.mma(tk.load(a, (i, k), (rows, 32)), tk.load(b, (k, j), (32, columns)), total)
    x.store(total)


def test_products_added_in_place(device):
    random = np.random.default_rng(0)
    x, a, b = (random.integers(-8, 8, shape).astype("f4") for shape in ((100, 70), (100, 90), (90, 70)))
    found = add_in_place(
        ca.from_host(x).partition((32, 32)), ca.from_host(a.astype("f2")), ca.from_host(b.astype("f2"))
    )
    np.testing.assert_array_equal(found.first().unpartition().to_host().sync(), x + a @ b)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
def test_only_kernels_whose_accesses_have_no_order_use_the_accelerator(arch):
    vector, matrix = tk.meta((4096,), "i8"), tk.meta((4096, 4096), "f4")
    numbers = tk.meta((4096,), "i4")
    ordered = load_and_clear.ptx(
        vector.partition(16), numbers.partition(16), vector.mut(), numbers.mut(), 2, arch=arch
    )
    assert "cp.async.bulk" not in ordered
    half = tk.meta((4096, 4096), "f2")
    assert "cp.async.bulk.tensor" in add_in_place.ptx(matrix.partition((64, 64)), half, half, arch=arch)
