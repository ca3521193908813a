"""Choosing the next token from the scores of a vocabulary.

A vocabulary is long and rows are few, so a row is cut into chunks that blocks look at side by side; a second kernel
looks at what they found. The same kernel for one chunk alone needs no second.
"""

from __future__ import annotations

from typing import Any

import tilekern as tk

from ._random import uniform_at

__all__ = ["argmax_chunks", "argmax_of_chunks", "sample_candidates", "top_k_chunks"]

LOWEST = float("-inf")
LAST = 2**31 - 1


@tk.kernel
def argmax_chunks(values: tk.Tile2D, places: tk.Tile2D, x: tk.Tensor2D, chunk: tk.Constant[int]) -> None:
    """Largest element of each chunk of each row, and where in the row it is; the first of equals.

    values: float32 (rows, chunks), places: int32 (rows, chunks), both in tiles of (1, 1); x: (rows, columns).
    """
    tk.grid_dependency_control_launch_dependents()
    i, j = values.index
    t = tk.load(x, (i, j), (1, chunk), padding_mode=tk.PaddingMode.NEG_INF).astype(tk.float32)
    values.store(tk.max(t, axis=1, keepdims=True))
    places.store(tk.argmax(t, axis=1, keepdims=True) + j * chunk)


@tk.kernel
def argmax_of_chunks(
    out: tk.Tile1D, values: tk.Tensor2D, places: tk.Tensor2D, chunks: tk.Constant[int]
) -> None:
    """out[i] = place of the largest of row i; `chunks` is a power of two of at least their number."""
    tk.grid_dependency_control_wait()
    i = out.index[0]
    t = tk.load(values, (i, 0), (1, chunks), padding_mode=tk.PaddingMode.NEG_INF)
    best = tk.argmax(t, axis=1, keepdims=True)
    here = tk.arange(chunks, dtype=tk.int32)[None, :] == best
    out.store(tk.sum(tk.where(here, tk.load(places, (i, 0), (1, chunks)), 0), axis=1))


def largest_of(t: tk.Tile, places: tk.Tile, count: int, size: int) -> tuple[tk.Tile, tk.Tile]:
    """The `count` largest of a row (1, n), in falling order, and their places; tiles (1, size), padded with -inf.

    Of equals the one with the smallest place comes first. There are no NaN. One reduction for each.
    """

    def better(a: tk.Tile, i: tk.Tile, b: tk.Tile, j: tk.Tile) -> tuple[tk.Tile, tk.Tile]:
        second = (b > a) | ((b == a) & (j < i))
        return tk.where(second, b, a), tk.where(second, j, i)

    slot = tk.arange(size, dtype=tk.int32)[None, :]
    found = tk.full((1, size), LOWEST, tk.float32)
    found_at = tk.zeros((1, size), tk.int32)
    for n in range(count):
        best, at = tk.reduce((t, places), 1, better, (LOWEST, LAST), keepdims=True)
        found = tk.where(slot == n, best, found)
        found_at = tk.where(slot == n, at, found_at)
        t = tk.where(places == at, LOWEST, t)
    return found, found_at


@tk.kernel
def top_k_chunks(
    values: tk.Tile2D, places: tk.Tile2D, x: tk.Tensor2D, k: int, chunk: tk.Constant[int]
) -> None:
    """The k largest of each chunk of each row, and where in the row they are; a NaN is as low as -inf.

    values: float32, places: int32, both (rows, chunks * size) in tiles of (1, size), size at least k; x: (rows,
    columns).
    """
    tk.grid_dependency_control_launch_dependents()
    i, j = values.index
    t = tk.load(x, (i, j), (1, chunk), padding_mode=tk.PaddingMode.NEG_INF).astype(tk.float32)
    t = tk.where(tk.isnan(t), LOWEST, t)
    at = tk.arange(chunk, dtype=tk.int32)[None, :] + j * chunk
    found, found_at = largest_of(t, at, k, values.shape[1])
    values.store(found)
    places.store(found_at)


@tk.kernel
def sample_candidates(
    out: tk.Tile1D,
    values: tk.Tensor2D,
    places: tk.Tensor2D,
    counters: tk.Tensor1D,
    temperature: float,
    top_p: float,
    k0: Any,
    k1: Any,
    k: int,
    tile: tk.Constant[tuple[int, int]],
) -> None:
    """out[i] = one of the places of the k largest of row i, drawn with the chance of softmax(value / temperature).

    Of these only as many of the likeliest count as are needed to reach a chance of `top_p`. The random number is
    Philox's at (counters[i], i) for the key (k0, k1), uint32.

    Args:
        out: int32 (rows,), tiles of 1; counters: int32 (rows,).
        values, places: (rows, candidates), candidates that hold the k largest.
        tile: candidates and k, as powers of two.
    """
    tk.grid_dependency_control_wait()
    count, size = tile
    i = out.index[0]
    t = tk.load(values, (i, 0), (1, count), padding_mode=tk.PaddingMode.NEG_INF)
    found, found_at = largest_of(t, tk.load(places, (i, 0), (1, count)), k, size)
    top = tk.max(found, axis=1, keepdims=True)
    # An infinity less itself is no number.
    chance = tk.exp(tk.where(found == top, 0.0, found - top) / temperature)
    chance = tk.where(tk.arange(size, dtype=tk.int32)[None, :] < k, chance, 0.0)
    before = tk.cumsum(chance, axis=1) - chance
    counts = (before < top_p * tk.sum(chance, axis=1, keepdims=True)) & (chance > 0.0)
    chance = tk.where(counts, chance, 0.0)
    counter = tk.load(counters, i, 1).item()
    u = uniform_at(counter.astype(tk.uint32), tk.astype(i, tk.uint32), k0, k1)
    passed = tk.cumsum(chance, axis=1) <= u * tk.sum(chance, axis=1, keepdims=True)
    chosen = tk.minimum(
        tk.sum(passed.astype(tk.int32), axis=1, keepdims=True),
        tk.sum(counts.astype(tk.int32), axis=1, keepdims=True) - 1,
    )
    here = tk.arange(size, dtype=tk.int32)[None, :] == chosen
    out.store(tk.sum(tk.where(here, found_at, 0), axis=1))
