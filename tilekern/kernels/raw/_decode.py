"""One new token against a cache of keys and values: what a step of text generation does.

Caches are (batch, heads, capacity, head size), and `positions` says for each sequence where its token stands. It is
read on the device, so one recorded launch serves every step. With one query there is little to do in parallel,
so the keys are split: blocks take shares of them, and a second kernel puts the shares together.
"""

from __future__ import annotations

from typing import Any

import tilekern as tk

from ._attention import LOG2_E, LOWEST

__all__ = ["attention_decode", "combine_shares", "update_cache"]


@tk.kernel
def update_cache(
    keys: tk.Tensor,
    values: tk.Tensor,
    k: tk.Tensor,
    v: tk.Tensor,
    positions: tk.Tensor1D,
    tile: tk.Constant[tuple[int, int]],
) -> None:
    """keys[b, :, positions[b] + i] = k[b, :, i], and so with values. Grid: (new tokens, batch).

    Args:
        keys, values: the caches, `ca.mut(t)`: (batch, heads, capacity, head size).
        k, v: (batch, heads, new tokens, head size); any strides.
        positions: int32 (batch,). Nothing is written at positions outside of the capacity.
        tile: heads and head size, as powers of two.
    """
    i, batch = tk.bid(0), tk.bid(1)
    heads, size = tile
    place = tk.load(positions, batch, 1).item() + i
    if (place >= 0) & (place < keys.shape[2]):
        shape = (1, heads, 1, size)
        tk.store(keys, (batch, 0, place, 0), tk.load(k, (batch, 0, i, 0), shape))
        tk.store(values, (batch, 0, place, 0), tk.load(v, (batch, 0, i, 0), shape))


@tk.kernel
def attention_decode(
    shares: tk.Tensor,
    weights: tk.Tensor,
    q: tk.Tensor,
    k: tk.Tensor,
    v: tk.Tensor,
    positions: tk.Tensor1D,
    scale: float,
    window: tk.Constant[int],
    tile: tk.Constant[tuple[int, int, int]],
) -> None:
    """Attention of one query per head over a share of the keys. Grid: (shares, key heads, batch).

    Args:
        shares: the result over each share, float32 (batch, key heads, shares, group, head size).
        weights: how much it counts, log2 of the sum of exp(score), float32 (batch, key heads, shares, group). Both are
            `ca.mut(t)`.
        q: (batch, key heads, group, head size): the heads that share keys are a group.
        k, v: the caches: (batch, key heads, capacity, head size).
        positions: int32 (batch,): the query sees keys 0 to positions[b].
        window: it sees this many at most, the last ones; 0: all.
        tile: heads of a group (at least the group; 16 for tensor cores), keys, head size.
    """
    tk.grid_dependency_control_launch_dependents()
    group, keys, size = tile
    s, head, batch = tk.bid(0), tk.bid(1), tk.bid(2)
    there = tk.maximum(tk.minimum(tk.load(positions, batch, 1).item(), k.shape[2] - 1) + 1, 0)
    begin: Any = 0
    if window > 0:
        begin = tk.maximum(there - window, 0)
    start = begin // keys
    share = tk.cdiv(tk.cdiv(there, keys) - start, tk.num_blocks(0))
    first = tk.maximum(start + s * share, 0)
    # shares behind the last key are empty
    last = tk.minimum(tk.minimum(first + share, tk.cdiv(there, keys)), tk.num_tiles(k, 2, (1, 1, keys, size)))

    left = tk.load(q, (batch, head, 0, 0), (1, 1, group, size)).reshape((group, size))
    acc = tk.zeros((group, size), tk.float32)
    largest = tk.full((group, 1), LOWEST, tk.float32)
    total = tk.zeros((group, 1), tk.float32)
    for j in range(first, last):
        right = tk.load(k, (batch, head, 0, j), (1, 1, size, keys), order=(0, 1, 3, 2)).reshape((size, keys))
        scores = tk.mma(left, right, tk.zeros((group, keys), tk.float32)) * (scale * LOG2_E)
        place = j * keys + tk.arange(keys, dtype=tk.int32)
        key = place[None, :]
        scores = tk.where((key >= begin) & (key < there), scores, LOWEST)
        new = tk.maximum(largest, tk.max(scores, axis=1, keepdims=True))
        part = tk.exp2(scores - new)
        fade = tk.exp2(largest - new)
        total = total * fade + tk.sum(part, axis=1, keepdims=True)
        value = tk.load(v, (batch, head, j, 0), (1, 1, keys, size)).reshape((keys, size))
        # what is not seen may be anything, and 0 times infinity is no number
        row = place[:, None]
        value = tk.where((row >= begin) & (row < there), value, 0.0)
        acc = tk.mma(part.astype(v.dtype), value, acc * fade)
        largest = new
    result = acc / tk.where(total == 0.0, 1.0, total)
    tk.store(shares, (batch, head, s, 0, 0), result.reshape((1, 1, 1, group, size)))
    tk.store(weights, (batch, head, s, 0), (largest + tk.log2(total)).reshape((1, 1, 1, group)))


@tk.kernel
def combine_shares(
    out: tk.Tensor,
    shares: tk.Tensor,
    weights: tk.Tensor,
    tile: tk.Constant[tuple[int, int, int]],
) -> None:
    """out = the mean of the shares by their weights. Grid: (key heads, batch, tiles that the heads of a group make).

    Args:
        out: `ca.mut(t)`: (batch, key heads, group, head size).
        shares, weights: what `attention_decode` made.
        tile: all shares, some heads of a group, head size, as powers of two.
    """
    tk.grid_dependency_control_wait()
    count, group, size = tile
    head, batch, part = tk.bid(0), tk.bid(1), tk.bid(2)
    lse = tk.load(
        weights, (batch, head, 0, part), (1, 1, count, group), padding_mode=tk.PaddingMode.NEG_INF
    ).reshape((count, group))
    parts = tk.load(shares, (batch, head, 0, part, 0), (1, 1, count, group, size)).reshape(
        (count, group, size)
    )
    largest = tk.max(lse, axis=0, keepdims=True)
    factor = tk.exp2(lse - tk.where(largest == LOWEST, 0.0, largest))
    total = tk.sum(factor, axis=0)
    mean = tk.sum(parts * factor[:, :, None], axis=0) / tk.where(total == 0.0, 1.0, total)[:, None]
    tk.store(out, (batch, head, part, 0), mean.astype(out.dtype).reshape((1, 1, group, size)))
