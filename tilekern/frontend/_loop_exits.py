"""Leaving loops by `return`, and `else` of loops: by variables that no Python code can name.

The IR leaves one loop at a time and knows no function's end inside of one. So

    for i in range(n):                         RETURNED, VALUE = False, nothing
        if found(i):                           for i in range(n):
            return i              becomes          if found(i):
    return -1                                          VALUE, RETURNED = i, True
                                                       break
                                               if RETURNED:
                                                   return VALUE
                                               return -1

and inside of a further loop the `return` after it leaves that one in the same way. What VALUE is before the
loop is worked out from what is returned: zeros of those types, which nothing reads. `else` of a loop with
`break` runs if the variable BROKEN is not set. An unrolled loop that returns is written out as
statements, since what follows it then depends on the condition like everything after an early return.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..dtypes import DType
from ..ir import BreakOp
from ._aggregates import leaves, rebuild
from ._frame import LEFT, Loop, Outcome
from ._syntax import breaks_out, continues, returns
from ._values import VALUE, Loose, Nothing, is_tile, tile_type

if TYPE_CHECKING:
    from ._branches import After
    from ._frame import Frame
    from ._translator import Translator

__all__ = [
    "BROKEN",
    "MAX_RETURNING_TURNS",
    "RETURNED",
    "Action",
    "exit_names",
    "filler",
    "finish_loop",
    "leave_by_return",
    "return_turns",
    "run_time_loop",
]

RETURNED = "the return in a loop"
BROKEN = "the break of a loop"

MAX_RETURNING_TURNS = 64
"""Most turns of an unrolled loop that returns at run time: each nests in the one before."""


class Action(ast.stmt):
    """A statement that no source has: something to be done between others."""

    def __init__(self, run: Callable[[], object]) -> None:
        super().__init__()
        self.run = run


def run_time_loop(frame: Frame) -> Loop | None:
    """The innermost loop around that is not unrolled."""
    return next((loop for loop in reversed(frame.loops) if not loop.unrolled), None)


def exit_names(node: ast.For | ast.While) -> list[str]:
    """Which of the variables above a loop needs."""
    names = [RETURNED, VALUE] if returns(node.body) else []
    return [*names, BROKEN] if node.orelse and breaks_out(node.body) else names


def leave_by_return(t: Translator, frame: Frame, loop: Loop, value: object, node: ast.AST) -> Outcome:
    """Translate `return` inside of a loop."""
    frame.variables[VALUE], frame.variables[RETURNED] = value, True
    frame.set_at[VALUE] = frame.set_at[RETURNED] = node
    t.add(BreakOp(values=() if loop.trial else loop.carried.current(t, frame)))
    return LEFT


def finish_loop(
    t: Translator,
    frame: Frame,
    node: ast.For | ast.While,
    run: Callable[[], Outcome],
    rest: list[ast.stmt],
    after: After,
) -> Outcome:
    """Translate a loop that needs such variables, and what follows it."""
    from ._statements import execute_block

    names = exit_names(node)
    before = {name: frame.variables.get(name) for name in names}
    inside = run_time_loop(frame) is not None
    for name in names:
        if not (inside and name in (RETURNED, VALUE) and before[name] is not None):
            frame.variables[name] = Nothing() if name == VALUE else False
    outcome = run()
    if outcome is not None:
        return outcome

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                frame.variables.pop(name, None)
            else:
                frame.variables[name] = value

    following: list[ast.stmt] = []
    if RETURNED in names:
        place = next(part for part in ast.walk(node) if isinstance(part, ast.Return))
        leave = _at(place, ast.Return(_at(place, ast.Name(VALUE, ast.Load()))))
        endless = isinstance(node, ast.While) and _is_true(node.test) and not breaks_out(node.body)
        if endless and frame.variables[RETURNED] is not False:
            return execute_block(t, frame, [leave], after)
        test = _at(place, ast.Name(RETURNED, ast.Load()))
        following.append(_at(place, ast.If(test, [leave], [])))
    if BROKEN in names:
        first = node.orelse[0]
        unless = _at(first, ast.UnaryOp(ast.Not(), _at(first, ast.Name(BROKEN, ast.Load()))))
        following.append(_at(first, ast.If(unless, node.orelse, [])))
    else:
        following += node.orelse
    return execute_block(t, frame, [*following, Action(restore), *rest], after)


NodeT = TypeVar("NodeT", bound=ast.AST)


def _at(place: ast.AST, node: NodeT) -> NodeT:
    return ast.copy_location(node, place)


def _is_true(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and bool(test.value)


def return_turns(
    t: Translator, frame: Frame, node: ast.For, items: tuple[object, ...]
) -> list[ast.stmt] | None:
    """The turns of an unrolled loop with `return` as statements; None where it is to be unrolled as others are."""
    from ._statements import assign

    if (
        not returns(node.body)
        or frame.loops
        or breaks_out(node.body)
        or continues(node.body)
        or len(items) > MAX_RETURNING_TURNS
    ):
        return None
    statements: list[ast.stmt] = []
    for item in items:
        statements.append(Action(lambda item=item: assign(t, frame, node.target, item)))  # type: ignore[misc]
        statements += node.body
    return statements


def filler(t: Translator, value: object) -> object:
    """Something of the same type, for before anything is returned."""
    return rebuild(value, iter([_filler_leaf(t, leaf) for leaf in leaves(value)]))


def _filler_leaf(t: Translator, leaf: object) -> object:
    if not is_tile(leaf):
        return leaf
    kind = tile_type(leaf)
    if not isinstance(kind.dtype, DType):
        raise t.wrong_type("pointers cannot be returned from inside of a loop; return their offset")
    if isinstance(leaf, Loose):
        return 0.0 if kind.dtype.is_float else 0
    return t.constant(0, kind.dtype, kind.shape)
