"""How long an event loop is held up while a device works: the longest gap of a 1 ms ticker.

A coroutine sleeps 1 ms again and again and notes when it wakes; the number is the longest time between two
wakes while another coroutine does the work named. The idle row is the ticker alone: what the loop, the
machine and its other tenants contribute. Each scenario runs in a fresh process that has imported the packages and
used no device.

    python benchmarks/ticker_gap.py [--device cuda:0] [--loop asyncio] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import numpy as np
from _harness import PTX_FILE, machine, print_table, run_on_loop, write_results

import cuda_async as ca
import tilekern as tk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Work = Callable[[], Awaitable[None]]

MIB = 1 << 20
TICK_S = 0.001


async def all_of(calls: list[Work]) -> None:
    """Run coroutines at once, on whichever loop this is."""
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call)


# ------------------------------------------------------------------------------- scenarios
# Each takes the device's name, prepares what is not to be measured, and returns the work. No device has
# been used before: where that matters, the work's first awaits come before the ticker looks, or are the work.


def idle(device: str) -> Work:
    """The ticker alone."""
    return lambda: anyio.sleep(0.5)


def first_use(device: str) -> Work:
    """The first awaits of the process: driver, context, streams, module and staging memory are made."""

    async def work() -> None:
        with ca.use_device(device):
            kernel = ca.Module.from_ptx(PTX_FILE.read_text()).function("axpy_f32")
            x = await ca.from_host(np.ones(128, np.float32))
            y = await ca.zeros((128,), "float32")
            await kernel.launch(1, 128, 128, 2.0, ca.read(x), ca.mut(y))
            await y.to_host()

    return work


def long_kernel(device: str) -> Work:
    """One kernel of about half a second."""
    rounds = 100_000_000 if device.startswith("cuda") else 10_000

    async def work() -> None:
        with ca.use_device(device):
            kernel = ca.Module.from_ptx(PTX_FILE.read_text()).function("busy_f32")
            y = await ca.zeros((128,), "float32")
            await kernel.launch(1, 128, rounds, ca.mut(y))

    return work


def transfers(device: str) -> Work:
    """256 MiB to the device and back."""
    data = np.ones(256 * MIB // 4, np.float32)

    async def work() -> None:
        with ca.use_device(device):
            tensor = await ca.from_host(data)
            back = await tensor.to_host()
        assert back[-1] == 1.0

    return work


def many_operations(device: str, count: int) -> Work:
    """Chains of an allocation, a fill, a launch and a download, all at once."""

    async def work() -> None:
        with ca.use_device(device):
            kernel = ca.Module.from_ptx(PTX_FILE.read_text()).function("axpy_f32")
            x = await ca.ones((128,), "float32")

            async def one() -> None:
                y = ca.zeros((128,), "float32")
                op = y.then(lambda y: kernel.launch(1, 128, 128, 2.0, ca.read(x), ca.mut(y)))
                result = await op.last().to_host()
                assert result[0] == 2.0

            await all_of([one] * count)

    return work


@tk.kernel
def shifted(out: tk.Tile1D, x: tk.Tensor1D, by: float):
    """The kernel of `tile_compile`."""
    out.store(tk.exp(tk.load_like(x, out)) + by)


def tile_compile(device: str) -> Work:
    """The first launch of a tile kernel; on a GPU it is compiled (there is no disk cache here)."""

    async def work() -> None:
        with ca.use_device(device):
            x = await ca.ones((1000,), "float32")
            await shifted(ca.empty(1000).partition(128), x, time.time()).first().unpartition()

    return work


SCENARIOS: dict[str, Callable[[str], Work]] = {
    "idle": idle,
    "first use": first_use,
    "long kernel": long_kernel,
    "256 MiB up and down": transfers,
    "200 operations at once": lambda device: many_operations(device, 200),
    "1000 operations at once": lambda device: many_operations(device, 1000),
    "first tile kernel": tile_compile,
}


# ---------------------------------------------------------------------------------- ticker


async def measure_gap(work: Work) -> dict[str, float]:
    """Longest and 99th-percentile time between wakes of the ticker during `work`, in milliseconds."""
    gaps: list[float] = []
    finished = False

    async def ticker() -> None:
        last = time.perf_counter()
        while not finished:
            await anyio.sleep(TICK_S)
            now = time.perf_counter()
            gaps.append((now - last) * 1e3)
            last = now

    begin = time.perf_counter()
    async with anyio.create_task_group() as group:
        group.start_soon(ticker)
        await anyio.sleep(20 * TICK_S)
        try:
            await work()
        finally:
            finished = True
    gaps.sort()
    return {
        "longest_ms": gaps[-1],
        "p99_ms": gaps[len(gaps) * 99 // 100],
        "ticks": len(gaps),
        "seconds": time.perf_counter() - begin,
    }


def run_scenario(name: str, device: str, loop: str) -> dict[str, float]:
    work = SCENARIOS[name](device)

    async def main() -> dict[str, float]:
        return await measure_gap(work)

    return cast("dict[str, float]", run_on_loop(loop, main))


def in_fresh_process(name: str, device: str, loop: str) -> dict[str, float] | str:
    command = [sys.executable, __file__, "--scenario", name, "--device", device, "--loop", loop]
    environment = {**os.environ, "TILEKERN_CACHE_DIR": "none"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if finished.returncode != 0:
        errors = [line.strip(" |") for line in finished.stderr.splitlines() if "Error" in line]
        return errors[-1] if errors else f"exit code {finished.returncode}"
    result: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=None, help="cuda:0 (default where there is one) or host:0")
    parser.add_argument("--loop", choices=("asyncio", "uvloop", "trio"), default="asyncio")
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), help="run only this one, in this process")
    parser.add_argument("--repetitions", type=int, default=3, help="processes per scenario; the worst counts")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers here as JSON")
    options = parser.parse_args()
    if options.scenario is not None and options.device is not None:
        print(json.dumps(run_scenario(options.scenario, options.device, options.loop)))
        return 0

    device = options.device or str(ca.current_device())
    results: dict[str, Any] = {}
    rows: list[tuple[object, ...]] = []
    for name in [options.scenario] if options.scenario else SCENARIOS:
        runs = [in_fresh_process(name, device, options.loop) for _ in range(options.repetitions)]
        failed = [run for run in runs if isinstance(run, str)]
        if failed:
            results[name] = failed[0]
            rows.append((name, "-", "-", "-", failed[0]))
            continue
        worst = max((run for run in runs if isinstance(run, dict)), key=lambda run: run["longest_ms"])
        results[name] = {"worst": worst, "runs": runs}
        rows.append((name, worst["longest_ms"], worst["p99_ms"], worst["seconds"], ""))
    about = machine(ca.Device(device))
    print_table(
        f"longest gap of a 1 ms ticker, {options.loop}, {about['device']}, worst of {options.repetitions}",
        ("while", "longest ms", "p99 ms", "seconds", ""),
        rows,
    )
    write_results(options.out, {"machine": about, "loop": options.loop, "results": results})
    return 1 if any(isinstance(result, str) for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
