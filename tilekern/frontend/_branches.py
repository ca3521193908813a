"""`if`, conditional expressions, `and` and `or` on conditions known only at run time.

Both sides are translated into blocks of their own, each starting from the variables as they were. What
differs afterwards becomes a result of the IR's `if`; a variable that cannot be one (set on one side only,
or of two types) has no value from there on, and using it is an error that says why.

A side may leave the loop (`break`, `continue`): only the other side's variables go on then. When a side
returns from its function, what follows the statement is translated inside of both sides, so that `if`
yields the function's value and nothing follows it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir import Block, BreakOp, ContinueOp, IfOp, Value, YieldOp
from ._aggregates import leaves, rebuild, same_structure
from ._frame import LEFT, Outcome, Returned
from ._loop_exits import MAX_RETURNING_TURNS, run_time_loop
from ._merge import Kind, coerce, kind_of, merged_kind, same
from ._syntax import returns
from ._values import RawMemoryValue, TensorValue, TiledViewValue, Unset, describe, is_pointer, is_tile

if TYPE_CHECKING:
    from ._frame import Frame
    from ._translator import Translator

__all__ = ["After", "choose", "execute_if", "unreachable"]

DIFFERENT = Unset("the sides differ")

After = tuple[list[ast.stmt], ...]
"""Statements that follow a block, up to the end of the function or loop body, innermost block first."""


@dataclass
class _Side:
    """One translated side of a branch."""

    block: Block
    outcome: Outcome
    variables: dict[str, object]
    value: object = None

    @property
    def goes_on(self) -> bool:
        return self.outcome is not LEFT


def _translate_side(t: Translator, frame: Frame, run: Callable[[], Outcome]) -> _Side:
    outer = frame.variables
    frame.variables = dict(outer)
    frame.branches += 1
    try:
        with t.inside(Block()) as block:
            outcome = run()
        return _Side(block, outcome, frame.variables)
    finally:
        frame.variables = outer
        frame.branches -= 1


def choose(
    t: Translator,
    frame: Frame,
    condition: Value,
    then: Callable[[], object],
    otherwise: Callable[[], object],
) -> object:
    """The value of one of two expressions."""
    where = t.location
    sides: list[_Side] = []
    frame.sides += 1
    for expression in (then, otherwise):
        values: list[object] = []
        side = _translate_side(t, frame, lambda e=expression, v=values: v.append(e()))  # type: ignore[misc]
        side.value = values[0]
        sides.append(side)
    frame.sides -= 1
    t.builder.location = where
    a, b = sides[0].value, sides[1].value
    merger = _Merger(t)
    merged = merger.merge(a, b)
    if merged is DIFFERENT:
        raise t.wrong_type(
            f"the two sides of a condition known only at run time give {describe(a)} and {describe(b)}; "
            "they must be one type"
        )
    merger.emit(condition, sides[0].block, sides[1].block)
    return merged


def execute_if(
    t: Translator, frame: Frame, node: ast.If, condition: Value, rest: list[ast.stmt], after: After
) -> Outcome:
    """Translate an `if` statement on a run-time condition.

    `rest` follows it in its own block, `after` further out. Where a side returns, both are translated
    here and the outcome is final.
    """
    from ._statements import execute_block

    where = t.location
    returning = returns([*node.body, *node.orelse])
    if returning and run_time_loop(frame) is not None:
        returning = False  # there `return` leaves the loop like `break`
    elif returning and frame.loops:
        raise t.syntax(
            "return at run time is not possible inside of an unrolled loop that has break or continue, or more than "
            f"{MAX_RETURNING_TURNS} turns; loop over range(...), or set a variable and return it after the loop"
        )

    def side(body: list[ast.stmt]) -> Callable[[], Outcome]:
        def run() -> Outcome:
            if not returning:
                return execute_block(t, frame, body, ())
            outcome: Outcome = None
            chain: After = (body, rest, *after)
            for position, block in enumerate(chain):
                outcome = execute_block(t, frame, block, chain[position + 1 :])
                if outcome is not None:
                    return outcome
            return Returned(None)

        return run

    then = _translate_side(t, frame, side(node.body))
    otherwise = _translate_side(t, frame, side(node.orelse))
    t.builder.location = where
    for one in (then, otherwise):
        if one.outcome not in (None, LEFT) and not isinstance(one.outcome, Returned):
            raise t.syntax(
                "break and continue of an unrolled loop need a condition known at compile time; loop over "
                "range(...) instead of tk.static_iter(...)"
            )
    if returning:
        return _finish_return(t, condition, then, otherwise)
    if not then.goes_on and not otherwise.goes_on:
        t.add(IfOp(condition=condition, then=then.block, otherwise=otherwise.block, merged=()))
        unreachable(t, frame)
        return LEFT
    merger = _Merger(t)
    merged: dict[str, object] = {}
    if not then.goes_on or not otherwise.goes_on:
        going = otherwise if otherwise.goes_on else then
        for name, value in going.variables.items():
            merged[name] = merger.carry(value, frame.variables.get(name), going is then)
    else:
        for name in {**then.variables, **otherwise.variables}:
            a = then.variables.get(name, _missing(name, "if"))
            b = otherwise.variables.get(name, _missing(name, "else"))
            value = merger.merge(a, b)
            merged[name] = _why(name, a, b) if value is DIFFERENT else value
    merger.emit(condition, then.block, otherwise.block)
    frame.variables = merged
    return None


def _finish_return(t: Translator, condition: Value, then: _Side, otherwise: _Side) -> Outcome:
    """The `if` of a function whose sides both end it: it yields the function's value."""
    assert isinstance(then.outcome, Returned)
    assert isinstance(otherwise.outcome, Returned)
    a, b = then.outcome.value, otherwise.outcome.value
    merger = _Merger(t)
    merged = merger.merge(a, b)
    if merged is DIFFERENT:
        raise t.wrong_type(
            f"the function returns {describe(a)} or {describe(b)}, depending on a run-time condition; "
            "it must return one type"
        )
    merger.emit(condition, then.block, otherwise.block)
    return Returned(merged)


def _missing(name: str, side: str) -> Unset:
    return Unset(f"{name!r} is set on one side of a run-time condition only; set it before the `if` too")


def _why(name: str, a: object, b: object) -> Unset:
    for value in (a, b):
        if isinstance(value, Unset):
            return value
    return Unset(
        f"{name!r} is {describe(a)} or {describe(b)}, depending on a run-time condition; make both one type"
    )


def unreachable(t: Translator, frame: Frame) -> None:
    """End the current block of a loop body behind code that never gets there."""
    loop = frame.loops[-1]
    t.add(BreakOp(values=()) if loop.trial else ContinueOp(values=loop.again))


class _Merger:
    """Collects the results an `if` needs, then makes it."""

    def __init__(self, t: Translator) -> None:
        self._t = t
        self._results: list[Value] = []
        self._parts: list[tuple[object, object]] = []
        self._found: dict[tuple[int, int], Value] = {}

    def merge(self, a: object, b: object) -> object:
        """What a variable is after the branch that is `a` on one side and `b` on the other.

        Parts that differ become results of the `if`. `DIFFERENT` when they have no type in common.
        """
        if isinstance(a, Unset) or isinstance(b, Unset) or not same_structure(a, b):
            return a if a is b else DIFFERENT
        parts: list[object] = []
        for x, y in zip(leaves(a), leaves(b), strict=True):
            kind = None if same(x, y) else merged_kind(x, y)
            if kind is None and not same(x, y):
                return DIFFERENT
            parts.append(x if kind is None else self._result(x, y, kind))
        return rebuild(a, iter(parts))

    def carry(self, value: object, before: object, from_then: bool) -> object:
        """A variable of the only side that goes on; the tiles that side made become results."""
        old = {id(part) for part in leaves(before)}
        parts: list[object] = []
        for part in leaves(value):
            if id(part) not in old and _is_of_branch(part):
                return DIFFERENT
            if not (is_tile(part) or is_pointer(part)) or id(part) in old:
                parts.append(part)
            elif from_then:
                parts.append(self._result(part, None, kind_of(part)))
            else:
                parts.append(self._result(None, part, kind_of(part)))
        return rebuild(value, iter(parts))

    def _result(self, a: object, b: object, kind: Kind) -> Value:
        key = (id(a), id(b))
        if key not in self._found:
            self._found[key] = kind.value()
            self._results.append(self._found[key])
            self._parts.append((a, b))
        return self._found[key]

    def emit(self, condition: Value, then: Block, otherwise: Block) -> None:
        """Add the `if`, with a yield at the end of each side that goes on."""
        t = self._t
        for side, block in enumerate((then, otherwise)):
            if block.terminator is None:
                with t.inside(block):
                    values = [
                        coerce(t, parts[side], kind_of(result))
                        for parts, result in zip(self._parts, self._results, strict=True)
                    ]
                    t.add(YieldOp(values=tuple(values)))
        t.add(IfOp(condition=condition, then=then, otherwise=otherwise, merged=tuple(self._results)))


def _is_of_branch(value: object) -> bool:
    """True for tensors and views that a branch made: they cannot leave it."""
    if isinstance(value, TensorValue):
        return value.is_derived
    return isinstance(value, TiledViewValue) or (
        isinstance(value, RawMemoryValue) and value.tensor.is_derived
    )
