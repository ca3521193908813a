"""Matrix product: each block computes one tile of the result.

Going along the common axis, a tile of A and a tile of B are multiplied on tensor cores and added to a tile of float32
sums, which is rounded once at the end. On an H100 and for large matrices, tiles of 256 x 256 with 64 along the common
axis, `num_ctas=2` and `num_worker_warps=8` are good.

    python examples/kernels/matmul.py [--device cuda:0]
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
def matmul(c: tk.Tile2D, a: tk.Tensor2D, b: tk.Tensor2D, depth: tk.Constant[int]):
    rows, columns = c.shape
    i, j = c.index
    total = tk.zeros((rows, columns), tk.float32)
    for k in range(tk.num_tiles(a, 1, (rows, depth))):
        left = tk.load(a, (i, k), (rows, depth))
        right = tk.load(b, (k, j), (depth, columns))
        total = tk.mma(left, right, total)
    c.store(total.astype(c.dtype))


async def run() -> int:
    m, n, k = 300, 200, 150
    random = np.random.default_rng(0)
    a_host = random.standard_normal((m, k)).astype(np.float16)
    b_host = random.standard_normal((k, n)).astype(np.float16)
    a, b = await ca.zip(ca.from_host(a_host), ca.from_host(b_host))
    product = matmul(ca.empty((m, n), np.float16).partition((64, 64)), a, b, 32)
    c = await product.first().unpartition().to_host()

    expected = a_host.astype(np.float64) @ b_host.astype(np.float64)
    error = float(np.max(np.abs(c - expected)))
    passed = error < TOLERANCE
    print(
        f"{'PASS' if passed else 'FAIL'}: {m} x {k} x {n} on {a.device}, "
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
