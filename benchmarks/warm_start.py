"""The first launch of a tile kernel in a new process, with an empty and with a warm disk cache.

Each run is a process of its own: it opens the device and runs something small on it, and then times the first `sync()`
of a kernel, everything in it: imports on first use, finding the code, loading it, launching, waiting. The cold runs
start with an empty cache folder, the warm ones with what an earlier process left there. The second kernel of the
same process is timed as well: nothing has to be imported for it any more.

    python benchmarks/warm_start.py [--device cuda:0] [--runs 10] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _harness import machine, print_table, write_results

import cuda_async as ca

CHILD = """
import json, sys, time
import numpy as np
import cuda_async as ca, tilekern as tk
sys.path.insert(0, sys.argv[1])
import warm_start_kernels as kernels
device = ca.Device(sys.argv[2]).open()
clock = time.perf_counter
with ca.use_device(device):
    x = ca.ones((64, 1024)).sync()
    out = ca.zeros((64, 1024)).sync()
    (ca.zeros((16,)).to_host()).sync()
    times = []
    for kernel in (kernels.first, kernels.second):
        began = clock()
        kernel(out.partition((1, 1024)), x).sync()
        times.append([(clock() - began) * 1e3, kernel.timings[0].origin, kernel.timings[0].total_ms])
print(json.dumps(times))
"""

KERNELS = """
import tilekern as tk

@tk.kernel
def first(out: tk.Tile2D, x: tk.Tensor2D):
    t = tk.load_like(x, out)
    e = tk.exp(t - tk.max(t, axis=1, keepdims=True))
    out.store(e / tk.sum(e, axis=1, keepdims=True))

@tk.kernel
def second(out: tk.Tile2D, x: tk.Tensor2D):
    t = tk.load_like(x, out)
    out.store(t / tk.sqrt(tk.sum(t * t, axis=1, keepdims=True)))
"""


def run(folder: Path, cache: Path, device: str) -> list[tuple[float, str, float]]:
    """One process; per kernel: ms to its first result, where the code came from, ms of that to find it."""
    environment = {**os.environ, "TILEKERN_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", CHILD, str(folder), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return [(ms, origin, find_ms) for ms, origin, find_ms in json.loads(done.stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "warm_start_kernels.py").write_text(KERNELS)
        for case in ("cold", "warm"):
            if case == "warm":
                run(folder, folder / "cache", options.device)
            runs = []
            for number in range(options.runs):
                cache = folder / ("cache" if case == "warm" else f"cache{number}")
                runs.append(run(folder, cache, options.device))
            for position, kernel in enumerate(("first kernel", "second kernel")):
                times = sorted(one[position][0] for one in runs)
                results[f"{kernel}, {case} cache"] = {
                    "median_ms": round(times[len(times) // 2], 2),
                    "best_ms": round(times[0], 2),
                    "finding_the_code_ms": round(min(one[position][2] for one in runs), 2),
                    "origin": runs[0][position][1],
                }
    columns = ("", "median ms", "best ms", "finding the code, ms", "code")
    rows = [(name, *values.values()) for name, values in results.items()]
    print_table(f"First launch on {options.device}", columns, rows)
    write_results(options.out, {"machine": machine(ca.Device(options.device)), "results": results})


if __name__ == "__main__":
    main()
