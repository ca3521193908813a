"""Telling the assembler what is known of numbers, as `assume` operations.

Matches the numbers that memory accesses depend on: dimensions of tensors, tile indices, and integer offsets and
row numbers that are scalars. States that they are multiples, where a precondition says so, and in what range
they lie, where that is narrower than their type. The assembler chooses between the tensor memory accelerator and plain
loads, and between 32-bit and 64-bit addresses, by these facts.

Refuses bounds that hold only if a launch check does (`needs` of `_ranges.py`), and constants, of which the
assembler knows all there is.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._terms import LaunchFacts, Term, constant
from ..ir import (
    AssumeBoundedOp,
    AssumeDivByOp,
    Block,
    ForOp,
    Function,
    IfOp,
    LoopOp,
    MakeTensorOp,
    MemoryOp,
    Op,
    Value,
    walk,
)
from ._pass import Pass
from ._ranges import NOTHING, Ranges, integer_scalar

__all__ = ["StateRanges"]

NO_FACTS = LaunchFacts()

_UPPER = ((1 << 12) - 1, (1 << 24) - 1)
"""Upper bounds worth stating, the tightest first."""


@dataclass(frozen=True)
class StateRanges(Pass):
    """Add `assume` operations for what is known of dimensions and indices.

    Attributes:
        facts: what the launcher sees to.
    """

    name = "state-ranges"
    facts: LaunchFacts = NO_FACTS

    def run(self, function: Function) -> bool:
        state = _Walk(function, self.facts)
        state.block(function.body)
        return state.changed


def _depends_on(op: Op) -> tuple[Value, ...]:
    """The numbers that an access or tensor depends on."""
    if isinstance(op, MakeTensorOp):
        return op.shape
    if isinstance(op, MemoryOp):
        index: tuple[Value, ...] = getattr(op, "index", ())
        return index
    return ()


class _Walk:
    """States a fact where the number is defined, so that it holds wherever it is used."""

    def __init__(self, function: Function, facts: LaunchFacts) -> None:
        self._ranges = Ranges(function, facts)
        self._multiples: dict[Term, int] = {}
        for term, divisor in facts.multiples:
            power = divisor & -divisor
            self._multiples[term] = max(power, self._multiples.get(term, 1))
        self._wanted = {value for op in walk(function.body) for value in _depends_on(op)}
        self._stated: dict[Value, Value] = {}
        self._makers: dict[Value, Op] = {}
        self.changed = False

    def block(self, block: Block) -> None:
        """State what is known of the numbers that a block defines."""
        with self._ranges.region():
            block.ops = self._operations(block)

    def _operations(self, block: Block) -> list[Op]:
        kept: list[Op] = []
        for value in block.arguments:
            self._state(value, kept)
        for op in block.ops:
            for result in op.results:
                self._makers[result] = op
            if any(value in self._stated for value in _depends_on(op)):
                op.replace_operands(self._stated)
            if isinstance(op, ForOp):
                self._ranges.enter_for(op)
            elif isinstance(op, LoopOp):
                self._ranges.enter_loop(op, ())
            for region in op.regions:
                if isinstance(op, IfOp):
                    with self._ranges.where(op.condition, region is op.then):
                        self.block(region)
                else:
                    self.block(region)
            self._ranges.visit(op)
            kept.append(op)
            for value in op.results:
                self._state(value, kept)
        return kept

    def _state(self, value: Value, kept: list[Op]) -> None:
        """Add what is assumed of `value` to `kept`, which ends with its definition."""
        if value not in self._wanted or integer_scalar(value) is None:
            return
        term = self._ranges.term(value)
        if term.number is not None:
            return
        result = self._with_bounds(value, term, kept)
        divisor = self._multiples.get(term, 1)
        if divisor > 1 and not self._is_assumed(value, divisor):
            result = self._add(AssumeDivByOp(source=result, divisor=divisor, result=_like(value)), kept)
        if result is not value:
            self._stated[value] = result

    def _with_bounds(self, value: Value, term: Term, kept: list[Op]) -> Value:
        dtype = integer_scalar(value)
        assert dtype is not None
        if self._ranges.fits(term, dtype) != NOTHING:
            return value
        lower = 0 if self._ranges.proves(term) == NOTHING else None
        upper = next((u for u in _UPPER if self._ranges.proves(constant(u) - term) == NOTHING), None)
        source = self._makers.get(value)
        while isinstance(source, AssumeDivByOp):
            source = self._makers.get(source.source)
        if isinstance(source, AssumeBoundedOp):
            lower = None if source.lower == lower else lower
            upper = None if source.upper == upper else upper
        if lower is None and upper is None:
            return value
        return self._add(AssumeBoundedOp(source=value, lower=lower, upper=upper, result=_like(value)), kept)

    def _is_assumed(self, value: Value, divisor: int) -> bool:
        source = self._makers.get(value)
        return isinstance(source, AssumeDivByOp) and source.divisor >= divisor

    def _add(self, op: AssumeBoundedOp | AssumeDivByOp, kept: list[Op]) -> Value:
        op.location = kept[-1].location if kept else None
        kept.append(op)
        self._makers[op.result] = op
        self._ranges.visit(op)
        self.changed = True
        return op.result


def _like(value: Value) -> Value:
    return Value(value.type, value.name)
