"""Where a block stands, and what is decided while a kernel is compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ._annotations import Scalar, Tile
from ._kernel_only import kernel_only

__all__ = [
    "assert_",
    "bid",
    "cdiv",
    "ensure_constant",
    "num_blocks",
    "static_assert",
    "static_eval",
    "static_iter",
]

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


def static_eval(value: T) -> T:
    """The value of an expression that Python itself computes while the kernel is compiled.

    So everything Python has may be used in it, on what is known at compile time: comprehensions, `math`, any
    function. Of a tile it can see `dtype`, `shape`, `ndim` and `size`, and choose it, as in
    `tk.static_eval(a if a.dtype.is_float else b)`.
    """
    kernel_only()


def ensure_constant(value: T) -> T:
    """`value`, which must be known at compile time; refuses to compile where it is not."""
    kernel_only()


def static_iter(items: Iterable[T]) -> Iterable[T]:
    """`for x in tk.static_iter(items)`: one copy of the loop body per item, with `x` a constant.

    At most 1000 items.
    """
    kernel_only()
