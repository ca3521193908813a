"""Tile kernels of a decode step, each as much of the step as one launch can be.

Theory. A step for one token reads every weight once and does little else, so it is bound by memory, and by what lies
between kernels: each launch ends before the next begins to read. Hence few kernels that read much: the norm is
computed by every block of the product behind it (a row of activations is small, and comes from the cache), and the
scale of the norm, one number, is applied to the sum. Rotation, the new entry of the cache and attention are one
kernel; the product behind it puts the shares of attention together while it loads them. That makes five kernels a
layer.

Each kernel waits for the one before it and then lets the next one begin: where they are launched with
`programmatic_dependent_launch`, the next is on the multiprocessors, waiting, when this one ends.

Activations are float32, weights and the cache any float type, sums float32.
"""

from __future__ import annotations

import math
from typing import Any

import tilekern as tk

__all__ = ["advance", "attend", "embed", "project"]

LOWEST = float("-inf")
LOG2_E = math.log2(math.e)


@tk.kernel
def embed(out: tk.Tile2D, token: tk.Tensor1D, table: tk.Tensor2D) -> None:
    """out (1, hidden) = the row of `table` for the token, as float32."""
    tk.grid_dependency_control_wait()
    tk.grid_dependency_control_launch_dependents()
    which = tk.load(token, 0, 1)
    column = tk.arange(out.shape[1], dtype=tk.int32) + out.index[1] * out.shape[1]
    out.store(tk.gather(table, (which[:, None], column[None, :])).astype(out.dtype))


@tk.kernel(fuse_multiply_add=True, occupancy=4)
def project(
    out: tk.Tile2D,
    x: tk.Tensor2D,
    counts: Any,
    norm: Any,
    weight: tk.Tensor3D,
    residual: Any,
    eps: float,
    tile: tk.Constant[tuple[int, int]],
    gated: tk.Constant[bool],
    tma: tk.Constant[bool],
) -> None:
    """out = f(norm(x) @ weight.T) + residual, for one row.

    Args:
        out: (1, n), in tiles of (1, columns).
        x: float32 (1, k); or shares of attention, (shares, k), to be put together by `counts`.
        counts: None, or like x: how much each share counts, as log2; the same for all elements of a head.
        norm: None, or (k,): x is scaled to a mean square of 1 (+ eps), and multiplied by this.
        weight: (1, n, k); or, where `gated`, (2, n, k), gate and up: f is silu(gate) * up. Else f leaves it.
        residual: None, or (1, n).
        tile: columns of x that are taken at once, and shares, as powers of two.
        tma: whether weights may come through the tensor memory accelerator.
    """
    tk.grid_dependency_control_wait()
    tk.grid_dependency_control_launch_dependents()
    block_k, shares = tile
    columns = out.shape[1]
    _, j = out.index
    first = tk.zeros((columns, block_k), tk.float32)
    second = tk.zeros((columns, block_k), tk.float32)
    squares = tk.zeros((1, block_k), tk.float32)
    for k in range(tk.num_tiles(weight, 2, (1, columns, block_k))):
        t = tk.load(x, (0, k), (shares, block_k))
        if counts is not None:
            log = tk.load(counts, (0, k), (shares, block_k), padding_mode=tk.PaddingMode.NEG_INF)
            largest = tk.max(log, axis=0, keepdims=True)
            part = tk.exp2(log - tk.where(largest == LOWEST, 0.0, largest))
            total = tk.sum(part, axis=0, keepdims=True)
            t = tk.sum(t * part, axis=0, keepdims=True) / tk.where(total == 0.0, 1.0, total)
        if norm is not None:
            squares += t * t
            t = t * tk.load(norm, k, block_k)[None, :]
        part_of = tk.load(weight, (0, j, k), (1, columns, block_k), allow_tma=tma)
        first += t * part_of.reshape((columns, block_k))
        if gated:
            part_of = tk.load(weight, (1, j, k), (1, columns, block_k), allow_tma=tma)
            second += t * part_of.reshape((columns, block_k))
    y: Any = tk.sum(first, axis=1)
    scale = tk.rsqrt(tk.sum(squares, axis=1) / weight.shape[2] + eps)
    if norm is not None:
        y = y * scale
    if gated:
        up = tk.sum(second, axis=1)
        if norm is not None:
            up = up * scale
        y = y / (1.0 + tk.exp(-y)) * up
    y = y.reshape((1, columns))
    if residual is not None:
        y = y + tk.load_like(residual, out)
    out.store(y)


def turn(x: tk.Tensor, at: tuple[int, int], rows: int, pairs: int, cosine: tk.Tile, sine: tk.Tile) -> tk.Tile:
    """Rows (rows, 2 * pairs) of x (groups, rows, 2, pairs), rotated: element i and i + pairs are a pair."""
    group, row = at
    a = tk.load(x, (group, row, 0, 0), (1, rows, 1, pairs)).reshape((rows, pairs))
    b = tk.load(x, (group, row, 1, 0), (1, rows, 1, pairs)).reshape((rows, pairs))
    return tk.cat((a * cosine - b * sine, b * cosine + a * sine), 1)


@tk.kernel(fuse_multiply_add=True)
def attend(
    shares: tk.Tensor,
    counts: tk.Tensor,
    keys: tk.Tensor3D,
    values: tk.Tensor3D,
    query: tk.Tensor,
    key: tk.Tensor,
    value: tk.Tensor2D,
    cosine: tk.Tensor2D,
    sine: tk.Tensor2D,
    position: tk.Tensor1D,
    scale: float,
    tile: tk.Constant[tuple[int, int, int]],
) -> None:
    """One token's attention over a share of the keys; its own key and value join the cache. Grid: (shares, key heads).

    The block whose share ends at the position stores the new entry; all blocks take it from the operands, so none reads
    what another one writes.

    Args:
        shares, counts: as `project` takes them, float32 (shares, key heads, group, head size); `ca.mut(t)`.
        keys, values: the cache, (key heads, capacity, head size); `ca.mut(t)`.
        query: float32 (key heads, group, 2, pairs), not rotated; key: (key heads, 1, 2, pairs); value: (key heads,
            head size).
        cosine, sine: (positions, pairs). position: int32 (1,), where the token stands.
        tile: heads of a group (16 for tensor cores), keys, pairs of a head.
    """
    tk.grid_dependency_control_wait()
    tk.grid_dependency_control_launch_dependents()
    group, block, pairs = tile
    size = 2 * pairs
    share, head = tk.bid(0), tk.bid(1)
    here = tk.minimum(tk.load(position, 0, 1).item(), keys.shape[1] - 1)
    steps = here // block + 1
    each = tk.cdiv(steps, tk.num_blocks(0))
    begin = tk.minimum(share * each, steps)
    end = tk.minimum(begin + each, steps)

    c = tk.load(cosine, (here, 0), (1, pairs))
    s = tk.load(sine, (here, 0), (1, pairs))
    q = (turn(query, (head, 0), group, pairs, c, s) * (scale * LOG2_E)).astype(keys.dtype)
    new_key = turn(key, (head, 0), 1, pairs, c, s).astype(keys.dtype)
    new_value = tk.load(value, (head, 0), (1, size)).astype(values.dtype)

    acc = tk.zeros((group, size), tk.float32)
    largest = tk.full((group, 1), LOWEST, tk.float32)
    total = tk.zeros((group, 1), tk.float32)
    for j in range(begin, end):
        at = j * block + tk.arange(block, dtype=tk.int32)
        old = tk.load(keys, (head, j, 0), (1, block, size)).reshape((block, size))
        right = tk.where((at == here)[:, None], new_key, old)
        scores = tk.mma(q, right.transpose(), tk.zeros((group, block), tk.float32))
        scores = tk.where((at <= here)[None, :], scores, LOWEST)
        new = tk.maximum(largest, tk.max(scores, axis=1, keepdims=True))
        part = tk.exp2(scores - new)
        fade = tk.exp2(largest - new)
        total = total * fade + tk.sum(part, axis=1, keepdims=True)
        old_values = tk.load(values, (head, j, 0), (1, block, size)).reshape((block, size))
        right_values = tk.where((at == here)[:, None], new_value, old_values)
        acc = tk.mma(part.astype(values.dtype), right_values, acc * fade)
        largest = new
    if (begin < end) & (end == steps):
        tk.store(keys, (head, here, 0), new_key.reshape((1, 1, size)))
        tk.store(values, (head, here, 0), new_value.reshape((1, 1, size)))
    result = acc / tk.where(total == 0.0, 1.0, total)
    log = tk.broadcast_to(largest + tk.log2(total), (group, size))
    tk.store(shares, (share, head, 0, 0), result.reshape((1, 1, group, size)))
    tk.store(counts, (share, head, 0, 0), log.reshape((1, 1, group, size)))


@tk.kernel
def advance(position: tk.Tile1D) -> None:
    """The next step stands one further on."""
    tk.grid_dependency_control_wait()
    tk.grid_dependency_control_launch_dependents()
    position.store(position.load() + 1)
