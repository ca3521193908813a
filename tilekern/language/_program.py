"""Where a block stands, and what is decided while a kernel is compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ._annotations import Scalar, Tile
from ._kernel_only import kernel_only

__all__ = ["assert_", "bid", "cdiv", "num_blocks", "static_assert", "static_iter"]

T = TypeVar("T")


def bid(axis: int) -> Tile:
    """This block's index along grid axis 0, 1 or 2; an int32 scalar."""
    kernel_only()


def num_blocks(axis: int) -> Tile:
    """The number of blocks along grid axis 0, 1 or 2; an int32 scalar."""
    kernel_only()


def cdiv(a: int, b: int) -> int:
    """a / b rounded up, for whole numbers. Also outside of kernels."""
    return -(-a // b)


def assert_(condition: Scalar, message: str = "") -> None:
    """Stop the kernel with `message` unless every element is true; for finding mistakes, and slow."""
    kernel_only()


def static_assert(condition: bool, message: str = "") -> None:
    """Refuse to compile with `message` unless `condition`, known at compile time, is true."""
    kernel_only()


def static_iter(items: Iterable[T]) -> Iterable[T]:
    """`for x in tk.static_iter(items)`: one copy of the loop body per item, with `x` a constant.

    At most 1000 items.
    """
    kernel_only()
