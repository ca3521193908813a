"""Scans of fewer elements than a block has threads, reshaped afterwards: NVIDIA's assembler needs help with these."""

import numpy as np
import pytest

import tilekern as tk


@tk.kernel
def scan_and_reshape(out, x, length: tk.Constant[int], own: tk.Constant[bool]):
    row = tk.load(x, (0,) * x.ndim, out.shape).reshape((length,))
    total = tk.scan(row, 0, lambda a, b: a ^ b, 0) if own else tk.cumsum(row, 0)
    out.store(total.reshape(out.shape))


@pytest.mark.parametrize(("shape", "own"), [((4, 4), True), ((2, 2, 4), False), ((8, 32), False)], ids=str)
def test_short_scans_assemble(shape, own):
    x = tk.meta(shape, "i4")
    kernel = scan_and_reshape.with_options(num_worker_warps=16)
    assert kernel.cubin(x.partition(shape), x, int(np.prod(shape)), own, arch="sm_90")


@pytest.mark.parametrize("shape", [(4, 4), (2, 2, 4), (8, 32), (32, 16)], ids=str)
@pytest.mark.parametrize("own", [False, True], ids=["cumsum", "scan"])
def test_short_scans_are_right(shape, own, run):
    x = np.arange(3, 3 + np.prod(shape), dtype="i4").reshape(shape)
    function = np.bitwise_xor if own else np.add
    expected = function.accumulate(x.reshape(-1)).reshape(shape)
    result = run(scan_and_reshape, (shape, "i4", shape), x, x.size, own)
    np.testing.assert_array_equal(result, expected)
