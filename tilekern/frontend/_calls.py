"""Calls: of language functions, element types, helpers (inlined) and Python's own functions."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import language
from ..dtypes import DType, bool_, float32, int32, int64
from ._aggregates import leaves
from ._frame import Frame, Returned
from ._operators import binary
from ._promotion import as_tile, cast
from ._source import FunctionNode, FunctionSource, source_of
from ._translator import MAX_CALL_DEPTH
from ._values import (
    BoundMethod,
    InnerFunction,
    Loose,
    OwnedTileValue,
    RangeValue,
    TensorValue,
    describe,
    is_loose,
    is_scalar,
    is_tile,
    tile_type,
)
from .operations import HANDLERS

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = ["call", "inner_function", "run_function"]

_PLAIN: frozenset[object] = frozenset(
    {len, isinstance, issubclass, sum, sorted, divmod, round, repr, all, any, pow, hasattr, getattr, ord, chr}
)
"""Python's functions that are computed at compile time; classes are too."""

_TAKE_TILES: frozenset[object] = frozenset({len, isinstance, tuple, list, dict, zip, enumerate, reversed})
"""Those that may be given tiles, because they do not look into them."""


def call(t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """`function(*args, **kwargs)`, with the call being the current place."""
    if isinstance(function, BoundMethod):
        handler = METHODS.get(function.name)
        if handler is not None:
            return _language(t, handler, (function.target, *args), kwargs)
        return call(t, getattr(language, function.name), (function.target, *args), kwargs)
    if isinstance(function, types.FunctionType) and function in HANDLERS:
        return _language(t, function, args, kwargs)
    if isinstance(function, DType):
        if len(args) != 1 or kwargs:
            raise t.wrong_type(f"{function.name} converts one value, got {len(args)}")
        value = args[0]
        return cast(t, as_tile(t, value, dtype=function if is_loose(value) else None), function)
    if isinstance(function, InnerFunction):
        return _inline(t, function.source, function.frame, args, kwargs)
    special = _SPECIAL.get(function) if isinstance(function, type | types.BuiltinFunctionType) else None
    if special is not None:
        return special(t, function, args, kwargs)
    if _is_numpys(function) and any(is_tile(v) for v in leaves((args, tuple(kwargs.values())))):
        name = getattr(function, "__name__", str(function))
        has_ours = getattr(language, _OURS.get(name, name), None) in HANDLERS
        raise t.wrong_type(
            f"np.{name} computes arrays on the host, not tiles; "
            + (
                f"use tk.{_OURS.get(name, name)}"
                if has_ours
                else "docs/language.md lists what there is for tiles"
            )
        )
    if isinstance(function, types.FunctionType):
        t.captures.from_attribute(function, "__code__")
        return _inline(t, source_of(function), None, args, kwargs)
    if isinstance(function, types.MethodType):
        return call(t, function.__func__, (function.__self__, *args), kwargs)
    return _compile_time(t, function, args, kwargs)


def _is_numpys(function: object) -> bool:
    module = getattr(function, "__module__", None) or getattr(type(function), "__module__", None) or ""
    return module.partition(".")[0] == "numpy" and not isinstance(function, type)


_OURS = {"power": "pow", "multiply": "mul", "subtract": "sub", "divide": "truediv", "true_divide": "truediv"}
"""Functions that NumPy calls otherwise."""


def _compile_time(
    t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A call that Python makes while the kernel is compiled."""
    if getattr(function, "is_tile_kernel", False):
        raise t.wrong_type(
            f"{describe(function)} is a kernel and cannot be called from one; move what they share into a function"
        )
    if not callable(function):
        raise t.wrong_type(f"{describe(function)} cannot be called")
    name = getattr(function, "__name__", str(function))
    if not _is_computable(function):
        raise t.wrong_type(f"{describe(function)} cannot be called in a kernel: its source cannot be read")
    if any(is_tile(v) for v in leaves((args, tuple(kwargs.values())))) and function not in _TAKE_TILES:
        has_ours = getattr(language, name, None) in HANDLERS
        raise t.wrong_type(
            f"{name} is computed at compile time and takes no tiles"
            + (f"; tk.{name} does" if has_ours else "")
        )
    return _by_python(t, function, args, kwargs)


def _is_computable(function: object) -> bool:
    """True for what has no side effects when it is called at compile time."""
    if isinstance(function, type) or function in _PLAIN:
        return True
    owner = getattr(function, "__self__", None)
    return getattr(function, "__module__", None) in ("math", "operator") or isinstance(
        owner, str | tuple | dict | int | float | range | frozenset
    )


def _by_python(
    t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    # Any: one of Python's own functions, or a class
    python: Any = function
    try:
        return python(*args, **kwargs)
    except Exception as error:
        name = getattr(function, "__name__", str(function))
        raise t.wrong_value(f"{name}: {type(error).__name__}: {error}") from None


# ------------------------------------------------------------------ language functions

_signatures: dict[object, inspect.Signature] = {}


def _language(
    t: Translator,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """A function of the language: its declared signature sorts the arguments for its handler."""
    signature = _signatures.get(function)
    if signature is None:
        signature = _signatures[function] = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise t.wrong_type(f"tk.{function.__name__}: {error}") from None
    bound.apply_defaults()
    return HANDLERS[function](t, **bound.arguments)


METHODS: dict[str, Callable[..., object]] = {
    "load": language.OwnedTile.load,
    "store": language.OwnedTile.store,
}
"""Methods of partition parameters; those of tiles are functions of the language."""


# ------------------------------------------------------------------ Python functions with tiles


def _range(t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    if kwargs or not 1 <= len(args) <= 3:
        raise t.wrong_type(f"range takes one to three numbers, got {len(args) + len(kwargs)}")
    numbers: list[Any] = []
    for value in args:
        if type(value) is int or (is_scalar(value) and value.type.number.is_integer):  # type: ignore[union-attr]
            numbers.append(value)
        else:
            raise t.wrong_type(f"range takes whole numbers and integer scalars, got {describe(value)}")
    start, stop, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    if step == 0:
        raise t.wrong_value("the step of range is 0")
    return RangeValue(start, stop, step)


def _extremum(t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """min and max: of tiles, two by two."""
    values = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
    if not any(is_tile(v) for v in values):
        return _by_python(t, function, args, kwargs)
    combine = language.minimum if function is min else language.maximum
    result = values[0]
    for value in values[1:]:
        result = _language(t, combine, (result, value), kwargs)
    return result


def _absolute(t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    if not any(is_tile(v) for v in args):
        return _by_python(t, function, args, kwargs)
    return _language(t, language.abs, args, kwargs)


def _convert(t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """int(x), float(x), bool(x): of a scalar, a conversion to the type such numbers have by default.

    A loose number is held in that kind of number already, or is a whole one that float64 holds as well.
    """
    if len(args) != 1 or not is_tile(args[0]):
        return _by_python(t, function, args, kwargs)
    value = args[0]
    if isinstance(value, Loose) and function is not bool:
        if tile_type(value).number.is_float == (function is float):
            return value
        return binary(t, "*", value, 1.0) if function is float else cast(t, value, int64)
    dtype = {int: int32, float: float32, bool: bool_}[function]  # type: ignore[index]
    return cast(t, value, dtype)


def _print(t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    raise t.syntax(
        "kernels cannot print; store the value in an output, copy that to the host (to_host) and print it there"
    )


def _len(t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    if len(args) == 1 and (is_tile(args[0]) or isinstance(args[0], TensorValue | OwnedTileValue)):
        name = getattr(args[0], "name", "") or "x"
        raise t.wrong_type(f"{describe(args[0])} has no len; use {name}.shape[0]")
    return _by_python(t, function, args, kwargs)


_Special = Callable[["Translator", object, tuple[object, ...], dict[str, object]], object]
_SPECIAL: Mapping[object, _Special] = {
    range: _range,
    min: _extremum,
    max: _extremum,
    abs: _absolute,
    int: _convert,
    float: _convert,
    bool: _convert,
    print: _print,
    len: _len,
}


# ------------------------------------------------------------------ helpers


def inner_function(t: Translator, frame: Frame, node: FunctionNode) -> InnerFunction:
    """The function that a `def` or `lambda` inside of a kernel makes."""
    from ._expressions import evaluate

    arguments = node.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    defaults = dict(
        zip(
            positional[len(positional) - len(arguments.defaults) :],
            [evaluate(t, frame, default) for default in arguments.defaults],
            strict=True,
        )
    )
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            defaults[argument.arg] = evaluate(t, frame, default)
    name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
    source = FunctionSource(name, node, frame.source.file, frame.source.globals, {}, defaults)
    return InnerFunction(source, frame)


def _inline(
    t: Translator,
    source: FunctionSource,
    outer: Frame | None,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """Translate a helper's body in place of the call."""
    where = t.location
    if t.depth >= MAX_CALL_DEPTH:
        raise t.wrong_value(
            f"calls nest deeper than {MAX_CALL_DEPTH}: a recursion must end while the kernel is compiled"
        )
    frame = Frame(source, t.captures, where, outer)
    frame.variables = _bind(t, source, args, kwargs)
    t.depth += 1
    try:
        result = run_function(t, frame)
    finally:
        t.depth -= 1
        t.builder.location = where
    return result


def run_function(t: Translator, frame: Frame) -> object:
    """Translate the body of `frame`'s function; gives what it returns."""
    from ._expressions import evaluate
    from ._statements import execute_block

    node = frame.source.node
    if isinstance(node, ast.Lambda):
        return evaluate(t, frame, node.body)
    outcome = execute_block(t, frame, node.body, ())
    return outcome.value if isinstance(outcome, Returned) else None


def _bind(
    t: Translator, source: FunctionSource, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, object]:
    """Parameters by name, as Python binds them."""
    arguments = source.node.args
    positional_only = [a.arg for a in arguments.posonlyargs]
    positional = positional_only + [a.arg for a in arguments.args]
    keyword_only = [a.arg for a in arguments.kwonlyargs]
    bound: dict[str, object] = dict(zip(positional, args, strict=False))
    if len(args) > len(positional) and arguments.vararg is None:
        raise t.wrong_type(f"{source.name} takes {len(positional)} arguments, got {len(args)}")
    if arguments.vararg is not None:
        bound[arguments.vararg.arg] = tuple(args[len(positional) :])
    extra: dict[str, object] = {}
    for name, value in kwargs.items():
        if name in bound and name in positional:
            raise t.wrong_type(f"{source.name} got {name} twice")
        if name in keyword_only or (name in positional and name not in positional_only):
            bound[name] = value
        elif arguments.kwarg is not None:
            extra[name] = value
        else:
            raise t.wrong_type(f"{source.name} has no parameter {name}")
    if arguments.kwarg is not None:
        bound[arguments.kwarg.arg] = extra
    for name in (*positional, *keyword_only):
        if name not in bound:
            if name not in source.defaults:
                raise t.wrong_type(f"{source.name} needs an argument {name}")
            bound[name] = source.defaults[name]
    return bound
