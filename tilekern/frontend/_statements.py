"""Statements: from syntax to operations and variables."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._aggregates import is_record, parts_of
from ._branches import After, execute_if
from ._calls import inner_function
from ._expressions import binary_symbol, evaluate
from ._frame import Outcome, Returned
from ._iteration import items_of
from ._loop_exits import Action, leave_by_return, run_time_loop
from ._loops import execute_for, execute_loop, execute_while, leave_loop
from ._mapped import TileIndexValue
from ._operators import binary, truth
from ._syntax import returns
from ._values import OwnedTileValue, RangeValue, StaticItems, TensorValue, Unset, describe, is_tile

if TYPE_CHECKING:
    from ._frame import Frame
    from ._translator import Translator

__all__ = ["assign", "execute_block"]


def execute_block(t: Translator, frame: Frame, statements: list[ast.stmt], after: After) -> Outcome:
    """Translate statements in order; `after` are those that follow the block further out."""
    for position, statement in enumerate(statements):
        if isinstance(statement, Action):
            statement.run()
            continue
        if isinstance(statement, ast.For | ast.While) and (statement.orelse or returns(statement.body)):
            return execute_loop(t, frame, statement, statements[position + 1 :], after)
        if isinstance(statement, ast.If):
            outcome = _if(t, frame, statement, statements[position + 1 :], after)
        else:
            handler = _HANDLERS.get(type(statement))
            if handler is None:
                t.at(frame, statement)
                name = _NAMES.get(type(statement), f"the statement {type(statement).__name__}")
                raise t.syntax(f"kernels cannot use {name}")
            outcome = handler(t, frame, statement)
        if outcome is not None:
            t.effects.leave_out(frame, statements[position + 1 :])
            return outcome
    return None


def assign(t: Translator, frame: Frame, target: ast.expr, value: object) -> None:
    """Bind a name, or several to the parts of a tuple."""
    if isinstance(target, ast.Name):
        old = frame.variables.get(target.id)
        if isinstance(old, OwnedTileValue) and frame.is_kernel and value is not old:
            t.at(frame, target)
            raise t.syntax(
                f"{target.id} is an output, and assigning to its name stores nothing; write {target.id}.store(tile), "
                "or use another name"
            )
        if is_tile(value) and not value.name:
            value.name = target.id
        frame.variables[target.id] = value
        frame.set_at[target.id] = target
        return
    t.at(frame, target)
    if isinstance(target, ast.Tuple | ast.List):
        _unpack(t, frame, target, value)
    elif isinstance(target, ast.Subscript):
        raise t.syntax(_no_item_assignment(evaluate(t, frame, target.value)))
    elif isinstance(target, ast.Attribute):
        owner = evaluate(t, frame, target.value)
        if is_record(owner):
            raise t.syntax(
                f"records do not change; make a new one: dataclasses.replace(x, {target.attr}=...)"
            )
        raise t.syntax(f"{target.attr} of {describe(owner)} cannot be assigned in a kernel")
    else:
        raise t.syntax("kernels cannot assign to this")


def _no_item_assignment(value: object) -> str:
    """Why `value[...] = ...` is refused, and what to write."""
    if isinstance(value, OwnedTileValue):
        return f"partitions take no item assignment; store the tile with {value.name}.store(tile)"
    if isinstance(value, TensorValue):
        return f"tensors take no item assignment; store a tile with tk.store({value.name}, index, tile)"
    if isinstance(value, dict):
        return "dicts do not change in a kernel; make a new one, as in {**table, key: value}"
    if is_tile(value):
        return "tiles do not change; choose elements with tk.where, as in t = tk.where(mask, new, t)"
    return "tuples and lists do not change in a kernel; make a new one, as in (*items[:i], item, *items[i + 1 :])"


def _unpack(t: Translator, frame: Frame, target: ast.Tuple | ast.List, value: object) -> None:
    count = len(target.elts)
    if parts_of(value) is None and not isinstance(value, str | list | range | RangeValue | StaticItems):
        hint = "; its numbers are index.components()" if isinstance(value, TileIndexValue) else ""
        raise t.wrong_type(f"{count} names take a tuple of {count} values, got {describe(value)}{hint}")
    names, values = target.elts, list(items_of(t, value, f"{count} names take"))
    stars = [i for i, element in enumerate(names) if isinstance(element, ast.Starred)]
    if len(values) < len(names) - len(stars) or (not stars and len(values) != len(names)):
        raise t.wrong_value(f"{len(names)} names for {len(values)} values")
    if stars:
        first, extra = stars[0], len(values) - len(names) + 1
        values[first : first + extra] = [tuple(values[first : first + extra])]
    for element, part in zip(names, values, strict=True):
        assign(t, frame, element.value if isinstance(element, ast.Starred) else element, part)


def _assign(t: Translator, frame: Frame, node: ast.Assign) -> Outcome:
    value = evaluate(t, frame, node.value)
    for target in node.targets:
        assign(t, frame, target, value)
    return None


def _assign_annotated(t: Translator, frame: Frame, node: ast.AnnAssign) -> Outcome:
    if node.value is not None:
        assign(t, frame, node.target, evaluate(t, frame, node.value))
    return None


def _assign_augmented(t: Translator, frame: Frame, node: ast.AugAssign) -> Outcome:
    if not isinstance(node.target, ast.Name):
        assign(t, frame, node.target, None)  # refuses it
        return None
    old = frame.lookup(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target))
    value = evaluate(t, frame, node.value)
    t.at(frame, node)
    assign(t, frame, node.target, binary(t, binary_symbol(node.op), old, value))
    return None


def _expression(t: Translator, frame: Frame, node: ast.Expr) -> Outcome:
    evaluate(t, frame, node.value)
    return None


def _if(t: Translator, frame: Frame, node: ast.If, rest: list[ast.stmt], after: After) -> Outcome:
    test = evaluate(t, frame, node.test)
    t.at(frame, node.test)
    condition = truth(t, test, "if")
    if isinstance(condition, bool):
        taken, left_out = (node.body, node.orelse) if condition else (node.orelse, node.body)
        t.effects.leave_out(frame, left_out)
        return execute_block(t, frame, taken, (rest, *after))
    return execute_if(t, frame, node, condition, rest, after)


def _return(t: Translator, frame: Frame, node: ast.Return) -> Outcome:
    value = None if node.value is None else evaluate(t, frame, node.value)
    t.at(frame, node)
    if value is not None and frame.is_kernel:
        raise t.syntax(
            "kernels return nothing; store the result with out.store(...), out being a partition parameter"
        )
    loop = run_time_loop(frame)
    return Returned(value) if loop is None else leave_by_return(t, frame, loop, value, node)


def _break(t: Translator, frame: Frame, node: ast.Break) -> Outcome:
    t.at(frame, node)
    return leave_loop(t, frame, "break")


def _continue(t: Translator, frame: Frame, node: ast.Continue) -> Outcome:
    t.at(frame, node)
    return leave_loop(t, frame, "continue")


def _pass(t: Translator, frame: Frame, node: ast.stmt) -> Outcome:
    return None


def _define(t: Translator, frame: Frame, node: ast.FunctionDef) -> Outcome:
    if node.decorator_list:
        t.at(frame, node.decorator_list[0])
        raise t.syntax("functions inside of kernels have no decorators; define it outside of the kernel")
    frame.variables[node.name] = inner_function(t, frame, node)
    return None


def _assert(t: Translator, frame: Frame, node: ast.Assert) -> Outcome:
    from .operations import assert_

    condition = evaluate(t, frame, node.test)
    message = evaluate(t, frame, node.msg) if node.msg is not None else ast.unparse(node.test)
    t.at(frame, node.test)
    if not is_tile(condition):
        if not condition:
            raise t.wrong_value(f"assertion failed: {message}")
        return None
    assert_(t, condition, message)
    return None


def _delete(t: Translator, frame: Frame, node: ast.Delete) -> Outcome:
    for target in node.targets:
        t.at(frame, target)
        if not isinstance(target, ast.Name):
            raise t.syntax("only variables can be deleted")
        frame.variables[target.id] = Unset(f"{target.id!r} was deleted")
    return None


# Any: each handler takes its own node type
_HANDLERS: dict[type[ast.stmt], Callable[[Translator, Frame, Any], Outcome]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _assign_annotated,
    ast.AugAssign: _assign_augmented,
    ast.Expr: _expression,
    ast.For: execute_for,
    ast.While: execute_while,
    ast.Return: _return,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.Pass: _pass,
    ast.FunctionDef: _define,
    ast.Assert: _assert,
    ast.Delete: _delete,
}

_NAMES: dict[type[ast.stmt], str] = {
    ast.AsyncFor: "async for; a kernel runs on the device, use for",
    ast.AsyncFunctionDef: "async def; a kernel runs on the device, use def",
    ast.AsyncWith: "async with; a kernel runs on the device",
    ast.ClassDef: "class; define it outside of the kernel",
    ast.Global: "global: variables of modules are constants in kernels",
    ast.Import: "import; import at the top of the module",
    ast.ImportFrom: "import; import at the top of the module",
    ast.Match: "match; write if and elif",
    ast.Nonlocal: "nonlocal: a function inside of a kernel cannot set the variables around it",
    ast.Raise: "raise; tk.assert_ stops a kernel",
    ast.Try: "try: nothing is raised while a kernel runs; check the condition with if, or tk.where",
    ast.TryStar: "try: nothing is raised while a kernel runs; check the condition with if, or tk.where",
    **({ast.TypeAlias: "type; define the alias outside of the kernel"} if hasattr(ast, "TypeAlias") else {}),
    ast.With: "with; call the function and pass its value on",
}
