"""Matrix products. Sums are kept in float32 (float64 for float64).

A step along the common axis takes `block_k` of it; its loads begin `latency` steps ahead, or as the assembler likes.
`precision` is how float32 factors are multiplied: "ieee", as they are, which tensor cores cannot; "tf32", rounded to
tfloat32; "tf32x3", see `multiply_add`. Other types are multiplied as they are.

What comes after the sum, in float32 and before the one rounding to the output's type: `+ bias`, then the
activation, then `+ residual`. `bias` is (columns,), `residual` is like the output; both may be None.
"""

from __future__ import annotations

from typing import Any

import tilekern as tk

from ._activations import activated

__all__ = [
    "batched_matmul",
    "batched_matmul_persistent",
    "matmul",
    "matmul_epilogue",
    "matmul_pair",
    "matmul_persistent",
    "matmul_split_k",
    "matmul_stationary",
    "matvec",
    "sum_splits",
]


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


LARGEST_TFLOAT32 = (2.0 - 2.0**-10) * 2.0**127


def high_and_low(t: tk.Tile) -> tuple[tk.Tile, tk.Tile]:
    """Two tfloat32 tiles whose sum is the float32 tile, but for a part in 2**23.

    What rounds to more than the largest tfloat32 leaves the rest to the low part; so does infinity, all of it.
    """
    high = tk.minimum(tk.maximum(t, -LARGEST_TFLOAT32), LARGEST_TFLOAT32).astype(tk.tfloat32)
    return high, (t - high.astype(tk.float32)).astype(tk.tfloat32)


def multiply_add(left: tk.Tile, right: tk.Tile, acc: tk.Tile, precision: str) -> tk.Tile:
    """acc + left @ right.

    Theory of "tf32x3". A float32 is the sum of two tfloat32, which have 11 bits each, and a product of two such sums
    is four products of tfloat32, which tensor cores make exactly. The product of the low parts is less than the
    rounding of float32, and left out (Ootomo and Yokota 2022). Tensor cores cut off what they add up, towards zero, so
    that a long sum of positive numbers comes out ever smaller: only this tile's products are added by them, the low
    ones first, and what they give is added in float32.
    """
    tk.static_assert(
        precision in ("ieee", "tf32", "tf32x3"), f"precision is ieee, tf32 or tf32x3, got {precision}"
    )
    if left.dtype is not tk.float32 or precision == "ieee":
        return tk.mma(left, right, acc)
    if precision == "tf32":
        return tk.mma(left.astype(tk.tfloat32), right.astype(tk.tfloat32), acc)
    high, low = high_and_low(left)
    right_high, right_low = high_and_low(right)
    part = tk.mma(high, right_low, tk.zeros(acc.shape, tk.float32))
    part = tk.mma(low, right_high, part)
    return acc + tk.mma(high, right_high, part)


def bias_of(bias: Any, j: Any, columns: int) -> Any:
    """The bias of the tile's columns, or None; loaded before the sum is made, which hides how long it takes."""
    return None if bias is None else tk.load(bias, j, columns)


def finished(t: tk.Tile, i: Any, j: Any, bias: Any, residual: Any, activation: str) -> tk.Tile:
    """What comes after the sum: the tile of the result at (i, j). `bias` is what `bias_of` gave."""
    rows, columns = t.shape
    if bias is not None:
        t = t + bias
    t = activated(t, activation)
    if residual is not None:
        t = t + tk.load(residual, (i, j), (rows, columns))
    return t


@tk.kernel
def matmul_epilogue(
    c: tk.Tile2D,
    a: tk.Tensor2D,
    b: tk.Tensor2D,
    bias: Any,
    residual: Any,
    block_k: tk.Constant[int],
    activation: tk.Constant[str] = "none",
    precision: tk.Constant[str] = "ieee",
    latency: tk.Constant[int | None] = None,
) -> None:
    """c = activation(a @ b + bias) + residual."""
    rows, columns = c.shape
    i, j = c.index
    added = bias_of(bias, j, columns)
    acc = tk.zeros(c.shape, tk.float32)
    for k in range(tk.num_tiles(a, 1, (rows, block_k))):
        left = tk.load(a, (i, k), (rows, block_k), latency=latency)
        right = tk.load(b, (k, j), (block_k, columns), latency=latency)
        acc = multiply_add(left, right, acc, precision)
    c.store(finished(acc, i, j, added, residual, activation).astype(c.dtype))


@tk.kernel
def matmul_persistent(
    c: tk.Tiles2D,
    a: tk.Tensor2D,
    b: tk.Tensor2D,
    bias: Any,
    residual: Any,
    block_k: tk.Constant[int],
    activation: tk.Constant[str] = "none",
    precision: tk.Constant[str] = "ieee",
    latency: tk.Constant[int | None] = None,
) -> None:
    """As `matmul_epilogue`, by a fixed number of blocks that walk the tiles of c.

    Groups of the map shape keep the rows of a and columns of b in use few, so that they stay in the L2 cache.
    """
    rows, columns = c.shape
    for index in c.iter_indices():
        i, j = index.components()
        added = bias_of(bias, j, columns)
        acc = tk.zeros(c.shape, tk.float32)
        for k in range(tk.num_tiles(a, 1, (rows, block_k))):
            left = tk.load(a, (i, k), (rows, block_k), latency=latency)
            right = tk.load(b, (k, j), (block_k, columns), latency=latency)
            acc = multiply_add(left, right, acc, precision)
        c.store(finished(acc, i, j, added, residual, activation).astype(c.dtype), index)


@tk.kernel
def matmul_pair(
    c: tk.Tile2D,
    d: tk.Tile2D,
    a: tk.Tensor2D,
    b: tk.Tensor2D,
    e: tk.Tensor2D,
    bias: Any,
    bias_of_d: Any,
    residual: Any,
    residual_of_d: Any,
    block_k: tk.Constant[int],
    activation: tk.Constant[str] = "none",
    precision: tk.Constant[str] = "ieee",
    latency: tk.Constant[int | None] = None,
) -> None:
    """c = activation(a @ b + bias) + residual, and d = a @ e with its own, a tile of both for each block.

    For c and d that are neighbours in one matrix: tiles of 128 and 64 columns are as one of 192, which no tile may
    have. Widths of models are often three times a power of two, and then fill the device with a round of blocks.
    """
    rows, columns = c.shape
    _, columns_of_d = d.shape
    i, j = c.index
    added = bias_of(bias, j, columns)
    added_to_d = bias_of(bias_of_d, j, columns_of_d)
    acc = tk.zeros(c.shape, tk.float32)
    acc_of_d = tk.zeros(d.shape, tk.float32)
    for k in range(tk.num_tiles(a, 1, (rows, block_k))):
        left = tk.load(a, (i, k), (rows, block_k), latency=latency)
        right = tk.load(b, (k, j), (block_k, columns), latency=latency)
        right_of_d = tk.load(e, (k, j), (block_k, columns_of_d), latency=latency)
        acc = multiply_add(left, right, acc, precision)
        acc_of_d = multiply_add(left, right_of_d, acc_of_d, precision)
    c.store(finished(acc, i, j, added, residual, activation).astype(c.dtype))
    d.store(finished(acc_of_d, i, j, added_to_d, residual_of_d, activation).astype(d.dtype))


@tk.kernel
def matmul_stationary(
    c: tk.Tensor2D,
    a: tk.Tensor2D,
    b: tk.Tensor2D,
    bias: Any,
    residual: Any,
    tile: tk.Constant[tuple[int, int, int]],
    steps: tk.Constant[int],
    activation: tk.Constant[str] = "none",
    precision: tk.Constant[str] = "ieee",
    latency: tk.Constant[int | None] = None,
) -> None:
    """As `matmul_epilogue`, with the columns of b kept in shared memory while a block goes down the rows of a.

    For many rows and a short common axis of `steps` times the tile's depth. The grid is (blocks that share the rows,
    tiles of columns); c is written.
    """
    rows, columns, depth = tile
    j = tk.bid(1)
    added = bias_of(bias, j, columns)
    kept = [tk.load(b, (k, j), (depth, columns)) for k in range(steps)]
    for i in range(tk.bid(0), tk.num_tiles(a, 0, (rows, depth)), tk.num_blocks(0)):
        acc = tk.zeros((rows, columns), tk.float32)
        for k in tk.static_iter(range(steps)):
            left = tk.load(a, (i, k), (rows, depth), latency=latency)
            acc = multiply_add(left, kept[k], acc, precision)
        tk.store(c, (i, j), finished(acc, i, j, added, residual, activation).astype(c.dtype))


@tk.kernel
def matmul_split_k(
    parts: tk.Tile3D,
    a: tk.Tensor2D,
    b: tk.Tensor2D,
    block_k: tk.Constant[int],
    precision: tk.Constant[str] = "ieee",
) -> None:
    """parts[s] = the share of a @ b that part s of the common axis makes; float32 (splits, rows, columns).

    For products with few tiles and a long common axis; `sum_splits` adds the parts, in order.
    """
    _, rows, columns = parts.shape
    s, i, j = parts.index
    steps = tk.num_tiles(a, 1, (rows, block_k))
    share = tk.cdiv(steps, parts.tensor_shape[0])
    acc = tk.zeros((rows, columns), tk.float32)
    for k in range(s * share, tk.minimum(steps, (s + 1) * share)):
        left = tk.load(a, (i, k), (rows, block_k))
        right = tk.load(b, (k, j), (block_k, columns))
        acc = multiply_add(left, right, acc, precision)
    parts.store(acc.reshape((1, rows, columns)))


@tk.kernel
def sum_splits(
    c: tk.Tile2D, parts: tk.Tensor3D, bias: Any, residual: Any, activation: tk.Constant[str] = "none"
) -> None:
    """c = activation(sum of parts + bias) + residual."""
    tk.grid_dependency_control_wait()
    rows, columns = c.shape
    i, j = c.index
    added = bias_of(bias, j, columns)
    acc = tk.zeros(c.shape, tk.float32)
    for s in range(parts.shape[0]):
        acc += tk.load(parts, (s, i, j), (1, rows, columns)).reshape((rows, columns))
    c.store(finished(acc, i, j, added, residual, activation).astype(c.dtype))


@tk.kernel
def batched_matmul(
    c: tk.Tile3D,
    a: tk.Tensor3D,
    b: tk.Tensor3D,
    block_k: tk.Constant[int],
    precision: tk.Constant[str] = "ieee",
) -> None:
    """c[n] = a[n] @ b[n] for each n; tiles of c are (1, rows, columns)."""
    _, rows, columns = c.shape
    n, i, j = c.index
    acc = tk.zeros((rows, columns), tk.float32)
    for k in range(tk.num_tiles(a, 2, (1, rows, block_k))):
        left = tk.load(a, (n, i, k), (1, rows, block_k)).reshape((rows, block_k))
        right = tk.load(b, (n, k, j), (1, block_k, columns)).reshape((block_k, columns))
        acc = multiply_add(left, right, acc, precision)
    c.store(acc.astype(c.dtype).reshape((1, rows, columns)))


@tk.kernel
def batched_matmul_persistent(
    c: tk.Tiles3D,
    a: tk.Tensor3D,
    b: tk.Tensor3D,
    block_k: tk.Constant[int],
    precision: tk.Constant[str] = "ieee",
    latency: tk.Constant[int | None] = None,
) -> None:
    """As `batched_matmul`, by a fixed number of blocks that walk the tiles of c."""
    _, rows, columns = c.shape
    for index in c.iter_indices():
        n, i, j = index.components()
        acc = tk.zeros((rows, columns), tk.float32)
        for k in range(tk.num_tiles(a, 2, (1, rows, block_k))):
            left = tk.load(a, (n, i, k), (1, rows, block_k), latency=latency)
            right = tk.load(b, (n, k, j), (1, block_k, columns), latency=latency)
            left, right = left.reshape((rows, block_k)), right.reshape((block_k, columns))
            acc = multiply_add(left, right, acc, precision)
        c.store(acc.astype(c.dtype).reshape((1, rows, columns)), index)


@tk.kernel(fuse_multiply_add=True)
def matvec(
    out: tk.Tile2D,
    x: tk.Tensor2D,
    weight: tk.Tensor2D,
    bias: Any,
    residual: Any,
    block_k: tk.Constant[int],
    activation: tk.Constant[str] = "none",
) -> None:
    """out = activation(x @ weight.T + bias) + residual for few rows of x; weight is (columns of out, columns of x).

    Reads each element of the weight once and multiplies it in ordinary arithmetic: a matrix product with few
    rows is bound by that reading. A tile of out has all rows of x.
    """
    rows, columns = out.shape
    _, j = out.index
    added = bias_of(bias, j, columns)
    rest = None if residual is None else tk.load_like(residual, out)
    y = tk.zeros((rows, columns), tk.float32)
    for k in range(tk.num_tiles(weight, 1, (columns, block_k))):
        t = tk.load(x, (0, k), (rows, block_k)).astype(tk.float32)
        w = tk.load(weight, (j, k), (columns, block_k)).astype(tk.float32)
        y += tk.sum(t[:, None, :] * w[None, :, :], axis=2)
    if added is not None:
        y = y + added
    y = activated(y, activation)
    if rest is not None:
        y = y + rest
    out.store(y.astype(out.dtype))
