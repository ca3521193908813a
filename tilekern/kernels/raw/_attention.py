"""Attention over many queries, without the matrix of scores in memory.

Theory. The softmax of a row of scores is a sum over keys, and can be taken tile by tile: with the largest score m so
far, the sum l of exp(score - m) and the sum acc of exp(score - m) * value, a new tile with the largest score m' scales
l and acc by exp(m - m') and adds its own (Milakov and Gimelshein 2018; Dao et al. 2022). exp2 takes scores in units of
log 2: that unit and the scale are one factor, which a multiply-add applies along with the shift by the largest.

Which keys a tile of queries sees decides over three ranges of key tiles: those at the left edge of a sliding
window, those that every query of the tile sees whole, and those at the diagonal or at the end of the keys. Only the
outer two compute masks.
"""

from __future__ import annotations

import math
from typing import Any

import tilekern as tk

from ._matmul import multiply_add

__all__ = ["LOG2_E", "attention"]

LOG2_E = math.log2(math.e)
LOWEST = float("-inf")


@tk.kernel(fuse_multiply_add=True)
def attention(
    out: tk.Tensor,
    q: tk.Tensor,
    k: tk.Tensor,
    v: tk.Tensor,
    lengths: Any,
    scale: float,
    window: Any,
    causal: tk.Constant[bool],
    group: tk.Constant[int],
    tile: tk.Constant[tuple[int, int, int]],
    precision: tk.Constant[str] = "ieee",
    scale_first: tk.Constant[bool] = False,
    latency: tk.Constant[int | None] = None,
) -> None:
    """out = softmax(scale * q @ k.T + mask) @ v for each head. Grid: (query tiles, heads, batch).

    Args:
        out, q: (batch, heads, queries, head size); any strides. `out` is `ca.mut(t)`.
        k, v: (batch, heads // group, keys, head size).
        lengths: int32 (batch,), how many keys there are, or None: all.
        window: a query sees this many keys at most, itself included; None: all. Needs `causal`.
        causal: query i sees key j if j <= i + keys - queries: the last query stands at the last key.
        tile: queries, keys, and head size (a power of two of at least the head size).
        precision: how float32 factors are multiplied, as for the matrix products.
        scale_first: scores are scaled before the largest is sought. It must be so unless scale is positive, and not so
            small that its product with log2(e) is none.
        latency: the hint of the loads of k and v.
    """
    queries, keys, size = tile
    i, head, batch = tk.bid(0), tk.bid(1), tk.bid(2)
    there: Any = k.shape[2]
    offset = there - q.shape[2]
    if lengths is not None:
        there = tk.minimum(tk.load(lengths, batch, 1).item(), there)
    first = offset + i * queries
    """Position of the tile's first query among the keys."""
    query = first + tk.arange(queries, dtype=tk.int32)

    # key tiles: [begin, inner) masked, [inner, whole) not, [whole, end) masked
    end: Any = tk.num_tiles(k, 2, (1, 1, keys, size))
    whole: Any = there // keys
    begin: Any = 0
    inner: Any = 0
    if lengths is not None:
        end = tk.minimum(end, tk.cdiv(tk.maximum(there, 0), keys))
    if causal:
        end = tk.minimum(end, tk.cdiv(tk.maximum(first + queries, 0), keys))
        whole = tk.minimum(whole, tk.maximum(first + 1, 0) // keys)
    if window is not None:
        begin = tk.maximum(first - window + 1, 0) // keys
        inner = tk.maximum(tk.minimum(end, tk.cdiv(tk.maximum(first + queries - window, 0), keys)), begin)
    whole = tk.maximum(tk.minimum(whole, end), inner)

    left = tk.load(q, (batch, head, i, 0), (1, 1, queries, size)).reshape((queries, size))
    acc = tk.zeros((queries, size), tk.float32)
    largest = tk.full((queries, 1), LOWEST, tk.float32)
    total = tk.zeros((queries, 1), tk.float32)
    unit = scale * LOG2_E
    late_scale = 1.0 if scale_first else unit
    """What scores are multiplied by along with the shift."""

    def step(
        j: int, acc: tk.Tile, largest: tk.Tile, total: tk.Tile, masked: bool
    ) -> tuple[tk.Tile, tk.Tile, tk.Tile]:
        at = (batch, head // group, 0, j)
        right = tk.load(k, at, (1, 1, size, keys), order=(0, 1, 3, 2), latency=latency).reshape((size, keys))
        scores = multiply_add(left, right, tk.zeros((queries, keys), tk.float32), precision)
        if scale_first:
            scores = scores * unit
        if masked:
            place = j * keys + tk.arange(keys, dtype=tk.int32)
            key = place[None, :]
            sees = key < there
            if causal:
                sees = sees & (key <= query[:, None])
            if window is not None:
                sees = sees & (key > query[:, None] - window)
            scores = tk.where(sees, scores, LOWEST)
        new = tk.maximum(largest, tk.max(scores, axis=1, keepdims=True))
        # a query that has seen no key yet: -inf - -inf is no number
        shift = tk.where(new == LOWEST, 0.0, new) if masked else new
        if left.dtype is tk.float32:
            weights = tk.exp2((scores - shift) * late_scale, flush_to_zero=True)
        else:  # in one instruction, 5 % quicker; the rounding of shift * late_scale cancels while it is small
            weights = tk.exp2(scores * late_scale - shift * late_scale, flush_to_zero=True)
        fade = tk.exp2((largest - shift) * late_scale, flush_to_zero=True)
        total = total * fade + tk.sum(weights, axis=1, keepdims=True)
        value = tk.load(v, (batch, head // group, j, 0), (1, 1, keys, size), latency=latency)
        value = value.reshape((keys, size))
        if masked and lengths is not None:
            # what lies behind the keys may be anything, and 0 times infinity is no number
            value = tk.where(place[:, None] < there, value, 0.0)
        acc = multiply_add(weights.astype(v.dtype), value, acc * fade, precision)
        return acc, new, total

    if window is not None:
        for j in range(begin, inner):
            acc, largest, total = step(j, acc, largest, total, True)
    for j in range(inner, whole):
        acc, largest, total = step(j, acc, largest, total, False)
    for j in range(whole, end):
        acc, largest, total = step(j, acc, largest, total, True)
    result = acc / tk.where(total == 0.0, 1.0, total)  # a query that sees no key gives zeros
    tk.store(out, (batch, head, i, 0), result.astype(out.dtype).reshape((1, 1, queries, size)))
