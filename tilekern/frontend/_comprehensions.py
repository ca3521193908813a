"""Comprehensions: unrolled, with variables of their own. A list or generator gives a tuple."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._frame import Frame
from ._iteration import MAX_UNROLLED, items_of
from ._operators import truth
from ._source import FunctionSource

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = ["dict_comprehension", "list_comprehension"]

_NO_ARGUMENTS = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def list_comprehension(t: Translator, frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> object:
    """`[element for ...]` and `(element for ...)`: a tuple."""
    from ._expressions import evaluate

    found: list[object] = []
    _run(t, frame, node, node.elt, lambda inner: found.append(evaluate(t, inner, node.elt)))
    return tuple(found)


def dict_comprehension(t: Translator, frame: Frame, node: ast.DictComp) -> object:
    """`{key: value for ...}`."""
    from ._expressions import evaluate, static_key

    found: dict[object, object] = {}

    def add(inner: Frame) -> None:
        key = static_key(t, inner, node.key)
        found[key] = evaluate(t, inner, node.value)

    _run(t, frame, node, node.key, add)
    return found


def _run(
    t: Translator,
    frame: Frame,
    node: ast.ListComp | ast.GeneratorExp | ast.DictComp,
    element: ast.expr,
    each: Callable[[Frame], object],
) -> None:
    """Call `each` for every turn, with a frame that has the variables of the comprehension."""
    body = ast.copy_location(ast.Lambda(args=_NO_ARGUMENTS, body=element), node)
    source = FunctionSource(frame.source.name, body, frame.source.file, frame.source.globals)
    inner = Frame(source, frame.captures, frame.caller, frame, branches=frame.branches)
    inner.in_comprehension = True
    turns = 0

    def run(generators: list[ast.comprehension]) -> None:
        nonlocal turns
        if not generators:
            turns += 1
            if turns > MAX_UNROLLED:
                t.at(frame, node)
                raise t.wrong_value(f"a comprehension makes at most {MAX_UNROLLED} turns")
            each(inner)
            return
        from ._expressions import evaluate
        from ._statements import assign

        generator = generators[0]
        if generator.is_async:
            t.at(inner, generator.iter)
            raise t.syntax("kernels cannot use async for")
        # the first one is evaluated outside, as in Python
        outside = frame if generator is node.generators[0] else inner
        items = evaluate(t, outside, generator.iter)
        t.at(inner, generator.iter)
        for item in items_of(t, items, "a comprehension goes through"):
            assign(t, inner, generator.target, item)
            if all(_holds(t, inner, test) for test in generator.ifs):
                run(generators[1:])

    run(node.generators)


def _holds(t: Translator, frame: Frame, test: ast.expr) -> bool:
    from ._expressions import evaluate

    value = evaluate(t, frame, test)
    t.at(frame, test)
    condition = truth(t, value, "if")
    if not isinstance(condition, bool):
        raise t.wrong_type(
            "the condition of a comprehension is known at compile time, and this one is known at run time only; use a "
            "conditional expression in its element"
        )
    return condition
