"""Where a block stands, and what is decided while a kernel is compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, overload

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


@overload
def cdiv(a: int, b: int) -> int: ...
@overload
def cdiv(a: Tile, b: int | Tile) -> Tile: ...
@overload
def cdiv(a: int, b: Tile) -> Tile: ...
def cdiv(a: Any, b: Any) -> Any:
    """a / b rounded up, for whole numbers. Also outside of kernels."""
    if any(getattr(getattr(x, "dtype", None), "kind", "") in ("u", "i") for x in (a, b)):
        return a // b + (a % b != 0)  # unsigned numbers of NumPy have no negative ones, and others wrap
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


def assume_divisible_by(x: Scalar, divisor: int) -> Tile:
    """The integer `x`, promised to be a multiple of `divisor`, a power of two.

    The compiler may rely on it: use the result in place of `x`. A broken promise is an error on the host device
    (`KernelAssertionError`) and undefined on a GPU.
    """
    kernel_only()


def print(*values: object, sep: str = " ", end: str = "\n") -> None:  # noqa: A001 - Python's name
    """Print values and f-strings, once per block; for finding mistakes, and slow. `print` is the same.

    Whole numbers are printed as `%d`, floats as `%f`, tiles as nested lists of them. In an f-string, a value
    may have a format: width, precision, flags and a type of `d i u x X o f F e E g G`.
    """
    kernel_only()


def printf(text: str, *values: Scalar) -> None:
    """Print as C's `printf`, once per block: one conversion (%d, %5.2f, %x, ...) for each value; %% is %.

    Of a tile, the conversion is for its elements. Lengths (`%ld`) may be left out.
    """
    kernel_only()


def grid_dependency_control_wait() -> None:
    """Wait until the kernels this one depends on have ended and what they wrote can be read.

    For a launch with `programmatic_dependent_launch`, which may begin while the kernel before it on the
    stream still runs. No load or store moves across it. On the host device, and in other launches, there is
    nothing to wait for.
    """
    kernel_only()


def grid_dependency_control_launch_dependents() -> None:
    """Let the next kernel on the stream begin, if it was launched so as to depend on this one.

    It begins when all blocks have said so or ended; what this kernel writes is there when its wait is over.
    """
    kernel_only()
