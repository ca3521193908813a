"""On a seeded device, the blocks of a tile kernel run in any order."""

from __future__ import annotations

import numpy as np

import cuda_async as ca
import tilekern as tk
from cuda_async.testing import explore


@tk.kernel
def permuted(out):
    """Meant to be a permutation of four heads, but two blocks each write one element."""
    tk.store(out, tk.bid(0) * 2 % 4, tk.bid(0))


@tk.kernel
def doubled(out: tk.Tile1D, x: tk.Tensor1D):
    out.store(tk.load_like(x, out) * 2)


def test_blocks_that_write_one_element_end_in_either_order():
    ends = set()

    async def program(device):
        out = await ca.full(4, -1, "i4")
        await permuted(ca.mut(out)).grid(4)
        ends.add(tuple((await out.to_host()).tolist()))

    explore(program, seeds=40)
    assert ends == {(a, -1, b, -1) for a in (0, 2) for b in (1, 3)}


def test_partitioned_output_is_the_same_in_every_order():
    x = np.arange(100, dtype="f4")

    async def program(device):
        out = doubled(ca.empty(100).partition(16), await ca.from_host(x)).first().unpartition().to_host()
        np.testing.assert_array_equal(await out, 2 * x)

    assert explore(program, seeds=20).distinct > 10
