"""Kernels that normalise the rows of a matrix. A row is one tile.

The partition's tile is (rows, columns) with `columns` at least the row's length. What lies past the edge is loaded
as 0, so it must not count: softmax masks it, a mean divides by the true length. Rows too long for one tile
are those of `_long_rows.py`. `weight` and `bias` are (columns,); `eps` is added to the mean square or the variance.
Everything is computed in float32. Weights are loaded before anything is summed: a sum waits for other warps, and a load
behind it would begin only then.
"""

from __future__ import annotations

from typing import Any

import tilekern as tk

__all__ = ["add_layer_norm", "add_rms_norm", "layer_norm", "rms_norm", "row_softmax"]


@tk.kernel
def row_softmax(out: tk.Tile2D, x: tk.Tensor2D) -> None:
    """Each row of out = exp(row of x) / sum of that, computed in float32."""
    t = tk.load_like(x, out, padding_mode=tk.PaddingMode.NEG_INF).astype(tk.float32)
    e = tk.exp(t - tk.max(t, axis=1, keepdims=True))
    out.store((e / tk.sum(e, axis=1, keepdims=True)).astype(out.dtype))


def by_root_mean_square(t: tk.Tile, length: int, weight: tk.Tensor1D, eps: float) -> tk.Tile:
    """Rows of the float32 tile `t`, of which `length` columns count."""
    w = tk.load(weight, 0, t.shape[1]).astype(tk.float32)
    mean = tk.sum(t * t, axis=1, keepdims=True) / length
    return t * tk.rsqrt(mean + eps) * w


def by_mean_and_variance(t: tk.Tile, length: int, weight: tk.Tensor1D, bias: Any, eps: float) -> tk.Tile:
    """Likewise; the variance is the mean square of what the mean leaves."""
    w = tk.load(weight, 0, t.shape[1]).astype(tk.float32)
    b = None if bias is None else tk.load(bias, 0, t.shape[1]).astype(tk.float32)
    counts = (tk.arange(t.shape[1], dtype=tk.int32) < length)[None, :]
    centred = tk.where(counts, t - tk.sum(t, axis=1, keepdims=True) / length, 0.0)
    variance = tk.sum(centred * centred, axis=1, keepdims=True) / length
    y = centred * tk.rsqrt(variance + eps) * w
    return y if b is None else y + b


@tk.kernel
def rms_norm(out: tk.Tile2D, x: tk.Tensor2D, weight: tk.Tensor1D, eps: float) -> None:
    """Each row of out = row of x / sqrt(mean of its squares + eps) * weight."""
    t = tk.load_like(x, out).astype(tk.float32)
    out.store(by_root_mean_square(t, x.shape[1], weight, eps).astype(out.dtype))


@tk.kernel
def add_rms_norm(
    out: tk.Tile2D, total: tk.Tile2D, x: tk.Tensor2D, residual: tk.Tensor2D, weight: tk.Tensor1D, eps: float
) -> None:
    """total = x + residual, rounded to its type; out = the `rms_norm` of that."""
    rounded = (tk.load_like(x, out).astype(tk.float32) + tk.load_like(residual, out)).astype(total.dtype)
    total.store(rounded)
    t = rounded.astype(tk.float32)
    out.store(by_root_mean_square(t, x.shape[1], weight, eps).astype(out.dtype))


@tk.kernel
def layer_norm(out: tk.Tile2D, x: tk.Tensor2D, weight: tk.Tensor1D, bias: Any, eps: float) -> None:
    """Each row of out = (row of x - its mean) / sqrt(its variance + eps) * weight + bias.

    `bias` is a tensor like `weight`, or None.
    """
    t = tk.load_like(x, out).astype(tk.float32)
    out.store(by_mean_and_variance(t, x.shape[1], weight, bias, eps).astype(out.dtype))


@tk.kernel
def add_layer_norm(
    out: tk.Tile2D, x: tk.Tensor2D, residual: tk.Tensor2D, weight: tk.Tensor1D, bias: Any, eps: float
) -> None:
    """out = the `layer_norm` of x + residual."""
    t = tk.load_like(x, out).astype(tk.float32) + tk.load_like(residual, out)
    out.store(by_mean_and_variance(t, x.shape[1], weight, bias, eps).astype(out.dtype))
