"""Loops: `for` over ranges, `while`, and those unrolled at compile time.

A `for` whose body has `break` becomes the IR's `loop`, with the counter carried along: the IR's `for`
cannot be left early. Ranges that count down, or whose step is known only at run time, count turns instead:
i = start + turn * step, for as many turns as Python makes, which is -((start - stop) // step).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..dtypes import DType, bool_, int32, int64
from ..ir import (
    AddOp,
    AssertOp,
    Block,
    BreakOp,
    CompareOp,
    ContinueOp,
    ForOp,
    IfOp,
    LoopOp,
    SelectOp,
    Value,
    YieldOp,
    scalar,
)
from ._carried import Carried, TypeChanged, ValueFound, plan_carried
from ._checks import NotZero
from ._expressions import evaluate
from ._frame import BROKE, CONTINUED, LEFT, Loop, Outcome, Returned
from ._iteration import items_of
from ._loop_exits import BROKEN, exit_names, filler, finish_loop, return_turns
from ._mapped import WalkValue
from ._operators import binary, emit_binary, truth
from ._promotion import cast
from ._syntax import assigned_names, breaks_out, returns
from ._values import VALUE, RangeValue, Unset, tile_type

if TYPE_CHECKING:
    from ._branches import After
    from ._frame import Frame
    from ._translator import Translator

__all__ = ["execute_for", "execute_loop", "execute_while", "leave_loop"]

MAX_ATTEMPTS = 6
"""How often a loop is translated again because of one carried number that has another type than assumed."""


def leave_loop(t: Translator, frame: Frame, how: str) -> Outcome:
    """Translate `break` or `continue`."""
    loop = frame.loops[-1]
    if loop.unrolled:
        if frame.branches > loop.branches:
            raise t.syntax(
                f"{how} of an unrolled loop needs a condition known at compile time; loop over range(...) "
                "to decide at run time"
            )
        return BROKE if how == "break" else CONTINUED
    if how == "break" and loop.has_else:
        frame.variables[BROKEN] = True
    if loop.trial:
        t.add(BreakOp(values=()))
    elif how == "break":
        t.add(BreakOp(values=loop.carried.current(t, frame)))
    else:
        values = loop.carried.current(t, frame)
        t.add(ContinueOp(values=(*loop.next_counter(), *values)))
    return LEFT


def execute_loop(
    t: Translator, frame: Frame, node: ast.For | ast.While, rest: list[ast.stmt], after: After
) -> Outcome:
    """Translate a loop that has `return` or `else`, and the statements that follow it."""
    from ._statements import execute_block

    if isinstance(node, ast.While):
        return finish_loop(t, frame, node, lambda: execute_while(t, frame, node), rest, after)
    items = evaluate(t, frame, node.iter)
    t.at(frame, node.iter)
    if not isinstance(items, RangeValue):
        turns = items_of(t, items, "a loop runs over")
        statements = return_turns(t, frame, node, turns)
        if statements is not None:
            return execute_block(t, frame, [*statements, *node.orelse, *rest], after)
        return finish_loop(t, frame, node, lambda: _unroll(t, frame, node, turns), rest, after)
    return finish_loop(t, frame, node, lambda: _for_range(t, frame, node, items), rest, after)


# ------------------------------------------------------------------ unrolled loops


def execute_for(t: Translator, frame: Frame, node: ast.For) -> Outcome:
    """Translate a `for` statement, but for its `else`."""
    items = evaluate(t, frame, node.iter)
    t.at(frame, node.iter)
    if isinstance(items, RangeValue):
        return _for_range(t, frame, node, items)
    return _unroll(t, frame, node, items_of(t, items, "a loop runs over"))


def _unroll(t: Translator, frame: Frame, node: ast.For, items: tuple[object, ...]) -> Outcome:
    from ._statements import assign, execute_block

    if not items:
        t.effects.leave_out(frame, node.body)
    for item in items:
        frame.loops.append(Loop(unrolled=True, branches=frame.branches))
        try:
            assign(t, frame, node.target, item)
            outcome = execute_block(t, frame, node.body, ())
        finally:
            frame.loops.pop()
        if outcome is BROKE:
            if BROKEN in exit_names(node):
                frame.variables[BROKEN] = True
            return None
        if isinstance(outcome, Returned) or outcome is LEFT:
            return outcome
    return None


# ------------------------------------------------------------------ loops at run time


def _for_range(t: Translator, frame: Frame, node: ast.For, items: RangeValue) -> Outcome:
    from ._statements import assign, execute_block

    where = t.location
    count = _Count(t, items)
    breaks = breaks_out(node.body) or returns(node.body)
    has_else = BROKEN in exit_names(node)

    def turn(counter: Value) -> Outcome:
        t.builder.location = where
        item = count.item(counter)
        if isinstance(items, WalkValue):
            item, inside = items.index(counter)
            if inside is not None:
                _skip_unless(t, frame, inside)
        assign(t, frame, node.target, item)
        return execute_block(t, frame, node.body, ())

    def build(carried: Carried) -> None:
        counter = Value(scalar(count.dtype), "i")
        arguments = carried.fresh()
        results = carried.fresh()
        initial = carried.initial(t)
        body = Block([counter, *arguments])
        carried.bind(frame, arguments)

        def next_counter() -> tuple[Value, ...]:
            return (emit_binary(t, AddOp, counter, count.step),) if breaks else ()

        loop = Loop(False, frame.branches, carried, next_counter=next_counter, has_else=has_else)
        loop.again = (counter, *arguments) if breaks else tuple(arguments)
        with t.inside(body):
            if breaks:
                more = CompareOp(lhs=counter, rhs=count.upper, predicate="lt", result=Value(scalar(bool_)))
                _leave_unless(t, frame, carried, t.add(more).result)
            _run_turn(t, frame, loop, lambda: turn(counter))
        t.builder.location = where
        if breaks:
            t.add(LoopOp(initial=(count.lower, *initial), body=body, final=tuple(results)))
        else:
            t.add(
                ForOp(
                    lower=count.lower,
                    upper=count.upper,
                    step=count.step,
                    initial=initial,
                    body=body,
                    final=tuple(results),
                )
            )
        carried.bind(frame, results)

    def trial() -> Outcome:
        return turn(Value(scalar(count.dtype)))

    _translate(t, frame, node, build, trial)
    return None


def execute_while(t: Translator, frame: Frame, node: ast.While) -> Outcome:
    """Translate a `while` statement, but for its `else`."""
    from ._statements import execute_block

    t.at(frame, node.test)
    where = t.location
    has_else = BROKEN in exit_names(node)

    def build(carried: Carried) -> None:
        arguments = carried.fresh()
        results = carried.fresh()
        initial = carried.initial(t)
        body = Block(list(arguments))
        carried.bind(frame, arguments)
        loop = Loop(False, frame.branches, carried, again=tuple(arguments), has_else=has_else)
        with t.inside(body):
            test = evaluate(t, frame, node.test)
            t.builder.location = where
            condition = truth(t, test, "while")
            if not isinstance(condition, bool):
                _leave_unless(t, frame, carried, condition)
            elif not condition:
                _leave_unless(t, frame, carried, t.constant(False, bool_))
            _run_turn(t, frame, loop, lambda: execute_block(t, frame, node.body, ()))
        t.builder.location = where
        t.add(LoopOp(initial=initial, body=body, final=tuple(results)))
        carried.bind(frame, results)

    def trial() -> Outcome:
        evaluate(t, frame, node.test)
        return execute_block(t, frame, node.body, ())

    _translate(t, frame, node, build, trial)
    return None


def _translate(
    t: Translator,
    frame: Frame,
    node: ast.For | ast.While,
    build: Callable[[Carried], None],
    trial: Callable[[], Outcome],
) -> None:
    """Build the loop, with the types its carried variables turn out to have."""
    where = t.location

    def try_turn(carried: Carried) -> None:
        has_else = BROKEN in exit_names(node)
        frame.loops.append(Loop(False, frame.branches, carried, trial=True, has_else=has_else))
        try:
            trial()
        finally:
            frame.loops.pop()

    body: list[ast.AST] = [*node.body, node.test] if isinstance(node, ast.While) else [*node.body]
    names = [*assigned_names(body), *exit_names(node)]
    carried = plan_carried(t, frame, names, try_turn)
    variables, checks = dict(frame.variables), len(t.checks)
    for _ in range(MAX_ATTEMPTS * (1 + len(carried.first))):
        t.builder.location = where
        try:
            build(carried)
        except TypeChanged as changed:
            carried.retype(t, changed)
            frame.variables = dict(variables)
            del t.checks[checks:]
        except ValueFound as found:
            frame.variables = dict(variables)
            del t.checks[checks:]
            t.builder.location = where
            frame.variables[VALUE] = filler(t, found.value)
            variables = dict(frame.variables)
            carried = plan_carried(t, frame, names, try_turn)
        else:
            break
    else:
        t.builder.location = where
        raise t.wrong_type("the types of the variables this loop carries do not settle; set them before it")
    targets = assigned_names([node.target]) if isinstance(node, ast.For) else []
    for name in dict.fromkeys([*targets, *assigned_names(body)]):
        if name in carried.before:
            continue
        if name in targets:
            frame.variables[name] = Unset(
                f"{name!r}, which the loop counts with, has no value behind it; keep what is needed in another "
                f"variable, set before the loop too, as in last = {name}"
            )
        else:
            frame.variables[name] = Unset(
                f"{name!r} has a value only inside of the loop, which may make no turn; set it before the loop"
            )


def _run_turn(t: Translator, frame: Frame, loop: Loop, turn: Callable[[], Outcome]) -> None:
    """Translate one turn and end its block."""
    frame.loops.append(loop)
    try:
        outcome = turn()
        assert not isinstance(outcome, Returned), "return leaves the loop"
        if outcome is None:
            values = loop.carried.current(t, frame)
            t.add(ContinueOp(values=(*loop.next_counter(), *values)))
    finally:
        frame.loops.pop()


def _leave_unless(t: Translator, frame: Frame, carried: Carried, condition: Value) -> None:
    """Leave the loop, with the carried variables as they are, unless `condition` holds."""
    then, otherwise = Block(), Block()
    with t.inside(then):
        t.add(YieldOp(values=()))
    with t.inside(otherwise):
        t.add(BreakOp(values=carried.current(t, frame)))
    t.add(IfOp(condition=condition, then=then, otherwise=otherwise, merged=()))


def _skip_unless(t: Translator, frame: Frame, condition: Value) -> None:
    """Go on with the next turn unless `condition` holds."""
    loop = frame.loops[-1]
    if loop.trial:
        return
    then, otherwise = Block(), Block()
    with t.inside(then):
        t.add(YieldOp(values=()))
    with t.inside(otherwise):
        values = loop.carried.current(t, frame)
        t.add(ContinueOp(values=(*loop.next_counter(), *values)))
    t.add(IfOp(condition=condition, then=then, otherwise=otherwise, merged=()))


class _Count:
    """How a range is counted: from `lower` below `upper` by `step`, which is positive."""

    def __init__(self, t: Translator, items: RangeValue) -> None:
        self._t = t
        self.dtype = _counter_dtype(t, items)
        # ints stay ints here, so that what is known is computed now
        parts = [
            cast(t, part, self.dtype) if isinstance(part, Value) else part
            for part in (items.start, items.stop, items.step)
        ]
        self._start, stop, self._step = parts
        known = self._step > 0 if isinstance(self._step, int) else self._step in t.positive
        self._turns = not (known or isinstance(items, WalkValue))
        if self._turns:
            divisor = self._step if isinstance(self._step, int) else self._nonzero(items.step, self._step)
            turns = binary(t, "//", binary(t, "-", self._start, stop), divisor)
            self.lower = self._value(0)
            self.upper = self._value(binary(t, "-", 0, turns))
            self.step = self._value(1)
        else:
            self.lower, self.upper = self._value(self._start), self._value(stop)
            self.step = self._value(self._step)

    def item(self, counter: Value) -> object:
        """The range's item in the turn with that counter."""
        if not self._turns:
            return counter
        return binary(self._t, "+", self._start, binary(self._t, "*", counter, self._step))

    def _value(self, part: object) -> Value:
        if isinstance(part, Value):
            return part
        assert isinstance(part, int)
        return self._t.constant(part, self.dtype)

    def _nonzero(self, given: object, step: Value) -> Value:
        """`step`, which is not 0: checked before the launch where it is an argument, else in the kernel."""
        t = self._t
        assert isinstance(given, Value)
        if given in t.entry:
            where = f" ({t.location})" if t.location else ""
            reason = f"but the step of a range{where} is not"
            t.checks.append(NotZero(t.entry[given], given.name, reason, t.location))
            return step
        zero, one = self._value(0), self._value(1)
        fine = Value(scalar(bool_))
        t.add(CompareOp(lhs=step, rhs=zero, predicate="ne", result=fine))
        t.add(AssertOp(condition=fine, message="the step of range is 0"))
        return t.add(SelectOp(condition=fine, if_true=step, if_false=one, result=Value(step.type))).result


def _counter_dtype(t: Translator, items: RangeValue) -> DType:
    """int32, or int64 where a bound has that type or is a number that needs it."""
    dtype = int32
    for part in (items.start, items.stop, items.step):
        if not isinstance(part, Value):
            dtype = dtype if int32.holds(part) else int64
            continue
        own = tile_type(part).number
        if own.kind == "uint" and own.bits >= 32:
            raise t.wrong_type(f"range takes signed integers, got {own.name}; cast it to int32 or int64")
        dtype = int64 if own is int64 else dtype
    return dtype
