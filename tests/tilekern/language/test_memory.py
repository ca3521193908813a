"""Loads, stores, partitions, grids and edges."""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

DTYPES = ["?", "i1", "u2", "i4", "i8", np.float16, ml_dtypes.bfloat16, "f4", "f8", ml_dtypes.float8_e4m3fn]


def ids(value):
    return np.dtype(value).name if isinstance(value, type | str) else None


@tk.kernel
def copy(out, x):
    out.store(tk.load_like(x, out))


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
@pytest.mark.parametrize(
    ("shape", "tile"),
    [((11,), 4), ((64,), 16), ((5, 7), (4, 4)), ((8, 16), (4, 8)), ((3, 5, 9), (2, 4, 4)), ((1, 1), (8, 8))],
)
def test_copy_of_ragged_shapes(dtype, shape, tile, run, device):
    if device.kind == "cuda" and "float8" in np.dtype(dtype).name and device.compute_capability < (8, 9):
        pytest.skip("no fp8 here")
    x = (np.arange(np.prod(shape)) % 100).reshape(shape).astype(dtype)
    assert np.array_equal(run(copy, (shape, dtype, tile), x), x)


@tk.kernel
def affine_and_sums(out, sums, x):
    t = tk.load_like(x, out)
    out.store(10 * t + 1)
    tk.store(sums, tk.bid(0), tk.sum(t))


def test_edge_tiles_touch_nothing_around(device):
    """Known words stand before and after each array, in the same allocation."""
    guard = np.full(40, -777, "i4")
    guard[16:27] = np.arange(11)
    x = ca.from_host(guard).sync()
    out = ca.from_host(guard).sync()
    sums = ca.from_host(np.full(24, -777, "i4")).sync()
    affine_and_sums(out[16:27].partition(4), ca.mut(sums[16:19]), x[16:27]).sync()
    result, total = out.to_host().sync(), sums.to_host().sync()
    assert result[16:27].tolist() == [10 * i + 1 for i in range(11)]
    assert set(result[:16]) == set(result[27:]) == {-777}
    assert total[16:19].tolist() == [6, 22, 27]
    assert set(total[:16]) == set(total[19:]) == {-777}


def test_edges_in_two_dimensions(device):
    guard = np.full((9, 16), -777, "i4")
    guard[2:7, 4:11] = np.arange(35).reshape(5, 7)
    x, out = ca.from_host(guard).sync(), ca.from_host(guard).sync()

    @tk.kernel
    def affine(out, x):
        out.store(10 * tk.load_like(x, out) + 1)

    affine(out[2:7, 4:11].partition((4, 4)), x[2:7, 4:11]).sync()
    expected = guard.copy()
    expected[2:7, 4:11] = 10 * np.arange(35).reshape(5, 7) + 1
    assert np.array_equal(out.to_host().sync(), expected)


@tk.kernel
def load_padded(out, x, mode: tk.Constant[object]):
    out.store(tk.load(x, 1, 8, padding_mode=mode))


@pytest.mark.parametrize("mode", tk.PaddingMode)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, "f4", "f8"], ids=ids)
def test_padding(mode, dtype, run):
    x = np.arange(11).astype(dtype)
    result = run(load_padded, ((8,), dtype, 8), x, mode).astype("f8")
    assert result[:3].tolist() == [8, 9, 10]
    if mode is tk.PaddingMode.UNDETERMINED:
        return
    padding = {"zero": 0.0, "neg_zero": -0.0, "nan": np.nan, "pos_inf": np.inf, "neg_inf": -np.inf}[
        mode.value
    ]
    assert np.array_equal(result[3:], np.full(5, padding), equal_nan=True)
    assert np.signbit(result[3:]).tolist() == [bool(np.signbit(padding))] * 5 or np.isnan(padding)


def test_padding_of_integers_is_zero_only(run):
    with pytest.raises(tk.KernelTypeError, match="padding NAN is for floats; x holds int32"):
        run(load_padded, ((8,), "i4", 8), np.arange(11, dtype="i4"), tk.PaddingMode.NAN)


@tk.kernel
def transpose(out, x):
    i, j = out.index
    out.store(tk.load(x, (i, j), out.shape, order="F"))


@tk.kernel
def permute_tiles(out, x, order: tk.Constant[tuple]):
    out.store(tk.load(x, out.index, out.shape, order=order))


def test_order_loads_transposed_tiles(run):
    x = np.arange(5 * 9, dtype="f4").reshape(5, 9)
    assert np.array_equal(run(transpose, ((9, 5), "f4", (4, 2)), x), x.T)
    y = np.arange(3 * 5 * 9, dtype="i4").reshape(3, 5, 9)
    assert np.array_equal(
        run(permute_tiles, ((9, 3, 5), "i4", (4, 2, 2)), y, (2, 0, 1)), y.transpose(2, 0, 1)
    )


@tk.kernel
def store_transposed(out, x):
    t = tk.load(x, (tk.bid(0), tk.bid(1)), (4, 8))
    tk.store(out, (tk.bid(0), tk.bid(1)), t, order="F")


def test_order_stores_transposed_tiles(device):
    x = np.arange(5 * 20, dtype="f4").reshape(5, 20)
    out = ca.zeros((20, 5), "f4").sync()
    store_transposed(ca.mut(out), ca.from_host(x)).grid((2, 3)).sync()
    assert np.array_equal(out.to_host().sync(), x.T)


@tk.kernel
def strided_copy(out, x):
    out.store(tk.load_like(x, out))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2, ::3],
        lambda x: x[1:, 3:10],
        lambda x: x.permute(1, 0),
        lambda x: x[:, 1][:, None],
        lambda x: x[3:4, :],
        lambda x: x[2:2, :],
    ],
)
def test_strided_views(view, device):
    x = np.arange(12 * 18, dtype="i2").reshape(12, 18)
    source = view(ca.from_host(x).sync())
    expected = {
        (6, 6): x[::2, ::3],
        (11, 7): x[1:, 3:10],
        (18, 12): x.T,
        (12, 1): x[:, 1:2],
        (1, 18): x[3:4],
        (0, 18): x[2:2],
    }
    out = ca.zeros(source.shape, "i2").sync()
    strided_copy(out.partition((4, 4)), source).sync()
    assert np.array_equal(out.to_host().sync(), expected[source.shape])
    # and as the output
    whole = ca.zeros((12, 18), "i2").sync()
    strided_copy(view(whole).partition((2, 8)), source).sync()
    assert np.array_equal(view(whole).to_host().sync(), expected[source.shape])


@tk.kernel
def own_tile_twice(out):
    out.store(out.load() + 1)
    out.store(out.load() * 2)


def test_a_load_sees_the_store_before_it(run):
    assert np.array_equal(run(own_tile_twice, (np.arange(10, dtype="i4"), "i4", 4)), (np.arange(10) + 1) * 2)


@tk.kernel
def running_sum(out, x, n: int):
    """Every turn reads what the turn before wrote."""
    for i in range(n):
        tk.store(out, 0, tk.load(out, 0, 8) + tk.load(x, i, 8))
    tk.store(out, 1, tk.load(out, 0, 8) * 10)


def test_memory_is_in_program_order_through_loops(device):
    x = np.arange(40, dtype="i4")
    out = ca.zeros((16,), "i4").sync()
    running_sum(ca.mut(out), ca.from_host(x), 5).grid(1).sync()
    total = x.reshape(5, 8).sum(0)
    assert np.array_equal(out.to_host().sync(), np.concatenate([total, 10 * total]))


@tk.kernel
def report(out, x):
    i, j, k = tk.bid(0), tk.bid(1), tk.bid(2)
    number = (i * tk.num_blocks(1) + j) * tk.num_blocks(2) + k
    tk.store(out, number, number + 1000 * tk.num_blocks(0))
    tk.static_assert(x.ndim == 2 and x.dtype is tk.float32)


def test_block_ids_and_counts(device):
    out = ca.zeros((24,), "i4").sync()
    report(ca.mut(out), ca.zeros((1, 1), "f4")).grid((2, 3, 4)).sync()
    assert out.to_host().sync().tolist() == [2000 + i for i in range(24)]


@tk.kernel
def facts(out, x):
    tk.store(out, 0, x.shape[0])
    tk.store(out, 1, x.shape[1])
    tk.store(out, 2, x.strides[0])
    tk.store(out, 3, x.strides[1])
    tk.store(out, 4, tk.num_tiles(x, 0, (4, 8)))
    tk.store(out, 5, tk.num_tiles(x, 1, (4, 8)))
    tk.store(out, 6, tk.num_tiles(x, 0, (4, 8), order="F"))
    tk.store(out, 7, tk.cdiv(x.shape[1], 5))


def test_shapes_strides_and_tile_counts(device):
    out = ca.zeros((8,), "i4").sync()
    facts(ca.mut(out), ca.zeros((9, 21), "f4").sync()[:, ::2]).grid(1).sync()
    assert out.to_host().sync().tolist() == [9, 11, 21, 2, 3, 2, 3, 3]


@tk.kernel
def sum_tiles(out, x):
    acc = tk.zeros((8,), tk.float32)
    for i in range(tk.num_tiles(x, 0, 8)):
        acc += tk.load(x, i, 8)
    tk.store(out, 0, tk.sum(acc))


def test_loop_over_all_tiles(device):
    x = np.arange(100, dtype="f4")
    out = ca.zeros((1,), "f4").sync()
    sum_tiles(ca.mut(out), ca.from_host(x)).grid(1).sync()
    assert out.to_host().sync()[0] == x.sum()


@tk.kernel
def load_tile(out, x, i: int):
    tk.store(out, 0, tk.load(x, i, 8))


def test_tile_out_of_range_refuses_the_launch(device):
    out, x = ca.zeros((8,), "f4").sync(), ca.zeros((20,), "f4").sync()
    load_tile(ca.mut(out), x, 2).grid(1).sync()
    for index in (3, -1):
        with pytest.raises(ca.LaunchError) as caught:
            load_tile(ca.mut(out), x, index).grid(1).sync()
        assert f"tile index along axis 0 goes from {index} to {index}, and there are 3 tiles" in str(
            caught.value
        )
        assert "tk.load(x, i, 8)" in str(caught.value)
    load_tile(ca.mut(out), x, 2).grid(1).sync()


@tk.kernel
def hinted(out, x):
    t = tk.load(x, out.index, out.shape, latency=3, allow_tma=False)
    out.store(t)


@tk.kernel
def half_hinted(out, x, y):
    i, j = out.index
    acc = tk.zeros(out.shape, tk.float32)
    for k in range(tk.num_tiles(x, 1, (64, 64))):
        acc = tk.mma(tk.load(x, (i, k), (64, 64)), tk.load(y, (k, j), (64, 64), allow_tma=True), acc)
    out.store(acc)


def test_option_keeps_accesses_from_the_tensor_memory_accelerator(disassemble):
    """Those that do not allow it themselves."""
    factor = tk.meta((256, 256), "bfloat16")
    args = (tk.meta((256, 256), "f4").partition((64, 64)), factor, factor)
    free, direct = (
        half_hinted.with_options(allow_tma=allowed).ptx(*args, arch="sm_90") for allowed in (True, False)
    )
    loads, stores = "cp.async.bulk.tensor.2d.shared", "cp.async.bulk.tensor.2d.global"
    assert free.count(loads) == 2
    assert stores in free
    assert "ld.global" not in free
    assert direct.count(loads) == 1
    assert stores not in direct
    assert "ld.global" in direct
    with pytest.raises(tk.KernelOptionError, match="allow_tma is True or False, got None"):
        half_hinted.with_options(allow_tma=None)


def test_option_that_keeps_from_the_accelerator_changes_no_value(run):
    x = np.arange(64 * 100, dtype="f4").reshape(64, 100) % 7
    y = x.T.copy()
    found = run(half_hinted.with_options(allow_tma=False), ((64, 64), "f4", (64, 64)), x, y)
    assert np.array_equal(found, x @ y)


def test_hints_change_nothing(run):
    x = np.arange(100, dtype="f4").reshape(10, 10)
    assert np.array_equal(run(hinted, ((10, 10), "f4", (4, 4)), x), x)
    assert np.array_equal(
        run(hinted, ((10, 10), "f4", (4, 4)), x, options={"occupancy": 2, "num_worker_warps": 8}), x
    )


def test_store_of_numbers_and_promotable_tiles(device):
    @tk.kernel
    def stores(out):
        tk.store(out, 0, 1.5)
        tk.store(out, 1, tk.full((), 3, tk.int32))
        tk.store(out, 1, tk.full((2,), 0.5, tk.float16))

    out = ca.zeros((4,), "f4").sync()
    stores(ca.mut(out)).grid(1).sync()
    assert out.to_host().sync().tolist() == [1.5, 3.0, 0.5, 0.5]


def test_tensor_of_a_billion_rows_uses_64_bits(host):
    """Extents beyond 32 bits are passed as int64; strides of 0 make them cheap."""
    x = tk.meta((2**33, 4), "f4", strides=(0, 1))

    @tk.kernel
    def rows(out, x):
        out.store(x.shape[0] + out.load())

    text = rows.ir(tk.meta((4,), "i8").partition(4), x)
    assert "%x_shape0: i64" in text
    assert "%out_shape0: i32" in text
