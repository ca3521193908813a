"""Rotary position embedding (Su et al. 2021): pairs of a head's elements turned by an angle that the position sets.

Element i of the first half and element i of the second are a pair, as in Llama's published weights, or, where
`interleaved`, elements 2 i and 2 i + 1. Tables hold cosine and sine of each position and pair.
"""

from __future__ import annotations

import tilekern as tk

__all__ = ["rotary", "rotary_in_place"]


def turned(
    x: tk.Tensor,
    cosine: tk.Tensor2D,
    sine: tk.Tensor2D,
    positions: tk.Tensor1D,
    heads: int,
    pairs: int,
    interleaved: bool,
) -> tk.Tile:
    """The heads of this block's token, turned: (heads, 2, pairs), or (heads, pairs, 2) where interleaved."""
    token = tk.bid(0)
    place = tk.load(positions, token, 1)
    pair = tk.arange(pairs, dtype=tk.int32)
    c = tk.gather(cosine, (place, pair), padding_value=1.0).astype(tk.float32)
    s = tk.gather(sine, (place, pair)).astype(tk.float32)
    if interleaved:
        t = tk.load(x, (token, 0, 0, 0), (1, heads, pairs, 2)).astype(tk.float32)
        a = tk.extract(t, (0, 0, 0, 0), (1, heads, pairs, 1)).reshape((heads, pairs))
        b = tk.extract(t, (0, 0, 0, 1), (1, heads, pairs, 1)).reshape((heads, pairs))
        return tk.cat(((a * c - b * s)[:, :, None], (b * c + a * s)[:, :, None]), 2)
    a = tk.load(x, (token, 0, 0, 0), (1, heads, 1, pairs)).astype(tk.float32).reshape((heads, pairs))
    b = tk.load(x, (token, 0, 1, 0), (1, heads, 1, pairs)).astype(tk.float32).reshape((heads, pairs))
    return tk.cat(((a * c - b * s)[:, None, :], (b * c + a * s)[:, None, :]), 1)


@tk.kernel
def rotary(
    out: tk.Tensor,
    x: tk.Tensor,
    cosine: tk.Tensor2D,
    sine: tk.Tensor2D,
    positions: tk.Tensor1D,
    tile: tk.Constant[tuple[int, int]],
    interleaved: tk.Constant[bool],
) -> None:
    """out = x turned. Grid: tokens.

    Args:
        out, x: (tokens, heads, 2, pairs), or (tokens, heads, pairs, 2) where interleaved; `out` is `ca.mut(t)`.
        cosine, sine: (positions, pairs). A position they do not have turns nothing.
        positions: int32 (tokens,).
        tile: heads and pairs, as powers of two.
    """
    heads, pairs = tile
    t = turned(x, cosine, sine, positions, heads, pairs, interleaved)
    tk.store(out, (tk.bid(0), 0, 0, 0), t.reshape((1, *t.shape)).astype(out.dtype))


@tk.kernel
def rotary_in_place(
    x: tk.Tensor,
    cosine: tk.Tensor2D,
    sine: tk.Tensor2D,
    positions: tk.Tensor1D,
    tile: tk.Constant[tuple[int, int]],
    interleaved: tk.Constant[bool],
) -> None:
    """x, given as `ca.mut(x)`, turned; see `rotary`."""
    heads, pairs = tile
    t = turned(x, cosine, sine, positions, heads, pairs, interleaved)
    tk.store(x, (tk.bid(0), 0, 0, 0), t.reshape((1, *t.shape)).astype(x.dtype))
