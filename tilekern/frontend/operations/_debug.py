"""Printing, promises, and how a kernel and the next one overlap."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ... import language
from ...dtypes import DType, float32
from ...ir import (
    CONVERSION,
    AssumeDivByOp,
    GridLaunchDependentsOp,
    GridWaitOp,
    PrintOp,
    TokenType,
    Value,
)
from .._aggregates import is_named_tuple, leaves, parts_of, record_fields
from .._promotion import as_tile, cast
from .._values import (
    FormattedText,
    Hole,
    OwnedTileValue,
    TensorValue,
    describe,
    is_tile,
    tile_type,
)
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__: list[str] = []

_FORMAT = re.compile(r"([<>]?)([-+ ]?)(#?)(0?)(\d*)(\.\d+)?([dixXofFeEgGu]?)")
"""What of Python's formats can be said as C does."""
_LENGTHS = re.compile(r"%(?:%|([-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|L|z|j|t)?([diuxXofFeEgG]))")


@implements(language.print)
def print_values(t: Translator, values: tuple[object, ...], sep: object, end: object) -> object:
    for text, name in ((sep, "sep"), (end, "end")):
        if not isinstance(text, str):
            raise t.wrong_type(f"{name} of print is a string known at compile time, got {describe(text)}")
    parts: list[str] = []
    printed: list[Value] = []
    for position, value in enumerate(values):
        if position:
            parts.append(_literal(str(sep)))
        _show(t, value, parts, printed)
    parts.append(_literal(str(end)))
    _print(t, "".join(parts), printed)
    return None


def _show(t: Translator, value: object, parts: list[str], printed: list[Value]) -> None:
    """Add the text of a value, with conversions for the tiles in it."""
    if isinstance(value, FormattedText):
        for part in value.parts:
            if isinstance(part, Hole) and is_tile(part.value):
                parts.append(_conversion(t, part.value, part.format))
                printed.append(_printable(t, part.value))
            elif isinstance(part, Hole):
                _show(t, part.value, parts, printed)
            else:
                parts.append(_literal(part))
    elif is_tile(value):
        parts.append(_conversion(t, value, ""))
        printed.append(_printable(t, value))
    elif isinstance(value, TensorValue):
        raise t.wrong_type(f"tensor {value.name} is memory; print a tile of it, loaded with tk.load")
    elif isinstance(value, OwnedTileValue):
        raise t.wrong_type(f"partition {value.name} is memory; print {value.name}.load(), this block's tile")
    elif any(is_tile(leaf) for leaf in leaves(value)):
        _show_parts(t, value, parts, printed)
    else:
        parts.append(_literal(value.name if isinstance(value, DType) else str(value)))


def _show_parts(t: Translator, value: object, parts: list[str], printed: list[Value]) -> None:
    """An aggregate with tiles in it, as its `repr` has it."""
    names: tuple[str, ...] = record_fields(type(value)) or ()
    if is_named_tuple(value):
        names = getattr(value, "_fields", ())
    if isinstance(value, dict):
        labels = [f"{key!r}: " for key in value]
    else:
        labels = [f"{name}=" for name in names] or [""] * len(parts_of(value) or ())
    head, end = ("{", "}") if isinstance(value, dict) else (type(value).__name__ + "(" if names else "(", ")")
    parts.append(_literal(head))
    for position, (label, part) in enumerate(zip(labels, parts_of(value) or (), strict=True)):
        parts.append(_literal((", " if position else "") + label))
        _show(t, repr(part) if isinstance(part, str) else part, parts, printed)
    parts.append("," + end if type(value) is tuple and len(value) == 1 else end)


@implements(language.printf)
def print_formatted(t: Translator, text: object, values: tuple[object, ...]) -> object:
    if not isinstance(text, str):
        raise t.wrong_type(f"the format of printf is a string known at compile time, got {describe(text)}")
    if "%" in _LENGTHS.sub("", text):
        rest = _LENGTHS.sub("", text)
        raise t.wrong_value(
            f"a % in {text!r} begins no conversion: {rest[rest.index('%') :]!r}; %% prints a %"
        )
    kinds = [match.group(2) for match in _LENGTHS.finditer(text) if match.group() != "%%"]
    if len(kinds) != len(values):
        raise t.wrong_value(f"{text!r} has {len(kinds)} conversions, got {len(values)} values")
    printed: list[Value] = []
    for kind, value in zip(kinds, values, strict=True):
        tile = _printable(t, as_tile(t, value, "a printed value"))
        is_float = tile_type(tile).number.is_float
        if is_float != (kind in "fFeEgG"):
            raise t.wrong_type(
                f"%{kind} prints {'whole numbers' if is_float else 'floats'}, got {describe(value)}"
            )
        printed.append(tile)
    rest_of = iter(printed)

    def bare_conversion(match: re.Match[str]) -> str:
        if match.group() == "%%":
            return "%%"
        return f"%{match.group(1)}{_own_kind(match.group(2), next(rest_of))}"

    bare = _LENGTHS.sub(bare_conversion, text)
    _print(t, bare, printed)
    return None


def _print(t: Translator, text: str, values: list[Value]) -> None:
    t.effects.asserts = True
    t.add(PrintOp(values=tuple(values), text=text))


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def _printable(t: Translator, value: Value) -> Value:
    return cast(t, value, float32) if tile_type(value).number.restricted else value


def _own_kind(kind: str, value: Value) -> str:
    """C's `d` takes the largest unsigned numbers for negative ones; theirs is `u`."""
    dtype = tile_type(value).number
    return "u" if kind in "di" and dtype.is_integer and not dtype.is_signed else kind


def _conversion(t: Translator, value: Value, specification: str) -> str:
    """C's conversion for a tile and a format of Python's."""
    is_float = tile_type(value).number.is_float
    match = _FORMAT.fullmatch(specification)
    if match is None:
        raise t.wrong_value(
            f"{specification!r} is no format for a tile: a sign, a width, a precision and a type of d, i, u, x, X, "
            "o, f, F, e, E, g, G"
        )
    align, sign, alternate, zero, width, precision, kind = match.groups()
    kind = _own_kind(kind or ("f" if is_float else "d"), value)
    if is_float != (kind in "fFeEgG"):
        raise t.wrong_type(
            f"format {kind} is for {'whole numbers' if is_float else 'floats'}, got {describe(value)}"
        )
    flags = ("-" if align == "<" else "") + sign.replace("-", "") + alternate + zero
    text = f"%{flags}{width}{precision or ''}{kind}"
    assert CONVERSION.fullmatch(text)
    return text


@implements(language.assume_divisible_by)
def assume_divisible_by(t: Translator, x: object, divisor: object) -> object:
    number = t.static_int(divisor, "divisor")
    if number < 1 or number & (number - 1):
        raise t.wrong_value(f"divisor is a power of two, got {number}")
    if isinstance(x, int) and not is_tile(x):
        if x % number:
            raise t.wrong_value(f"{x} is no multiple of {number}")
        return x
    value = as_tile(t, x, "what is assumed divisible")
    if not tile_type(value).number.is_integer:
        raise t.wrong_type(f"assume_divisible_by takes whole numbers, got {describe(x)}")
    result = type(value)(value.type, value.name)
    return t.add(AssumeDivByOp(source=value, divisor=number, result=result)).result


@implements(language.grid_dependency_control_wait)
def grid_dependency_control_wait(t: Translator) -> object:
    t.add(GridWaitOp(result_token=Value(TokenType())))
    return None


@implements(language.grid_dependency_control_launch_dependents)
def grid_dependency_control_launch_dependents(t: Translator) -> object:
    t.add(GridLaunchDependentsOp(result_token=Value(TokenType())))
    return None
