"""Reductions, scans and matrix products: operations that combine elements."""

from __future__ import annotations

from typing import ClassVar

from ..dtypes import (
    DType,
    bfloat16,
    bool_,
    float4_e2m1fn,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    int8,
    int32,
    tfloat32,
    uint8,
)
from ._elementwise import AddOp
from ._op import Op, Operand, Result
from ._types import TileType

__all__ = [
    "MMA_TYPES",
    "SCALED_MMA_TYPES",
    "ArgReduceOp",
    "MmaOp",
    "MmaScaledOp",
    "ReduceOp",
    "ScanOp",
]


class _AlongAxisOp(Op):
    source: Operand
    axis: int

    def along(self) -> TileType:
        """The source's type, checked."""
        kind = self.source.type
        if not isinstance(kind, TileType) or not isinstance(kind.dtype, DType) or kind.dtype is bool_:
            raise self.fail(f"takes a tile of numbers, got {kind}")
        if kind.dtype.restricted:
            raise self.fail(f"{kind.dtype} is for storage and matrix products; cast it first")
        if not 0 <= self.axis < kind.rank:
            raise self.fail(f"axis {self.axis} of a tile of rank {kind.rank}")
        return kind

    def check_options(self, dtype: DType, rounding: str, flush_to_zero: bool, *, rounds: bool) -> None:
        """Check how float steps are rounded, and whether small numbers are flushed."""
        if rounding != AddOp.roundings[0] and (
            not rounds or not dtype.is_float or rounding not in AddOp.roundings
        ):
            raise self.fail(f"float sums and products are rounded by {', '.join(AddOp.roundings)}")
        if flush_to_zero and dtype is not float32:
            raise self.fail(f"flush_to_zero is for f32, got {dtype}")


class ReduceOp(_AlongAxisOp, mnemonic="reduce"):
    """All elements along `axis` made one by sum, prod, max or min; the axis is gone afterwards.

    The order of combination is open, so float sums may differ in the last bits. Max and min treat NaN as
    `MaxOp` and `MinOp` do.
    """

    kinds: ClassVar[tuple[str, ...]] = ("sum", "prod", "max", "min")

    kind: str
    propagate_nan: bool = True
    rounding: str = "nearest_even"
    flush_to_zero: bool = False
    result: Result

    def verify(self) -> None:
        source = self.along()
        if self.kind not in self.kinds:
            raise self.fail(f"kind is one of {', '.join(self.kinds)}, got {self.kind}")
        shape = source.shape[: self.axis] + source.shape[self.axis + 1 :]
        if self.result.type != source.with_shape(shape):
            raise self.fail(f"the result is {source.with_shape(shape)}, got {self.result.type}")
        rounds = self.kind in ("sum", "prod")
        self.check_options(source.number, self.rounding, self.flush_to_zero, rounds=rounds)


class ArgReduceOp(_AlongAxisOp, mnemonic="arg_reduce"):
    """Position along `axis` of the largest (max) or smallest (min) element, the first of equals.

    A NaN counts as larger (max) or smaller (min) than all numbers; where `propagate_nan` is false, the other
    way round.
    """

    kinds: ClassVar[tuple[str, ...]] = ("max", "min")

    kind: str
    propagate_nan: bool = True
    result: Result

    def verify(self) -> None:
        source = self.along()
        if self.kind not in self.kinds:
            raise self.fail(f"kind is one of {', '.join(self.kinds)}, got {self.kind}")
        shape = source.shape[: self.axis] + source.shape[self.axis + 1 :]
        if self.result.type != TileType(int32, shape):
            raise self.fail(f"the result is {TileType(int32, shape)}, got {self.result.type}")


class ScanOp(_AlongAxisOp, mnemonic="scan"):
    """Running sum or prod along `axis`, each element included; from the end where `reverse`."""

    kinds: ClassVar[tuple[str, ...]] = ("sum", "prod")

    kind: str
    reverse: bool = False
    rounding: str = "nearest_even"
    flush_to_zero: bool = False
    result: Result

    def verify(self) -> None:
        source = self.along()
        if self.kind not in self.kinds:
            raise self.fail(f"kind is one of {', '.join(self.kinds)}, got {self.kind}")
        if self.result.type != source:
            raise self.fail(f"the result has the type of the source, got {self.result.type}")
        self.check_options(source.number, self.rounding, self.flush_to_zero, rounds=True)


MMA_TYPES: dict[DType, tuple[DType, ...]] = {
    float16: (float16, float32),
    bfloat16: (float32,),
    tfloat32: (float32,),
    float32: (float32,),
    float64: (float64,),
    float8_e4m3fn: (float16, float32),
    float8_e5m2: (float16, float32),
    int8: (int32,),
    uint8: (int32,),
}
"""Accumulator types a matrix product takes, by the operands' element type."""


class MmaOp(Op, mnemonic="mma"):
    """`lhs @ rhs + acc`: (M, K) by (K, N), or the same with a leading batch axis.

    Products are exact; the sum is kept in the accumulator's type, its order is open. 8-bit integers may
    differ in sign. `fast_acc`, of 8-bit floats, allows Hopper to keep partial sums less precisely.
    """

    lhs: Operand
    rhs: Operand
    acc: Operand
    fast_acc: bool = False
    result: Result

    def verify(self) -> None:
        lhs, rhs, acc = self.lhs.type, self.rhs.type, self.acc.type
        if not isinstance(lhs, TileType) or not isinstance(rhs, TileType) or not isinstance(acc, TileType):
            raise self.fail("operands are tiles")
        if self.result.type != acc:
            raise self.fail(f"the result has the type of the accumulator, got {self.result.type}")
        if lhs.dtype != rhs.dtype and not {lhs.dtype, rhs.dtype} <= {int8, uint8}:
            raise self.fail(f"both factors have one element type, got {lhs.dtype} and {rhs.dtype}")
        allowed = MMA_TYPES.get(lhs.number, ())
        if acc.dtype not in allowed:
            names = " or ".join(map(str, allowed)) or "nothing"
            raise self.fail(f"{lhs.dtype} factors accumulate in {names}, got {acc.dtype}")
        if self.fast_acc and lhs.dtype not in (float8_e4m3fn, float8_e5m2):
            raise self.fail(f"fast_acc is for 8-bit floats, got {lhs.dtype}")
        if lhs.rank not in (2, 3) or rhs.rank != lhs.rank or acc.rank != lhs.rank:
            raise self.fail(f"ranks are all 2 or all 3, got {lhs.rank}, {rhs.rank}, {acc.rank}")
        batch = lhs.shape[:-2]
        if rhs.shape != (*batch, lhs.shape[-1], acc.shape[-1]) or acc.shape[:-1] != lhs.shape[:-1]:
            raise self.fail(f"shapes {lhs.shape}, {rhs.shape} and {acc.shape} do not fit")


SCALED_MMA_TYPES: dict[tuple[DType, DType], tuple[int, ...]] = {
    (float8_e4m3fn, float8_e8m0fnu): (32,),
    (float8_e5m2, float8_e8m0fnu): (32,),
    (float4_e2m1fn, float8_e8m0fnu): (16, 32),
    (float4_e2m1fn, float8_e4m3fn): (16,),
}
"""How many elements along K may share a scale, by the element types of factors and scales."""


class MmaScaledOp(Op, mnemonic="mma_scaled"):
    """`(lhs * lhs_scale) @ (rhs * rhs_scale) + acc` with a scale for every few elements along K.

    (M, K) by (K, N) with scales (M, S) and (S, N), S dividing K, or the same with a leading batch axis. Products
    are exact; the sum is kept in float32, its order is open.
    """

    lhs: Operand
    lhs_scale: Operand
    rhs: Operand
    rhs_scale: Operand
    acc: Operand
    result: Result

    def verify(self) -> None:
        kinds = [v.type for v in (self.lhs, self.lhs_scale, self.rhs, self.rhs_scale, self.acc)]
        if not all(isinstance(kind, TileType) and isinstance(kind.dtype, DType) for kind in kinds):
            raise self.fail("operands are tiles of numbers")
        lhs, lhs_scale, rhs, rhs_scale, acc = (k for k in kinds if isinstance(k, TileType))
        if self.result.type != acc or acc.dtype is not float32:
            raise self.fail(f"accumulator and result are of f32, got {acc}, {self.result.type}")
        if lhs.dtype is not rhs.dtype or lhs_scale.dtype is not rhs_scale.dtype:
            raise self.fail("both factors have one element type, and so have both scales")
        blocks = SCALED_MMA_TYPES.get((lhs.number, lhs_scale.number), ())
        if not blocks:
            raise self.fail(f"{lhs.dtype} factors take no scales of {lhs_scale.dtype}")
        if lhs.rank not in (2, 3) or any(k.rank != lhs.rank for k in (lhs_scale, rhs, rhs_scale, acc)):
            raise self.fail("ranks are all 2 or all 3")
        batch, (rows, inner), columns = lhs.shape[:-2], lhs.shape[-2:], acc.shape[-1]
        parts = lhs_scale.shape[-1]
        if (
            rhs.shape != (*batch, inner, columns)
            or acc.shape != (*batch, rows, columns)
            or lhs_scale.shape != (*batch, rows, parts)
            or rhs_scale.shape != (*batch, parts, columns)
        ):
            shapes = ", ".join(str(k.shape) for k in (lhs, lhs_scale, rhs, rhs_scale, acc))
            raise self.fail(f"shapes {shapes} do not fit")
        if inner % parts or inner // parts not in blocks:
            raise self.fail(
                f"{' or '.join(map(str, blocks))} elements along K share a scale, got {inner} / {parts}"
            )
