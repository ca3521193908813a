"""Transposition: a block loads the tile that lies across from its own, turns it, and stores it.

python examples/kernels/transpose.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import numpy as np

import cuda_async as ca
import tilekern as tk


@tk.kernel
def transpose(out: tk.Tile2D, x: tk.Tensor2D):
    rows, columns = out.shape
    i, j = out.index
    out.store(tk.load(x, (j, i), (columns, rows)).transpose())


async def run() -> int:
    rows, columns = 300, 170
    x_host = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    x = await ca.from_host(x_host)
    turned = await transpose(ca.empty((columns, rows)).partition((32, 64)), x).first().unpartition().to_host()
    error = float(np.max(np.abs(turned - x_host.T.astype(np.float64))))
    passed = error == 0.0
    print(f"{'PASS' if passed else 'FAIL'}: {rows} x {columns} on {x.device}, largest error {error:.1e}")
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
