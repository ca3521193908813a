"""Tiles from nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._annotations import Scalar, Tile
from ._kernel_only import kernel_only

if TYPE_CHECKING:
    from ..dtypes import DType
    from ._memory import Shape

__all__ = ["arange", "full", "ones", "zeros"]


def full(shape: Shape, fill_value: Scalar, dtype: DType) -> Tile:
    """A tile with `fill_value`, a number or scalar, everywhere."""
    kernel_only()


def zeros(shape: Shape, dtype: DType) -> Tile:
    """A tile of zeros."""
    kernel_only()


def ones(shape: Shape, dtype: DType) -> Tile:
    """A tile of ones."""
    kernel_only()


def arange(size: int, *, start: Scalar = 0, step: Scalar = 1, dtype: DType) -> Tile:
    """`start + i * step` for i from 0 to `size - 1`, a tile of rank 1; whole numbers wrap."""
    kernel_only()
