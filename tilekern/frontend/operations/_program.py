"""The place in the grid, and what is decided at compile time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ... import language
from ...dtypes import bool_, int32
from ...ir import AssertOp, BlockIdOp, NumBlocksOp, Value, scalar
from .._aggregates import leaves
from .._operators import binary, unary
from .._promotion import as_tile, cast
from .._values import RangeValue, StaticItems, describe, is_tile
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
    return t.add(NumBlocksOp(axis=_grid_axis(t, axis), result=Value(scalar(int32)))).result


def _grid_axis(t: Translator, axis: object) -> int:
    number = t.static_int(axis, "axis")
    if number not in (0, 1, 2):
        raise t.wrong_value(f"grid axes are 0, 1 and 2, got {number}")
    return number


@implements(language.cdiv)
def cdiv(t: Translator, a: object, b: object) -> object:
    return unary(t, "-", binary(t, "//", unary(t, "-", a), b))


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
    if isinstance(items, RangeValue):
        bounds = (items.start, items.stop, items.step)
        if any(is_tile(part) for part in leaves(bounds)):
            raise t.wrong_type("static_iter takes a range known at compile time")
        start, stop, step = (t.static_int(part, "a bound") for part in bounds)
        return StaticItems(tuple(range(start, stop, step)))
    if not isinstance(items, Iterable):
        raise t.wrong_type(
            f"static_iter takes a tuple or a range known at compile time, got {describe(items)}"
        )
    return StaticItems(tuple(items))
