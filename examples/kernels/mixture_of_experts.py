"""Mixture of experts: each token goes to the 2 of 8 small networks that a router scores highest.

1. `route`: scores of all experts for each token, the 2 highest, and their shares by softmax.
2. `arrange`: lists of the pairs (token, choice) by expert. A pair takes its place in its expert's list with an atomic
   addition, so the order in a list is open, but no result depends on it.
3. `expert`: a matrix product per expert whose rows are gathered from wherever the list says and scattered back. Run
   twice, for the two layers of the networks.
4. `combine`: the mean of each token's 2 results by their shares.

    python examples/kernels/mixture_of_experts.py [--device cuda:0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import numpy as np

import cuda_async as ca
import tilekern as tk

CHOICES = 2
EXPERTS = 8


@tk.kernel
def route(chosen: tk.Tile2D, shares: tk.Tile2D, x: tk.Tensor2D, router: tk.Tensor2D, depth: tk.Constant[int]):
    """chosen, shares: (tokens, CHOICES); x: (tokens, width); router: (width, EXPERTS)."""
    rows = chosen.shape[0]
    i = chosen.index[0]
    scores = tk.zeros((rows, EXPERTS), tk.float32)
    for k in range(tk.num_tiles(x, 1, (rows, depth))):
        left = tk.load(x, (i, k), (rows, depth))
        scores = tk.mma(left, tk.load(router, (k, 0), (depth, EXPERTS)), scores)
    first = tk.argmax(scores, axis=1, keepdims=True)
    best = tk.max(scores, axis=1, keepdims=True)
    others = tk.where(tk.arange(EXPERTS, dtype=tk.int32)[None, :] == first, float("-inf"), scores)
    second = tk.argmax(others, axis=1, keepdims=True)
    ratio = tk.exp(tk.max(others, axis=1, keepdims=True) - best)
    chosen.store(tk.cat((first, second), 1))
    shares.store(tk.cat((1.0 / (1.0 + ratio), ratio / (1.0 + ratio)), 1))


@tk.kernel
def arrange(lists: tk.Tensor2D, lengths: tk.Tensor1D, chosen: tk.Tensor1D, tile: tk.Constant[int]):
    """lists: (experts, pairs), lengths: (experts,), zeros; chosen: the expert of each pair (pairs,)."""
    pair = tk.bid(0) * tile + tk.arange(tile, dtype=tk.int32)
    there = pair < chosen.shape[0]
    expert = tk.gather(chosen, pair)
    place = tk.atomic_add(lengths, expert, 1, mask=there)
    tk.scatter(lists, (expert, place), pair, mask=there)


@tk.kernel
def expert(
    out: tk.Tensor2D,
    x: tk.Tensor2D,
    weights: tk.Tensor3D,
    lists: tk.Tensor2D,
    lengths: tk.Tensor1D,
    pairs_per_row: tk.Constant[int],
    is_hidden: tk.Constant[bool],
    tile: tk.Constant[tuple[int, int, int]],
):
    """out[pair] = x[pair // pairs_per_row] @ weights[its expert]. Grid: (row tiles, column tiles, experts)."""
    rows, columns, depth = tile
    i, j, e = tk.bid(0), tk.bid(1), tk.bid(2)
    if i * rows < tk.load(lengths, e, 1).item():  # most lists are shorter than the longest possible
        place = i * rows + tk.arange(rows, dtype=tk.int32)
        pair = tk.gather(lists, (e, place), mask=place < tk.load(lengths, e, 1), padding_value=-1)
        row = tk.where(
            pair < 0, -1, pair // pairs_per_row
        )  # an index below 0 is outside: loads 0, stores nothing
        total = tk.zeros((rows, columns), tk.float32)
        for k in range(tk.num_tiles(weights, 1, (1, depth, columns))):
            column = k * depth + tk.arange(depth, dtype=tk.int32)
            left = tk.gather(x, (row[:, None], column[None, :]))
            right = tk.load(weights, (e, k, j), (1, depth, columns)).reshape((depth, columns))
            total = tk.mma(left, right, total)
        if is_hidden:
            total = total / (1.0 + tk.exp(-total))
        target = j * columns + tk.arange(columns, dtype=tk.int32)
        tk.scatter(out, (pair[:, None], target[None, :]), total.astype(out.dtype))


@tk.kernel
def combine(out: tk.Tile2D, results: tk.Tensor3D, shares: tk.Tensor2D):
    """out[t] = sum of shares[t, c] * results[t, c] over the choices c; results: (tokens, CHOICES, width)."""
    rows, columns = out.shape
    i, j = out.index
    each = tk.load(results, (i, 0, j), (rows, CHOICES, columns)).astype(tk.float32)
    out.store(tk.sum(each * tk.load(shares, (i, 0), (rows, CHOICES))[:, :, None], axis=1))


def reference(x, router, up, down):
    """Token by token, in float64."""
    out = np.zeros_like(x)
    for t, scores in enumerate(x @ router):
        best = np.argsort(-scores)[:CHOICES]
        shares = np.exp(scores[best] - scores[best[0]])
        for e, share in zip(best, shares / shares.sum()):
            hidden = x[t] @ up[e]
            out[t] += share * ((hidden / (1 + np.exp(-hidden))) @ down[e])
    return out


async def run() -> int:
    tokens, width, hidden = 60, 48, 96
    random = np.random.default_rng(0)
    x_host = random.standard_normal((tokens, width), dtype=np.float32)
    router_host = random.standard_normal((width, EXPERTS), dtype=np.float32)
    up_host = random.standard_normal((EXPERTS, width, hidden), dtype=np.float32) / 7
    down_host = random.standard_normal((EXPERTS, hidden, width), dtype=np.float32) / 10
    x, router, up, down = await ca.zip(*map(ca.from_host, (x_host, router_host, up_host, down_host)))

    pairs, tile = tokens * CHOICES, (16, 32, 32)
    pick = (ca.empty((tokens, CHOICES), kind).partition((16, CHOICES)) for kind in ("int32", "float32"))
    chosen, shares, *_ = await route(*pick, x, router, 16)
    lists, lengths, *_ = await arrange(
        ca.zeros((EXPERTS, pairs), "int32").map(ca.mut),
        ca.zeros(EXPERTS, "int32").map(ca.mut),
        chosen.unpartition().reshape(pairs),
        64,
    ).grid(tk.cdiv(pairs, 64))

    def layer(x: ca.Tensor, weights: ca.Tensor, per_row: int, is_hidden: bool) -> ca.DeviceOp[ca.Tensor]:
        out = ca.empty((pairs, weights.shape[2])).map(ca.mut)
        op = expert(out, x, weights, lists, lengths, per_row, is_hidden, tile)
        return op.grid((tk.cdiv(pairs, tile[0]), tk.cdiv(weights.shape[2], tile[1]), EXPERTS)).first()

    out = await (
        layer(x, up, CHOICES, True)
        .then(lambda inner: layer(inner, down, 1, False))
        .reshape((tokens, CHOICES, width))
        .then(lambda each: combine(ca.empty(x.shape).partition((16, 32)), each, shares.unpartition()))
        .first()
        .unpartition()
        .to_host()
    )
    expected = reference(*(t.astype(np.float64) for t in (x_host, router_host, up_host, down_host)))
    error = float(np.max(np.abs(out - expected)))
    passed = error < 1e-5
    print(
        f"{'PASS' if passed else 'FAIL'}: {tokens} tokens, {CHOICES} of {EXPERTS} experts each, on {x.device}, "
        f"largest error {error:.1e}"
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
