"""Cross-entropy of scores and labels."""

from __future__ import annotations

import tilekern as tk

from ._long_rows import LOWEST, running_softmax

__all__ = ["cross_entropy", "reduce_losses"]


@tk.kernel
def cross_entropy(
    losses: tk.Tile1D, logits: tk.Tensor2D, labels: tk.Tensor1D, ignore: int, chunk: tk.Constant[int]
) -> None:
    """losses[i] = log(sum of exp(logits[i])) - logits[i, labels[i]], in float32; 0 where the label is `ignore`.

    losses: float32 (rows,), tiles of 1; logits: (rows, classes); labels: integers (rows,). A label that is no class
    gives NaN. A row is gone over in chunks.
    """
    i = losses.index[0]
    largest = tk.full((1, 1), LOWEST, tk.float32)
    total = tk.zeros((1, 1), tk.float32)
    for j in range(tk.num_tiles(logits, 1, (1, chunk))):
        t = tk.load(logits, (i, j), (1, chunk), padding_mode=tk.PaddingMode.NEG_INF).astype(tk.float32)
        largest, total = running_softmax(t, largest, total)
    label = tk.load(labels, i, 1)
    own = tk.gather(logits, (i, label), padding_value=float("nan")).astype(tk.float32)
    loss = tk.log(total.reshape((1,))) + largest.reshape((1,)) - own
    losses.store(tk.where(label == ignore, 0.0, loss))


@tk.kernel
def reduce_losses(
    out: tk.Tile1D,
    losses: tk.Tensor1D,
    labels: tk.Tensor1D,
    ignore: int,
    mean: tk.Constant[bool],
    chunk: tk.Constant[int],
) -> None:
    """out[0] = the sum of the losses, or their mean over the labels that are not `ignore`. Grid: 1."""
    tk.grid_dependency_control_wait()
    total = tk.zeros((chunk,), tk.float32)
    count = tk.zeros((chunk,), tk.int32)
    for j in range(tk.num_tiles(losses, 0, chunk)):
        total += tk.load(losses, j, chunk)
        there = tk.arange(chunk, dtype=tk.int32) + j * chunk < losses.shape[0]
        count += ((tk.load(labels, j, chunk) != ignore) & there).astype(tk.int32)
    if mean:
        out.store(tk.sum(total, axis=0, keepdims=True) / tk.sum(count, axis=0, keepdims=True))
    else:
        out.store(tk.sum(total, axis=0, keepdims=True))
