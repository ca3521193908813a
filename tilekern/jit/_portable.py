"""Specs, options and launch checks as JSON, to keep them between processes.

Written and read are numbers, strings, tuples, element types, and dataclasses and enumeration members of
this package; nothing else is, and reading makes nothing else. A place in the source is read when somebody
looks at it: most never are, and its class comes with the whole IR.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

from ..dtypes import DTYPES, DType

__all__ = ["NotPortable", "from_portable", "to_portable"]

_LOCATION = "tilekern.ir._location:Location"


class NotPortable(Exception):
    """A value that means nothing in another process, or text that is no value."""


def to_portable(value: object) -> Any:
    """A value as JSON has it.

    Raises:
        NotPortable: it cannot be kept.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return ["float", value.hex() if math.isfinite(value) else repr(value)]
    if type(value) is bytes:
        return ["bytes", value.hex()]
    if type(value) is tuple:
        return ["tuple", *map(to_portable, value)]
    if isinstance(value, DType):
        return ["dtype", value.name]
    if isinstance(value, _Later):
        return value.text
    kind = type(value)
    home = f"{kind.__module__}:{kind.__qualname__}"
    if home.startswith("tilekern.") and isinstance(value, enum.Enum):
        return ["enum", home, value.name]
    if home.startswith("tilekern.") and dataclasses.is_dataclass(value):
        fields = {f.name: to_portable(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return ["object", home, fields]
    raise NotPortable(f"{kind.__name__} {value!r} means nothing in another process")


def from_portable(text: Any, *, later: bool = True) -> Any:
    """The value of what `to_portable` made.

    Args:
        later: places in the source become stand-ins that are read when they are used.
    Raises:
        NotPortable: it is none.
    """
    if text is None or type(text) in (bool, int, str):
        return text
    try:
        return _read(text, later)
    except (
        ArithmeticError,
        AttributeError,
        ImportError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise NotPortable(f"not a stored value: {error}") from error


def _read(text: Any, later: bool) -> Any:
    kind = text[0]
    if kind == "float":
        return float.fromhex(text[1])
    if kind == "bytes":
        return bytes.fromhex(text[1])
    if kind == "tuple":
        return tuple([from_portable(part, later=later) for part in text[1:]])
    if kind == "dtype":
        return _by_name()[text[1]]
    if kind == "object" and later and text[1] == _LOCATION:
        return _Later(text)
    cls = _class(text[1])
    if kind == "enum" and issubclass(cls, enum.Enum):
        return cls[text[2]]
    if kind == "object" and dataclasses.is_dataclass(cls):
        return cls(**{name: from_portable(part, later=later) for name, part in text[2].items()})
    raise NotPortable(f"there are no values of kind {kind!r}")


def _class(home: str) -> type:
    from importlib import import_module

    module, _, name = home.partition(":")
    if not module.startswith("tilekern."):
        raise NotPortable(f"{home} is not of this package")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or found.__module__ != module:
        raise NotPortable(f"{home} is no class of this package")
    return found


def _by_name() -> dict[str, DType]:
    return {dtype.name: dtype for dtype in DTYPES.values()}


class _Later:
    """A `Location` that is made when it is looked at."""

    def __init__(self, text: Any) -> None:
        self.text = text

    def __getattr__(self, name: str) -> Any:
        return getattr(from_portable(self.text, later=False), name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Later) and other.text == self.text

    def __hash__(self) -> int:
        return hash(repr(self.text))
