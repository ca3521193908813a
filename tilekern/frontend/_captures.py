"""What a kernel read of the program around it: globals, closures, attributes. They are compiled in.

A variant is right as long as these read the same, so each is kept with the place it was read from. Most
are the very object they were; else values are compared. Lists, dicts and arrays are compared by content, up
to a size; larger ones, and all other objects, by identity.

Not kept: names of this package, NumPy and Python's own modules, which nobody changes, and what reads
differently every time, such as a property that draws a random number.
"""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..dtypes import DType

__all__ = ["Capture", "Captures", "frozen", "is_trusted"]

MAX_CONTENT = 1024
"""Items, or elements of an array, up to which a container is compared by content."""

_TRUSTED = frozenset({"tilekern", "numpy", "ml_dtypes", "math", "operator", "builtins", "enum", "typing"})
"""Packages whose names stay what they are."""

_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, dict, set, np.ndarray)
_VALUES = (*_NUMBERS, tuple, frozenset, range, slice, np.generic, DType, enum.Enum)
"""Types whose attributes do not change."""


@dataclass(frozen=True, eq=False)
class Capture:
    """One value read, and where from.

    Attributes:
        kind: how it is read.
        owner: the dict of globals, the closure's cell, or the object with the attribute.
        name: the name in it.
        value: what it was.
        content: what it was, as `frozen` has it.
    """

    kind: Literal["global", "cell", "attribute"]
    owner: Any  # a dict, a cell, or whatever has attributes
    name: str
    value: object
    content: object

    def read(self) -> object:
        """What it is now."""
        if self.kind == "global":
            return self.owner[self.name]
        return self.owner.cell_contents if self.kind == "cell" else getattr(self.owner, self.name)

    def holds(self) -> bool:
        """True if it is what it was."""
        try:
            value = self.read()
            if value is self.value and type(value) in _NUMBERS:
                return True
            return bool(frozen(value) == self.content)
        except Exception:  # gone, or a property that fails now: it is not what it was
            return False

    @property
    def is_by_identity(self) -> bool:
        """True if nothing but another object in its place can change it."""
        return not _has_container(self.value)


class Captures:
    """What has been read so far, each place once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], Capture] = {}
        self._own: dict[int, object] = {}

    def own(self, value: object) -> None:
        """Note an object that the kernel itself has made: reading its attributes captures nothing."""
        self._own[id(value)] = value

    def from_globals(self, names: Any, name: str) -> object:
        """The value of a module's name; `names` is the module's dict."""
        value = names[name]
        if not (isinstance(value, types.ModuleType) and is_trusted(value.__name__)):
            self._add("global", names, name, value)
        return value

    def from_cell(self, cell: types.CellType, name: str) -> object:
        """The value of a closure's variable."""
        value = cell.cell_contents
        self._add("cell", cell, name, value)
        return value

    def from_attribute(self, owner: object, name: str) -> object:
        """The value of an attribute."""
        value = getattr(owner, name)
        if isinstance(owner, types.ModuleType):
            if not is_trusted(owner.__name__):
                self._add("attribute", owner, name, value)
        elif (
            not isinstance(owner, _VALUES)
            and not (isinstance(owner, type) and is_trusted(owner.__module__))
            and id(owner) not in self._own
        ):
            self._add("attribute", owner, name, value)
        return value

    def _add(
        self, kind: Literal["global", "cell", "attribute"], owner: object, name: str, value: object
    ) -> None:
        key = (kind, id(owner), name)
        if key not in self._found:  # the capture keeps the owner, so its id stays its own
            self._found[key] = Capture(kind, owner, name, value, frozen(value))

    def steady(self) -> tuple[Capture, ...]:
        """The captures whose places read the same twice in a row."""
        return tuple([c for c in self._found.values() if _is_steady(c)])


def _is_steady(capture: Capture) -> bool:
    try:
        return bool(frozen(capture.read()) == frozen(capture.read()))
    except Exception:  # cannot be read again
        return False


def is_trusted(module: str) -> bool:
    """True for modules whose names stay what they are."""
    return module.partition(".")[0] in _TRUSTED


class _Same:
    """Equal to itself made of the same object only."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up


def frozen(value: object) -> object:
    """What tells a value from others: 1, 1.0 and True differ, equal lists do not."""
    kind = type(value)
    if kind is float or kind is complex:
        return (kind, repr(value))
    if kind in _NUMBERS:
        return (kind, value)
    if isinstance(value, np.ndarray | np.generic):
        if value.size > MAX_CONTENT or value.dtype.hasobject:
            return _Same(value)
        return (kind, value.dtype, value.shape, value.tobytes())
    if kind in (tuple, list, set, frozenset, dict):
        return _frozen_items(value)
    if isinstance(value, types.MethodType):
        return (kind, _Same(value.__func__), _Same(value.__self__))
    return _Same(value)


def _frozen_items(value: Any) -> object:
    if len(value) > MAX_CONTENT:
        return _Same(value)
    try:
        items = value.items() if type(value) is dict else value
        return (type(value), *[frozen(item) for item in items])
    except RecursionError:  # it holds itself
        return _Same(value)


def _has_container(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_container, value))
    return isinstance(value, _CONTAINERS)
