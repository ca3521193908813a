"""Operations that move elements without changing them."""

from __future__ import annotations

from ..dtypes import DType, bool_, int32, tfloat32, uint8
from ._op import Op, Operand, Operands, Result
from ._types import TileType, scalar, tile_shape_problem

__all__ = [
    "BroadcastOp",
    "CatOp",
    "ExtractOp",
    "InsertOp",
    "PackOp",
    "PermuteOp",
    "ReshapeOp",
    "UnpackOp",
]


def _tiles(op: Op, *types: object) -> list[TileType]:
    """`types`, known to be tile types of one element type."""
    tiles = [t for t in types if isinstance(t, TileType)]
    if len(tiles) != len(types) or len({t.dtype for t in tiles}) != 1:
        raise op.fail(f"takes and gives tiles of one element type, got {', '.join(map(str, types))}")
    for tile in tiles:
        if problem := tile_shape_problem(tile.shape):
            raise op.fail(problem)
    return tiles


class ReshapeOp(Op, mnemonic="reshape"):
    """The same elements, in row-major order, in another shape."""

    source: Operand
    result: Result

    def verify(self) -> None:
        source, result = _tiles(self, self.source.type, self.result.type)
        if source.size != result.size:
            raise self.fail(f"{source.size} elements do not fill shape {result.shape}")


class BroadcastOp(Op, mnemonic="broadcast"):
    """Axes of size 1 repeated to the result's size; the rank stays."""

    source: Operand
    result: Result

    def verify(self) -> None:
        source, result = _tiles(self, self.source.type, self.result.type)
        if source.rank != result.rank or any(
            a not in (1, b) for a, b in zip(source.shape, result.shape, strict=False)
        ):
            raise self.fail(f"shape {source.shape} does not broadcast to {result.shape}")


class PermuteOp(Op, mnemonic="permute"):
    """Axis i of the result is axis `order[i]` of the source, as `np.transpose`."""

    source: Operand
    order: tuple[int, ...]
    result: Result

    def verify(self) -> None:
        source, result = _tiles(self, self.source.type, self.result.type)
        if sorted(self.order) != list(range(source.rank)):
            raise self.fail(f"order {self.order} is no permutation of {source.rank} axes")
        if result.shape != tuple(source.shape[axis] for axis in self.order):
            raise self.fail(f"order {self.order} of shape {source.shape} is not {result.shape}")


class CatOp(Op, mnemonic="cat"):
    """Two tiles of one shape, one after the other along `axis`."""

    lhs: Operand
    rhs: Operand
    axis: int
    result: Result

    def verify(self) -> None:
        lhs, rhs, result = _tiles(self, self.lhs.type, self.rhs.type, self.result.type)
        if lhs != rhs or not 0 <= self.axis < lhs.rank:
            raise self.fail(f"joins two tiles of one type along an axis, got {lhs}, {rhs}, {self.axis}")
        shape = list(lhs.shape)
        shape[self.axis] *= 2
        if result.shape != tuple(shape):
            raise self.fail(f"the result has shape {tuple(shape)}, got {result.shape}")


class ExtractOp(Op, mnemonic="extract"):
    """One of the equal parts that tiles of the result's shape cut the source into."""

    source: Operand
    index: Operands
    result: Result

    def verify(self) -> None:
        source, result = _tiles(self, self.source.type, self.result.type)
        if source.rank != result.rank or len(self.index) != source.rank:
            raise self.fail("source, result and index have one rank")
        if any(a % b for a, b in zip(source.shape, result.shape, strict=True)):
            raise self.fail(f"{result.shape} does not divide {source.shape}")
        if any(v.type != scalar(int32) for v in self.index):
            raise self.fail("the index is of i32 scalars")


class InsertOp(Op, mnemonic="insert"):
    """The target with one of its parts, counted as `ExtractOp` does, replaced by the source."""

    source: Operand
    target: Operand
    index: Operands
    result: Result

    def verify(self) -> None:
        source, target, result = _tiles(self, self.source.type, self.target.type, self.result.type)
        if source.rank != target.rank or len(self.index) != target.rank:
            raise self.fail("source, target and index have one rank")
        if any(a % b for a, b in zip(target.shape, source.shape, strict=True)):
            raise self.fail(f"{source.shape} does not divide {target.shape}")
        if any(v.type != scalar(int32) for v in self.index):
            raise self.fail("the index is of i32 scalars")
        if result != target:
            raise self.fail(f"the result has the type of the target, got {result}")


class _BytesOp(Op):
    source: Operand
    result: Result

    def check(self, elements: object, data: object) -> None:
        """`data` is a row of as many bytes as the row of `elements` takes."""
        if not isinstance(elements, TileType) or not isinstance(data, TileType):
            raise self.fail("source and result are tiles")
        dtype = elements.dtype
        if not isinstance(dtype, DType) or dtype.bits == 8 or dtype in (bool_, tfloat32):
            raise self.fail(f"{dtype} is not packed; types of 4, 16, 32 and 64 bits are")
        if elements.rank != 1 or data != TileType(uint8, (elements.size * dtype.bits // 8,)):
            raise self.fail(
                f"a row of elements and a row of as many bytes are needed, got {elements}, {data}"
            )


class PackOp(_BytesOp, mnemonic="pack"):
    """The bytes of a row of elements, lowest first; 4-bit elements lie two in a byte, the first one lower."""

    def verify(self) -> None:
        self.check(self.source.type, self.result.type)


class UnpackOp(_BytesOp, mnemonic="unpack"):
    """The elements whose bytes a row of u8 holds; undoes `PackOp`."""

    def verify(self) -> None:
        self.check(self.result.type, self.source.type)
