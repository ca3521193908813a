"""Kernels for rows that are too long for one tile: a block goes over its row by `chunk` columns, twice or more.

Outputs are whole tensors, `ca.mut(t)`, and the grid is the number of rows: block i stores to row i alone.
"""

from __future__ import annotations

from typing import Any

import tilekern as tk

__all__ = [
    "long_layer_norm",
    "long_rms_norm",
    "long_softmax",
    "running_softmax",
    "softmax_of_shares",
    "softmax_shares",
]

LOWEST = float("-inf")


def running_softmax(t: tk.Tile, largest: tk.Tile, total: tk.Tile) -> tuple[tk.Tile, tk.Tile]:
    """Largest element so far and the sum of exp(element - that), with the columns of `t` added; (rows, 1) tiles."""
    new = tk.maximum(largest, tk.max(t, axis=1, keepdims=True))
    shift = tk.where(new == LOWEST, 0.0, new)  # nothing but -inf so far: -inf - -inf is no number
    return new, total * tk.exp(largest - shift) + tk.sum(tk.exp(t - shift), axis=1, keepdims=True)


@tk.kernel
def long_softmax(out: tk.Tensor2D, x: tk.Tensor2D, chunk: tk.Constant[int]) -> None:
    """Each row of out = exp(row of x) / sum of that. Grid: rows."""
    row = tk.bid(0)
    largest = tk.full((1, 1), LOWEST, tk.float32)
    total = tk.zeros((1, 1), tk.float32)
    for j in range(tk.num_tiles(x, 1, (1, chunk))):
        t = tk.load(x, (row, j), (1, chunk), padding_mode=tk.PaddingMode.NEG_INF).astype(tk.float32)
        largest, total = running_softmax(t, largest, total)
    for j in range(tk.num_tiles(x, 1, (1, chunk))):
        t = tk.load(x, (row, j), (1, chunk)).astype(tk.float32)
        tk.store(out, (row, j), (tk.exp(t - largest) / total).astype(out.dtype))


@tk.kernel
def softmax_shares(largest: tk.Tile2D, total: tk.Tile2D, x: tk.Tensor2D, chunk: tk.Constant[int]) -> None:
    """Of chunk j of row i of x: largest[i, j], the largest element, and total[i, j], the sum of exp(element - that).

    largest, total: float32 (rows, shares), tiles (1, 1), with a share for each `chunk` columns of x.
    """
    tk.grid_dependency_control_launch_dependents()
    t = tk.load(x, largest.index, (1, chunk), padding_mode=tk.PaddingMode.NEG_INF).astype(tk.float32)
    top, summed = running_softmax(t, tk.full((1, 1), LOWEST, tk.float32), tk.zeros((1, 1), tk.float32))
    largest.store(top)
    total.store(summed)


@tk.kernel
def softmax_of_shares(
    out: tk.Tile2D, x: tk.Tensor2D, largest: tk.Tensor2D, total: tk.Tensor2D, shares: tk.Constant[int]
) -> None:
    """Each row of out = exp(row of x) / sum of that, from what `softmax_shares` made; tiles of out (1, columns).

    shares: how many there are in a row, as a power of two.
    """
    tk.grid_dependency_control_wait()
    i, _ = out.index
    tops = tk.load(largest, (i, 0), (1, shares), padding_mode=tk.PaddingMode.NEG_INF)
    totals = tk.load(total, (i, 0), (1, shares))
    t = tk.load_like(x, out).astype(tk.float32)
    top = tk.max(tops, axis=1, keepdims=True)
    whole = tk.sum(totals * tk.exp(tops - top), axis=1, keepdims=True)
    out.store((tk.exp(t - top) / whole).astype(out.dtype))


@tk.kernel
def long_rms_norm(
    out: tk.Tensor2D, x: tk.Tensor2D, weight: tk.Tensor1D, eps: float, chunk: tk.Constant[int]
) -> None:
    """As `rms_norm`: out, x (rows, columns), weight (columns,). Grid: rows."""
    row = tk.bid(0)
    squares = tk.zeros((1, chunk), tk.float32)
    for j in range(tk.num_tiles(x, 1, (1, chunk))):
        t = tk.load(x, (row, j), (1, chunk)).astype(tk.float32)
        squares += t * t
    factor = tk.rsqrt(tk.sum(squares, axis=1, keepdims=True) / x.shape[1] + eps)
    for j in range(tk.num_tiles(x, 1, (1, chunk))):
        t = tk.load(x, (row, j), (1, chunk)).astype(tk.float32)
        w = tk.load(weight, j, chunk).astype(tk.float32)
        tk.store(out, (row, j), (t * factor * w).astype(out.dtype))


@tk.kernel
def long_layer_norm(
    out: tk.Tensor2D, x: tk.Tensor2D, weight: tk.Tensor1D, bias: Any, eps: float, chunk: tk.Constant[int]
) -> None:
    """As `layer_norm`: out, x (rows, columns), weight and bias (columns,), bias may be None. Grid: rows."""
    row = tk.bid(0)
    sums = tk.zeros((1, chunk), tk.float32)
    for j in range(tk.num_tiles(x, 1, (1, chunk))):
        sums += tk.load(x, (row, j), (1, chunk)).astype(tk.float32)
    mean = tk.sum(sums, axis=1, keepdims=True) / x.shape[1]
    squares = tk.zeros((1, chunk), tk.float32)
    for j in range(tk.num_tiles(x, 1, (1, chunk))):
        t = tk.load(x, (row, j), (1, chunk)).astype(tk.float32) - mean
        counts = tk.arange(chunk, dtype=tk.int32) + j * chunk < x.shape[1]
        squares += tk.where(counts[None, :], t * t, 0.0)
    factor = tk.rsqrt(tk.sum(squares, axis=1, keepdims=True) / x.shape[1] + eps)
    for j in range(tk.num_tiles(x, 1, (1, chunk))):
        t = tk.load(x, (row, j), (1, chunk)).astype(tk.float32)
        y = (t - mean) * factor * tk.load(weight, j, chunk).astype(tk.float32)
        if bias is not None:
            y = y + tk.load(bias, j, chunk).astype(tk.float32)
        tk.store(out, (row, j), y.astype(out.dtype))
