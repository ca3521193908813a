"""Values made of parts: tuples, named tuples, dicts, and instances of frozen dataclasses ("records").

None of them changes inside of a kernel, so they are ordinary Python objects whose parts may be tiles. A
branch or loop takes them apart into their leaves and puts them together again; what is no aggregate is a
leaf itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..language import Slice

__all__ = [
    "is_named_tuple",
    "is_record",
    "leaves",
    "new_record",
    "parts_of",
    "rebuild",
    "record_fields",
    "same_structure",
    "with_parts",
]

_fields: dict[type, tuple[str, ...] | None] = {}


def record_fields(cls: type) -> tuple[str, ...] | None:
    """Names of the fields of a frozen dataclass; None for other classes, and for those of this package."""
    if cls not in _fields:
        parameters = getattr(cls, "__dataclass_params__", None)
        is_ours = cls.__module__.partition(".")[0] in ("tilekern", "cuda_async") and cls is not Slice
        found = None
        if parameters is not None and parameters.frozen and not is_ours:
            found = tuple([field.name for field in dataclasses.fields(cls)])
        _fields[cls] = found
    return _fields[cls]


def is_record(value: object) -> bool:
    """True for instances of frozen dataclasses."""
    return record_fields(type(value)) is not None


def is_named_tuple(value: object) -> bool:
    """True for instances of `typing.NamedTuple` classes and `collections.namedtuple`."""
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def parts_of(value: object) -> tuple[object, ...] | None:
    """The parts of an aggregate, in order; None for a leaf."""
    kind = type(value)
    if kind is tuple:
        return value  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(value)
    if kind is dict:
        return tuple(value.values())  # type: ignore[attr-defined]
    names = record_fields(kind)
    return None if names is None else tuple([getattr(value, name) for name in names])


def leaves(value: object) -> Iterator[object]:
    """The parts of an aggregate, of the aggregates in it, and so on; of a leaf, itself."""
    parts = parts_of(value)
    if parts is None:
        yield value
    else:
        for part in parts:
            yield from leaves(part)


def rebuild(value: object, new: Iterator[object]) -> object:
    """`value` with its leaves replaced, in order, by `new`; `value` itself where nothing differs."""
    parts = parts_of(value)
    if parts is None:
        return next(new)
    return with_parts(value, [rebuild(part, new) for part in parts])


def with_parts(value: object, made: list[object]) -> object:
    """An aggregate with other parts; `value` itself where none differs."""
    parts = parts_of(value)
    assert parts is not None
    if all(a is b for a, b in zip(parts, made, strict=True)):
        return value
    if isinstance(value, tuple):
        return type(value)._make(made) if is_named_tuple(value) else tuple(made)  # type: ignore[attr-defined]
    if isinstance(value, dict):
        return dict(zip(value, made, strict=True))
    names = record_fields(type(value))
    assert names is not None
    return new_record(type(value), dict(zip(names, made, strict=True)))


def new_record(cls: type, values: dict[str, object]) -> object:
    """An instance of a frozen dataclass with those fields; none of its own code runs."""
    record: object = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(record, name, value)
    return record


def same_structure(a: object, b: object) -> bool:
    """True when both are leaves, or aggregates of one kind with parts of the same structure."""
    left, right = parts_of(a), parts_of(b)
    if left is None or right is None:
        return left is right
    if type(a) is not type(b) or len(left) != len(right):
        return False
    if isinstance(a, dict) and isinstance(b, dict) and list(a) != list(b):
        return False
    return all(map(same_structure, left, right))
