"""Pointers: addresses of elements, and loads and stores through tiles of them.

A pointer counts in elements of its pointee. Nothing is known of what it points to: the lanes of a mask say
which of them are good.
"""

from __future__ import annotations

from ..dtypes import bool_
from ._memory import LOAD_ORDERINGS, STORE_ORDERINGS, MemoryOp
from ._op import Op, Operand, Operands, OptionalOperand, Result
from ._types import PointerType, TensorType, TileType

__all__ = [
    "ElementPointersOp",
    "InBoundsOp",
    "LoadPointersOp",
    "OffsetOp",
    "StorePointersOp",
    "check_pointers",
]


class OffsetOp(Op, mnemonic="offset"):
    """Pointers moved by signed numbers of elements."""

    pointers: Operand
    elements: Operand
    result: Result

    def verify(self) -> None:
        pointers, elements = self.pointers.type, self.elements.type
        if not isinstance(pointers, TileType) or not isinstance(pointers.dtype, PointerType):
            raise self.fail(f"moves pointers, got {pointers}")
        if (
            not isinstance(elements, TileType)
            or elements.shape != pointers.shape
            or isinstance(elements.dtype, PointerType)
            or not elements.dtype.is_integer
        ):
            raise self.fail(f"takes integers of shape {pointers.shape}, got {elements}")
        if self.result.type != pointers:
            raise self.fail(f"the result is {pointers}, got {self.result.type}")


class _ElementsOp(Op):
    """Elements of a tensor, by one tile of indices per axis, all of one type."""

    tensor: Operand
    index: Operands

    def check_index(self, result: TileType) -> TensorType:
        tensor = self.tensor.type
        if not isinstance(tensor, TensorType):
            raise self.fail(f"takes a tensor, got {tensor}")
        if len(self.index) != tensor.rank:
            raise self.fail(f"the index has a tile for each of {tensor.rank} axes, got {len(self.index)}")
        for value in self.index:
            kind = value.type
            if (
                not isinstance(kind, TileType)
                or kind.shape != result.shape
                or isinstance(kind.dtype, PointerType)
                or kind.dtype.short not in ("i32", "i64")
                or kind != self.index[0].type
            ):
                raise self.fail(
                    f"indices are i32 or i64 tiles of one type and shape {result.shape}, got {kind}"
                )
        return tensor


class ElementPointersOp(_ElementsOp, mnemonic="element_pointers"):
    """The addresses of elements. Without meaning for an index that is not in the tensor.

    `promised` says that all are, or those in `mask`.
    """

    mask: OptionalOperand = None
    promised: bool = False
    result: Result

    def verify(self) -> None:
        result = self.result.type
        if not isinstance(result, TileType):
            raise self.fail(f"the result is a tile, got {result}")
        tensor = self.check_index(result)
        if result.dtype != PointerType(tensor.dtype):
            raise self.fail(f"the result is pointers to {tensor.dtype}, got {result}")
        if self.mask is not None and self.mask.type != TileType(bool_, result.shape):
            raise self.fail(f"the mask is a bool tile of shape {result.shape}, got {self.mask.type}")


class InBoundsOp(_ElementsOp, mnemonic="in_bounds"):
    """Which indices are in the tensor: from 0 up to below its extent, along every axis."""

    result: Result

    def verify(self) -> None:
        result = self.result.type
        if not isinstance(result, TileType) or result.dtype is not bool_:
            raise self.fail(f"the result is a bool tile, got {result}")
        self.check_index(result)


class LoadPointersOp(MemoryOp, mnemonic="load_pointers", effect="read"):
    """What pointers point to; `padding` where the mask is not set."""

    through = "pointers"
    orderings = LOAD_ORDERINGS
    pointers: Operand
    mask: OptionalOperand = None
    padding: OptionalOperand = None
    token: OptionalOperand = None
    latency: int | None = None
    ordering: str = "weak"
    scope: str | None = None
    result: Result
    result_token: Result

    def verify(self) -> None:
        kind = check_pointers(self, self.mask)
        if self.result.type != kind:
            raise self.fail(f"the result is {kind}, got {self.result.type}")
        if (self.mask is None) != (self.padding is None):
            raise self.fail("a mask comes with padding, and padding with a mask")
        if self.padding is not None and self.padding.type != kind:
            raise self.fail(f"the padding is {kind}, got {self.padding.type}")
        self.check_latency(self.latency)
        self.check_order()


class StorePointersOp(MemoryOp, mnemonic="store_pointers", effect="write"):
    """Write through pointers where the mask is set. Of two equal pointers, either value stays."""

    through = "pointers"
    orderings = STORE_ORDERINGS
    pointers: Operand
    tile: Operand
    mask: OptionalOperand = None
    token: OptionalOperand = None
    latency: int | None = None
    ordering: str = "weak"
    scope: str | None = None
    result_token: Result

    def verify(self) -> None:
        kind = check_pointers(self, self.mask)
        if self.tile.type != kind:
            raise self.fail(f"the tile is {kind}, got {self.tile.type}")
        self.check_latency(self.latency)
        self.check_order()


def check_pointers(op: MemoryOp, mask: OptionalOperand) -> TileType:
    """The type of the tile that the operation's pointers point to; checks its mask."""
    kind = op.accessed.type
    if not isinstance(kind, TileType) or not isinstance(kind.dtype, PointerType):
        raise op.fail(f"takes pointers, got {kind}")
    if mask is not None and mask.type != TileType(bool_, kind.shape):
        raise op.fail(f"the mask is a bool tile of shape {kind.shape}, got {mask.type}")
    return kind.with_dtype(kind.dtype.pointee)
