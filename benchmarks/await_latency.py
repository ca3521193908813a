"""What it costs to await one small kernel, beside a C program's launch and stream synchronization.

The operation is made inside the timed region. The C program (launch_overhead.c) measures two ways of
waiting: `cuStreamSynchronize`, which the ratio refers to, and recording and polling an event. All of it runs on one
core, the quietest (`--any-core` lets it wander).

    python benchmarks/await_latency.py [--repetitions 2000] [--out FILE.json]
    python benchmarks/await_latency.py --device host:0
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from _axpy import Axpy
from _harness import (
    Quantiles,
    Unavailable,
    machine,
    pin_to_quiet_core,
    print_table,
    run_c_program,
    write_results,
)

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=None, help="cuda:0 (default where there is one) or host:0")
    parser.add_argument("--repetitions", type=int, default=2000, help="rounds of which the median is taken")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers here as JSON")
    parser.add_argument("--any-core", action="store_true", help="do not stay on one quiet core")
    options = parser.parse_args()
    repetitions = options.repetitions
    device = options.device or str(ca.current_device())
    core = pin_to_quiet_core() if device.startswith("cuda") and not options.any_core else None

    results: dict[str, Quantiles | str] = {}

    def add(name: str, call: Callable[[], Quantiles]) -> None:
        try:
            results[name] = call()
        except Unavailable as error:
            results[name] = str(error)

    baseline: Quantiles | None = None
    if device.startswith("cuda"):
        try:
            in_c = run_c_program(1, repetitions)
            baseline = results["C, launch + stream sync"] = in_c["one_sync"]
            results["C, launch + event poll"] = in_c["one_event"]
        except Unavailable as error:
            results["C"] = str(error)
    ours = Axpy(device)
    for loop in ("uvloop", "asyncio", "trio"):
        for name, make in (("await launch", ours.chain), ("await pre-bound launch", ours.bound_chain)):
            add(
                f"{name} ({loop})",
                lambda loop=loop, make=make: ours.awaited(lambda: make(1), loop, repetitions),
            )
    add("launch().sync()", lambda: ours.blocking(lambda: ours.chain(1), repetitions))

    rows: list[tuple[object, ...]] = []
    for name, times in results.items():
        if isinstance(times, str):
            rows.append((name, "-", "-", "-", times))
            continue
        ratio = times["median_us"] / baseline["median_us"] if baseline else "-"
        rows.append((name, times["median_us"], times["p10_us"], times["p90_us"], ratio))
    about = machine(ours.device)
    print_table(
        f"one launch and its completion, {repetitions} rounds, on {about['device']}",
        ("us", "median", "p10", "p90", "ratio to C"),
        rows,
    )
    write_results(
        options.out, {"machine": about, "core": core, "repetitions": repetitions, "results": results}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
