"""Persistent matrix product: as many blocks as the GPU runs at once walk all tiles of the result.

`partition(...).map(group, blocks)` makes the walk: tiles in groups of 4 x 4, so that blocks that run at the same time
share rows of A and columns of B in the cache. The indices a block gets are its own, so that stores cannot collide.

    python examples/kernels/persistent_matmul.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import numpy as np

import cuda_async as ca
import tilekern as tk

TOLERANCE = 0.02  # half a unit in the last place of float16 numbers below 64


@tk.kernel
def matmul(c: tk.Tiles2D, a: tk.Tensor2D, b: tk.Tensor2D, depth: tk.Constant[int]):
    rows, columns = c.shape
    for index in c.iter_indices():
        i, j = index.components()
        total = tk.zeros((rows, columns), tk.float32)
        for k in range(tk.num_tiles(a, 1, (rows, depth))):
            left = tk.load(a, (i, k), (rows, depth))
            right = tk.load(b, (k, j), (depth, columns))
            total = tk.mma(left, right, total)
        c.store(total.astype(c.dtype), index)


async def run() -> int:
    m, n, k = 330, 270, 100
    random = np.random.default_rng(0)
    a_host = random.standard_normal((m, k)).astype(np.float16)
    b_host = random.standard_normal((k, n)).astype(np.float16)
    a, b = await ca.zip(ca.from_host(a_host), ca.from_host(b_host))
    tiles = (await ca.empty((m, n), np.float16)).partition((32, 64))
    blocks = min(tiles.grid[0] * tiles.grid[1], a.device.limits.multiprocessors)
    c = await matmul(tiles.map((4, 4), blocks), a, b, 32).first().unpartition().to_host()

    expected = a_host.astype(np.float64) @ b_host.astype(np.float64)
    error = float(np.max(np.abs(c - expected)))
    passed = error < TOLERANCE
    print(
        f"{'PASS' if passed else 'FAIL'}: {tiles.grid[0]} x {tiles.grid[1]} tiles by {blocks} blocks on {a.device}, "
        f"error allowed {TOLERANCE}, largest error {error:.1e}"
    )
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
