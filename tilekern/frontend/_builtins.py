"""Python's own functions in kernels: those with a meaning for tiles, and those computed at compile time."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import language
from ..dtypes import DType, bool_, float32, int32, int64
from ..errors import KernelError
from ..ir import CastOp, cast_roundings, scalar
from ._aggregates import leaves, parts_of, record_fields
from ._iteration import is_static_range, items_of, static_range
from ._operators import binary, truth, unary
from ._promotion import cast
from ._records import NOT_THERE, call_method, holds_tiles, make_record, no_record, replaced
from ._suggestions import instead
from ._values import (
    InnerFunction,
    Loose,
    OwnedTileValue,
    PartialFunction,
    RangeValue,
    TensorValue,
    describe,
    is_scalar,
    is_tile,
    tile_type,
)
from .operations import HANDLERS

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = ["SPECIAL", "call_builtin", "compute", "why_not"]

_PLAIN: frozenset[object] = frozenset(
    {issubclass, sorted, divmod, round, repr, pow, ord, chr, hash, callable, bin, hex, format, ascii}
)
"""Python's functions that are computed at compile time; classes are too."""

_READING: dict[type, tuple[str, ...]] = {
    dict: ("get", "items", "keys", "values", "copy"),
    list: ("index", "count", "copy"),
}
"""Methods of Python's containers that change nothing."""

_ANNOTATIONS = (language.Tile, language.Tensor, language.OwnedTile)
_UNCHANGING = (str, tuple, int, float, range, frozenset, types.GenericAlias)

Args = tuple[object, ...]
Keywords = dict[str, object]
Builtin = Callable[["Translator", object, Args, Keywords], object]


def call_builtin(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """A call that Python makes while the kernel is compiled, or that is refused."""
    if getattr(function, "is_tile_kernel", False):
        raise t.wrong_type(
            f"{describe(function)} is a kernel and cannot be called from one; move what they share into a function"
        )
    if isinstance(function, TensorValue | OwnedTileValue) or is_tile(function) or not callable(function):
        raise t.wrong_type(f"{describe(function)} cannot be called")
    name = getattr(function, "__name__", str(function))
    if not _is_computable(function):
        owner = getattr(function, "__self__", None)
        if isinstance(owner, list | dict | set) and not isinstance(owner, types.ModuleType):
            raise t.wrong_type(
                f"{name} would change a {type(owner).__name__}, and nothing changes in place in a kernel; make a new "
                "one, as in (*items, item) or {**table, key: value}"
            )
        raise t.wrong_type(why_not(function, name))
    if isinstance(function, type):
        if record_fields(function) is not None and holds_tiles((args, tuple(kwargs.values()))):
            return make_record(t, function, args, kwargs)
        if issubclass(function, _ANNOTATIONS):
            raise t.wrong_type(
                f"tk.{name} is for annotations and isinstance, and makes nothing; tk.full(shape, value, dtype) makes a "
                "tile, and x.astype(dtype) converts one"
            )
        takes_tiles = issubclass(function, tuple) and hasattr(function, "_fields")
    else:
        takes_tiles = isinstance(getattr(function, "__self__", None), dict | tuple | list)
    if function in (str, repr) and len(args) == 1 and isinstance(args[0], DType):
        return args[0].name  # Python's are for the printed IR, and for the host
    if not takes_tiles and holds_tiles((args, tuple(kwargs.values()))):
        if isinstance(function, type) and function.__module__ != "builtins":
            raise no_record(t, function)
        has_ours = getattr(language, name, None) in HANDLERS
        raise t.wrong_type(
            f"{name} is computed at compile time and takes no tiles"
            + (f"; tk.{name} does" if has_ours else instead(name, ()))
        )
    return compute(t, function, args, kwargs)


def why_not(function: object, name: str) -> str:
    """Why a function that is not written for kernels cannot be called in one, and what to do."""
    module = str(getattr(function, "__module__", None) or type(function).__module__)
    if module.partition(".")[0] == "numpy":
        ours = f"use tk.{name}" if hasattr(language, name) else "give what it makes as an argument"
        return f"np.{name} works on the host, before a kernel runs; {ours}"
    return (
        f"{describe(function)} cannot be called in a kernel: it is not written in Python, so it cannot be translated; "
        "call it before the launch and give its value as an argument"
    )


def _is_computable(function: object) -> bool:
    """True for what has no side effects when it is called at compile time."""
    if isinstance(function, type):
        return True
    try:
        if function in _PLAIN:
            return True
    except TypeError:  # not hashable
        return False
    owner = getattr(function, "__self__", None)
    reading = _READING.get(type(owner))
    if reading is not None:
        return getattr(function, "__name__", "") in reading
    return getattr(function, "__module__", None) in ("math", "operator", "_operator") or isinstance(
        owner, _UNCHANGING
    )


def compute(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """Let Python compute a call; a new list comes as a tuple, and a range as one of Python's."""
    plain: list[object] = []
    for value in args:
        if isinstance(value, RangeValue):
            if not is_static_range(value):
                raise t.wrong_type(f"{_name(function)} takes a range known at compile time")
            value = static_range(value)
        elif isinstance(value, InnerFunction | PartialFunction):
            raise t.wrong_type(
                f"{_name(function)} is computed by Python, which cannot call {describe(value)}"
            )
        plain.append(value)
    # Any: one of Python's own functions, or a class
    python: Any = function
    try:
        result: object = python(*plain, **kwargs)
    except KernelError:
        raise
    except Exception as error:
        raise t.wrong_value(f"{_name(function)}: {type(error).__name__}: {error}") from None
    if type(result) is list:
        return tuple(result)
    if record_fields(type(result)) is not None:
        t.captures.own(result)
    return result


def _name(function: object) -> str:
    return getattr(function, "__name__", str(function))


def _one(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """The only argument."""
    if len(args) != 1 or kwargs:
        raise t.wrong_type(f"{_name(function)} takes one argument, got {len(args) + len(kwargs)}")
    return args[0]


# ------------------------------------------------------------------ numbers


def _extremum(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """min and max: of tiles, two by two."""
    from ._calls import call

    values = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
    if not any(is_tile(v) for v in values):
        return compute(t, function, args, kwargs)
    if set(kwargs) & {"key", "default"}:
        raise t.wrong_type(f"{_name(function)} of tiles takes no key and no default")
    combine = language.minimum if function is min else language.maximum
    result = values[0]
    for value in values[1:]:
        result = call(t, combine, (result, value), kwargs)
    return result


def _absolute(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    from ._calls import call

    if not any(is_tile(v) for v in args):
        return compute(t, function, args, kwargs)
    return call(t, language.abs, args, kwargs)


def _convert(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """int(x), float(x), bool(x): of a scalar, a conversion to the type such numbers have by default.

    A loose number is held in that kind of number already, or is a whole one that float64 holds as well.
    """
    if len(args) != 1 or not is_tile(args[0]):
        return compute(t, function, args, kwargs)
    value = args[0]
    if isinstance(value, Loose) and function is not bool:
        if tile_type(value).number.is_float == (function is float):
            return value
        return binary(t, "*", value, 1.0) if function is float else _as_loose(t, value)
    dtype = {int: int32, float: float32, bool: bool_}[function]  # type: ignore[index]
    return cast(t, value, dtype)


def _as_loose(t: Translator, value: Loose) -> Loose:
    """The whole number that a loose float is cut to."""
    whole = Loose(scalar(int64))
    t.add(CastOp(source=value, rounding=cast_roundings(tile_type(value).number, int64)[0], result=whole))
    return whole


def _power(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    if len(args) == 2 and not kwargs and holds_tiles(args):
        return binary(t, "**", args[0], args[1])
    if holds_tiles((args, tuple(kwargs.values()))):
        raise t.wrong_type("pow of tiles takes a base and an exponent; a remainder of it is x ** y % z")
    return compute(t, function, args, kwargs)


def _divmod(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    if len(args) == 2 and not kwargs and holds_tiles(args):
        return (binary(t, "//", args[0], args[1]), binary(t, "%", args[0], args[1]))
    return compute(t, function, args, kwargs)


# ------------------------------------------------------------------ sequences


def _range(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    if kwargs or not 1 <= len(args) <= 3:
        raise t.wrong_type(f"range takes one to three numbers, got {len(args) + len(kwargs)}")
    numbers: list[Any] = []
    for value in args:
        if isinstance(value, int) and not isinstance(value, bool):
            numbers.append(int(value))
        elif is_scalar(value) and tile_type(value).number.is_integer:
            numbers.append(value)
        else:
            raise t.wrong_type(f"range takes whole numbers and integer scalars, got {describe(value)}")
    start, stop, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    if isinstance(step, int) and step == 0:
        raise t.wrong_value("the step of range is 0")
    return RangeValue(start, stop, step)


def _reversed(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    value = _one(t, function, args, kwargs)
    if not isinstance(value, RangeValue):
        return items_of(t, value, "reversed goes through")[::-1]
    start: Any = value.start
    step: Any = value.step
    # as many turns as Python makes, which is -((start - stop) // step)
    turns = binary(t, "-", 0, binary(t, "//", binary(t, "-", start, value.stop), step))
    last: Any = binary(t, "+", start, binary(t, "*", binary(t, "-", turns, 1), step))
    before: Any = binary(t, "-", start, step)
    back: Any = binary(t, "-", 0, step)
    return RangeValue(last, before, back)


def _enumerate(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    first = kwargs.pop("start", args[1] if len(args) > 1 else 0)
    items = items_of(t, _one(t, function, args[:1], kwargs), "enumerate goes through")
    return tuple([(binary(t, "+", first, i), item) for i, item in enumerate(items)])


def _zip(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    rows = [items_of(t, arg, "zip goes through") for arg in args]
    return compute(t, lambda: list(zip(*rows, **kwargs)), (), {})  # type: ignore[call-overload]


def _map(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    from ._calls import call

    rows = [items_of(t, arg, "map goes through") for arg in args[1:]]
    if kwargs or not rows:
        raise t.wrong_type("map takes a function and one or more tuples")
    return tuple([call(t, args[0], row, {}) for row in zip(*rows, strict=False)])


def _filter(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    from ._calls import call

    if kwargs or len(args) != 2:
        raise t.wrong_type("filter takes a function and a tuple")
    kept = []
    for item in items_of(t, args[1], "filter goes through"):
        test = item if args[0] is None else call(t, args[0], (item,), {})
        condition = truth(t, test, "filter")
        if not isinstance(condition, bool):
            raise t.wrong_type("filter decides at compile time, and this condition is known at run time only")
        if condition:
            kept.append(item)
    return tuple(kept)


def _collect(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """tuple(x) and list(x)."""
    return items_of(t, _one(t, function, args, kwargs), "a tuple is made of") if args else ()


def _dict(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    if args and not isinstance(args[0], dict):
        args = (items_of(t, args[0], "a dict is made of"), *args[1:])
    return compute(t, function, args, kwargs)


def _sum(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    start = kwargs.pop("start", args[1] if len(args) > 1 else 0)
    total: object = start
    if args and is_tile(args[0]):
        raise t.wrong_type("Python's sum adds the items of a tuple; tk.sum adds the elements of a tile")
    items = items_of(t, _one(t, function, args[:1], kwargs), "sum adds")
    for position, item in enumerate(items):
        total = item if position == 0 and type(start) is int and start == 0 else binary(t, "+", total, item)
    return total


def _any_all(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    name = "any" if function is any else "all"
    if args and is_tile(args[0]):
        raise t.wrong_type(
            f"Python's {name} goes through a tuple; for a tile use tk.{'max' if function is any else 'min'}(x)"
        )
    decided = function is any
    result: object = not decided
    for item in items_of(t, _one(t, function, args, kwargs), f"{name} goes through"):
        condition = truth(t, item, name)
        if isinstance(condition, bool):
            if condition == decided:
                return decided
        else:
            result = (
                condition if isinstance(result, bool) else binary(t, "|&"[not decided], result, condition)
            )
    return result


def _len(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    value = _one(t, function, args, kwargs)
    if is_tile(value) or isinstance(value, TensorValue | OwnedTileValue):
        name = getattr(value, "name", "") or "x"
        raise t.wrong_type(f"{describe(value)} has no len; use {name}.shape[0]")
    if isinstance(value, RangeValue) and not is_static_range(value):
        raise t.wrong_type(
            "len of a range known at run time only; compute it, as in tk.cdiv(stop - start, step)"
        )
    own = call_method(t, value, "__len__")
    return compute(t, function, args, kwargs) if own is NOT_THERE else own


def _reduce(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """functools.reduce."""
    from ._calls import call

    if kwargs or not 2 <= len(args) <= 3:
        raise t.wrong_type("reduce takes a function, a tuple and, optionally, a start")
    items = (*args[2:], *items_of(t, args[1], "reduce goes through"))
    if not items:
        raise t.wrong_value("reduce of nothing, without a start")
    result = items[0]
    for item in items[1:]:
        result = call(t, args[0], (result, item), {})
    return result


# ------------------------------------------------------------------ functions and objects


def _partial(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    if not args:
        raise t.wrong_type("partial takes a function")
    return PartialFunction(args[0], args[1:], kwargs)


def _replace(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """dataclasses.replace."""
    if len(args) != 1 or record_fields(type(args[0])) is None:
        raise t.wrong_type(
            "replace takes an instance of a frozen dataclass, and the fields that change by name"
        )
    return replaced(t, args[0], kwargs)


def _astuple(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """dataclasses.astuple and asdict, of records."""
    value = _one(t, function, args, kwargs)
    names = record_fields(type(value))
    if names is None:
        raise t.wrong_type(
            f"{_name(function)} takes an instance of a frozen dataclass, got {describe(value)}"
        )

    def taken_apart(part: object) -> object:
        own = record_fields(type(part))
        parts = parts_of(part)
        if parts is None:
            return part
        inner = list(map(taken_apart, parts))
        if own is None:
            return dict(zip(part, inner, strict=True)) if isinstance(part, dict) else tuple(inner)
        return tuple(inner) if function is dataclasses.astuple else dict(zip(own, inner, strict=True))

    return taken_apart(value)


def _getattr(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    """getattr and hasattr."""
    from ._attributes import attribute

    wanted = 2 if function is hasattr else 3
    if kwargs or not 2 <= len(args) <= wanted or not isinstance(args[1], str):
        raise t.wrong_type(f"{_name(function)} takes an object and the name of an attribute")
    try:
        found = attribute(t, args[0], args[1])
    except KernelError:
        if function is hasattr:
            return False
        if len(args) == 3:
            return args[2]
        raise
    return True if function is hasattr else found


def _isinstance(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    if len(args) != 2 or kwargs:
        raise t.wrong_type("isinstance takes a value and a class")
    value, kinds = args
    if isinstance(kinds, types.UnionType):
        kinds = kinds.__args__
    classes = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(cls, type) for cls in leaves(classes)):
        raise t.wrong_type(f"isinstance takes classes, got {describe(kinds)}")
    return any(_is_of(value, cls) for cls in leaves(classes))


def _loose_kind(value: Loose) -> type:
    """The class of Python's numbers that a loose one is of."""
    kind = tile_type(value).number
    return bool if kind is bool_ else float if kind.is_float else int


def _is_of(value: object, cls: Any) -> bool:
    if isinstance(value, Loose):
        return issubclass(_loose_kind(value), cls)
    if is_tile(value):
        return issubclass(language.Tile, cls)
    if isinstance(value, TensorValue | OwnedTileValue):
        ours = language.Tensor if isinstance(value, TensorValue) else language.OwnedTile
        rank = value.rank if isinstance(value, TensorValue) else len(value.tile_shape)
        return issubclass(ours, cls) or (issubclass(cls, ours) and cls.rank == rank)
    return isinstance(value, cls)


def _type(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    value = _one(t, function, args, kwargs)
    if isinstance(value, Loose):
        return _loose_kind(value)
    if is_tile(value):
        return language.Tile
    if isinstance(value, TensorValue):
        return language.Tensor
    return language.OwnedTile if isinstance(value, OwnedTileValue) else type(value)


def _print(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    unknown = set(kwargs) - {"sep", "end"}
    if unknown:
        raise t.wrong_type(f"print in a kernel takes sep and end, got {', '.join(sorted(unknown))}")
    return HANDLERS[language.print](t, args, kwargs.get("sep", " "), kwargs.get("end", "\n"))


_BINARY: dict[str, Callable[..., object]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
_COMPARE: dict[str, Callable[..., object]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNARY: dict[str, Callable[..., object]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "not": operator.not_,
}


def _operator(symbol: str, apply: Callable[..., object], count: int) -> Builtin:
    """The handler of a function of the module `operator`."""

    def handle(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
        if len(args) != count or kwargs:
            raise t.wrong_type(f"operator.{_name(function)} takes {count} values, got {len(args)}")
        return apply(t, symbol, *args)

    return handle


def _compare(t: Translator, symbol: str, a: object, b: object) -> object:
    from ._comparisons import compare_any

    return compare_any(t, symbol, a, b)


def _super(t: Translator, function: object, args: Args, kwargs: Keywords) -> object:
    raise t.syntax("kernels cannot use super(); name the class, as in Base.method(self)")


SPECIAL: Mapping[object, Builtin] = {
    abs: _absolute,
    all: _any_all,
    any: _any_all,
    bool: _convert,
    dataclasses.asdict: _astuple,
    dataclasses.astuple: _astuple,
    dataclasses.replace: _replace,
    dict: _dict,
    divmod: _divmod,
    enumerate: _enumerate,
    filter: _filter,
    float: _convert,
    functools.partial: _partial,
    functools.reduce: _reduce,
    getattr: _getattr,
    hasattr: _getattr,
    int: _convert,
    isinstance: _isinstance,
    len: _len,
    list: _collect,
    map: _map,
    max: _extremum,
    min: _extremum,
    pow: _power,
    print: _print,
    range: _range,
    reversed: _reversed,
    builtins.sum: _sum,
    super: _super,
    tuple: _collect,
    type: _type,
    zip: _zip,
    **{function: _operator(symbol, binary, 2) for symbol, function in _BINARY.items()},
    **{function: _operator(symbol, _compare, 2) for symbol, function in _COMPARE.items()},
    **{function: _operator(symbol, unary, 1) for symbol, function in _UNARY.items()},
}
"""Python's functions that mean something else in a kernel, or take tiles there."""
