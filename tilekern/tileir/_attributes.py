"""Attributes that carry their own kind in the bytecode: predicates of `assume`, reduction identities, hints.

Most attributes of an op are plain values whose kind the op table knows. The classes here are for the
places where the reader has to be told (a "tagged" attribute: a tag, then the payload).

Hints: the assembler ignores a hint it does not understand without a word, so `check_hints` refuses
unknown targets, keys and values before they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import types
from ._architectures import ARCHITECTURES
from .errors import BytecodeError

__all__ = [
    "ENTRY_HINTS",
    "MEMORY_HINTS",
    "VIEW_HINTS",
    "ArrayAttribute",
    "Attribute",
    "BoolAttribute",
    "Bounded",
    "DenseAttribute",
    "DictionaryAttribute",
    "DivBy",
    "FloatAttribute",
    "Hints",
    "HintsAttribute",
    "IntegerAttribute",
    "SameElements",
    "StringAttribute",
    "TypeAttribute",
    "check_hints",
]


@dataclass(frozen=True, slots=True)
class Attribute:
    """Base of tagged attributes."""


@dataclass(frozen=True, slots=True)
class IntegerAttribute(Attribute):
    """An integer of a given type; stored modulo 2**bits."""

    type: types.NumberType
    value: int


@dataclass(frozen=True, slots=True)
class FloatAttribute(Attribute):
    """A float of a given type, as its bit pattern (`FunctionBuilder` makes these from Python floats)."""

    type: types.NumberType
    bits: int


@dataclass(frozen=True, slots=True)
class BoolAttribute(Attribute):
    """True or false."""

    value: bool


@dataclass(frozen=True, slots=True)
class TypeAttribute(Attribute):
    type: types.Type


@dataclass(frozen=True, slots=True)
class StringAttribute(Attribute):
    value: str


@dataclass(frozen=True, slots=True)
class ArrayAttribute(Attribute):
    items: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class DenseAttribute(Attribute):
    """Tile contents, encoded as for the `constant` op."""

    type: types.Type
    data: bytes


@dataclass(frozen=True, slots=True)
class DivBy(Attribute):
    """`assume`: every value (for pointers: byte address) is a multiple of `divisor`, a power of two.

    With `every` and `along`: only the first of each group of `every` elements along axis `along`,
    the others following in steps of one element.
    """

    divisor: int
    every: int | None = None
    along: int | None = None

    def __post_init__(self) -> None:
        if self.divisor < 1 or self.divisor & (self.divisor - 1):
            raise BytecodeError(f"div_by takes a power of two, got {self.divisor}", "assume")
        if (self.every is None) != (self.along is None):
            raise BytecodeError("div_by takes `every` and `along` together or neither", "assume")


@dataclass(frozen=True, slots=True)
class SameElements(Attribute):
    """`assume`: elements are equal within groups of this size, one size per axis (1: nothing known)."""

    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bounded(Attribute):
    """`assume`: lower <= value <= upper, signed; a side left out is unbounded."""

    lower: int | None = None
    upper: int | None = None


@dataclass(frozen=True, slots=True)
class DictionaryAttribute(Attribute):
    items: tuple[tuple[str, Attribute], ...]


@dataclass(frozen=True, slots=True)
class HintsAttribute(Attribute):
    """Optimisation hints of an entry: per target (or "default"), key and value."""

    items: tuple[tuple[str, Attribute], ...]


Hints = Mapping[str, Mapping[str, int | bool]]
"""Hints per target: {"sm_90": {"occupancy": 2}, "default": {...}}; a target's own entry wins, key by key."""

ENTRY_HINTS: dict[str, tuple[int, ...] | range] = {
    "num_cta_in_cga": (1, 2, 4, 8, 16),
    "occupancy": range(1, 33),
    "num_worker_warps_per_cta": (4, 8, 16),
}
"""Hints of a kernel entry and the values that do something."""

MEMORY_HINTS: dict[str, tuple[int, ...] | range] = {"latency": range(1, 11)}
"""Hints of pointer loads and stores."""

VIEW_HINTS: dict[str, tuple[int, ...] | range] = {"latency": range(1, 11), "allow_tma": (False, True)}
"""Hints of view loads and stores."""


def check_hints(
    hints: Hints, allowed: Mapping[str, tuple[int, ...] | range], where: str
) -> tuple[tuple[str, Attribute], ...]:
    """Refuse hints the assembler would ignore, and give them as attributes.

    Raises:
        BytecodeError: an unknown target or key, a value out of range, or of the wrong type.
    """
    targets = []
    for target, entries in hints.items():
        if target != "default" and target not in ARCHITECTURES:
            raise BytecodeError(
                f"{where}: no hint target {target!r}; use 'default' or one of {', '.join(ARCHITECTURES)}",
                where,
            )
        items = []
        for key, value in entries.items():
            if key not in allowed:
                raise BytecodeError(f"{where}: no hint {key!r}; it takes {', '.join(allowed)}", where)
            values = allowed[key]
            wants_bool = isinstance(values[0], bool)
            if isinstance(value, bool) != wants_bool or value not in values:
                span = (
                    f"{values.start} to {values.stop - 1}"
                    if isinstance(values, range)
                    else f"one of {values}"
                )
                raise BytecodeError(f"{where}: hint {key} is {span}, got {value!r}", where)
            items.append(
                (key, BoolAttribute(bool(value)) if wants_bool else IntegerAttribute(types.i32, value))
            )
        targets.append((target, DictionaryAttribute(tuple(items))))
    return tuple(targets)
