"""Products of many pairs of matrices: the grid's first axis counts the pairs.

python examples/kernels/batched_matmul.py [--device cuda:0]
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
def batched_matmul(c: tk.Tile3D, a: tk.Tensor3D, b: tk.Tensor3D, depth: tk.Constant[int]):
    _, rows, columns = c.shape
    pair, i, j = c.index
    total = tk.zeros((1, rows, columns), tk.float32)
    for k in range(tk.num_tiles(a, 2, (1, rows, depth))):
        left = tk.load(a, (pair, i, k), (1, rows, depth))
        right = tk.load(b, (pair, k, j), (1, depth, columns))
        total = tk.mma(left, right, total)  # of rank 3: one product for each entry of the first axis
    c.store(total.astype(c.dtype))


async def run() -> int:
    count, m, n, k = 5, 100, 70, 90
    random = np.random.default_rng(0)
    a_host = random.standard_normal((count, m, k)).astype(np.float16)
    b_host = random.standard_normal((count, k, n)).astype(np.float16)
    a, b = await ca.zip(ca.from_host(a_host), ca.from_host(b_host))
    product = batched_matmul(ca.empty((count, m, n), np.float16).partition((1, 64, 64)), a, b, 32)
    c = await product.first().unpartition().to_host()

    expected = a_host.astype(np.float64) @ b_host.astype(np.float64)
    error = float(np.max(np.abs(c - expected)))
    passed = error < TOLERANCE
    print(
        f"{'PASS' if passed else 'FAIL'}: {count} products of {m} x {k} x {n} on {a.device}, "
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
