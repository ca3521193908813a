"""Variables of a loop that become what others were: NVIDIA's assembler mistakes them behind the loop.

On the host device runs what the assembler made.
"""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

pytestmark = pytest.mark.usefixtures("assembled")

TURNS = (1, 2, 5, 9)
"""Fewer than the turns that overlap, and more."""


def of_rows(t):
    return t + tk.max(t, axis=1, keepdims=True)


@tk.kernel
def the_one_before(out, last, x, shape: tk.Constant[tuple[int, int]], n: int):
    now, before = tk.full(shape, -2, x.dtype), tk.full(shape, -3, x.dtype)
    for i in range(n):
        before = now
        now = tk.load(x, (i, 0), shape) + 1
        tk.store(out, (i, 0), of_rows(now))
    tk.store(last, (0, 0), before)


@tk.kernel
def that_is_used_too(out, last, x, shape: tk.Constant[tuple[int, int]], n: int):
    now, before = tk.full(shape, -2, x.dtype), tk.full(shape, -3, x.dtype)
    for i in range(n):
        before = now
        now = tk.load(x, (i, 0), shape) + 1
        tk.store(out, (i, 0), of_rows(now) + 0 * before)
    tk.store(last, (0, 0), before)


@tk.kernel
def as_it_was_loaded(out, last, x, shape: tk.Constant[tuple[int, int]], n: int):
    now, before = tk.full(shape, -3, x.dtype), tk.full(shape, -4, x.dtype)
    for i in range(n):
        before = now
        now = tk.load(x, (i, 0), shape)
        tk.store(out, (i, 0), of_rows(now + 1))
    tk.store(last, (0, 0), before + 1)


@tk.kernel
def behind_an_inner_loop(out, last, x, shape: tk.Constant[tuple[int, int]], n: int):
    now, before = tk.full(shape, -2, x.dtype), tk.full(shape, -3, x.dtype)
    for i in range(n):
        before = now
        for j in range(i, i + 1):
            now = tk.load(x, (j, 0), shape) + 1
        tk.store(out, (i, 0), of_rows(now))
    tk.store(last, (0, 0), before)


KERNELS = [the_one_before, that_is_used_too, as_it_was_loaded, behind_an_inner_loop]


@pytest.mark.parametrize("shape", [(1, 1024), (16, 64), (64, 64)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_tile_of_the_turn_before_the_last(device, kernel, dtype, shape):
    tensor = np.random.default_rng(2).integers(-2, 3, (max(TURNS) * shape[0], shape[1]))
    x = ca.from_host(tensor.astype(getattr(ml_dtypes, dtype, dtype))).sync()
    tiles = tensor.reshape(-1, *shape) + 1
    for n in TURNS:
        out, last = ca.zeros(x.shape, x.dtype).sync(), ca.zeros(shape, x.dtype).sync()
        kernel(ca.mut(out), ca.mut(last), x, shape, n).grid(1).sync()
        before = tiles[n - 2] if n > 1 else np.full(shape, -2)
        np.testing.assert_array_equal(last.to_host().sync().astype("f4"), before)
        made = out.to_host().sync().astype("f4").reshape(-1, *shape)[:n]
        np.testing.assert_array_equal(made, (tiles + tiles.max(axis=2, keepdims=True))[:n])


@tk.kernel
def two_before(last, x, shape: tk.Constant[tuple[int, int]], n: int):
    now, before, earlier = (tk.full(shape, k, x.dtype) for k in (-2, -3, -4))
    for i in range(n):
        earlier, before, now = before, now, tk.max(tk.load(x, (i, 0), shape)) + tk.zeros(shape, x.dtype)
    tk.store(last, (0, 0), earlier)


@tk.kernel
def numbers(last, x, shape: tk.Constant[tuple[int, int]], n: int):
    """The number before the last one, of those that count and of those that are computed from what is loaded."""
    place, before = tk.full((), 7, tk.int32), tk.full((), 9, tk.int32)
    top, top_before = tk.full((), -2, tk.float32), tk.full((), -3, tk.float32)
    for i in range(n):
        before, place = place, 10 * i
        top_before, top = top, tk.max(tk.load(x, (i, 0), shape)).astype(tk.float32)
    tk.store(last, (0, 0), tk.full(shape, before, x.dtype) + tk.full(shape, top_before, x.dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_and_longer_chains(device, dtype):
    shape = (4, 256)
    tensor = np.zeros((max(TURNS) * 4, 256))
    tensor[::4] = np.arange(1, 1 + max(TURNS))[:, None]
    x = ca.from_host(tensor.astype(getattr(ml_dtypes, dtype, dtype))).sync()
    tops = [-4, -3, -2, *range(1, 1 + max(TURNS))]
    places = [9, 7, *range(0, 10 * max(TURNS), 10)]
    for n in TURNS:
        for kernel, expected in ((two_before, tops[n]), (numbers, places[n] + tops[1 + n])):
            last = ca.zeros(shape, x.dtype).sync()
            kernel(ca.mut(last), x, shape, n).grid(1).sync()
            assert (last.to_host().sync().astype("f4") == expected).all()
