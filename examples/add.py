"""Add two vectors with a tile kernel: what a partition is for.

`z.partition(128)` cuts the output into disjoint tiles of 128 elements, one for each block of the launch. The kernel
owns its tile of `z`, so blocks cannot write over each other, and the grid follows from the partition. The length is
no multiple of 128: what a load reads past the end is padding, and stores there are dropped.

    python examples/add.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import numpy as np

import cuda_async as ca
import tilekern as tk


@tk.kernel
def add(z: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D):
    z.store(tk.load_like(x, z) + tk.load_like(y, z))


async def run() -> int:
    n = 10_000
    x_host, y_host = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    x, y = await ca.zip(ca.from_host(x_host), ca.from_host(y_host))
    z = await add(ca.empty(n).partition(128), x, y).first().unpartition().to_host()
    passed = np.array_equal(z, x_host + y_host)
    print(f"{'PASS' if passed else 'FAIL'}: added {n} elements on {x.device}, the last is {z[-1]:.0f}")
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
