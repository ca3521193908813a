"""Combining elements: reductions, scans, matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ._annotations import Tile
from ._kernel_only import kernel_only
from ._rounding import RoundingMode

__all__ = [
    "argmax",
    "argmin",
    "cumprod",
    "cumsum",
    "matmul",
    "max",
    "min",
    "mma",
    "mma_scaled",
    "prod",
    "reduce",
    "scan",
    "sum",
]

Axis = int | tuple[int, ...] | None

Tiles = TypeVar("Tiles", Tile, tuple[Tile, ...])
Identity = int | float | bool | tuple[int | float | bool, ...]


def sum(  # noqa: A001 - cuTile's name
    x: Tile,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    rounding_mode: RoundingMode | None = None,
    flush_to_zero: bool = False,
) -> Tile:
    """Sum along one axis, several, or all. 16-bit floats are added in float32; integers wrap."""
    kernel_only()


def prod(
    x: Tile,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    rounding_mode: RoundingMode | None = None,
    flush_to_zero: bool = False,
) -> Tile:
    """Product along one axis, several, or all. 16-bit floats are multiplied in float32; integers wrap."""
    kernel_only()


def max(  # noqa: A001 - cuTile's name
    x: Tile,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    propagate_nan: bool = True,
    flush_to_zero: bool = False,
) -> Tile:
    """Largest element along one axis, several, or all; NaN if there is one, unless told not to."""
    kernel_only()


def min(  # noqa: A001 - cuTile's name
    x: Tile,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    propagate_nan: bool = True,
    flush_to_zero: bool = False,
) -> Tile:
    """Smallest element along one axis, several, or all; NaN if there is one, unless told not to."""
    kernel_only()


def argmax(x: Tile, axis: int | None = None, *, keepdims: bool = False, propagate_nan: bool = True) -> Tile:
    """Position (int32) of the largest element along `axis`, or in row-major order; the first of equals.

    A NaN counts as the largest, or, where `propagate_nan` is off, only if there is nothing else.
    """
    kernel_only()


def argmin(x: Tile, axis: int | None = None, *, keepdims: bool = False, propagate_nan: bool = True) -> Tile:
    """Position (int32) of the smallest element along `axis`, or in row-major order; the first of equals.

    A NaN counts as the smallest, or, where `propagate_nan` is off, only if there is nothing else.
    """
    kernel_only()


def cumsum(
    x: Tile,
    axis: int = 0,
    *,
    reverse: bool = False,
    rounding_mode: RoundingMode | None = None,
    flush_to_zero: bool = False,
) -> Tile:
    """Running sum along `axis`, each element included; from the end with `reverse`."""
    kernel_only()


def cumprod(
    x: Tile,
    axis: int = 0,
    *,
    reverse: bool = False,
    rounding_mode: RoundingMode | None = None,
    flush_to_zero: bool = False,
) -> Tile:
    """Running product along `axis`, each element included; from the end with `reverse`."""
    kernel_only()


def reduce(
    x: Tiles, axis: int, func: Callable[..., object], identity: Identity, *, keepdims: bool = False
) -> Tiles:
    """All elements along `axis` made one by `func`, in an open order.

    `func(a, b)` combines two scalars into one; it is associative and commutative, and `func(identity, b)` is b. Of
    a tuple of n tiles, which broadcast together, it is `func(a1, ..., an, b1, ..., bn)` and gives n scalars,
    `identity` has n numbers, and the result n tiles. `func` only computes: no memory, no loops whose length is known
    at run time only.
    """
    kernel_only()


def scan(
    x: Tiles, axis: int, func: Callable[..., object], identity: Identity, *, reverse: bool = False
) -> Tiles:
    """Running combination along `axis`, each element included; from the end with `reverse`.

    `func` and `identity` are those of `reduce`, but that `func` need not be commutative: its first operands are what
    comes before.
    """
    kernel_only()


def mma(x: Tile, y: Tile, acc: Tile, *, use_fast_acc: bool = False) -> Tile:
    """`x @ y + acc` for (M, K), (K, N) and (M, N), or with a leading batch axis; on tensor cores.

    No promotion: float16 accumulates in float16 or float32; bfloat16, tfloat32 and float32 in float32;
    float64 in float64; fp8 in float16 or float32; 8-bit integers in int32. A float32 product keeps its
    full precision; cast to tfloat32 for speed. A batch axis of one factor alone serves the other, too.
    `use_fast_acc`, for fp8, lets Hopper keep partial sums less precisely.
    """
    kernel_only()


def mma_scaled(x: Tile, x_scale: Tile, y: Tile, y_scale: Tile, acc: Tile) -> Tile:
    """`(x * x_scale) @ (y * y_scale) + acc`, with one scale for every V elements along K; from sm_100 on.

    x is (M, K), x_scale (M, K / V), y (K, N), y_scale (K / V, N), acc (M, N) in float32, or all with a leading
    batch axis. float8_e4m3fn and float8_e5m2 take scales of float8_e8m0fnu, V = 32; float4_e2m1fn takes
    float8_e8m0fnu, V = 16 or 32, or float8_e4m3fn, V = 16.
    """
    kernel_only()


def matmul(x: Tile, y: Tile) -> Tile:
    """`x @ y`: promotes both to one type and gives the product in it; also of a matrix and a vector."""
    kernel_only()
