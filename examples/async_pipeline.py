"""Serve many requests at once: upload, a raw kernel, download, each a chain with one await.

The same requests are served twice: with everything on one stream, and on several streams in turn. Each request
notes when the device began and finished it; how many were on the device at once, on average, shows the overlap.
A GPU gains throughput by it as long as single requests do not fill it. The simulated device has one processor,
which its streams share: they overlap, and the throughput stays.

    python examples/async_pipeline.py [--requests 200] [--streams 4] [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import cuda_async as ca

PTX_FILE = Path(__file__).parent / "simt" / "newton_sqrt.ptx"
BLOCK = 128
IN_FLIGHT = 32  # requests that are served at once; the others wait their turn


@dataclass
class Served:
    """One finished request: its largest relative error, and the device's events around it."""

    error: float
    begin: ca.Event
    end: ca.Event


class Service:
    """Takes square roots on a device, any number at a time."""

    def __init__(self, kernel: ca.Function, rounds: int) -> None:
        self.kernel = kernel
        self.rounds = rounds
        self.slots = asyncio.Semaphore(IN_FLIGHT)

    async def serve(self, values: np.ndarray, policy: ca.SchedulingPolicy) -> Served:
        """One request: a chain of device work on one stream, awaited once."""
        events: list[ca.Event] = []

        def root(ctx: ca.ExecutionContext, x: ca.Tensor) -> ca.DeviceOp:
            events.append(ctx.stream.record())
            grid = -(-x.size // BLOCK)
            return self.kernel.launch(grid, BLOCK, x.size, self.rounds, ca.mut(x)).last()

        def note_end(ctx: ca.ExecutionContext, x: ca.Tensor) -> ca.DeviceOp:
            events.append(ctx.stream.record())
            return ca.value(x)

        op = ca.from_host(values).then_with_context(root).then_with_context(note_end).to_host()
        async with self.slots:
            result = await op.schedule(policy)
        expected = np.sqrt(values.astype(np.float64))
        return Served(float(np.max(np.abs(result - expected) / expected)), *events)


class Progress:
    """A line that is redrawn on a terminal, and written at every quarter elsewhere."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0
        self.begin = time.perf_counter()

    def step(self) -> None:
        self.done += 1
        rate = self.done / (time.perf_counter() - self.begin)
        bar = "#" * (20 * self.done // self.total)
        line = f"{self.title:>12} [{bar:<20}] {self.done}/{self.total}  {rate:8.1f} requests/s"
        if sys.stdout.isatty():
            print(f"\r{line}", end="\n" if self.done == self.total else "", flush=True)
        elif 4 * self.done // self.total != 4 * (self.done - 1) // self.total:
            print(line, flush=True)


async def serve_all(
    service: Service, requests: list[np.ndarray], title: str, policy: ca.SchedulingPolicy
) -> tuple[float, float, float]:
    """Serve every request at once; returns the largest error, requests per second and the overlap."""
    progress = Progress(title, len(requests))

    async def one(values: np.ndarray) -> Served:
        served = await service.serve(values, policy)
        progress.step()
        return served

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(values)) for values in requests]
    seconds = time.perf_counter() - begin
    served = [task.result() for task in tasks]
    origin = served[0].begin
    spans = [(s.begin.elapsed_ms(origin), s.end.elapsed_ms(origin)) for s in served]
    on_device = max(end for _, end in spans) - min(begin for begin, _ in spans)
    overlap = sum(end - begin for begin, end in spans) / on_device
    return max(s.error for s in served), len(requests) / seconds, overlap


async def run(options: argparse.Namespace, device: ca.Device) -> int:
    on_gpu = device.kind == "cuda"
    count = options.requests or (200 if on_gpu else 64)
    rounds = options.rounds or (100_000 if on_gpu else 256)
    random = np.random.default_rng(0)
    requests = [random.uniform(1e-3, 1e3, 4 * BLOCK).astype(np.float32) for _ in range(count)]

    with ca.use_device(device):
        service = Service(ca.Module.from_ptx(PTX_FILE.read_text()).function("newton_sqrt_f32"), rounds)
        await service.serve(requests[0], ca.SingleStream())  # first use, outside the measurement
        error_1, rate_1, overlap_1 = await serve_all(service, requests, "1 stream", ca.SingleStream())
        title = f"{options.streams} streams"
        policy = ca.StreamPoolRoundRobin(options.streams)
        error_n, rate_n, overlap_n = await serve_all(service, requests, title, policy)

    print(f"{device} ({device.name}): {count} requests of {requests[0].size} values, {rounds} rounds each")
    print(f"    1 stream:  {rate_1:8.1f} requests/s, {overlap_1:.2f} on the device at once")
    print(f"    {options.streams} streams: {rate_n:8.1f} requests/s, {overlap_n:.2f} on the device at once")
    error = max(error_1, error_n)
    passed = error < 1e-6  # float32 keeps 2**-24 per operation; the last round has three
    print(f"{'PASS' if passed else 'FAIL'}: largest relative error {error:.1e}")
    return 0 if passed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cuda:0 or host:0; default: the GPU where there is one")
    parser.add_argument("--requests", type=int, default=0, help="how many (0, the default: by device)")
    parser.add_argument(
        "--rounds", type=int, default=0, help="iterations per request (0, the default: by device)"
    )
    parser.add_argument("--streams", type=int, default=4, help="streams of the second run")
    options = parser.parse_args()
    for name, least in (("requests", 1), ("rounds", 10), ("streams", 1)):  # fewer rounds are not there yet
        given = getattr(options, name)
        if given < least and (given or name == "streams"):
            parser.error(f"--{name} is {given}; at least {least}")
    try:
        device = (ca.current_device() if options.device is None else ca.Device(options.device)).open()
    except (ValueError, ca.ContextError) as error:
        parser.exit(2, f"error: {error}\n")
    return asyncio.run(run(options, device))


if __name__ == "__main__":
    sys.exit(main())
