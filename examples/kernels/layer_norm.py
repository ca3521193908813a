"""Layer normalisation, forward and backward; a row is one tile.

Forward: y = n * w + b with n = (x - mean) / sqrt(variance + eps), mean and variance over the row. With g = dy * w, the
backward pass is dx = (g - mean(g) - n * mean(g * n)) / sqrt(variance + eps), dw = the sum over rows of dy * n, and db
that of dy. The rows belong to many blocks, so these sums are made by atomic additions.

    python examples/kernels/layer_norm.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import numpy as np

import cuda_async as ca
import tilekern as tk


def normalised(x: tk.Tile, length: int, eps: float) -> tuple[tk.Tile, tk.Tile]:
    """Rows with mean 0 and variance 1, and what they were multiplied by. Columns past `length` give 0."""
    counts = tk.arange(x.shape[1], dtype=tk.int32)[None, :] < length
    centred = tk.where(counts, x - tk.sum(x, axis=1, keepdims=True) / length, 0.0)
    scale = tk.rsqrt(tk.sum(centred * centred, axis=1, keepdims=True) / length + eps)
    return centred * scale, scale


@tk.kernel
def forward(y: tk.Tile2D, x: tk.Tensor2D, w: tk.Tensor1D, b: tk.Tensor1D, eps: float):
    n, _ = normalised(tk.load_like(x, y), x.shape[1], eps)
    columns = y.shape[1]
    y.store(n * tk.load(w, 0, columns) + tk.load(b, 0, columns))


@tk.kernel
def backward(
    dx: tk.Tile2D,
    dw: tk.Tensor1D,
    db: tk.Tensor1D,
    dy: tk.Tensor2D,
    x: tk.Tensor2D,
    w: tk.Tensor1D,
    eps: float,
):
    length, columns = x.shape[1], dx.shape[1]
    n, scale = normalised(tk.load_like(x, dx), length, eps)
    gradient = tk.load_like(dy, dx)
    g = gradient * tk.load(w, 0, columns)
    mean_g = tk.sum(g, axis=1, keepdims=True) / length
    mean_gn = tk.sum(g * n, axis=1, keepdims=True) / length
    dx.store((g - mean_g - n * mean_gn) * scale)
    column = tk.arange(columns, dtype=tk.int32)  # those past the end are not in dw and db, and skipped
    tk.atomic_add(dw, column, tk.sum(gradient * n, axis=0))
    tk.atomic_add(db, column, tk.sum(gradient, axis=0))


def reference(x, w, b, dy, eps):
    """The same in float64."""
    scale = 1 / np.sqrt(x.var(1, keepdims=True) + eps)
    n = (x - x.mean(1, keepdims=True)) * scale
    g = dy * w
    dx = (g - g.mean(1, keepdims=True) - n * (g * n).mean(1, keepdims=True)) * scale
    return n * w + b, dx, (dy * n).sum(0), dy.sum(0)


async def run() -> int:
    rows, length, eps, tile = 50, 300, 1e-5, (4, 512)
    random = np.random.default_rng(0)
    x_host, dy_host = random.standard_normal((2, rows, length), dtype=np.float32)
    w_host, b_host = random.standard_normal((2, length), dtype=np.float32)
    x, dy, w, b = await ca.zip(*map(ca.from_host, (x_host, dy_host, w_host, b_host)))

    y = await forward(ca.empty(x.shape).partition(tile), x, w, b, eps).first().unpartition().to_host()
    sums = (ca.zeros(length).map(ca.mut) for _ in range(2))
    dx, dw, db, *_ = await backward(ca.empty(x.shape).partition(tile), *sums, dy, x, w, eps)
    gradients = await ca.zip(dx.unpartition().to_host(), dw.to_host(), db.to_host())

    expected = reference(*(t.astype(np.float64) for t in (x_host, w_host, b_host, dy_host)), eps)
    error = max(float(np.max(np.abs(r - e))) for r, e in zip((y, *gradients), expected))
    passed = error < 2e-5  # sums of 50 numbers in float32
    print(
        f"{'PASS' if passed else 'FAIL'}: {rows} rows of {length} on {x.device}, forward and backward, "
        f"largest error {error:.1e}"
    )
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
