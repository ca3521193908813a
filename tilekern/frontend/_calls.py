"""Calls: of language functions, element types and helpers (inlined); `_builtins` has Python's own."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import language
from ..dtypes import DType
from ._aggregates import is_named_tuple, leaves
from ._builtins import SPECIAL, call_builtin, why_not
from ._frame import Frame, Returned
from ._methods import METHODS, method_of
from ._promotion import as_tile, cast, typed
from ._records import replaced
from ._source import FunctionNode, FunctionSource, source_of
from ._suggestions import parameters_shown
from ._translator import MAX_CALL_DEPTH
from ._values import BoundMethod, InnerFunction, PartialFunction, is_loose, is_tile
from .operations import HANDLERS

if TYPE_CHECKING:
    from ._builtins import Builtin
    from ._translator import Translator

__all__ = ["call", "inner_function", "run_function"]


def call(t: Translator, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """`function(*args, **kwargs)`, with the call being the current place."""
    if isinstance(function, BoundMethod):
        handler = method_of(function.target, function.name)
        if handler is not None:
            return _language(t, handler, (function.target, *args), kwargs)
        return call(t, getattr(language, function.name), (function.target, *args), kwargs)
    if isinstance(function, types.FunctionType):
        function = getattr(function, language.IN_KERNELS, function)
    if isinstance(function, types.FunctionType) and function in HANDLERS:
        return _language(t, function, args, kwargs)
    if isinstance(function, DType):
        if len(args) != 1 or kwargs:
            raise t.wrong_type(f"{function.name} converts one value, got {len(args)}")
        value = args[0]
        return typed(t, cast(t, as_tile(t, value, dtype=function if is_loose(value) else None), function))
    if isinstance(function, InnerFunction):
        return _inline(t, function.source, function.frame, args, kwargs)
    if isinstance(function, PartialFunction):
        return call(t, function.function, (*function.args, *args), {**function.kwargs, **kwargs})
    special = _special(function)
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
        _refuse_host_function(t, function)
        t.captures.from_attribute(function, "__code__")
        return _inline(t, source_of(function), None, args, kwargs)
    if isinstance(function, types.MethodType):
        if is_named_tuple(function.__self__) and function.__name__ == "_replace":
            return replaced(t, function.__self__, kwargs)
        return call(t, function.__func__, (function.__self__, *args), kwargs)
    if isinstance(function, functools.partial):
        return call(t, function.func, (*function.args, *args), {**function.keywords, **kwargs})
    if isinstance(function, functools._lru_cache_wrapper):
        return call(t, function.__wrapped__, args, kwargs)
    written = inspect.getattr_static(type(function), "__call__", None)
    is_object = not isinstance(function, type) and not getattr(function, "is_tile_kernel", False)
    if isinstance(written, types.FunctionType) and is_object:
        return call(t, written, (function, *args), kwargs)
    return call_builtin(t, function, args, kwargs)


_OF_THE_HOST = {
    "cuda_async": "cuda_async",
    "tilekern.arrays._creation": "tilekern",
    "tilekern.arrays._random": "tilekern",
    "tilekern.bench": "tilekern.bench",
    "tilekern.jit": "tilekern",
    "tilekern.kernels": "tilekern.kernels",
    "tilekern.tileir": "tilekern.tileir",
    "tilekern.tune": "tilekern.tune",
}
"""Packages whose functions are for outside of kernels, and what they are called by."""


def _refuse_host_function(t: Translator, function: types.FunctionType) -> None:
    module = function.__module__ or ""
    if module.partition(".")[0] == "numpy":
        raise t.wrong_type(why_not(function, function.__name__))
    ours = next(
        (name for package, name in _OF_THE_HOST.items() if f"{module}.".startswith(f"{package}.")), None
    )
    if ours is not None and not module.startswith("tilekern.kernels.raw"):
        raise t.wrong_type(
            f"{ours}.{function.__name__} is for the host and cannot be called in a kernel; call it "
            "before the launch, and give what it makes as an argument"
        )


def _special(function: object) -> Builtin | None:
    try:
        return SPECIAL.get(function)
    except TypeError:  # not hashable
        return None


def _is_numpys(function: object) -> bool:
    module = getattr(function, "__module__", None) or getattr(type(function), "__module__", None) or ""
    return module.partition(".")[0] == "numpy" and not isinstance(function, type)


_OURS = {"power": "pow", "multiply": "mul", "subtract": "sub", "divide": "truediv", "true_divide": "truediv"}
"""Functions that NumPy calls otherwise."""


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
        is_method = not hasattr(language, function.__name__) or function in METHODS.values()
        name = function.__name__ if is_method else f"tk.{function.__name__}"
        numbers = args[1:]
        hint = ""
        if (
            "too many positional" in str(error)
            and len(numbers) > 1
            and all(isinstance(n, int) for n in numbers)
        ):
            hint = f"; several numbers are given as a tuple, {numbers}"
        raise t.wrong_type(
            f"{name}: {error}; it takes {parameters_shown(function, is_method=is_method)}{hint}"
        ) from None
    bound.apply_defaults()
    return HANDLERS[function](t, **bound.arguments)


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
