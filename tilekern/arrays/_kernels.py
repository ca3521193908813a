"""The kernels of sequences, identity matrices and conversion. Each block writes its own tile.

Scalars are annotated `Any`: they are given as NumPy scalars, which bring their types.
"""

from __future__ import annotations

from typing import Any

import tilekern as tk

__all__ = ["converted", "diagonal", "float_sequence", "spaced", "whole_sequence"]


def positions(out: tk.Tile1D) -> tk.Tile:
    """The place of each of the tile's elements in the tensor, int64."""
    first = tk.astype(out.index[0], tk.int64) * out.shape[0]
    return tk.arange(out.shape[0], dtype=tk.int64) + first


@tk.kernel
def whole_sequence(out: tk.Tile1D, start: Any, step: Any) -> None:
    """out[i] = start + i * step, wrapping."""
    out.store(tk.astype(positions(out) * step + start, out.dtype))


@tk.kernel
def float_sequence(out: tk.Tile1D, start: Any, step: Any) -> None:
    """out[i] = start + i * step, in float64."""
    out.store(tk.astype(tk.astype(positions(out), tk.float64) * step + start, out.dtype))


@tk.kernel
def spaced(out: tk.Tile1D, start: Any, step: Any, stop: Any, last: Any) -> None:
    """out[i] = start + i * step, but out[last] = stop; integers are rounded down."""
    i = positions(out)
    value = tk.where(i == last, stop, tk.astype(i, tk.float64) * step + start)
    out.store(tk.astype(tk.floor(value) if out.dtype.is_integer else value, out.dtype))


@tk.kernel
def diagonal(out: tk.Tile2D, offset: Any) -> None:
    """out[i, j] = 1 where j = i + offset, else 0."""
    row = tk.arange(out.shape[0], dtype=tk.int64) + tk.astype(out.index[0], tk.int64) * out.shape[0]
    column = tk.arange(out.shape[1], dtype=tk.int64) + tk.astype(out.index[1], tk.int64) * out.shape[1]
    hit = row[:, None] + offset == column[None, :]
    out.store(hit if out.dtype is tk.bool_ else tk.astype(tk.where(hit, 1.0, 0.0), out.dtype))


@tk.kernel
def converted(out: tk.Tile1D, x: tk.Tensor1D) -> None:
    """out[i] = x[i], in the element type of `out`."""
    out.store(tk.astype(tk.load_like(x, out), out.dtype))
