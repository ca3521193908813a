"""The first and the last tile kernel of the encoder; what lies between is in `tilekern.kernels`.

Both join what would otherwise be three kernels over the same activations. Sums are float32.
"""

from __future__ import annotations

import tilekern as tk

__all__ = ["embed_tokens", "pool"]

SHORTEST = 1e-24
"""Square of the length below which an embedding is left as short as it is; the row of no sentence is zero."""


@tk.kernel(occupancy=8)
def embed_tokens(
    out: tk.Tile3D,
    ids: tk.Tensor2D,
    words: tk.Tensor2D,
    places: tk.Tensor2D,
    norm: tk.Tensor1D,
    norm_bias: tk.Tensor1D,
    eps: float,
) -> None:
    """out[b, i] = layer norm of words[ids[b, i]] + places[i].

    Args:
        out: (batch, tokens, hidden), in tiles of (1, rows, columns) with all columns.
        ids: int32 (batch, tokens). words: (vocabulary, hidden). places: (positions, hidden).
        norm, norm_bias: (hidden,).
    """
    _, rows, columns = out.shape
    batch, i, _ = out.index
    length = words.shape[1]
    which = tk.load(ids, (batch, i), (1, rows)).reshape((rows,))
    column = tk.arange(columns, dtype=tk.int32)
    t = tk.gather(words, (which[:, None], column[None, :])).astype(tk.float32)
    t = t + tk.load(places, (i, 0), (rows, columns))
    centred = tk.where((column < length)[None, :], t - tk.sum(t, axis=1, keepdims=True) / length, 0.0)
    variance = tk.sum(centred * centred, axis=1, keepdims=True) / length
    y = centred * tk.rsqrt(variance + eps) * tk.load(norm, 0, columns) + tk.load(norm_bias, 0, columns)
    out.store(y.astype(out.dtype).reshape((1, rows, columns)))


@tk.kernel
def pool(out: tk.Tile2D, x: tk.Tensor3D, lengths: tk.Tensor1D, rows: tk.Constant[int]) -> None:
    """out[b] = the mean of x[b, :lengths[b]], scaled to length 1.

    Args:
        out: float32 (batch, hidden), in tiles of (1, columns) with all columns.
        x: (batch, tokens, hidden). lengths: int32 (batch,); 0 gives zeros. rows: tokens taken at once.
    """
    columns = out.shape[1]
    batch, _ = out.index
    count = tk.load(lengths, batch, 1).item()
    acc = tk.zeros((rows, columns), tk.float32)
    for i in range(tk.minimum(tk.num_tiles(x, 1, (1, rows, columns)), tk.cdiv(count, rows))):
        t = tk.load(x, (batch, i, 0), (1, rows, columns)).reshape((rows, columns)).astype(tk.float32)
        counts = i * rows + tk.arange(rows, dtype=tk.int32) < count
        acc += tk.where(counts[:, None], t, 0.0)
    mean = tk.sum(acc, axis=0, keepdims=True) / tk.maximum(count, 1)
    square = tk.sum(mean * mean, axis=1, keepdims=True)
    out.store(mean * tk.rsqrt(tk.maximum(square, SHORTEST)))
