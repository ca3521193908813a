"""Philox 4x32-10 as tile code, and what makes uniform and normal numbers of its output.

A counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
ten rounds of two 32 x 32 -> 64 bit products turn a 128-bit counter and a 64-bit key into four random 32-bit
words. The seed is the key, low half first. The counter's low 64 bits number the groups of elements, its high ones
are zero. So an element depends on the seed and on its place in the tensor alone, not on tiles or devices.

With types of up to 32 bits, element i is word i % 4 of counter i // 4. With float64, a counter makes two
elements: of words 0 and 1, and of words 2 and 3. Normal numbers come in pairs, from words (0, 1) and (2, 3) of a
counter, and with float64 from all four.

The key's halves are annotated `Any`: they are given as NumPy scalars, which bring their type.
"""

from __future__ import annotations

import math
from typing import Any

import tilekern as tk

__all__ = ["normal", "normal64", "philox4x32", "uniform", "uniform64"]

TURN = 2 * math.pi


def philox4x32(
    c0: tk.Tile, c1: tk.Tile, c2: tk.Tile, c3: tk.Tile, k0: tk.Tile, k1: tk.Tile
) -> tuple[tk.Tile, tk.Tile, tk.Tile, tk.Tile]:
    """Ten rounds; everything is uint32."""
    for _ in tk.static_iter(range(10)):
        high0, low0 = tk.mulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tk.mulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


def words(
    out: tk.Tile1D, per_counter: int, k0: tk.Tile, k1: tk.Tile
) -> tuple[tk.Tile, tk.Tile, tk.Tile, tk.Tile]:
    """The four words of each counter that makes elements of the tile."""
    size = out.shape[0] // per_counter
    counter = tk.arange(size, dtype=tk.int64) + tk.astype(out.index[0], tk.int64) * size
    low, high = tk.astype(counter, tk.uint32), tk.astype(counter >> 32, tk.uint32)
    none = tk.zeros((size,), tk.uint32)
    return philox4x32(low, high, none, none, k0, k1)


def woven(parts: tuple[tk.Tile, ...]) -> tk.Tile:
    """Two or four tiles of rank 1 in turn: the first of each, then the second of each, and so on."""
    if len(parts) == 2:
        a, b = parts
        return tk.reshape(tk.cat((a[:, None], b[:, None]), 1), (2 * a.shape[0],))
    a, b, c, d = parts
    left = tk.cat((a[:, None], b[:, None]), 1)
    right = tk.cat((c[:, None], d[:, None]), 1)
    return tk.reshape(tk.cat((left, right), 1), (4 * a.shape[0],))


def fraction(word: tk.Tile, bits: int) -> tk.Tile:
    """The upper bits of a word as a float32 from 0 to below 1; exact for up to 24 bits."""
    return tk.astype(word >> (32 - bits), tk.float32) * 2.0**-bits


def fraction64(high: tk.Tile, low: tk.Tile) -> tk.Tile:
    """The upper 53 bits of two words as a float64 from 0 to below 1."""
    upper, lower = tk.astype(high >> 5, tk.float64), tk.astype(low >> 6, tk.float64)
    return (upper * 67108864.0 + lower) * 2.0**-53


def polar(u: tk.Tile, turn: tk.Tile) -> tuple[tk.Tile, tk.Tile]:
    """Two normal numbers from two uniform ones (Box and Muller 1958), `u` above 0."""
    radius = tk.sqrt(-2.0 * tk.log(u))
    angle = turn * TURN
    return radius * tk.cos(angle), radius * tk.sin(angle)


@tk.kernel
def uniform(out: tk.Tile1D, k0: Any, k1: Any, bits: tk.Constant[int]) -> None:
    """Multiples of 2 ** -bits from 0 to below 1, which the element type holds exactly."""
    values = [fraction(word, bits) for word in words(out, 4, k0, k1)]
    out.store(tk.astype(woven(tuple(values)), out.dtype))


@tk.kernel
def uniform64(out: tk.Tile1D, k0: Any, k1: Any) -> None:
    """Multiples of 2 ** -53 from 0 to below 1."""
    w0, w1, w2, w3 = words(out, 2, k0, k1)
    out.store(woven((fraction64(w0, w1), fraction64(w2, w3))))


@tk.kernel
def normal(out: tk.Tile1D, k0: Any, k1: Any) -> None:
    """Normal numbers computed in float32."""
    w0, w1, w2, w3 = words(out, 4, k0, k1)
    a, b = polar(fraction(w0, 24) + 2.0**-24, fraction(w1, 24))
    c, d = polar(fraction(w2, 24) + 2.0**-24, fraction(w3, 24))
    out.store(tk.astype(woven((a, b, c, d)), out.dtype))


@tk.kernel
def normal64(out: tk.Tile1D, k0: Any, k1: Any) -> None:
    """Normal numbers computed in float64."""
    w0, w1, w2, w3 = words(out, 2, k0, k1)
    out.store(woven(polar(fraction64(w0, w1) + 2.0**-53, fraction64(w2, w3))))
