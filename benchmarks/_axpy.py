"""The operations that the overhead benchmarks time: launches of one small kernel through cuda_async."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from _harness import PTX_FILE, Quantiles, measure, measure_async, run_on_loop

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import Callable

CUDA_SOURCE = PTX_FILE.with_suffix(".cu")
ELEMENTS = 128
"""Elements, and threads, of one launch of `axpy_f32`; the C program has the same number."""


class Axpy:
    """`axpy_f32` and its operands on one device."""

    def __init__(self, device: str) -> None:
        self.device = ca.Device(device)
        with ca.use_device(self.device):
            self.kernel = ca.Module.from_ptx(PTX_FILE.read_text()).function("axpy_f32")
            self.x = ca.zeros((ELEMENTS,), "float32").sync()
            self.y = ca.zeros((ELEMENTS,), "float32").sync()
            self.bound = self.kernel.bind(
                1, ELEMENTS, ELEMENTS, 0.5, ca.read(self.x), ca.mut(self.y), device=self.device
            )

    def chain(self, launches: int) -> ca.DeviceOp[Any]:
        """One launch after another, each operation made when the one before has been enqueued."""
        kernel, x, y, n = self.kernel, self.x, self.y, ELEMENTS
        op: ca.DeviceOp[Any] = kernel.launch(1, n, n, 0.5, ca.read(x), ca.mut(y))
        for i in range(1, launches):
            op = op.then(lambda _, a=float(i): kernel.launch(1, n, n, a, ca.read(x), ca.mut(y)))
        return op

    def bound_chain(self, launches: int) -> ca.DeviceOp[Any]:
        """The same with a launch that was checked and packed once."""
        bound = self.bound
        op: ca.DeviceOp[Any] = bound.launch()
        for _ in range(1, launches):
            op = op.then(lambda _: bound.launch())
        return op

    def awaited(self, make: Callable[[], ca.DeviceOp[Any]], loop: str, repetitions: int) -> Quantiles:
        """Time making an operation and awaiting it, on a loop of its own."""

        async def round_() -> None:
            await make()

        async def main() -> Quantiles:
            with ca.use_device(self.device):
                return await measure_async(round_, repetitions)

        return cast("Quantiles", run_on_loop(loop, main))

    def blocking(self, make: Callable[[], ca.DeviceOp[Any]], repetitions: int) -> Quantiles:
        """Time making an operation and waiting for it with `sync`."""
        with ca.use_device(self.device):
            return measure(lambda: make().sync(), repetitions)
