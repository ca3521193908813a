"""The place in the grid, and what is decided at compile time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ... import language
from ...dtypes import bool_, int32
from ...ir import AssertOp, BlockIdOp, NumBlocksOp, Value, scalar
from .._iteration import items_of
from .._operators import binary, compare, unary
from .._promotion import as_tile, cast
from .._records import holds_tiles
from .._values import StaticItems, describe, is_loose, is_number, is_tile, tile_type
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__ = ["assert_", "block_id"]


def block_id(t: Translator, axis: int) -> Value:
    """This block's index along a grid axis."""
    return t.add(BlockIdOp(axis=axis, result=Value(scalar(int32)))).result


@implements(language.bid)
def bid(t: Translator, axis: object) -> object:
    return block_id(t, _grid_axis(t, axis))


@implements(language.num_blocks)
def num_blocks(t: Translator, axis: object) -> object:
    number = _grid_axis(t, axis)
    if t.grid is not None:
        return t.grid[number]
    count = t.add(NumBlocksOp(axis=number, result=Value(scalar(int32)))).result
    t.positive.add(count)
    return count


def _grid_axis(t: Translator, axis: object) -> int:
    number = t.static_int(axis, "axis")
    if number not in (0, 1, 2):
        raise t.wrong_value(f"grid axes are 0, 1 and 2, got {number}")
    return number


@implements(language.cdiv)
def cdiv(t: Translator, a: object, b: object) -> object:
    if is_number(b) and b == 0 and not _is_float(a) and not isinstance(b, float):
        raise t.wrong_value("cdiv by zero")
    if not is_tile(a) and not is_tile(b) and any(isinstance(x, np.generic) for x in (a, b)):
        known: Any = a, b  # numbers of NumPy among them
        return language.cdiv(*known)
    if _is_unsigned(a) or _is_unsigned(b):  # which have no negative numbers
        quotient = binary(t, "//", a, b)
        if is_tile(quotient):
            number = tile_type(quotient).number
            if number.kind == "uint":
                rest = binary(t, "-", a, binary(t, "*", quotient, b))
                return binary(t, "+", quotient, cast(t, as_tile(t, compare(t, "!=", rest, 0)), number))
            a = cast(t, as_tile(t, a), number)
    return unary(t, "-", binary(t, "//", unary(t, "-", a), b))


def _is_float(value: object) -> bool:
    return isinstance(value, float) or (is_tile(value) and tile_type(value).number.is_float)


def _is_unsigned(value: object) -> bool:
    if isinstance(value, np.generic):
        return isinstance(value, np.unsignedinteger)
    return is_tile(value) and not is_loose(value) and tile_type(value).number.kind == "uint"


@implements(language.assert_)
def assert_(t: Translator, condition: object, message: object) -> object:
    """What `tk.assert_`, and the assert statement on a tile, mean."""
    if not isinstance(message, str):
        raise t.wrong_type(f"the message is a string known at compile time, got {describe(message)}")
    value = cast(t, as_tile(t, condition, "the condition"), bool_)
    t.effects.asserts = True
    t.add(AssertOp(condition=value, message=message))
    return None


@implements(language.static_assert)
def static_assert(t: Translator, condition: object, message: object) -> object:
    if is_tile(condition):
        raise t.wrong_type(
            "the condition of static_assert is known at compile time; tk.assert_ checks at run time"
        )
    if not condition:
        raise t.wrong_value(f"static assertion failed: {message}" if message else "static assertion failed")
    return None


@implements(language.static_iter)
def static_iter(t: Translator, items: object) -> object:
    return StaticItems(items_of(t, items, "static_iter takes"))


@implements(language.static_eval)
def static_eval(t: Translator, value: object) -> object:
    """Where it is called by another name, Python has no expression to compute."""
    return ensure_constant(t, value)


@implements(language.ensure_constant)
def ensure_constant(t: Translator, value: object) -> object:
    if holds_tiles(value):
        raise t.wrong_type(
            f"this is known only when the kernel runs: {describe(value)}; a parameter is known at compile time if "
            "it is declared tk.Constant"
        )
    return value
