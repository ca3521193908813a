"""Causal attention, forward: softmax(q k^T / sqrt(size)) v without the matrix of scores in memory.

A block has a tile of queries and goes over the keys tile by tile. A softmax is a quotient of sums, and sums can be
taken in parts: the block keeps the largest score m of each query so far, the sum of exp(score - m), and the sum of
exp(score - m) v. When a larger score turns up, both sums are scaled by exp(old m - new m).

    python examples/kernels/attention.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys

import numpy as np

import cuda_async as ca
import tilekern as tk


@tk.kernel(occupancy=1)
def attention(
    out: tk.Tile3D, q: tk.Tensor3D, k: tk.Tensor3D, v: tk.Tensor3D, scale: float, keys: tk.Constant[int]
):
    """All are (heads, tokens, size); a tile of `out` is (1, queries, size)."""
    _, queries, size = out.shape
    head, i, _ = out.index
    query = tk.load(q, (head, i, 0), (1, queries, size)).reshape((queries, size))
    row = i * queries + tk.arange(queries, dtype=tk.int32)
    largest = tk.full((queries, 1), float("-inf"), tk.float32)
    total = tk.zeros((queries, 1), tk.float32)
    acc = tk.zeros((queries, size), tk.float32)

    # key tiles that any of the queries sees: those from the first up to that of the last query
    for j in range(tk.minimum(tk.cdiv((i + 1) * queries, keys), tk.num_tiles(k, 1, (1, keys, size)))):
        key = tk.load(k, (head, j, 0), (1, keys, size)).reshape((keys, size))
        scores = tk.mma(query, key.transpose(), tk.zeros((queries, keys), tk.float32)) * scale
        column = j * keys + tk.arange(keys, dtype=tk.int32)
        scores = tk.where(column[None, :] <= row[:, None], scores, float("-inf"))

        new = tk.maximum(largest, tk.max(scores, axis=1, keepdims=True))
        weights = tk.exp(scores - new)
        fade = tk.exp(largest - new)
        total = total * fade + tk.sum(weights, axis=1, keepdims=True)
        value = tk.load(v, (head, j, 0), (1, keys, size)).reshape((keys, size))
        acc = tk.mma(weights.astype(v.dtype), value, acc * fade)
        largest = new
    out.store((acc / total).astype(out.dtype).reshape((1, queries, size)))


def reference(q, k, v):
    """By the definition, in float64."""
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
    scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


async def run() -> int:
    heads, tokens, size = 3, 200, 64
    host = np.random.default_rng(0).standard_normal((3, heads, tokens, size)).astype(np.float16)
    q, k, v = await ca.zip(*map(ca.from_host, host))
    op = attention(ca.empty(q.shape, q.dtype).partition((1, 64, size)), q, k, v, 1 / math.sqrt(size), 64)
    out = await op.first().unpartition().to_host()

    error = float(np.max(np.abs(out - reference(*host.astype(np.float64)))))
    passed = error < 2e-3  # weights and result are rounded to float16
    print(
        f"{'PASS' if passed else 'FAIL'}: {heads} heads, {tokens} tokens on {q.device}, largest error {error:.1e}"
    )
    return 0 if passed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cuda:0 or host:0; default: the GPU where there is one")
    name = parser.parse_args().device
    try:
        device = (ca.current_device() if name is None else ca.Device(name)).open()
    except (ValueError, ca.ContextError) as error:
        parser.exit(2, f"error: {error}\n")
    with ca.use_device(device):
        return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
