"""Operations for finding mistakes in kernels."""

from __future__ import annotations

import re

from ..dtypes import DType, bool_
from ._op import Op, Operand, Operands
from ._types import TileType

__all__ = ["CONVERSION", "AssertOp", "PrintOp"]

CONVERSION = re.compile(r"%(?:%|([-+ #0]*\d*(?:\.\d+)?)([diuxXofFeEgG]))")
"""A conversion of a format: flags, width and precision, and what it makes; or the two that stand for %."""


class AssertOp(Op, mnemonic="assert", effect="control"):
    """Stop with `message` unless every element of a bool tile is true.

    `bounds` marks a check of a tile index: "here" next to the access, "ahead" in front of loops around it.
    """

    condition: Operand
    message: str
    bounds: str = ""

    def verify(self) -> None:
        if self.bounds not in ("", "here", "ahead"):
            raise self.fail(f"bounds is here, ahead or empty, got {self.bounds}")
        kind = self.condition.type
        if not isinstance(kind, TileType) or kind.dtype is not bool_:
            raise self.fail(f"the condition is a bool tile, got {kind}")


class PrintOp(Op, mnemonic="print", effect="control"):
    """Print `text`, with a conversion for each value (`CONVERSION`; of a tile, for each of its elements)."""

    values: Operands
    text: str

    def verify(self) -> None:
        found = [match for match in CONVERSION.finditer(self.text) if match.group() != "%%"]
        if "%" in CONVERSION.sub("", self.text):
            raise self.fail(f"a % in {self.text!r} begins no conversion")
        if len(found) != len(self.values):
            raise self.fail(f"{len(found)} conversions for {len(self.values)} values")
        for match, value in zip(found, self.values, strict=True):
            kind = value.type
            if not isinstance(kind, TileType) or not isinstance(kind.dtype, DType):
                raise self.fail(f"prints tiles of numbers, got {kind}")
            if kind.dtype.is_float != (match.group(2) in "fFeEgG"):
                raise self.fail(f"{match.group()} for {kind}")
