"""What it costs to launch a graph of 100 small kernels and wait for it, beside a C program that does the same.

The nodes are launches of `axpy_f32` (128 threads) one behind the other, as in launch_overhead.py; the C program
(launch_overhead.c, `graph_sync`) captures the same kernels and times `cuGraphLaunch` and `cuStreamSynchronize`. Making
the launch operation is inside the timed region. Further rows: a replay that also uploads one of the graph's inputs, a
call that copies the output too, and torch's `CUDAGraph.replay` of as many additions. All take turns, and a ratio is of
one turn's medians.

    python benchmarks/graph_replay.py [--kernels 100] [--repetitions 2000] [--out FILE.json]
    python benchmarks/graph_replay.py --device host:0      # only ours: the simulated device
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _axpy import ELEMENTS, Axpy
from _harness import (
    Quantiles,
    Unavailable,
    machine,
    measure,
    pin_to_quiet_core,
    print_table,
    run_c_program,
    write_results,
)

import cuda_async as ca

if TYPE_CHECKING:
    from collections.abc import Callable

BASELINE = "C, cuGraphLaunch + stream sync"


def torch_graph(kernels: int, repetitions: int) -> Quantiles:
    """`torch.cuda.CUDAGraph` of additions of as many elements."""
    try:
        import torch
    except ImportError as error:
        raise Unavailable("torch is not installed") from error
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no CUDA device")
    stream = torch.cuda.Stream()
    x, y = torch.zeros(ELEMENTS, device="cuda"), torch.zeros(ELEMENTS, device="cuda")
    torch.add(y, x, alpha=0.5, out=y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(kernels):
            torch.add(y, x, alpha=float(i), out=y)

    def round_() -> None:
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()

    return measure(round_, repetitions)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=None, help="cuda:0 (default where there is one) or host:0")
    parser.add_argument("--kernels", type=int, default=100, help="nodes of the graph")
    parser.add_argument("--repetitions", type=int, default=2000, help="launches timed of each, in all")
    parser.add_argument("--rounds", type=int, default=5, help="turns that the repetitions are split into")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers here as JSON")
    parser.add_argument("--any-core", action="store_true", help="do not stay on one quiet core")
    options = parser.parse_args()
    kernels = options.kernels
    device = options.device or str(ca.current_device())
    on_gpu = device.startswith("cuda")
    core = pin_to_quiet_core() if on_gpu and not options.any_core else None
    rounds = max(1, min(options.rounds, options.repetitions // 10))
    share = options.repetitions // rounds

    ours = Axpy(device)
    with ca.use_device(ours.device):
        began = time.perf_counter()
        graph = ours.chain(kernels).last().graph(inputs={"x": ours.x}).sync()
        capture_ms = (time.perf_counter() - began) * 1e3
    array = np.zeros(ELEMENTS, "f4")
    kinds: dict[str, Callable[[], ca.DeviceOp[Any]]] = {
        "launch": graph.launch,
        "replay, one input uploaded": lambda: graph.replay(x=array),
        "call, input uploaded, output copied": lambda: graph(x=array),
    }
    contestants: dict[str, Callable[[], Quantiles]] = {}
    if on_gpu:
        contestants[BASELINE] = lambda: run_c_program(kernels, share)["graph_sync"]
    for name, make in kinds.items():
        for loop in ("uvloop", "asyncio"):
            contestants[f"{name} ({loop})"] = lambda loop=loop, make=make: ours.awaited(make, loop, share)
        contestants[f"{name} (sync)"] = lambda make=make: ours.blocking(make, share)
    if on_gpu:
        contestants["torch.cuda.CUDAGraph"] = lambda: torch_graph(kernels, share)

    results: dict[str, list[Quantiles]] = {name: [] for name in contestants}
    missing: dict[str, str] = {}
    for _ in range(rounds):
        for name, measure_one in contestants.items():
            if name not in missing:
                try:
                    results[name].append(measure_one())
                except Unavailable as error:
                    missing[name] = str(error)

    baseline = results.get(BASELINE, [])
    rows: list[tuple[object, ...]] = []
    summary: dict[str, object] = {}
    for name, turns in results.items():
        if name in missing:
            rows.append((name, "-", "-", missing[name]))
            summary[name] = missing[name]
            continue
        typical = statistics.median(t["median_us"] for t in turns)
        ratios = [t["median_us"] / base["median_us"] for t, base in zip(turns, baseline)]
        ratio = statistics.median(ratios) if ratios else "-"
        rows.append((name, typical, ratio, ""))
        summary[name] = {"median_us": typical, "ratio_to_c": ratio, "turns": turns}
    about = machine(ours.device)
    print_table(
        f"a graph of {kernels} kernels, {rounds} turns of {share}, medians, on {about['device']}",
        ("", "us", "ratio to C", ""),
        rows,
    )
    print(f"\ncapture and instantiation: {capture_ms:.1f} ms")
    write_results(
        options.out,
        {
            "machine": about,
            "core": core,
            "kernels": kernels,
            "repetitions": share,
            "rounds": rounds,
            "capture_ms": capture_ms,
            "results": summary,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
