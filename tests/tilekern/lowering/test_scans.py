"""Scans along every axis, and what is made of them: NVIDIA's assembler needs help with many.

On the host device runs what the assembler made, so that accesses out of bounds in shared memory are noticed too.
"""

import numpy as np
import pytest

import tilekern as tk

pytestmark = pytest.mark.usefixtures("assembled")


def scanned(x, axis, reverse, function=np.add):
    turned = np.flip(x, axis) if reverse else x
    result = function.accumulate(turned, axis, dtype=x.dtype)
    return np.ascontiguousarray(np.flip(result, axis) if reverse else result)


def numbers(shape, dtype):
    return np.random.default_rng(4).integers(0, 3, shape).astype(dtype)


def scan():
    @tk.kernel
    def kernel(out, x, tile: tk.Constant[tuple], axis: tk.Constant[int], reverse: tk.Constant[bool]):
        total = tk.cumsum(tk.load(x, (0,) * x.ndim, tile), axis, reverse=reverse)
        out.store(total.reshape(out.shape))

    return kernel


BETWEEN = [
    ((2, 16, 32), 1, "i4", None),
    ((16, 32, 2), 1, "i1", None),
    ((8, 16, 32), 1, "i8", 4),
    ((4, 256, 2), 1, "i1", None),
    ((2, 8, 128), 1, "f4", 4),
    ((2, 2, 256), 2, "i8", 8),
    ((4, 8, 128), 1, "i4", 16),
    ((2, 2, 8), 1, "i4", None),
    ((2, 4, 2, 64), 2, "i4", None),
    ((2, 32, 2, 2), 1, "f8", 8),
    ((2, 1, 64), 1, "i4", None),
    ((64, 2, 8), 0, "i4", None),
]


@pytest.mark.parametrize(("shape", "axis", "dtype", "warps"), BETWEEN, ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_axes_of_cubes(run, shape, axis, dtype, warps, reverse):
    x = numbers(shape, dtype)
    options = {"num_worker_warps": warps} if warps else None
    found = run(scan(), ((x.size,), dtype, (x.size,)), x, shape, axis, reverse, options=options)
    np.testing.assert_array_equal(found.reshape(shape), scanned(x, axis, reverse))


@pytest.mark.parametrize("shape", [(16,), (64,), (4, 8), (8, 4), (16, 8), (2, 2, 4), (4,)], ids=str)
@pytest.mark.parametrize("warps", [4, 16], ids=lambda warps: f"{warps}-warps")
def test_small_ones_in_another_shape(run, shape, warps):
    x = numbers(shape, "i4")
    for axis in range(x.ndim):
        for other in {(x.size,), (2, x.size // 2), (x.size // 2, 2), (2, 2, x.size // 4)}:
            arguments = (other, "i4", other), x, shape, axis, False
            found = run(scan(), *arguments, options={"num_worker_warps": warps})
            np.testing.assert_array_equal(found, scanned(x, axis, False).reshape(other))


@pytest.mark.parametrize("shape", [(16,), (4, 8), (8, 4), (2, 32)], ids=str)
@pytest.mark.parametrize("dtype", ["i1", "i4", "f2", "f8"])
def test_parts_of_small_ones(run, shape, dtype):
    @tk.kernel
    def kernel(out, x, tile: tk.Constant[tuple], axis: tk.Constant[int], place: tk.Constant[tuple]):
        total = tk.cumsum(tk.load(x, (0,) * x.ndim, tile), axis)
        out.store(tk.extract(total, place, out.shape))

    x = numbers(shape, dtype)
    for axis in range(x.ndim):
        place = tuple(int(i == axis) for i in range(x.ndim))
        half = tuple(side // 2 if i == axis else side for i, side in enumerate(shape))
        found = run(kernel, (half, dtype, half), x, shape, axis, place)
        np.testing.assert_array_equal(found, np.split(scanned(x, axis, False), 2, axis)[1])


@pytest.mark.parametrize("shape", [(8,), (4, 4), (2, 16, 32)], ids=str)
@pytest.mark.parametrize("branches", [False, True], ids=["applied-to-tiles", "stays"])
def test_with_a_function_of_two(run, shape, branches):
    """y = a * y + b, from one element to the next, as pairs that are combined."""

    @tk.kernel
    def kernel(out, a, b, tile: tk.Constant[tuple], axis: tk.Constant[int], branches: tk.Constant[bool]):
        place = (0,) * a.ndim
        pairs = tk.load(a, place, tile), tk.load(b, place, tile)

        def then(s, h, u, k):
            if branches and u != 0:
                return s * u, h * u + k + 0 // u
            return s * u, h * u + k

        total = tk.scan(pairs, axis, then, (1, 0))
        out.store(total[1].reshape(out.shape))

    a, b = numbers(shape, "i4"), numbers(shape, "i4")
    for axis in range(a.ndim):
        y, expected = np.zeros_like(np.take(a, 0, axis)), []
        for i in range(shape[axis]):
            y = np.take(a, i, axis) * y + np.take(b, i, axis)
            expected.append(y)
        found = run(kernel, ((a.size,), "i4", (a.size,)), a, b, shape, axis, branches)
        np.testing.assert_array_equal(found.reshape(shape), np.stack(expected, axis))


def test_two_in_a_row(run):
    @tk.kernel
    def kernel(out, x):
        once = tk.cumsum(tk.load(x, (0, 0), (4, 8)), 0)
        out.store(tk.cumsum(once.reshape((2, 16)), 1).reshape((32,)))

    x = numbers((4, 8), "i4")
    expected = np.cumsum(np.cumsum(x, 0).reshape(2, 16), 1).reshape(-1)
    np.testing.assert_array_equal(run(kernel, ((32,), "i4", (32,)), x), expected)
