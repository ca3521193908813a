"""Comparisons of aggregates, `in` and `is`: folded from comparisons of their leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dtypes import DType
from ._aggregates import is_record, parts_of
from ._iteration import is_static_range, items_of, static_range
from ._operators import binary, compare, truth
from ._records import NOT_THERE, call_method, holds_tiles, overloaded
from ._values import RangeValue, describe, is_number, is_numpy_type, is_tile

if TYPE_CHECKING:
    from ..ir import Value
    from ._translator import Translator

__all__ = ["compare_any"]


def compare_any(t: Translator, symbol: str, a: object, b: object) -> object:
    """`a symbol b` for any comparison of any two values."""
    if isinstance(a, DType) != isinstance(b, DType):
        a, b = _element_types(t, symbol, a, b)
    if symbol in ("is", "is not"):
        return _is(t, symbol, a, b)
    if symbol in ("in", "not in"):
        found = _contains(t, symbol, b, a)
        if symbol == "in":
            return found
        return not found if isinstance(found, bool) else _not(t, found)
    if (a_parts := parts_of(a)) is not None or parts_of(b) is not None:
        own = overloaded(t, symbol, a, b)
        if own is not NOT_THERE:
            return own
        if a_parts is not None and (holds_tiles(a) or holds_tiles(b)):
            return _compare_parts(t, symbol, a, b)
    return compare(t, symbol, a, b)


def _element_types(t: Translator, symbol: str, a: object, b: object) -> tuple[object, object]:
    """One element type and something else: NumPy's types are those they stand for, names are refused.

    Python's answer would be "not equal" for either, and the kernel silently another one.
    """
    if symbol in ("in", "not in"):
        return a, b
    other = b if isinstance(a, DType) else a
    if isinstance(other, str):
        raise t.wrong_type(
            f"{symbol} compares an element type and the string {other!r}, which are never equal; write tk.float32, "
            "say, or compare x.dtype.name"
        )
    if not is_numpy_type(other):
        return a, b
    other = t.static_dtype(other)
    return (a, other) if isinstance(a, DType) else (other, b)


def _is(t: Translator, symbol: str, a: object, b: object) -> bool:
    for one, other in ((a, b), (b, a)):
        if is_tile(one) and is_number(other):
            raise t.wrong_type(
                f"{symbol} asks for the same object, and {describe(one)} is never {other!r}; compare with "
                f"{'==' if symbol == 'is' else '!='}"
            )
    return (a is b) == (symbol == "is")


def _contains(t: Translator, symbol: str, container: object, item: object) -> bool | Value:
    """Whether `item` is in `container`."""
    own = call_method(t, container, "__contains__", item)
    if own is not NOT_THERE:
        return truth(t, own, symbol)
    if isinstance(container, RangeValue):
        return _in_range(t, container, item)
    if is_tile(container) or not hasattr(type(container), "__contains__"):
        raise t.wrong_type(f"{symbol} looks into a tuple, dict, string or range, got {describe(container)}")
    of_types = isinstance(container, tuple) and any(isinstance(one, DType) for one in (item, *container))
    if not of_types and not holds_tiles(item) and not holds_tiles(container):
        try:
            return item in container  # type: ignore[operator]
        except TypeError as error:
            raise t.wrong_type(str(error)) from None
    found: bool | Value = False
    for other in items_of(t, container, f"{symbol} looks into"):
        found = _either(t, found, truth(t, compare_any(t, "==", item, other), symbol))
        if found is True:
            return True
    return found


def _in_range(t: Translator, items: RangeValue, item: object) -> bool | Value:
    if is_static_range(items) and not is_tile(item):
        return item in static_range(items)
    if not isinstance(items.step, int):
        raise t.wrong_type("`in` takes a range whose step is known at compile time")
    first, last = (">=", "<") if items.step > 0 else ("<=", ">")
    inside = _both(
        t,
        truth(t, compare(t, first, item, items.start), "in"),
        truth(t, compare(t, last, item, items.stop), "in"),
    )
    if abs(items.step) == 1:
        return inside
    rest = binary(t, "%", binary(t, "-", item, items.start), items.step)
    return _both(t, inside, truth(t, compare(t, "==", rest, 0), "in"))


def _compare_parts(t: Translator, symbol: str, a: object, b: object) -> object:
    """Aggregates, some parts being tiles: equal if all parts are; tuples are ordered by the first that differ."""
    left, right = parts_of(a), parts_of(b)
    alike = left is not None and right is not None and _same_kind(a, b)
    if symbol in ("==", "!="):
        equal: bool | Value = alike and len(left or ()) == len(right or ())
        if isinstance(a, dict) and isinstance(b, dict) and equal:
            equal = list(a) == list(b)
        for x, y in zip(left or (), right or (), strict=False):
            if equal is False:
                break
            equal = _both(t, equal, truth(t, compare_any(t, "==", x, y), symbol))
        if symbol == "==":
            return equal
        return not equal if isinstance(equal, bool) else _not(t, equal)
    ordered = isinstance(a, tuple) or (is_record(a) and type(a).__dataclass_params__.order)  # type: ignore[attr-defined]
    if not alike or not ordered:
        raise t.wrong_type(f"{symbol} does not order {describe(a)} and {describe(b)}")
    assert left is not None
    assert right is not None
    strict = symbol[0]
    result: object = compare(t, symbol, len(left), len(right))
    for x, y in reversed(list(zip(left, right, strict=False))):
        before = truth(t, compare_any(t, strict, x, y), symbol)
        same = truth(t, compare_any(t, "==", x, y), symbol)
        result = _either(t, before, _both(t, same, truth(t, result, symbol)))
    return result


def _same_kind(a: object, b: object) -> bool:
    return type(a) is type(b) or (isinstance(a, tuple) and isinstance(b, tuple))


def _both(t: Translator, a: bool | Value, b: bool | Value) -> bool | Value:
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return truth(t, binary(t, "&", a, b), "and")


def _either(t: Translator, a: bool | Value, b: bool | Value) -> bool | Value:
    if isinstance(a, bool):
        return True if a else b
    if isinstance(b, bool):
        return True if b else a
    return truth(t, binary(t, "|", a, b), "or")


def _not(t: Translator, a: bool | Value) -> bool | Value:
    from ._operators import unary

    return truth(t, unary(t, "not", a), "not")
