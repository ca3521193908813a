"""Control flow: branches, loops, and the terminators that leave them."""

from __future__ import annotations

from ..dtypes import bool_
from ._op import Op, Operand, Operands, Region, Results
from ._types import TileType, TokenType, Type, scalar

__all__ = ["BreakOp", "ContinueOp", "ForOp", "IfOp", "LoopOp", "ReturnOp", "YieldOp"]


def _may_be_carried(kind: Type) -> bool:
    """Views cannot leave the block that makes them; tiles and tokens can."""
    return isinstance(kind, TileType | TokenType)


class IfOp(Op, mnemonic="if", effect="control"):
    """Run one of two blocks. Each ends with `yield` of the results, or leaves the loop or kernel."""

    condition: Operand
    then: Region
    otherwise: Region
    merged: Results

    def verify(self) -> None:
        if self.condition.type != scalar(bool_):
            raise self.fail(f"the condition is a bool, got {self.condition.type}")
        if self.then.arguments or self.otherwise.arguments:
            raise self.fail("branches take no arguments")
        if not all(_may_be_carried(v.type) for v in self.results):
            raise self.fail("only tiles and tokens can be results")


class ForOp(Op, mnemonic="for", effect="control"):
    """Count from `lower` up to below `upper` by `step` > 0, carrying values from turn to turn.

    The body's arguments are the counter, then the carried values; it ends with `continue` of the next ones.
    """

    lower: Operand
    upper: Operand
    step: Operand
    initial: Operands
    body: Region
    final: Results

    def verify(self) -> None:
        counter = self.lower.type
        if not isinstance(counter, TileType) or counter.shape or not counter.number.is_integer:
            raise self.fail(f"bounds are integer scalars, got {counter}")
        if self.upper.type != counter or self.step.type != counter:
            raise self.fail(
                f"bounds and step have one type, got {counter}, {self.upper.type}, {self.step.type}"
            )
        carried = [v.type for v in self.initial]
        if [v.type for v in self.body.arguments] != [counter, *carried]:
            raise self.fail("the body's arguments are the counter and the carried values")
        if [v.type for v in self.results] != carried:
            raise self.fail("the results have the types of the carried values")
        if not all(map(_may_be_carried, carried)):
            raise self.fail("only tiles and tokens can be carried")


class LoopOp(Op, mnemonic="loop", effect="control"):
    """Repeat until `break`, which gives the results; `continue` gives the next turn's arguments."""

    initial: Operands
    body: Region
    final: Results

    def verify(self) -> None:
        carried = [v.type for v in self.initial]
        if [v.type for v in self.body.arguments] != carried:
            raise self.fail("the body's arguments are the carried values")
        if not all(map(_may_be_carried, carried)) or not all(_may_be_carried(v.type) for v in self.results):
            raise self.fail("only tiles and tokens can be carried")


class YieldOp(Op, mnemonic="yield", effect="control", terminator=True):
    """End a branch; the values become the results of its `if`."""

    values: Operands


class ContinueOp(Op, mnemonic="continue", effect="control", terminator=True):
    """End a turn of the innermost loop, with the values of the next one."""

    values: Operands


class BreakOp(Op, mnemonic="break", effect="control", terminator=True):
    """Leave the innermost `loop`; the values become its results."""

    values: Operands


class ReturnOp(Op, mnemonic="return", effect="control", terminator=True):
    """End the kernel."""
