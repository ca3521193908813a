"""Kernels that normalise the rows of a matrix. A row is one tile.

The partition's tile is (rows, columns) with `columns` at least the row's length. What lies past the edge is loaded
as 0, so it must not count: softmax masks it, a mean divides by the true length. Rows too long for one tile
are those of `_long_rows.py`. `weight` and `bias` are (columns,); `eps` is added to the mean square or the variance.
Everything is computed in float32. Weights are loaded before anything is summed: a sum waits for other warps, and a load
behind it would begin only then.

Those that are called persistent take mapped partitions, which a fixed number of blocks walks. A block has its weights
from memory once, and loads its next tile while it computes one; where there are enough tiles, that is faster.
"""

from __future__ import annotations

from typing import Any

import tilekern as tk

from ._attention import LOG2_E

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "layer_norm",
    "persistent_add_layer_norm",
    "persistent_add_rms_norm",
    "persistent_layer_norm",
    "persistent_rms_norm",
    "persistent_row_softmax",
    "rms_norm",
    "row_softmax",
]


def shares(t: tk.Tile) -> tk.Tile:
    """exp(row of t) / sum of that, float32, of a tile (rows, columns). What lies past the edge is -inf.

    For the 16-bit types exp is made of exp2, and 0 where it is below float32's normal numbers: the relative error,
    2**-23 of the exponent, is far below theirs.
    """
    wide = t.astype(tk.float32)
    below = wide - tk.max(wide, axis=1, keepdims=True)
    e = tk.exp(below) if t.dtype is tk.float32 else tk.exp2(below * LOG2_E, flush_to_zero=True)
    return e * (1.0 / tk.sum(e, axis=1, keepdims=True))


@tk.kernel
def row_softmax(out: tk.Tile2D, x: tk.Tensor2D) -> None:
    """Each row of out = exp(row of x) / sum of that, computed in float32."""
    t = tk.load_like(x, out, padding_mode=tk.PaddingMode.NEG_INF)
    out.store(shares(t).astype(out.dtype))


@tk.kernel
def persistent_row_softmax(out: tk.Tiles2D, x: tk.Tensor2D) -> None:
    """As `row_softmax`."""
    for index in out.iter_indices():
        t = tk.load(x, index.components(), out.shape, padding_mode=tk.PaddingMode.NEG_INF)
        out.store(shares(t).astype(out.dtype), index)


def factors(weight: tk.Tensor1D, columns: int) -> tk.Tile:
    """A weight or bias, (length,), as float32 (columns,), for tiles of that many columns; 0 past its end."""
    return tk.load(weight, 0, columns).astype(tk.float32)


def by_root_mean_square(t: tk.Tile, length: int, w: tk.Tile, eps: float) -> tk.Tile:
    """Rows of the float32 tile `t`, of which `length` columns count."""
    mean = tk.sum(t * t, axis=1, keepdims=True) / length
    return t * tk.rsqrt(mean + eps) * w


def by_mean_and_variance(t: tk.Tile, length: int, w: tk.Tile, b: tk.Tile | None, eps: float) -> tk.Tile:
    """Likewise; the variance is the mean square of what the mean leaves."""
    counts = (tk.arange(t.shape[1], dtype=tk.int32) < length)[None, :]
    centred = tk.where(counts, t - tk.sum(t, axis=1, keepdims=True) / length, 0.0)
    variance = tk.sum(centred * centred, axis=1, keepdims=True) / length
    y = centred * tk.rsqrt(variance + eps) * w
    return y if b is None else y + b


@tk.kernel
def rms_norm(out: tk.Tile2D, x: tk.Tensor2D, weight: tk.Tensor1D, eps: float) -> None:
    """Each row of out = row of x / sqrt(mean of its squares + eps) * weight."""
    t = tk.load_like(x, out).astype(tk.float32)
    w = factors(weight, out.shape[1])
    out.store(by_root_mean_square(t, x.shape[1], w, eps).astype(out.dtype))


@tk.kernel
def persistent_rms_norm(out: tk.Tiles2D, x: tk.Tensor2D, weight: tk.Tensor1D, eps: float) -> None:
    """As `rms_norm`."""
    w = factors(weight, out.shape[1])
    for index in out.iter_indices():
        t = tk.load(x, index.components(), out.shape).astype(tk.float32)
        out.store(by_root_mean_square(t, x.shape[1], w, eps).astype(out.dtype), index)


@tk.kernel
def add_rms_norm(
    out: tk.Tile2D, total: tk.Tile2D, x: tk.Tensor2D, residual: tk.Tensor2D, weight: tk.Tensor1D, eps: float
) -> None:
    """total = x + residual, rounded to its type; out = the `rms_norm` of that."""
    rounded = (tk.load_like(x, out).astype(tk.float32) + tk.load_like(residual, out)).astype(total.dtype)
    w = factors(weight, out.shape[1])
    total.store(rounded)
    out.store(by_root_mean_square(rounded.astype(tk.float32), x.shape[1], w, eps).astype(out.dtype))


@tk.kernel
def persistent_add_rms_norm(
    out: tk.Tiles2D,
    total: tk.Tiles2D,
    x: tk.Tensor2D,
    residual: tk.Tensor2D,
    weight: tk.Tensor1D,
    eps: float,
) -> None:
    """As `add_rms_norm`."""
    w = factors(weight, out.shape[1])
    for index in out.iter_indices_with(total):
        here = index.components()
        added = tk.load(x, here, out.shape).astype(tk.float32) + tk.load(residual, here, out.shape)
        rounded = added.astype(total.dtype)
        total.store(rounded, index)
        out.store(
            by_root_mean_square(rounded.astype(tk.float32), x.shape[1], w, eps).astype(out.dtype), index
        )


@tk.kernel
def layer_norm(out: tk.Tile2D, x: tk.Tensor2D, weight: tk.Tensor1D, bias: Any, eps: float) -> None:
    """Each row of out = (row of x - its mean) / sqrt(its variance + eps) * weight + bias.

    `bias` is a tensor like `weight`, or None.
    """
    t = tk.load_like(x, out).astype(tk.float32)
    w = factors(weight, out.shape[1])
    b = None if bias is None else factors(bias, out.shape[1])
    out.store(by_mean_and_variance(t, x.shape[1], w, b, eps).astype(out.dtype))


@tk.kernel
def persistent_layer_norm(
    out: tk.Tiles2D, x: tk.Tensor2D, weight: tk.Tensor1D, bias: Any, eps: float
) -> None:
    """As `layer_norm`."""
    w = factors(weight, out.shape[1])
    b = None if bias is None else factors(bias, out.shape[1])
    for index in out.iter_indices():
        t = tk.load(x, index.components(), out.shape).astype(tk.float32)
        out.store(by_mean_and_variance(t, x.shape[1], w, b, eps).astype(out.dtype), index)


@tk.kernel
def add_layer_norm(
    out: tk.Tile2D, x: tk.Tensor2D, residual: tk.Tensor2D, weight: tk.Tensor1D, bias: Any, eps: float
) -> None:
    """out = the `layer_norm` of x + residual."""
    t = tk.load_like(x, out).astype(tk.float32) + tk.load_like(residual, out)
    w = factors(weight, out.shape[1])
    b = None if bias is None else factors(bias, out.shape[1])
    out.store(by_mean_and_variance(t, x.shape[1], w, b, eps).astype(out.dtype))


@tk.kernel
def persistent_add_layer_norm(
    out: tk.Tiles2D, x: tk.Tensor2D, residual: tk.Tensor2D, weight: tk.Tensor1D, bias: Any, eps: float
) -> None:
    """As `add_layer_norm`."""
    w = factors(weight, out.shape[1])
    b = None if bias is None else factors(bias, out.shape[1])
    for index in out.iter_indices():
        here = index.components()
        t = tk.load(x, here, out.shape).astype(tk.float32) + tk.load(residual, here, out.shape)
        out.store(by_mean_and_variance(t, x.shape[1], w, b, eps).astype(out.dtype), index)
