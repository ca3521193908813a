"""Combining elements: reductions, scans, matrix products."""

from __future__ import annotations

from ._annotations import Tile
from ._kernel_only import kernel_only

__all__ = ["argmax", "argmin", "cumprod", "cumsum", "matmul", "max", "min", "mma", "prod", "sum"]

Axis = int | tuple[int, ...] | None


def sum(x: Tile, axis: Axis = None, *, keepdims: bool = False) -> Tile:  # noqa: A001 - cuTile's name
    """Sum along one axis, several, or all. 16-bit floats are added in float32; integers wrap."""
    kernel_only()


def prod(x: Tile, axis: Axis = None, *, keepdims: bool = False) -> Tile:
    """Product along one axis, several, or all. 16-bit floats are multiplied in float32; integers wrap."""
    kernel_only()


def max(  # noqa: A001 - cuTile's name
    x: Tile, axis: Axis = None, *, keepdims: bool = False, propagate_nan: bool = True
) -> Tile:
    """Largest element along one axis, several, or all; NaN if there is one, unless told not to."""
    kernel_only()


def min(  # noqa: A001 - cuTile's name
    x: Tile, axis: Axis = None, *, keepdims: bool = False, propagate_nan: bool = True
) -> Tile:
    """Smallest element along one axis, several, or all; NaN if there is one, unless told not to."""
    kernel_only()


def argmax(x: Tile, axis: int | None = None, *, keepdims: bool = False) -> Tile:
    """Position (int32) of the largest element along `axis`, or in row-major order; the first of equals.

    A NaN counts as the largest.
    """
    kernel_only()


def argmin(x: Tile, axis: int | None = None, *, keepdims: bool = False) -> Tile:
    """Position (int32) of the smallest element along `axis`, or in row-major order; the first of equals.

    A NaN counts as the smallest.
    """
    kernel_only()


def cumsum(x: Tile, axis: int = 0, *, reverse: bool = False) -> Tile:
    """Running sum along `axis`, each element included; from the end with `reverse`."""
    kernel_only()


def cumprod(x: Tile, axis: int = 0, *, reverse: bool = False) -> Tile:
    """Running product along `axis`, each element included; from the end with `reverse`."""
    kernel_only()


def mma(x: Tile, y: Tile, acc: Tile) -> Tile:
    """`x @ y + acc` for (M, K), (K, N) and (M, N), or with a leading batch axis; on tensor cores.

    No promotion: float16 accumulates in float16 or float32; bfloat16, tfloat32 and float32 in float32;
    float64 in float64; fp8 in float16 or float32; 8-bit integers in int32. A float32 product keeps its
    full precision; cast to tfloat32 for speed.
    """
    kernel_only()


def matmul(x: Tile, y: Tile) -> Tile:
    """`x @ y`: promotes both to one type and gives the product in it; also of a matrix and a vector."""
    kernel_only()
