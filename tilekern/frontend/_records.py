"""Frozen dataclasses and named tuples in kernels: making them, their attributes, methods and operators.

Made from compile-time values, they are made by Python. From tiles, the fields are set and none of the class's
own code runs in Python but its default factories; `__post_init__`, methods and properties are translated like
helpers.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

from ..ir import Value
from ._aggregates import is_named_tuple, is_record, leaves, new_record, parts_of, record_fields
from ._values import Loose, is_tile

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = [
    "NOT_THERE",
    "call_method",
    "holds_tiles",
    "make_record",
    "no_record",
    "overloaded",
    "overloaded_unary",
    "record_attribute",
    "replaced",
]

NOT_THERE = object()
"""The class has no such operator."""

_BINARY = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
}
_COMPARE = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_UNARY = {"-": "neg", "+": "pos", "~": "invert"}

_PLAIN = frozenset({int, float, bool, str, tuple, type(None), Value, Loose})
"""Types without operators of their own, looked at first because they are what most operands are."""

_signatures: dict[type, inspect.Signature] = {}


def holds_tiles(value: object) -> bool:
    """True for a tile, and for an aggregate with one in it."""
    return any(is_tile(leaf) for leaf in leaves(value))


def make_record(t: Translator, cls: type, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """An instance of a frozen dataclass, some of its fields being tiles."""
    from ._calls import call

    if not _is_generated(cls.__dict__.get("__init__")):
        raise t.wrong_type(
            f"{cls.__name__} has an __init__ of its own, which cannot take tiles; leave it to @dataclass, and "
            "compute further fields in __post_init__ or a function"
        )
    signature = _signatures.get(cls)
    if signature is None:
        signature = _signatures[cls] = inspect.signature(cls)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise t.wrong_type(f"{cls.__name__}: {error}") from None
    given = bound.arguments
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        if field.name in given:
            values[field.name] = given.pop(field.name)
        elif field.default is not dataclasses.MISSING:
            values[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
    if given:
        raise t.wrong_type(f"{cls.__name__}: {', '.join(given)} is an InitVar, which kernels do not have")
    record = new_record(cls, values)
    t.captures.own(record)
    after = getattr(cls, "__post_init__", None)
    if isinstance(after, types.FunctionType):
        call(t, after, (record,), {})
    return record


def replaced(t: Translator, record: object, changes: dict[str, object]) -> object:
    """`dataclasses.replace(record, **changes)`, or `record._replace(**changes)` of a named tuple."""
    cls = type(record)
    names: tuple[str, ...] = record_fields(cls) or getattr(cls, "_fields", ()) or ()
    unknown = [name for name in changes if name not in names]
    if unknown:
        raise t.wrong_type(f"{cls.__name__} has no field {unknown[0]}; it has {', '.join(names)}")
    parts = parts_of(record)
    assert parts is not None
    values = {**dict(zip(names, parts, strict=True)), **changes}
    if isinstance(record, tuple):
        return cls._make(values.values())  # type: ignore[attr-defined]
    return make_record(t, cls, (), values)


def record_attribute(t: Translator, value: object, name: str) -> object:
    """`value.name` of a record or named tuple; a property is translated like a helper."""
    from ._calls import call

    found = inspect.getattr_static(type(value), name, None)
    if isinstance(found, property) and found.fget is not None:
        return call(t, found.fget, (value,), {})
    if isinstance(found, functools.cached_property):
        return call(t, found.func, (value,), {})
    if is_record(value) and name not in (record_fields(type(value)) or ()):
        t.captures.from_attribute(type(value), name)  # a method, or what the class itself has
        return getattr(value, name)
    return t.captures.from_attribute(value, name)


def overloaded(t: Translator, symbol: str, a: object, b: object) -> object:
    """`a symbol b` by an operator that the class of either defines in Python; `NOT_THERE` without one."""
    from ._calls import call

    if type(a) in _PLAIN and type(b) in _PLAIN:
        return NOT_THERE
    if symbol in _COMPARE:
        attempts = [(a, b, _COMPARE[symbol]), (b, a, _COMPARE[_MIRRORED[symbol]])]
    else:
        attempts = [(a, b, _BINARY[symbol]), (b, a, "r" + _BINARY[symbol])]
    for owner, other, name in attempts:
        method = _written_method(owner, f"__{name}__")
        if method is not None:
            result = call(t, method, (owner, other), {})
            if result is not NotImplemented:
                return result
    return NOT_THERE


def overloaded_unary(t: Translator, symbol: str, value: object) -> object:
    """`symbol value` by an operator that its class defines in Python; `NOT_THERE` without one."""
    return call_method(t, value, f"__{_UNARY[symbol]}__")


def call_method(t: Translator, value: object, name: str, *args: object) -> object:
    """The result of a special method that the class of `value` defines in Python; `NOT_THERE` without one."""
    from ._calls import call

    method = _written_method(value, name)
    return NOT_THERE if method is None else call(t, method, (value, *args), {})


def _written_method(value: object, name: str) -> types.FunctionType | None:
    if not (is_record(value) or is_named_tuple(value)):
        return None
    method = getattr(type(value), name, None)
    return method if isinstance(method, types.FunctionType) and not _is_generated(method) else None


def _is_generated(method: Any) -> bool:
    """True for the methods that `@dataclass` writes, which have no source; inherited ones are None."""
    code = getattr(method, "__code__", None)
    return method is None or (code is not None and code.co_filename == "<string>")


def no_record(t: Translator, cls: type) -> Exception:
    """The error for an ordinary class that is given tiles."""
    if dataclasses.is_dataclass(cls):
        return t.wrong_type(
            f"{cls.__name__} holds tiles and must not change: mark it @dataclass(frozen=True)"
        )
    return t.wrong_type(
        f"{cls.__name__} is an ordinary class and cannot hold tiles; make it a frozen dataclass or a NamedTuple"
    )
