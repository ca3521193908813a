"""One step of a small network as a graph: captured once, replayed for every input, from many tasks at once.

Two layers of a tile kernel, bias and ReLU, and a SIMT kernel from CUDA C++ behind them: one graph, one launch per
request. A `GraphCache` keeps a graph per batch size, rounded up to a bucket. The weights are ordinary tensors that the
graphs read; what the steps allocate belongs to the graphs.

    python examples/graph_replay.py [--device cuda:0] [--requests 24] [--svg FILE.svg]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import numpy as np

import cuda_async as ca
import tilekern as tk

PTX_FILE = Path(__file__).parent / "simt" / "threshold_scale.ptx"
WIDTH, HIDDEN, OUT = 64, 128, 32
BUCKETS = (16, 32, 64)


@tk.kernel
def layer(y: tk.Tile2D, x: tk.Tensor2D, w: tk.Tensor2D, bias: tk.Tensor1D, inner: tk.Constant):
    """relu(x @ w + bias): one tile of y by one tile block."""
    rows, columns = tk.bid(0), tk.bid(1)
    tile_x = tk.load(x, (rows, 0), shape=(y.shape[0], inner))
    tile_w = tk.load(w, (0, columns), shape=(inner, y.shape[1]))
    total = tk.mma(tile_x, tile_w, tk.zeros(y.shape, tk.float32))
    y.store(tk.maximum(total + tk.load(bias, (columns,), shape=(y.shape[1],)), 0.0))


class Network:
    """Weights on the device, and the operations of one step."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.arrays = [
            random.standard_normal(shape).astype("f4") / np.float32(8.0)
            for shape in ((WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, OUT), (OUT,))
        ]
        self.weights: list[ca.Tensor] = []
        self.threshold = ca.Module.from_file(PTX_FILE).function("threshold_scale_f32")

    async def upload(self) -> None:
        """Bring the weights over."""
        self.weights = list(await ca.collect([ca.from_host(array) for array in self.arrays]))

    def step(self, batch: int) -> ca.DeviceOp[ca.Tensor]:
        """One step for `batch` rows, to be captured: its input is the graph's input `x`."""
        w1, b1, w2, b2 = self.weights

        def gate(y: ca.Tensor) -> ca.DeviceOp[ca.Tensor]:
            return ca.empty(y.shape).then(
                lambda out: self.threshold.launch(
                    -(-y.size // 128), 128, y.size, 0.5, 2.0, ca.read(y), ca.mut(out)
                ).last()
            )

        return (
            ca.graph_input("x", (batch, WIDTH))
            .then(lambda x: layer(ca.empty((batch, HIDDEN)).partition((16, 32)), x, w1, b1, WIDTH))
            .first()
            .unpartition()
            .then(lambda h: layer(ca.empty((batch, OUT)).partition((16, 32)), h, w2, b2, HIDDEN))
            .first()
            .unpartition()
            .then(gate)
        )

    def expected(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same in float64, and where rounding cannot decide on which side of the threshold a value is."""
        w1, b1, w2, b2 = (array.astype("f8") for array in self.arrays)
        h = np.maximum(x.astype("f8") @ w1 + b1, 0.0)
        y = np.maximum(h @ w2 + b2, 0.0)
        return np.where(y >= 0.5, 2.0 * y, 0.0), np.abs(y - 0.5) > 1e-3


async def run(requests: int, picture: Path | None) -> int:
    network = Network(seed=0)
    await network.upload()
    graphs: ca.GraphCache[int, ca.Tensor] = ca.GraphCache(network.step, buckets=BUCKETS)
    random = np.random.default_rng(1)
    worst = 0.0

    async def answer(x: np.ndarray) -> np.ndarray:
        """What a service does per request: pad to the bucket, call its graph, cut."""
        graph = await graphs.get(len(x))
        padded = np.zeros((graphs.bucket(len(x)), WIDTH), "f4")
        padded[: len(x)] = x
        return (await graph(x=padded).to_host())[: len(x)]

    async def one(x: np.ndarray) -> None:
        nonlocal worst
        expected, sure = network.expected(x)
        worst = max(worst, float(np.max(np.abs(await answer(x) - expected)[sure], initial=0.0)))

    inputs = [
        random.standard_normal((int(random.integers(1, 65)), WIDTH)).astype("f4") for _ in range(requests)
    ]
    begin = time.perf_counter()
    await asyncio.gather(*(one(x) for x in inputs))
    seconds = time.perf_counter() - begin
    if picture is not None:
        drawing = (await graphs.get(BUCKETS[0])).to_svg()
        await asyncio.to_thread(picture.write_text, drawing, encoding="utf-8")
    passed = worst < 1e-4
    verdict = "PASS" if passed else "FAIL"
    device = ca.current_device()
    print(
        f"{verdict}: {requests} requests through {len(graphs)} graphs on {device} in {seconds * 1e3:.0f} ms, first use "
        f"of each graph included, largest error {worst:.1e}"
    )
    return 0 if passed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cuda:0 or host:0; default: the GPU where there is one")
    parser.add_argument("--requests", type=int, default=24, help="requests, all at once")
    parser.add_argument("--svg", type=Path, default=None, help="draw one of the graphs into this file")
    options = parser.parse_args()
    if options.requests < 1:
        parser.error(f"--requests is {options.requests}; at least 1")
    try:
        device = (ca.current_device() if options.device is None else ca.Device(options.device)).open()
    except (ValueError, ca.ContextError) as error:
        parser.exit(2, f"error: {error}\n")
    if options.svg is not None:
        try:
            options.svg.open("a").close()  # now, not when the work is done
        except FileNotFoundError:
            parser.exit(2, f"error: --svg: there is no folder {options.svg.parent}\n")
        except OSError as error:
            parser.exit(2, f"error: --svg: {options.svg} cannot be written: {error.strerror}\n")
    with ca.use_device(device):
        return asyncio.run(run(options.requests, options.svg))


if __name__ == "__main__":
    sys.exit(main())
