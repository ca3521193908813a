"""Matrix products."""

from __future__ import annotations

import tilekern as tk

__all__ = ["matmul"]


@tk.kernel
def matmul(c: tk.Tile2D, a: tk.Tensor2D, b: tk.Tensor2D, block_k: tk.Constant[int]) -> None:
    """c = a @ b, a tile of c for each block, summed in float32 (float64 for float64) over tiles of `block_k`.

    For bfloat16 on H100: tiles of c of 256 x 256, block_k 64, num_ctas=2, num_worker_warps=8.
    """
    rows, columns = c.shape
    i, j = c.index
    acc = tk.zeros(c.shape, tk.float64 if a.dtype is tk.float64 else tk.float32)
    for k in range(tk.num_tiles(a, 1, (rows, block_k))):
        left = tk.load(a, (i, k), (rows, block_k))
        right = tk.load(b, (k, j), (block_k, columns))
        acc = tk.mma(left, right, acc)
    c.store(acc.astype(c.dtype))
