"""Find the fastest tile and hints of a softmax kernel, verify every candidate, and compare with a first guess.

    python examples/tune_softmax.py [--device cuda:0] [--rows 64] [--columns 256] [--log FILE.jsonl]

With `--log` a search that was stopped goes on where it was. On the host device times are those of the simulation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import cuda_async as ca
import tilekern as tk

GUESS = {"rows_per_tile": 1, "num_worker_warps": 4}


@tk.kernel
def softmax(out: tk.Tile2D, x: tk.Tensor2D):
    t = tk.load_like(x, out)
    e = tk.exp(t - tk.max(t, axis=1, keepdims=True))
    out.store(e / tk.sum(e, axis=1, keepdims=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cuda:0 or host:0; default: the GPU where there is one")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--columns", type=int, default=256, help="a power of two, the width of a tile")
    parser.add_argument("--log", type=Path, help="keep what was measured, and go on from it")
    options = parser.parse_args()
    if options.rows < 1 or options.columns < 1 or options.columns & (options.columns - 1):
        parser.error("--rows is at least 1, and --columns a power of two")
    try:
        device = (ca.current_device() if options.device is None else ca.Device(options.device)).open()
    except (ValueError, ca.ContextError) as error:
        parser.exit(2, f"error: {error}\n")
    if options.log is not None and (options.log.is_file() or not options.log.exists()):
        try:
            options.log.open("a").close()  # a search would make the folders
        except FileNotFoundError:
            parser.exit(2, f"error: --log: there is no folder {options.log.parent}\n")
        except OSError as error:
            parser.exit(2, f"error: --log: {options.log} cannot be written: {error.strerror}\n")
    rng = np.random.default_rng(0)
    array = rng.standard_normal((options.rows, options.columns)).astype("f4")
    wide = np.exp(array.astype("f8"))
    expected = wide / wide.sum(axis=1, keepdims=True)

    with ca.use_device(device):
        x, out = ca.from_host(array).sync(), ca.zeros(array.shape).sync()

        def make(config):
            kernel = softmax.with_options(num_worker_warps=config["num_worker_warps"])
            part = out.partition((config["rows_per_tile"], options.columns))
            return kernel.bind(part, x, device=device).launch

        def verify(outputs):
            return np.allclose(ca.to_host(outputs[0].tensor).sync(), expected, rtol=1e-5, atol=1e-7)

        space = tk.tune.Space(rows_per_tile=[1, 2, 4, 8, 16], num_worker_warps=[4, 8])
        try:
            result = tk.tune.search(
                space,
                make,
                verify=verify,
                log=options.log,
                problem=f"softmax {array.shape}",
                options=tk.bench.MeasureOptions(warm_up_ms=5, measure_ms=20),
            )
        except tk.tune.TuneLogError as error:
            parser.exit(2, f"error: --log: {error}\n")
        print(result)
        comparison = tk.bench.compare(make(GUESS), make(result.best))
    print(f"the best beside the first guess:\n{comparison}")
    right = all(trial.status in ("ok", "slow") for trial in result.trials)
    print("PASS: every candidate is right" if right else "FAIL: some candidates do not run, or are wrong")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
