"""Scans written out in steps give what scans give, in the interpreter; and which scans stay."""

import numpy as np
import pytest

import tilekern as tk
from tilekern import ir, passes
from tilekern.jit import _compile


@pytest.fixture
def written_out(monkeypatch, host):
    """Kernels go through the passes that write scans out, and are interpreted; gives what became of each function."""
    pipeline, functions = passes.pipeline, []

    class Keep(passes.Pass):
        name = "keep"

        def run(self, function):
            functions.append(function)
            return False

    def also(check, **how):
        return (*pipeline(check, **how), *passes.EXPAND, Keep())

    monkeypatch.setattr(_compile, "pipeline", also)
    return functions


def scans(function):
    return sum(isinstance(op, ir.ScanOp | ir.ScanWithOp) for op in ir.walk(function.body))


def accumulated(x, axis, reverse, function):
    turned = np.flip(x, axis) if reverse else x
    result = function.accumulate(turned, axis, dtype=x.dtype)
    return np.flip(result, axis) if reverse else result


SHAPES = [(2,), (8,), (64,), (1,), (4, 8), (16, 2), (1, 16), (2, 2, 4), (4, 1, 8), (2, 4, 2, 2), (128, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(("ours", "numpy"), [(tk.cumsum, np.add), (tk.cumprod, np.multiply)])
@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_sums_and_products(run_on_host, written_out, shape, reverse, ours, numpy, dtype):
    @tk.kernel
    def kernel(out, x, tile: tk.Constant[tuple], axis: tk.Constant[int], reverse: tk.Constant[bool]):
        total = ours(tk.load(x, (0,) * x.ndim, tile), axis, reverse=reverse)
        out.store(total.reshape(out.shape))

    x = np.random.default_rng(2).integers(1, 3, shape).astype(dtype)
    for axis in range(x.ndim):
        found = run_on_host(kernel, ((x.size,), dtype, (x.size,)), x, shape, axis, reverse)
        if dtype == "i4" or numpy is np.add:
            expected = accumulated(x, axis, reverse, numpy)
        else:  # powers of two: none is rounded
            expected = accumulated(x.astype("f8"), axis, reverse, numpy).astype("f4")
        np.testing.assert_array_equal(found.reshape(shape), expected)
        assert scans(written_out[-1]) == 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("branches", [False, True], ids=["applied-to-tiles", "stays"])
def test_functions(run_on_host, written_out, shape, branches):
    """y = a * y + b, which does not commute; the function sees a number of the kernel."""

    @tk.kernel
    def kernel(
        out, a, b, n: int, tile: tk.Constant[tuple], axis: tk.Constant[int], branches: tk.Constant[bool]
    ):
        place = (0,) * a.ndim
        one = tk.load(b, place, (1,) * a.ndim).reshape(()) * 0 + n

        def then(s, h, u, k):
            if branches and u != 0:
                return s * u, h * u + k * n + 0 // u
            return s * u, h * u * one + k * n

        total = tk.scan((tk.load(a, place, tile), tk.load(b, place, tile)), axis, then, (1, 0))
        out.store(total[1].reshape(out.shape))

    numbers = np.random.default_rng(3)
    a, b = numbers.integers(-2, 3, shape).astype("i4"), numbers.integers(-9, 9, shape).astype("i4")
    for axis in range(a.ndim):
        y, expected = np.zeros_like(np.take(a, 0, axis)), []
        for i in range(shape[axis]):
            y = np.take(a, i, axis) * y + np.take(b, i, axis)
            expected.append(y)
        found = run_on_host(kernel, ((a.size,), "i4", (a.size,)), a, b, 1, shape, axis, branches)
        np.testing.assert_array_equal(found.reshape(shape), np.stack(expected, axis))
        assert scans(written_out[-1]) == (1 if branches and shape[axis] > 1 else 0)


@pytest.mark.parametrize(
    ("shape", "become", "stays"),
    [
        ((1024,), lambda t: t, True),
        ((8, 128), lambda t: t, True),
        ((1, 8, 128), lambda t: t, True),
        ((8, 128), lambda t: t - tk.max(t, 1, keepdims=True), True),
        ((8, 128), lambda t: tk.cumsum(t, 1) * 2, True),
        ((256,), lambda t: t, False),
        ((8, 2, 128), lambda t: t, False),
        ((1024,), lambda t: t.reshape((512, 2)), False),
        ((8, 128), lambda t: t.transpose(), False),
        ((8, 128), lambda t: tk.cat((t, t), 0), False),
        ((2048,), lambda t: tk.extract(t, (1,), (1024,)), False),
    ],
)
def test_which_scans_stay(run_on_host, written_out, shape, become, stays):
    @tk.kernel
    def kernel(out, x, tile: tk.Constant[tuple], become: tk.Constant[object]):
        out.store(tk.cumsum(become(tk.load(x, (0,) * x.ndim, tile)), 0).reshape(out.shape))

    x = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    size = 2048 if shape == (8, 128) and "cat" in become.__code__.co_names else x.size
    size = 1024 if shape == (2048,) else size
    run_on_host(kernel, ((size,), "i4", (size,)), x, shape, become)
    assert (scans(written_out[-1]) > 0) == stays
