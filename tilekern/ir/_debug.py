"""Operations for finding mistakes in kernels."""

from __future__ import annotations

from ..dtypes import bool_
from ._op import Op, Operand
from ._types import TileType

__all__ = ["AssertOp"]


class AssertOp(Op, mnemonic="assert", effect="control"):
    """Stop with `message` unless every element of a bool tile is true."""

    condition: Operand
    message: str

    def verify(self) -> None:
        kind = self.condition.type
        if not isinstance(kind, TileType) or kind.dtype is not bool_:
            raise self.fail(f"the condition is a bool tile, got {kind}")
