"""Turns of a loop that access different memory, and so need no order.

Matches a loop that only loads from a root; and a `for` whose accesses to a root all go through views of one
tensor that, along one axis of it, have tiles of one size without overlap, at one index that differs from turn
to turn: the counter, plus or minus what the loop does not change, times a constant other than 0. Then two
turns have no element in common, whatever else their indices are.

Integers wrap, so the product is taken only where the index moves by less than half of the numbers there are:
it cannot come round to an index that it had without one in between that is no index at all.

The numbers of a tile that a walk over a mapped partition gives differ from turn to turn when taken together: an
index that has all of them is as good as a counter.

Refuses everything else: loads that look for what other blocks write, indices from memory, pointers, tiles
that overlap, tensors whose elements may overlap, and two indices that differ from each other by more than
nothing (a store to tile i and a load of tile i + 1 meet in the next turn).
"""

from __future__ import annotations

from typing import NamedTuple

from ..ir import (
    AddOp,
    AssumeBelowOp,
    AssumeBoundedOp,
    AssumeDivByOp,
    AtomicReduceOp,
    Block,
    CastOp,
    ConstantOp,
    ForOp,
    Function,
    LoadOp,
    LoopOp,
    MakeTensorOp,
    MakeViewOp,
    MemoryOp,
    MulOp,
    NegOp,
    Op,
    StoreOp,
    SubOp,
    TileType,
    Value,
    ViewType,
    walk,
)

__all__ = ["LoopDistinct"]

_HALF = 1 << 31


class _Linear(NamedTuple):
    """counter * factor + constant + the sum of other values, each times a number."""

    factor: int
    constant: int
    others: frozenset[tuple[Value, int]]


class LoopDistinct:
    """Answers for one function, as it is before it is rewritten."""

    def __init__(self, function: Function, roots: dict[Value, tuple[Value, ...]]) -> None:
        self._roots = roots
        self._made: dict[Value, Op] = {}
        self._depends: dict[Op, set[Value]] = {}
        self._walked: dict[Op, list[AssumeBelowOp]] = {}
        for op in walk(function.body):
            self._made.update(dict.fromkeys(op.results, op))
        self._accesses: dict[tuple[Op, Value], list[MemoryOp]] = {}
        self._collect(function.body, [])

    def _collect(self, block: Block, loops: list[Op]) -> None:
        for op in block.ops:
            for loop in loops:
                self._depends[loop].update(op.results)
                if loop is loops[-1] and isinstance(op, AssumeBelowOp) and op.parts:
                    self._walked.setdefault(loop, []).append(op)
                if isinstance(op, MemoryOp):
                    for root in self._roots[op.accessed]:
                        self._accesses.setdefault((loop, root), []).append(op)
            inner = [*loops, op] if isinstance(op, ForOp | LoopOp) else loops
            if isinstance(op, ForOp | LoopOp):
                self._depends[op] = set()
            for region in op.regions:
                for loop in inner:
                    self._depends[loop].update(region.arguments)
                self._collect(region, inner)

    def writes(self, loop: ForOp | LoopOp, root: Value) -> bool:
        """True when the loop stores to the root."""
        return any(op.effect == "write" for op in self._accesses.get((loop, root), ()))

    def apart(self, loop: ForOp | LoopOp, root: Value) -> bool:
        """True when no turn of the loop stores what another one accesses of the root."""
        accesses = self._accesses.get((loop, root), ())
        if any(op.effect == "read" and op.ordering != "weak" for op in accesses):
            return False
        if not self.writes(loop, root):
            return True
        if not isinstance(loop, ForOp):
            return False
        common: set[object] | None = None
        for op in accesses:
            own = self._axes(loop, op)
            common = own if common is None else common & own
        return bool(common)

    def _axes(self, loop: ForOp, op: MemoryOp) -> set[object]:
        """The axes along which an access differs from turn to turn: with tensor, tile and index, to be compared."""
        view = op.accessed.type
        maker = self._made.get(op.accessed)
        if not isinstance(op, LoadOp | StoreOp | AtomicReduceOp) or not isinstance(view, ViewType):
            return set()
        if not isinstance(maker, MakeViewOp):
            return set()
        tensor = self._made.get(maker.tensor)
        if not isinstance(tensor, MakeTensorOp) or tensor.overlapping or maker.tensor in self._depends[loop]:
            return set()
        found: set[object] = set()
        walked = self._walked.get(loop, [])
        numbers = [one.result for one in walked]
        index = tuple([self._without_facts(number) for number in op.index])
        if walked and len(walked) == walked[0].parts and set(numbers) <= set(index):
            sides = zip(view.tile_shape, view.starts_every, strict=True)
            if all(step >= side for side, step in sides):
                found.add((maker.tensor, view.order, view.tile_shape, view.starts_every, index))
        for axis, number in enumerate(op.index):
            side, step = view.tile_shape[axis], view.starts_every[axis]
            linear = self._linear(loop, number)
            if step >= side and linear is not None and self._is_injective(loop, linear):
                found.add((maker.tensor, view.order[axis], side, step, linear))
        return found

    def _without_facts(self, value: Value) -> Value:
        """The number that facts were stated of, or the number of a walk's tile."""
        while isinstance(op := self._made.get(value), AssumeDivByOp | AssumeBoundedOp):
            value = op.source
        return value

    def _is_injective(self, loop: ForOp, linear: _Linear) -> bool:
        if abs(linear.factor) == 1:
            return True
        step = self._made.get(loop.step)
        if not isinstance(step, ConstantOp) or not isinstance(step.value, int):
            return False
        return linear.factor != 0 and abs(linear.factor * step.value) < _HALF

    def _linear(self, loop: ForOp, value: Value) -> _Linear | None:
        if value is loop.body.arguments[0]:
            return _Linear(1, 0, frozenset())
        op = self._made.get(value)
        if isinstance(op, ConstantOp) and isinstance(op.value, int):
            return _Linear(0, op.value, frozenset())
        if isinstance(op, AssumeDivByOp | AssumeBoundedOp | AssumeBelowOp):
            return self._linear(loop, op.source)
        if isinstance(op, CastOp) and _loses_nothing(op):
            return self._linear(loop, op.source)
        if isinstance(op, AddOp | SubOp):
            lhs, rhs = self._linear(loop, op.lhs), self._linear(loop, op.rhs)
            if lhs is None or rhs is None:
                return None
            return _sum(lhs, _times(rhs, -1 if isinstance(op, SubOp) else 1))
        if isinstance(op, NegOp):
            source = self._linear(loop, op.source)
            return None if source is None else _times(source, -1)
        if isinstance(op, MulOp):
            lhs, rhs = self._linear(loop, op.lhs), self._linear(loop, op.rhs)
            if lhs is not None and rhs is not None:
                for number, other in ((lhs, rhs), (rhs, lhs)):
                    if not number.factor and not number.others:
                        return _times(other, number.constant)
        if value in self._depends[loop]:
            return None
        return _Linear(0, 0, frozenset({(value, 1)}))


def _loses_nothing(op: CastOp) -> bool:
    source, result = op.source.type, op.result.type
    assert isinstance(source, TileType)
    assert isinstance(result, TileType)
    return source.number.is_integer and result.number.is_integer and result.number.bits >= source.number.bits


def _sum(a: _Linear, b: _Linear) -> _Linear:
    others = dict(a.others)
    for value, number in b.others:
        others[value] = others.get(value, 0) + number
    kept = frozenset({(value, number) for value, number in others.items() if number})
    return _Linear(a.factor + b.factor, a.constant + b.constant, kept)


def _times(linear: _Linear, number: int) -> _Linear:
    others = frozenset({(value, count * number) for value, count in linear.others if number})
    return _Linear(linear.factor * number, linear.constant * number, others)
