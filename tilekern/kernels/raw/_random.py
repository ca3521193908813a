"""Dropout, and the random numbers that kernels draw."""

from __future__ import annotations

from typing import Any

import tilekern as tk

from ...arrays._philox import fraction, philox4x32, words, woven

__all__ = ["dropout", "uniform_at"]


def uniform_at(counter: tk.Tile, stream: tk.Tile, k0: tk.Tile, k1: tk.Tile) -> tk.Tile:
    """A number from 0 to below 1, from Philox 4x32-10 at (counter, stream), uint32 scalars."""
    none = tk.zeros((), tk.uint32)
    word, _, _, _ = philox4x32(counter, stream, none, none, k0, k1)
    return fraction(word, 24)


@tk.kernel
def dropout(out: tk.Tile1D, x: tk.Tensor1D, share: float, k0: Any, k1: Any) -> None:
    """out[i] = x[i] / (1 - share) where u[i] >= share, else 0.

    u is what `tk.rand` of float32 gives for the seed of key (k0, k1), uint32: the same mask for the same seed, whatever
    the type of the tensors and on every device.
    """
    a, b, c, d = words(out, 4, k0, k1)
    u = woven((fraction(a, 24), fraction(b, 24), fraction(c, 24), fraction(d, 24)))
    kept = tk.load_like(x, out).astype(tk.float32) * (1.0 / (1.0 - share))
    out.store(tk.where(u >= share, kept, 0.0).astype(out.dtype))
