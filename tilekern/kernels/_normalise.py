"""Kernels that normalise the rows of a matrix.

A row is one tile: the partition's tile is (rows, columns) with `columns` at least the row's length. What
lies past the edge is loaded as 0, so it must not count: softmax masks it, a mean divides by the true length.
"""

from __future__ import annotations

import tilekern as tk

__all__ = ["rms_norm", "row_softmax"]


@tk.kernel
def row_softmax(out: tk.Tile2D, x: tk.Tensor2D) -> None:
    """Each row of out = exp(row of x) / sum of that, computed in float32."""
    t = tk.load_like(x, out, padding_mode=tk.PaddingMode.NEG_INF).astype(tk.float32)
    e = tk.exp(t - tk.max(t, axis=1, keepdims=True))
    out.store((e / tk.sum(e, axis=1, keepdims=True)).astype(out.dtype))


@tk.kernel
def rms_norm(out: tk.Tile2D, x: tk.Tensor2D, weight: tk.Tensor1D, eps: float) -> None:
    """Each row of out = row of x / sqrt(mean of its squares + eps) * weight, computed in float32."""
    columns = out.shape[1]
    t = tk.load_like(x, out).astype(tk.float32)
    mean = tk.sum(t * t, axis=1, keepdims=True) / x.shape[1]
    w = tk.load(weight, 0, columns).astype(tk.float32)
    out.store((t * tk.rsqrt(mean + eps) * w).astype(out.dtype))
