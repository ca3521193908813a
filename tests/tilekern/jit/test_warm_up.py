"""Compiling many variants before they are needed."""

import io
import sys

import pytest

import cuda_async as ca
import tilekern as tk

M = tk.meta


def fresh():
    @tk.kernel
    def fresh(out: tk.Tile1D, x: tk.Tensor1D, n: tk.Constant[int]):
        out.store(tk.load_like(x, out) + n)

    return fresh


def variants(kernel, numbers):
    return [kernel.compile(M(64, "f4").partition(16), M(64, "f4"), n) for n in numbers]


@pytest.mark.anyio
async def test_each_is_compiled_once(host):
    kernel = fresh()
    timings = await tk.warm_up(variants(kernel, [1, 2, 3, 2]), threads=4)
    assert len(timings) == len(kernel.timings) == 3
    assert await tk.warm_up(variants(kernel, [1, 2, 3])) == ()
    assert await tk.warm_up([]) == ()
    out = kernel(ca.zeros((64,), "f4").partition(16), ca.zeros((64,), "f4"), 2)
    assert (await out.first().unpartition().to_host()).tolist() == [2.0] * 64
    assert len(kernel.timings) == 3


def test_progress_is_told(host, monkeypatch):
    kernel = fresh()
    calls = []
    tk.warm_up(variants(kernel, [1, 2]), progress=lambda *told: calls.append(told)).sync()
    assert [told[:2] for told in calls] == [(1, 2), (2, 2)]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    tk.warm_up(variants(kernel, [1, 2])).sync()
    assert sys.stderr.getvalue() == ""
    tk.warm_up(variants(kernel, [1, 2]), progress=True).sync()
    first, second = sys.stderr.getvalue().splitlines()
    assert "1/2 fresh" in first
    assert second.startswith("[########################] 2/2 fresh")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    tk.warm_up(variants(kernel, [1, 2])).sync()
    assert terminal.getvalue().count("\r") == 2
    assert terminal.getvalue().endswith(" s\n")


def test_all_are_tried_and_all_errors_told(host):
    kernel = fresh()

    @tk.kernel
    def wrong(out: tk.Tile1D):
        out.store(undefined)  # noqa: F821

    bad = [wrong.compile(M(64, "f4").partition(16)), wrong.compile(M(64, "f8").partition(16))]
    with pytest.raises(ExceptionGroup, match="2 of 3 variants did not compile") as caught:
        tk.warm_up([bad[0], *variants(kernel, [5]), bad[1]]).sync()
    assert all(isinstance(error, tk.KernelNameError) for error in caught.value.exceptions)
    assert len(kernel.timings) == 1


def test_wrong_arguments(host):
    kernel = fresh()
    with pytest.raises(TypeError, match="made by kernel"):
        tk.warm_up([kernel])
    with pytest.raises(ValueError, match="threads"):
        tk.warm_up([], threads=0)
    (op,) = variants(kernel, [1])
    tk.warm_up([op])
    with pytest.raises(ca.ConsumedError):
        tk.warm_up([op])
