"""Where values come from without operands: constants, counts, the place in the grid."""

from __future__ import annotations

from ..dtypes import DType, bool_, int32
from ._op import Op, Operand, Result
from ._types import PointerType, TileType, scalar, tile_shape_problem

__all__ = [
    "AssumeBelowOp",
    "AssumeBoundedOp",
    "AssumeDivByOp",
    "BlockIdOp",
    "ConstantOp",
    "IotaOp",
    "NumBlocksOp",
]


class ConstantOp(Op, mnemonic="constant"):
    """A tile of one value, or of as many values as it has elements, row by row.

    Floats are held exactly as the element type rounds them.
    """

    value: bool | int | float | tuple[bool | int | float, ...]
    result: Result

    def verify(self) -> None:
        kind = self.result.type
        if not isinstance(kind, TileType) or not isinstance(kind.dtype, DType):
            raise self.fail(f"the result is a tile of numbers, got {kind}")
        if problem := tile_shape_problem(kind.shape):
            raise self.fail(problem)
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        if isinstance(self.value, tuple) and len(values) != kind.size:
            raise self.fail(f"{len(values)} values for a tile of {kind.size}")
        wanted: type = float if kind.dtype.is_float else bool if kind.dtype is bool_ else int
        for value in values:
            if type(value) is not wanted:
                raise self.fail(f"a value of {kind.dtype} is {wanted.__name__}, got {value!r}")
            if type(value) is int and not kind.dtype.holds(value):
                raise self.fail(f"{value} does not fit {kind.dtype}")


class IotaOp(Op, mnemonic="iota"):
    """0, 1, 2, ... along the one axis of an integer tile."""

    result: Result

    def verify(self) -> None:
        kind = self.result.type
        if not isinstance(kind, TileType) or kind.rank != 1 or not kind.number.is_integer:
            raise self.fail(f"the result is an integer tile of rank 1, got {kind}")
        if problem := tile_shape_problem(kind.shape):
            raise self.fail(problem)
        if kind.size > 1 << kind.number.bits:
            raise self.fail(f"{kind.number} cannot count to {kind.size}")


class _GridOp(Op):
    axis: int
    result: Result

    def verify(self) -> None:
        if self.axis not in (0, 1, 2):
            raise self.fail(f"grid axes are 0, 1 and 2, got {self.axis}")
        if self.result.type != scalar(int32):
            raise self.fail(f"the result is i32, got {self.result.type}")


class BlockIdOp(_GridOp, mnemonic="block_id"):
    """This block's index along a grid axis."""


class NumBlocksOp(_GridOp, mnemonic="num_blocks"):
    """The number of blocks along a grid axis."""


class _AssumeOp(Op):
    source: Operand
    result: Result

    def verify(self) -> None:
        if self.source.type != self.result.type:
            raise self.fail(f"the result has the type of the source, got {self.result.type}")


class AssumeDivByOp(_AssumeOp, mnemonic="assume_div_by"):
    """The source, promised to be a multiple of `divisor` (a pointer: its address in bytes)."""

    divisor: int

    def verify(self) -> None:
        super().verify()
        kind = self.source.type
        if not isinstance(kind, TileType) or not (
            isinstance(kind.dtype, PointerType) or kind.dtype.is_integer
        ):
            raise self.fail(f"the source is a tile of integers or pointers, got {kind}")
        if self.divisor < 1 or self.divisor & (self.divisor - 1):
            raise self.fail(f"the divisor is a power of two, got {self.divisor}")


class AssumeBoundedOp(_AssumeOp, mnemonic="assume_bounded"):
    """The source, promised to lie in `lower` to `upper`, both included; None is no bound."""

    lower: int | None
    upper: int | None

    def verify(self) -> None:
        super().verify()
        kind = self.source.type
        if not isinstance(kind, TileType) or not isinstance(kind.dtype, DType) or not kind.dtype.is_integer:
            raise self.fail(f"the source is a tile of integers, got {kind}")
        for bound in (self.lower, self.upper):
            if bound is not None and not kind.dtype.holds(bound):
                raise self.fail(f"bound {bound} does not fit {kind.dtype}")


class AssumeBelowOp(Op, mnemonic="assume_below"):
    """The source, an integer scalar that is promised to be at least 0 and less than `limit`.

    `parts`: it is one of so many in the body of a loop that, taken together, are others in every turn of it.
    """

    source: Operand
    limit: Operand
    parts: int = 0
    result: Result

    def verify(self) -> None:
        kind = self.source.type
        if self.result.type != kind:
            raise self.fail(f"the result has the type of the source, got {self.result.type}")
        if not isinstance(kind, TileType) or kind.shape or not kind.number.is_integer:
            raise self.fail(f"the source is an integer scalar, got {kind}")
        if self.limit.type != kind:
            raise self.fail(f"the limit has the type of the source, got {self.limit.type}")
