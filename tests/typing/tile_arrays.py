"""Typing examples that only the type checker runs: array operations, and names with a meaning in kernels too."""

from __future__ import annotations

from typing import assert_type

import numpy as np

import cuda_async as ca
import tilekern as tk


async def on_the_host(tensor: ca.Tensor) -> None:
    assert_type(tk.arange(10), ca.DeviceOp[ca.Tensor])
    assert_type(tk.arange(10, dtype="int32"), ca.DeviceOp[ca.Tensor])
    assert_type(tk.arange(0, 10, dtype=tk.int32), ca.DeviceOp[ca.Tensor])
    assert_type(tk.arange(0.0, 1.0, 0.1, dtype=np.float32), ca.DeviceOp[ca.Tensor])
    assert_type(await tk.linspace(0, 1, 5), ca.Tensor)
    assert_type(await tk.eye(3, dtype=tk.bfloat16), ca.Tensor)
    assert_type(await tk.rand((2, 3), seed=1), ca.Tensor)
    assert_type(await tk.randn(5, "float64"), ca.Tensor)
    assert_type(await tk.convert(tensor, tk.float16), ca.Tensor)
    assert_type(await tk.convert(tk.arange(3), np.int8), ca.Tensor)


@tk.kernel
def in_a_kernel(out: tk.Tile1D) -> None:
    assert_type(tk.arange(16, dtype=tk.int32), tk.Tile)
    assert_type(tk.arange(16, start=out.index[0], step=2, dtype=tk.int64), tk.Tile)


def looking_at_kernels() -> None:
    args = tk.meta(64, "f4").partition(16), tk.meta(64, np.float32)
    assert_type(in_a_kernel.cubin(*args), bytes)
    assert_type(in_a_kernel.ptx(*args), str)
    assert_type(in_a_kernel.report(*args), tk.jit.Report)
    assert_type(in_a_kernel.timings, tuple[tk.jit.CompileTimings, ...])


async def measuring(bound: ca.BoundLaunch) -> None:
    assert_type(tk.bench.measure(lambda: bound.launch()), tk.bench.Timing)
    assert_type(tk.bench.compare(lambda: bound.launch(), lambda: tk.arange(3)), tk.bench.Comparison)
    result = tk.tune.search(tk.tune.Space(a=[1, 2]), lambda config: bound.launch)
    assert_type(result, tk.tune.TuneResult)
    assert_type(await tk.warm_up([in_a_kernel.compile(tk.meta(64, "f4"))]), tuple[tk.jit.CompileTimings, ...])
