"""Several tensors in one argument, and one of them chosen by an index known at run time only."""

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


@tk.kernel
def sums(out, xs: list):
    """Block i adds up tensor i, whatever its size."""
    tk.static_assert(len(xs) == 3)
    x = xs[tk.bid(0)]
    acc = tk.zeros((8,), tk.float32)
    for k in range(tk.num_tiles(x, 0, 8)):
        acc += tk.load(x, k, 8)
    tk.store(out, tk.bid(0), tk.sum(acc) + xs[0].shape[0])


def test_a_list_of_tensors_of_any_size(device):
    xs = [np.arange(n, dtype="f4") for n in (5, 64, 17)]
    given = [ca.from_host(x).sync() for x in xs]
    out, back = sums(ca.mut(ca.zeros((3,), "f4").sync()), given).grid(3).sync()
    assert out.to_host().sync().tolist() == [x.sum() + 5 for x in xs]
    assert isinstance(back, list)
    assert all(a is b for a, b in zip(back, given, strict=True))


@tk.kernel
def grouped_product(outs, xs, ys, side: tk.Constant[int]):
    """One product per block, of matrices of different sizes."""
    i = tk.bid(0)
    out, x, y = outs[i], xs[i], ys[i]
    acc = tk.zeros((side, side), tk.float32)
    for k in range(tk.num_tiles(x, 1, (side, side))):
        acc = tk.mma(tk.load(x, (0, k), (side, side)), tk.load(y, (k, 0), (side, side)), acc)
    tk.store(out, (0, 0), acc)


def test_products_of_a_group_of_matrices(device):
    rng = np.random.default_rng(0)
    shapes = [(3, 40, 5), (16, 16, 16), (9, 7, 2)]
    xs = [rng.integers(-4, 5, (m, k)).astype(np.float16) for m, k, _ in shapes]
    ys = [rng.integers(-4, 5, (k, n)).astype(np.float16) for _, k, n in shapes]
    outs = [ca.zeros((m, n), "f4").sync() for m, _, n in shapes]
    inputs = [[ca.from_host(a).sync() for a in group] for group in (xs, ys)]
    grouped_product([ca.mut(o) for o in outs], *inputs, 16).grid(3).sync()
    for out, x, y in zip(outs, xs, ys, strict=True):
        assert np.array_equal(out.to_host().sync(), x.astype("f4") @ y.astype("f4"))


def test_an_index_outside_is_an_error(host):
    xs = [ca.zeros((8,), "f4").sync() for _ in range(3)]
    with pytest.raises(tk.KernelAssertionError, match=r"xs\[...\] has 3 tensors, counted from 0"):
        sums(ca.mut(ca.zeros((4,), "f4").sync()), xs).grid(4).sync()


@tk.kernel
def choose(out, xs, n: int):
    tk.store(out, 0, tk.load(xs[n], 0, 4))


@tk.kernel
def store_to_one(xs, n: int):
    tk.store(xs[n], 0, 1.0)


def test_refused_at_the_line():
    out, x = tk.meta((4,), "f4").mut(), tk.meta((4,), "f4")
    with pytest.raises(
        tk.KernelTypeError, match="have one element type and rank, got float32 of rank 1, int32 of"
    ):
        choose.ir(out, (x, tk.meta((4,), "i4")), 1)
    with pytest.raises(tk.KernelValueError, match="at most 64 tensors, got 65"):
        choose.ir(out, (x,) * 65, 1)
    with pytest.raises(tk.KernelTypeError, match="given for reading"):
        store_to_one.ir((out, x), 1)


def test_valid_tile_ir(disassemble):
    x = tk.meta((100, 64), "f2")
    disassemble(grouped_product.bytecode([tk.meta((100, 64), "f4").mut()] * 3, [x] * 3, [x] * 3, 16))
