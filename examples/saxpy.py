"""a * x + y twice: by a tile kernel in Python and by a SIMT kernel from CUDA C++, in one chain.

Both are operations and run on the same stream, so the second needs no word about the first: the raw kernel reads
what the tile kernel wrote.

    python examples/saxpy.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import numpy as np

import cuda_async as ca
import tilekern as tk

PTX_FILE = Path(__file__).parent / "simt" / "saxpy.ptx"


@tk.kernel
def saxpy_tile(z: tk.Tile1D, a: float, x: tk.Tensor1D, y: tk.Tensor1D):
    z.store(a * tk.load_like(x, z) + tk.load_like(y, z))


async def run() -> int:
    n, a = 5_000, 2.5
    random = np.random.default_rng(0)
    x_host, y_host = (random.standard_normal(n).astype(np.float32) for _ in range(2))
    x, y = await ca.zip(ca.from_host(x_host), ca.from_host(y_host))
    saxpy_simt = ca.Module.from_file(PTX_FILE).function("saxpy_f32")

    def again(z: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
        """a * x + z, by the SIMT kernel; the output is its last argument."""
        return ca.empty(n).then(
            lambda out: saxpy_simt.launch(-(-n // 256), 256, n, a, ca.read(x), ca.read(z), ca.mut(out)).last()
        )

    once = saxpy_tile(ca.empty(n).partition(256), a, x, y).first().unpartition()
    result = await once.then(again).to_host()

    expected = 2.0 * a * x_host.astype(np.float64) + y_host
    error = float(np.max(np.abs(result - expected)))
    passed = error < 4e-6  # four roundings of values below 32
    print(f"{'PASS' if passed else 'FAIL'}: 2 a x + y on {x.device}, {n} elements, largest error {error:.1e}")
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
