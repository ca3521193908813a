"""Expressions: from syntax to values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .. import language
from ..dtypes import DType
from ._attributes import attribute
from ._branches import choose
from ._calls import call
from ._comparisons import compare_any
from ._comprehensions import dict_comprehension, list_comprehension
from ._iteration import items_of
from ._methods import language_class
from ._operators import binary, truth, unary
from ._records import NOT_THERE, call_method, holds_tiles
from ._static_eval import static_eval
from ._values import FormattedText, Hole, OwnedTileValue, TensorValue, describe, is_tile
from .operations import choose_tensor, index_tile

if TYPE_CHECKING:
    from ._frame import Frame
    from ._translator import Translator

__all__ = ["binary_symbol", "evaluate", "static_key"]

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_UNARY: dict[type[ast.unaryop], str] = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not"}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}


_CONVERSIONS: dict[int, Callable[[object], str]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}


def binary_symbol(op: ast.operator) -> str:
    """How a binary operator is written."""
    return _BINARY[type(op)]


def evaluate(t: Translator, frame: Frame, node: ast.expr) -> object:
    """The value of an expression; adds the operations that compute it."""
    handler = _HANDLERS.get(type(node))
    if handler is None:
        t.at(frame, node)
        raise t.syntax(f"kernels cannot use {_NAMES.get(type(node), type(node).__name__)}")
    return handler(t, frame, node)


def _constant(t: Translator, frame: Frame, node: ast.Constant) -> object:
    if isinstance(node.value, complex | bytes):
        t.at(frame, node)
        raise t.wrong_type(f"kernels have no {type(node.value).__name__} values, got {node.value!r}")
    return node.value


def _name(t: Translator, frame: Frame, node: ast.Name) -> object:
    return frame.lookup(node)


def _tuple(t: Translator, frame: Frame, node: ast.Tuple | ast.List) -> object:
    parts: list[object] = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            value = evaluate(t, frame, element.value)
            t.at(frame, element)
            parts.extend(items_of(t, value, "* spreads"))
        else:
            parts.append(evaluate(t, frame, element))
    return tuple(parts)


def _binary(t: Translator, frame: Frame, node: ast.BinOp) -> object:
    lhs, rhs = evaluate(t, frame, node.left), evaluate(t, frame, node.right)
    t.at(frame, node)
    return binary(t, _BINARY[type(node.op)], lhs, rhs)


def _unary(t: Translator, frame: Frame, node: ast.UnaryOp) -> object:
    value = evaluate(t, frame, node.operand)
    t.at(frame, node)
    return unary(t, _UNARY[type(node.op)], value)


def _compare(t: Translator, frame: Frame, node: ast.Compare) -> object:
    """A chain a < b < c is a < b and b < c, with b evaluated once."""
    left = evaluate(t, frame, node.left)
    result: object = True
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = evaluate(t, frame, comparator)
        t.at(frame, node)
        part = compare_any(t, _COMPARE[type(op)], left, right)
        left = right
        if len(node.ops) == 1:
            return part
        if not is_tile(part) and not part:
            return False
        if result is True:
            result = part
        elif is_tile(part):
            result = binary(t, "&", result, part)
    return result


def _boolean(t: Translator, frame: Frame, node: ast.BoolOp) -> object:
    return _boolean_chain(t, frame, node, node.values)


def _boolean_chain(t: Translator, frame: Frame, node: ast.BoolOp, values: list[ast.expr]) -> object:
    """`and` and `or` as Python means them: the right side is evaluated only where it decides."""
    is_and = isinstance(node.op, ast.And)
    value = evaluate(t, frame, values[0])
    if len(values) == 1:
        return value
    t.at(frame, node)
    condition = truth(t, value, "and" if is_and else "or")
    if isinstance(condition, bool):
        return _boolean_chain(t, frame, node, values[1:]) if condition == is_and else value

    def right() -> object:
        rest = _boolean_chain(t, frame, node, values[1:])
        t.at(frame, node)
        return truth(t, rest, "and" if is_and else "or")

    def short() -> object:
        return not is_and

    return choose(t, frame, condition, right if is_and else short, short if is_and else right)


def _conditional(t: Translator, frame: Frame, node: ast.IfExp) -> object:
    test = evaluate(t, frame, node.test)
    t.at(frame, node)
    condition = truth(t, test, "if")
    if isinstance(condition, bool):
        t.effects.leave_out(frame, [node.orelse if condition else node.body])
        return evaluate(t, frame, node.body if condition else node.orelse)
    return choose(
        t,
        frame,
        condition,
        lambda: evaluate(t, frame, node.body),
        lambda: evaluate(t, frame, node.orelse),
    )


def _attribute(t: Translator, frame: Frame, node: ast.Attribute) -> object:
    value = evaluate(t, frame, node.value)
    t.at(frame, node)
    return attribute(t, value, node.attr)


def _subscript(t: Translator, frame: Frame, node: ast.Subscript) -> object:
    value = evaluate(t, frame, node.value)
    index = evaluate(t, frame, node.slice)
    t.at(frame, node)
    if is_tile(value):
        return index_tile(t, value, index)
    if isinstance(value, TensorValue):
        raise t.wrong_type(
            f"tensor {value.name} takes no index; use tk.load({value.name}, index, shape), which reads the tile at a "
            "tile index, or tk.load_like"
        )
    if isinstance(value, OwnedTileValue):
        raise t.wrong_type(
            f"partition {value.name} takes no index; use {value.name}.load(), this block's tile"
        )
    own = call_method(t, value, "__getitem__", index)
    if own is not NOT_THERE:
        return own
    if is_tile(index):
        if isinstance(value, tuple) and value and all(isinstance(part, TensorValue) for part in value):
            return choose_tensor(t, value, index)
        raise t.wrong_type(
            f"an index into {describe(value)} is known at compile time, got {describe(index)}; loop over the items, or "
            "over tk.static_iter(range(n)), or put numbers into a tile with tk.astile and choose with tk.where"
        )
    if not hasattr(type(value), "__getitem__"):
        raise t.wrong_type(f"{describe(value)} takes no index; tk.load reads a tile of a tensor")
    try:
        # Any: whatever the program indexes
        return cast("Any", value)[index]
    except (TypeError, LookupError, ValueError) as error:
        what = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
        raise t.wrong_value(f"{describe(value)} at [{describe(index)}]: {what}") from None


def _slice(t: Translator, frame: Frame, node: ast.Slice) -> object:
    parts = [
        None if part is None else evaluate(t, frame, part) for part in (node.lower, node.upper, node.step)
    ]
    t.at(frame, node)
    if any(is_tile(part) for part in parts):
        raise t.wrong_type("bounds of a slice are known at compile time")
    return slice(*parts)


def _lambda(t: Translator, frame: Frame, node: ast.Lambda) -> object:
    from ._calls import inner_function

    return inner_function(t, frame, node)


def _call(t: Translator, frame: Frame, node: ast.Call) -> object:
    function = evaluate(t, frame, node.func)
    if function is language.static_eval:
        return static_eval(t, frame, node)
    args = _tuple(t, frame, ast.Tuple(elts=node.args, ctx=ast.Load()))
    assert isinstance(args, tuple)
    kwargs: dict[str, object] = {}
    for keyword in node.keywords:
        value = evaluate(t, frame, keyword.value)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, dict):
            kwargs.update(value)
        else:
            t.at(frame, keyword)
            raise t.wrong_type(f"** spreads a dict, got {describe(value)}")
    t.at(frame, node)
    return call(t, function, args, kwargs)


def _joined_string(t: Translator, frame: Frame, node: ast.JoinedStr) -> object:
    """A string; with tiles in it, the text for `tk.print` to fill in when the kernel runs."""
    parts: list[str | Hole] = []
    for part in node.values:
        if not isinstance(part, ast.FormattedValue):
            parts.append(str(evaluate(t, frame, part)))
            continue
        value = evaluate(t, frame, part.value)
        specification = evaluate(t, frame, part.format_spec) if part.format_spec is not None else ""
        t.at(frame, part)
        if not isinstance(specification, str):
            raise t.wrong_type("the format of a value is known at compile time")
        if isinstance(value, FormattedText):
            parts.extend(value.parts)
        elif language_class(value) is not None:
            raise t.wrong_type(f"an f-string shows tiles and numbers, got {describe(value)}")
        elif is_tile(value):  # !r, !s and !a, and so f"{x=}", show one as nothing does
            parts.append(Hole(value, specification))
        elif holds_tiles(value):
            if specification:
                raise t.wrong_type(f"{describe(value)} takes no format; give its parts one by one")
            parts.append(Hole(value, ""))
        else:
            if isinstance(value, DType):
                value = value.name
            conversion = _CONVERSIONS.get(part.conversion)
            converted = value if conversion is None else conversion(value)
            try:
                parts.append(format(converted, specification))
            except (TypeError, ValueError) as error:
                raise t.wrong_value(f"f-string: {error}") from None
    if any(isinstance(part, Hole) for part in parts):
        return FormattedText(tuple(parts))
    return "".join(map(str, parts))


def static_key(t: Translator, frame: Frame, node: ast.expr) -> object:
    """A key of a dict: known at compile time."""
    key = evaluate(t, frame, node)
    t.at(frame, node)
    if holds_tiles(key):
        raise t.wrong_type(f"keys of a dict are known at compile time, got {describe(key)}")
    try:
        hash(key)
    except TypeError as error:
        raise t.wrong_type(f"keys of a dict: {error}") from None
    return key


def _dict(t: Translator, frame: Frame, node: ast.Dict) -> object:
    made: dict[object, object] = {}
    for key, part in zip(node.keys, node.values, strict=True):
        if key is not None:
            name = static_key(t, frame, key)
            made[name] = evaluate(t, frame, part)
            continue
        value = evaluate(t, frame, part)
        if not isinstance(value, dict):
            t.at(frame, part)
            raise t.wrong_type(f"** spreads a dict, got {describe(value)}")
        made.update(value)
    return made


def _named(t: Translator, frame: Frame, node: ast.NamedExpr) -> object:
    """`name := value`, where it is sure to be evaluated."""
    from ._statements import assign

    t.at(frame, node)
    if frame.in_comprehension:
        raise t.syntax("kernels cannot use := in a comprehension; assign on a line of its own")
    if frame.sides:
        raise t.syntax(
            "kernels cannot use := where a condition known only at run time decides whether it is evaluated; assign "
            "on a line of its own"
        )
    value = evaluate(t, frame, node.value)
    assign(t, frame, node.target, value)
    return value


# Any: each handler takes its own node type
_HANDLERS: dict[type[ast.expr], Callable[[Translator, Frame, Any], object]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _conditional,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.Lambda: _lambda,
    ast.Call: _call,
    ast.JoinedStr: _joined_string,
    ast.Dict: _dict,
    ast.NamedExpr: _named,
    ast.ListComp: list_comprehension,
    ast.GeneratorExp: list_comprehension,
    ast.DictComp: dict_comprehension,
}

_NAMES: dict[type[ast.expr], str] = {
    ast.Await: "await: a kernel runs on the device; await the operation that calling it gives",
    ast.Yield: "yield; return a tuple",
    ast.YieldFrom: "yield from; return a tuple",
    ast.Set: "sets, which have no order; use a tuple",
    ast.SetComp: "sets, which have no order; use a list comprehension, which gives a tuple",
    ast.Starred: "* here; it spreads a tuple in calls and tuples",
}
