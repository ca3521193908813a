"""A DeviceOp of one's own: the typed wrapper that turns a raw kernel into a function with a signature.

A raw launch takes whatever the kernel takes, in the order its author chose. A wrapper says once what the operands
are, checks them in the caller's terms, allocates the output and yields a typed value. Callers compose it and await
it like any other operation:

    z = await Saxpy(2.0, x, y)

    python examples/custom_device_op.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import numpy as np

import cuda_async as ca

PTX_FILE = Path(__file__).parent / "simt" / "saxpy.ptx"
BLOCK = 256


class Saxpy(ca.DeviceOp[ca.Tensor]):
    """Yields a new tensor `a * x + y`.

    Args:
        a: a number, rounded to float32.
        x, y: contiguous float32 tensors of one shape, on one device; only read.
    Raises:
        ValueError: another element type or shape, at once: nothing is built.
    """

    kernel = ca.Module.from_file(PTX_FILE).function("saxpy_f32")

    def __init__(self, a: float, x: ca.Tensor, y: ca.Tensor) -> None:
        for name, operand in (("x", x), ("y", y)):
            if operand.dtype != ca.float32 or not operand.is_contiguous:
                raise ValueError(f"Saxpy: {name} is {operand!r}; pass a contiguous float32 tensor")
        if x.shape != y.shape:
            raise ValueError(f"Saxpy: x has shape {x.shape}, y has {y.shape}; they must be equal")
        self.a, self.x, self.y = a, x, y

    def needs_prepare(self, ctx: ca.ExecutionContext) -> bool:
        """Only the first use on a device has something slow to do."""
        return not self.kernel.is_loaded(ctx.device)

    def prepare(self, ctx: ca.ExecutionContext) -> None:
        """Load the module. Runs on a worker thread where the caller is on an event loop.

        Requests that come in together run it at the same time, so it must be thread-safe; `load` is.
        """
        self.kernel.load(ctx.device)

    def execute(self, ctx: ca.ExecutionContext) -> ca.Tensor:
        """Enqueue, and return the output at once; the device fills it later.

        Asking for an address by what it is for keeps the launch in order with every other use of the tensor, on
        any stream, and the memory alive until the device is past it.
        """
        out = ctx.empty(self.x.shape, ca.float32)
        n = out.size
        values = (n, self.a, ctx.read(self.x), ctx.read(self.y), ctx.write(out))
        self.kernel.enqueue(ctx, grid=-(-n // BLOCK), block=BLOCK, values=values)
        return out


async def run() -> int:
    random = np.random.default_rng(0)
    x_host, y_host = (random.standard_normal(100_000).astype(np.float32) for _ in range(2))
    x, y = await ca.zip(ca.from_host(x_host), ca.from_host(y_host))

    once = await Saxpy(2.0, x, y).to_host()
    twice = await Saxpy(2.0, x, y).then(lambda z: Saxpy(-1.0, x, z)).to_host()  # (2x + y) - x

    expected_once = 2.0 * x_host.astype(np.float64) + y_host
    expected_twice = expected_once - x_host
    error = max(np.abs(once - expected_once).max(), np.abs(twice - expected_twice).max())
    try:
        Saxpy(2.0, x, y.reshape(10, -1))
    except ValueError as refused:
        print(f"refused: {refused}")
    passed = error < 1e-6
    print(f"{'PASS' if passed else 'FAIL'}: a * x + y on {x.device}, largest error {error:.1e}")
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
