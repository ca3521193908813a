"""Reductions and scans with a function of the user's, which is a region.

The body combines two groups of scalars, one per source: its arguments are first what is there already, then
what comes to it, and it ends with `yield` of the combination. It is associative and `identities` are neutral
in it. It only computes: its operations have no effects, though an `if` may choose between them.
"""

from __future__ import annotations

from ..dtypes import DType, bool_
from ._op import Block, Op, Operands, Region, Results
from ._types import TileType, scalar

__all__ = ["CombineOp", "ReduceWithOp", "ScanWithOp"]


class CombineOp(Op):
    """Base of the two: sources of one shape, combined along `axis`."""

    sources: Operands
    axis: int
    identities: tuple[bool | int | float, ...]
    body: Region
    combined: Results

    def element_types(self) -> list[TileType]:
        """The types of the scalars that are combined, one per source."""
        found = []
        for value in self.sources:
            kind = value.type
            if not isinstance(kind, TileType) or not isinstance(kind.dtype, DType) or kind.dtype.restricted:
                raise self.fail(f"combines tiles of numbers to compute with, got {kind}")
            found.append(scalar(kind.dtype))
        return found

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the results, by that of the sources."""
        raise NotImplementedError

    def verify(self) -> None:
        kinds = self.element_types()
        shapes = {value.type.shape for value in self.sources if isinstance(value.type, TileType)}
        if len(shapes) != 1:
            raise self.fail(f"combines one tile or several of one shape, got {len(self.sources)}")
        (shape,) = shapes
        if not 0 <= self.axis < len(shape):
            raise self.fail(f"axis {self.axis} of tiles of rank {len(shape)}")
        if len(self.identities) != len(kinds):
            raise self.fail(f"{len(kinds)} tiles have as many identities, got {len(self.identities)}")
        for identity, kind in zip(self.identities, kinds, strict=True):
            dtype = kind.number
            wanted: type = float if dtype.is_float else bool if dtype is bool_ else int
            if type(identity) is not wanted:
                raise self.fail(f"an identity of {dtype} is {wanted.__name__}, got {identity!r}")
        if [v.type for v in self.body.arguments] != kinds * 2:
            raise self.fail("the body's arguments are two scalars of each tile's element type")
        wanted_results = [kind.with_shape(self.result_shape(shape)) for kind in kinds]
        if [v.type for v in self.combined] != wanted_results:
            raise self.fail(f"the results are {', '.join(map(str, wanted_results))}")
        self._verify_body(self.body)

    def _verify_body(self, block: Block) -> None:
        for op in block.ops:
            if op.mnemonic not in ("if", "yield") and (op.effect != "none" or isinstance(op, CombineOp)):
                raise self.fail(f"its body only computes scalars, and has {op.mnemonic}")
            for region in op.regions:
                self._verify_body(region)


class ReduceWithOp(CombineOp, mnemonic="reduce_with"):
    """All elements along `axis` made one, in an open order; the axis is gone afterwards."""

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[: self.axis] + shape[self.axis + 1 :]


class ScanWithOp(CombineOp, mnemonic="scan_with"):
    """Running combination along `axis`, each element included; from the end where `reverse`."""

    reverse: bool = False

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape
