"""The smallest whole program: bytes go to the device, a tile kernel changes them, bytes come back.

python examples/hello_world.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio

import numpy as np

import cuda_async as ca
import tilekern as tk


@tk.kernel
def capitals(out: tk.Tile1D, letters: tk.Tensor1D):
    c = tk.load_like(letters, out)
    is_small = (c >= ord("a")) & (c <= ord("z"))
    out.store(tk.where(is_small, c - 32, c))


async def main() -> None:
    text = "hello from a tile kernel"
    letters = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    op = ca.from_host(letters).then(lambda x: capitals(ca.empty(x.shape, x.dtype).partition(16), x))
    result = await op.first().unpartition().to_host()
    device = ca.current_device()
    print(f"{bytes(result.astype(np.uint8)).decode()} on {device} ({device.name})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", help="cuda:0 or host:0; default: the GPU where there is one")
    name = parser.parse_args().device
    try:
        device = (ca.current_device() if name is None else ca.Device(name)).open()
    except (ValueError, ca.ContextError) as error:
        parser.exit(2, f"error: {error}\n")
    with ca.use_device(device):
        asyncio.run(main())
