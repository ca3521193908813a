"""Moving and averaging rows: embedding lookup, transposition, mean pooling."""

from __future__ import annotations

from typing import Any

import tilekern as tk

__all__ = ["batched_transpose", "embedding", "mean_pool", "transpose"]


@tk.kernel
def embedding(out: tk.Tile2D, ids: tk.Tensor1D, table: tk.Tensor2D) -> None:
    """out[i] = table[ids[i]]; zeros for an id that the table does not have.

    out: (tokens, columns); ids: integers (tokens,); table: (entries, columns).
    """
    rows, columns = out.shape
    i, j = out.index
    which = tk.load(ids, i, rows, padding_mode=tk.PaddingMode.ZERO)
    column = tk.arange(columns, dtype=tk.int32) + j * columns
    out.store(tk.gather(table, (which[:, None], column[None, :])))


@tk.kernel
def transpose(out: tk.Tile2D, x: tk.Tensor2D) -> None:
    """out[j, i] = x[i, j]."""
    rows, columns = out.shape
    i, j = out.index
    out.store(tk.load(x, (j, i), (columns, rows)).transpose())


@tk.kernel
def batched_transpose(out: tk.Tile3D, x: tk.Tensor3D) -> None:
    """out[b, j, i] = x[b, i, j]; tiles (1, rows, columns)."""
    _, rows, columns = out.shape
    b, i, j = out.index
    out.store(tk.load(x, (b, j, i), (1, columns, rows)).transpose(1, 2))


@tk.kernel
def mean_pool(out: tk.Tile2D, x: tk.Tensor3D, lengths: Any, rows: tk.Constant[int]) -> None:
    """out[b] = the mean of x[b, :lengths[b]], summed in float32; zeros where that is empty.

    out: (batch, columns), tiles (1, columns); x: (batch, tokens, columns); lengths: int32 (batch,), or None for all
    tokens; `rows` tokens are taken at once.
    """
    batch, j = out.index
    columns = out.shape[1]
    count: Any = x.shape[1]
    if lengths is not None:
        count = tk.minimum(tk.load(lengths, batch, 1).item(), count)
    acc = tk.zeros((rows, columns), tk.float32)
    for i in range(tk.minimum(tk.num_tiles(x, 1, (1, rows, columns)), tk.cdiv(tk.maximum(count, 0), rows))):
        t = tk.load(x, (batch, i, j), (1, rows, columns)).reshape((rows, columns)).astype(tk.float32)
        counts = i * rows + tk.arange(rows, dtype=tk.int32) < count
        acc += tk.where(counts[:, None], t, 0.0)
    mean = tk.sum(acc, axis=0, keepdims=True) / tk.maximum(count, 1)
    out.store(mean.astype(out.dtype))
