"""Attention, the cache of keys and values, rotary positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import cuda_async as ca

from . import raw
from ._operands import (
    FLOATS,
    INT32,
    LARGEST_FLOAT32,
    Operand,
    check_dtype,
    check_flags,
    check_shape,
    floor_power_of_two,
    following,
    is_count,
    is_number,
    mutable,
    occupancy_of,
    output,
    power_of_two,
    shape_error,
    tuned,
    viewed,
    with_later,
    with_tensors,
)
from ._plans import attention_plan, multiprocessors, precision_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cuda_async import DeviceOp, Tensor

__all__ = ["attention", "attention_decode", "rotary", "rotary_tables", "update_cache"]

LEAST_SCALE = 1e-30
"""From here on scores may be scaled after the largest is found."""

DECODE_KEYS = 64
"""Keys of a tile where there is one query."""

COMBINED = 1 << 16
"""Elements of shares that a block puts together: of more, the assembler takes minutes, or gives up."""


def attention(
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    causal: bool = False,
    window: int | None = None,
    lengths: Operand | None = None,
    scale: float | None = None,
    tf32: bool = False,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """softmax(scale * q @ k.T) @ v for each head, without the matrix of scores in memory.

    Scores, scale * q @ k.T, are float32. Those of float16 and bfloat16 may be up to 1e8 in size: beyond that the result
    may be zeros, infinite or no number.

    Args:
        q: (batch, heads, queries, head size), any strides: `x.permute(0, 2, 1, 3)` of (batch, queries, heads, head
            size) is good. Head sizes of 32, 64 and 128 are fast, others are padded to the next power of two, up to 256.
        k, v: (batch, key heads, keys, head size); `heads` is a multiple of `key heads`, and query heads
            h * heads // key heads and those behind it share key head h.
        causal: a query sees the keys up to its own; the last query stands at the last key.
        window: with `causal`, a query sees that many keys, its own included.
        lengths: int32 (batch,): the keys that count, the first ones, none below 0; all if left out, or if there are not
            as many. What lies behind may be anything. An infinite value or NaN among those that count reaches queries
            that do not see it too: 0 times it is no number.
        scale: 1 / sqrt(head size) if left out.
        tf32: float32 factors are rounded to tfloat32, which is faster; see `matmul`.
        out: where the result goes, like q; new memory, contiguous, if not given. A query that sees no key gives zeros.
    """
    check_flags("attention", causal=causal, tf32=tf32)
    if window is not None and not (causal and is_count(window)):
        raise ValueError(
            f"attention: a window is a whole number from 1 on, with causal=True; got {window!r}, {causal=}"
        )

    def launch(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> DeviceOp[Tensor]:
        _check_heads("attention", q, k=k, v=v)
        batch, heads, queries, size = q.shape
        check_dtype("attention", INT32, lengths=lengths)
        check_shape("attention", (batch,), lengths=lengths)
        if causal and queries > k.shape[2]:
            raise ValueError(
                f"attention: {queries} queries and {k.shape[2]} keys; causal attention needs at least as many keys"
            )
        plan = attention_plan(q, batch * heads, queries, k.shape[2], size, tf32=tf32)
        kernel = tuned(raw.attention, occupancy=plan.occupancy, num_worker_warps=plan.num_worker_warps)
        place = mutable(output("attention", out, q.shape, q.dtype))
        factor = _factor("attention", scale, size)
        tile = (plan.queries, plan.keys, max(16, power_of_two(size)))
        group = max(1, heads // max(1, k.shape[1]))  # 1 where there are no heads: nothing is launched
        op = kernel(
            place,
            q,
            k,
            v,
            lengths,
            factor,
            None if window is None else int(window),
            causal,
            group,
            tile,
            precision_of(q, tf32),
            not factor >= LEAST_SCALE,
            plan.latency,
        )
        return op.grid((-(-queries // plan.queries), heads, batch)).first()

    return with_tensors("attention", launch, {"out": out}, optional=1, q=q, k=k, v=v, lengths=lengths)


def _check_heads(name: str, q: Tensor, **cached: Tensor) -> None:
    """Of q, (batch, heads, queries, size), and the keys and values, given by their parameters' names."""
    (keys_name, keys), (values_name, values) = cached.items()
    check_dtype(name, FLOATS, q=q)
    check_dtype(name, (q.dtype,), **cached)
    if q.ndim != 4 or keys.ndim != 4 or q.shape[0] != keys.shape[0] or q.shape[3] != keys.shape[3]:
        axes = {"q": "batch, heads, queries, size", keys_name: "batch, key heads, keys, size"}
        raise shape_error(name, axes, q=q, **{keys_name: keys})
    check_shape(name, keys.shape, **{values_name: values})
    if q.shape[1] % keys.shape[1] if keys.shape[1] else q.shape[1]:
        raise ValueError(f"{name}: {q.shape[1]} heads are no multiple of {keys.shape[1]} key heads")
    if not 0 < q.shape[3] <= 256:
        raise ValueError(f"{name}: a head has 1 to 256 elements, got {q.shape[3]}")


def _factor(name: str, scale: float | None, size: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(size)
    if not is_number(scale):
        raise TypeError(f"{name}: scale is a number, got {scale!r}")
    if not abs(float(scale)) <= LARGEST_FLOAT32:
        raise ValueError(f"{name}: scale is a finite float32, got {scale!r}")
    return float(scale)


def attention_decode(
    q: Operand,
    keys: Operand,
    values: Operand,
    positions: Operand,
    *,
    window: int | None = None,
    scale: float | None = None,
    splits: int | None = None,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """Attention of one new token per sequence over a cache.

    The keys are cut into shares for blocks side by side, and a second kernel puts the shares together. Positions are
    read on the device, so a recorded graph serves every step.

    Args:
        q: (batch, heads, head size).
        keys, values: (batch, key heads, capacity, head size), as `update_cache` fills them.
        positions: int32 (batch,): where each token stands, below the capacity; it sees the keys 0 to positions[b]. What
            lies behind may be anything, as in a cache of `ca.empty` (of which the checking mode says that nothing has
            written it: there, make caches with `ca.zeros`). From the capacity on it stands at the last one, and below 0
            it sees none, which gives zeros.
        window: it sees that many at most, the last ones; what lies before may be anything too.
        scale: 1 / sqrt(head size) if left out.
        splits: how many shares, chosen if left out; fewer where there are not as many, or heads are large.
        out: where the result goes, like q; new memory if not given.
    """
    if window is not None and not is_count(window):
        raise ValueError(f"attention_decode: a window is a whole number from 1 on, got {window!r}")
    if splits is not None and not is_count(splits):
        raise ValueError(f"attention_decode: splits is a whole number from 1 on, got {splits!r}")

    def launch(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> DeviceOp[Tensor]:
        if q.ndim != 3 or keys.ndim != 4 or q.shape[0] != keys.shape[0] or q.shape[2] != keys.shape[3]:
            axes = {"q": "batch, heads, size", "keys": "batch, key heads, capacity, size"}
            raise shape_error("attention_decode", axes, q=q, keys=keys)
        _check_heads("attention_decode", q[:, :, None, :], keys=keys, values=values)
        check_dtype("attention_decode", INT32, positions=positions)
        batch, heads, size = q.shape
        check_shape("attention_decode", (batch,), positions=positions)
        key_heads, capacity = keys.shape[1:3]
        group = heads // max(1, key_heads)
        side = power_of_two(size)
        # float32 has no use for the 16 rows of tensor cores, and keeps less in registers
        block, occupancy = (32, 2) if q.dtype.itemsize == 4 else (DECODE_KEYS, 4)
        rows = power_of_two(group) if q.dtype.itemsize == 4 else max(16, power_of_two(group))
        steps = -(-capacity // block)
        busy = floor_power_of_two(-(-2 * multiprocessors(q) // max(1, batch * key_heads)))
        shares = min(
            int(splits or 0) or max(1, min(busy, 64, -(-steps // 2))), max(1, steps), COMBINED // side
        )
        factor = _factor("attention_decode", scale, size)
        grouped = viewed("attention_decode", (batch, key_heads, group, size), q=q)
        tile = (rows, block, max(16, side))
        at_once = max(1, COMBINED // (power_of_two(shares) * side))
        last = (power_of_two(shares), min(power_of_two(group), at_once), side)

        def made() -> DeviceOp[Tensor]:
            place = mutable(
                output("attention_decode", out, q.shape, q.dtype, view=(batch, key_heads, group, size))
            )
            parts = ca.empty((batch, key_heads, shares, group, size), "float32").map(ca.mut)
            weights = ca.empty((batch, key_heads, shares, group), "float32").map(ca.mut)
            op = tuned(raw.attention_decode, occupancy=occupancy)(
                parts, weights, grouped, keys, values, positions, factor, int(window or 0), tile
            ).grid((shares, key_heads if group else 0, batch))
            return op.then(
                lambda found: (
                    following(raw.combine_shares)(place, found[0], found[1], last)
                    .grid((key_heads, batch, -(-group // last[1])))
                    .first()
                )
            )

        return with_later("attention_decode", made, out=out).reshape(q.shape)

    return with_tensors(
        "attention_decode", launch, {"out": out}, q=q, keys=keys, values=values, positions=positions
    )


def update_cache(
    keys: Tensor, values: Tensor, k: Operand, v: Operand, positions: Operand
) -> DeviceOp[tuple[Tensor, Tensor]]:
    """Put the keys and values of new tokens into their caches, in place; yields the caches.

    Args:
        keys, values: the caches, (batch, key heads, capacity, head size).
        k, v: (batch, key heads, new tokens, head size), of the same type; any strides.
        positions: int32 (batch,): where the first new token of each sequence goes. What would lie outside of the
            capacity is left out.
    """

    for name, cache in (("keys", keys), ("values", values)):
        if not isinstance(cache, ca.Tensor):
            raise TypeError(
                f"update_cache: {name} is a tensor that exists, as it is changed in place, got {type(cache).__name__}"
            )

    def launch(k: Tensor, v: Tensor, positions: Tensor) -> DeviceOp[tuple[Tensor, Tensor]]:
        check_dtype("update_cache", FLOATS, keys=keys)
        check_dtype("update_cache", (keys.dtype,), values=values, k=k, v=v)
        check_dtype("update_cache", INT32, positions=positions)
        check_shape("update_cache", ("batch", "key heads", "capacity", "size"), keys=keys)
        batch, heads, _, size = keys.shape
        check_shape("update_cache", keys.shape, values=values)
        check_shape("update_cache", (batch, heads, "new tokens", size), k=k)
        check_shape("update_cache", k.shape, v=v)
        check_shape("update_cache", (batch,), positions=positions)
        tile = (power_of_two(heads), power_of_two(size))
        kernel = tuned(raw.update_cache, occupancy=occupancy_of(tile[0] * tile[1]))
        op = kernel(ca.mut(keys), ca.mut(values), k, v, positions, tile)
        return op.grid((k.shape[2] if keys.size else 0, batch)).map(lambda made: (made[0], made[1]))

    return with_tensors(
        "update_cache", launch, {"keys": keys, "values": values}, k=k, v=v, positions=positions
    )


def rotary_tables(
    positions: int, head_size: int, *, theta: float = 10000.0
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cosine and sine of position * theta ** (-2 i / head_size): float32 (positions, head_size // 2), in radians.

    NumPy arrays, computed in float64, to bring over with `ca.from_host`.
    """
    if not is_count(positions) and not (isinstance(positions, int) and positions == 0):
        raise ValueError(f"rotary_tables: a number of positions is from 0 on, got {positions!r}")
    if not is_count(head_size) or head_size % 2:
        raise ValueError(f"rotary_tables: a head has an even number of elements, got {head_size!r}")
    if not is_number(theta) or not 0.0 < theta < math.inf:
        raise ValueError(f"rotary_tables: theta is a number above 0, got {theta!r}")
    speed = theta ** (-2.0 * np.arange(head_size // 2) / head_size)
    angle = np.arange(positions)[:, None] * speed
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rotary(
    x: Operand,
    cosine: Operand,
    sine: Operand,
    positions: Operand,
    *,
    interleaved: bool = False,
    in_place: bool = False,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """Turn pairs of elements of each head by an angle that depends on the token's position.

    Args:
        x: (tokens, heads, head size); tokens and heads may have gaps between them.
        cosine, sine: (positions, head size // 2), as of `rotary_tables`.
        positions: int32 (tokens,). A position that the tables do not have turns nothing.
        interleaved: elements 2 i and 2 i + 1 are a pair; else i and i + head size // 2.
        in_place: x itself is changed, and yielded.
        out: where the result goes; new memory if not given.
    """
    check_flags("rotary", interleaved=interleaved, in_place=in_place)
    if in_place and out is not None:
        raise ValueError("rotary: in_place writes to x; leave out `out`")

    def launch(x: Tensor, cosine: Tensor, sine: Tensor, positions: Tensor) -> DeviceOp[Tensor]:
        check_dtype("rotary", FLOATS, x=x, cosine=cosine, sine=sine)
        check_dtype("rotary", INT32, positions=positions)
        if x.ndim != 3 or x.shape[2] % 2:
            raise ValueError(f"rotary: x is (tokens, heads, head size), an even size, got {tuple(x.shape)}")
        tokens, heads, size = x.shape
        check_shape("rotary", ("positions", size // 2), cosine=cosine)
        check_shape("rotary", cosine.shape, sine=sine)
        check_shape("rotary", (tokens,), positions=positions)
        pairs = (tokens, heads, size // 2, 2) if interleaved else (tokens, heads, 2, size // 2)
        tile = (power_of_two(heads), power_of_two(size // 2))
        rest = (cosine, sine, positions, tile, interleaved)
        occupancy = occupancy_of(2 * tile[0] * tile[1])
        paired = viewed("rotary", pairs, x=x)
        if in_place:
            op = tuned(raw.rotary_in_place, occupancy=occupancy)(ca.mut(paired), *rest)
        else:
            place = mutable(output("rotary", out, x.shape, x.dtype, view=pairs))
            op = tuned(raw.rotary, occupancy=occupancy)(place, paired, *rest)
        return op.grid(tokens if x.size else 0).first().reshape(x.shape)

    return with_tensors(
        "rotary", launch, {"out": out}, in_place=in_place, x=x, cosine=cosine, sine=sine, positions=positions
    )
