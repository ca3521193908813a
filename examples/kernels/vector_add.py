"""Vector addition, three ways to say which elements a block works on.

The length is no multiple of the tile: what a load reads past the end is padding, and stores there are dropped.

    python examples/kernels/vector_add.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import numpy as np

import cuda_async as ca
import tilekern as tk


@tk.kernel
def add(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D):
    """The output comes as a partition: each block owns a tile, the grid follows, and blocks cannot collide."""
    out.store(tk.load_like(x, out) + tk.load_like(y, out))


@tk.kernel
def add_by_index(out: tk.Tensor1D, x: tk.Tensor1D, y: tk.Tensor1D, tile: tk.Constant[int]):
    """The output comes whole, as `ca.mut(t)`; the block's number says which tile is its own."""
    i = tk.bid(0)
    tk.store(out, i, tk.load(x, i, tile) + tk.load(y, i, tile))


@tk.kernel
def add_by_gather(out: tk.Tensor1D, x: tk.Tensor1D, y: tk.Tensor1D, tile: tk.Constant[int]):
    """Elements by their own indices, in any order; here every second one belongs to a block."""
    start = tk.bid(0) // 2 * (2 * tile) + tk.bid(0) % 2
    elements = tk.arange(tile, start=start, step=2, dtype=tk.int32)
    tk.scatter(out, elements, tk.gather(x, elements) + tk.gather(y, elements))


async def run() -> int:
    n, tile = 10_000, 128
    random = np.random.default_rng(0)
    x_host, y_host = random.standard_normal((2, n), dtype=np.float32)
    x, y = await ca.zip(ca.from_host(x_host), ca.from_host(y_host))
    blocks = tk.cdiv(n, tile)

    def whole() -> ca.DeviceOp[ca.Mut]:
        return ca.empty(n).map(ca.mut)

    sums = await ca.zip(
        add(ca.empty(n).partition(tile), x, y).first().unpartition().to_host(),
        add_by_index(whole(), x, y, tile).grid(blocks).first().to_host(),
        add_by_gather(whole(), x, y, tile).grid(2 * tk.cdiv(n, 2 * tile)).first().to_host(),
    )
    expected = x_host.astype(np.float64) + y_host
    error = max(float(np.max(np.abs(z - expected))) for z in sums)
    passed = error < 3e-7  # half a unit in the last place of numbers below 8
    print(f"{'PASS' if passed else 'FAIL'}: {n} sums, three ways, on {x.device}, largest error {error:.1e}")
    return 0 if passed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cuda:0 or host:0; default: the GPU where there is one")
    name = parser.parse_args().device
    try:
        device = (ca.current_device() if name is None else ca.Device(name)).open()
    except (ValueError, ca.ContextError) as error:
        parser.exit(2, f"error: {error}\n")
    with ca.use_device(device):
        return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
