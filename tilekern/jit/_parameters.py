"""A kernel's parameters as their annotations declare them."""

from __future__ import annotations
import __future__

import enum
import inspect
import types
import typing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ..dtypes import DType, bool_
from ..errors import KernelArgumentError
from ..frontend._aggregates import record_fields
from ..language import ArrayAnnotation, ConstantMarker, MappedTiles, OwnedTile, Pointer, PointerMarker, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Parameter", "declared_part", "names_around", "parameters_of"]

ParameterKind = Literal["any", "tensor", "partition", "mapped", "pointer", "scalar", "constant", "group"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        name: as in the source.
        kind: "any" where it is not annotated: the argument decides.
        rank: of a tensor or partition; None: any.
        dtype: of a scalar with a declared type, or of what a pointer points to; None: the argument decides.
        number: int, float or bool for a scalar annotated so.
        declared: the annotation as written in messages.
        group: the class of a group or enumeration it takes, or an annotation such as tuple[int, int].
        array: what an `ArrayAnnotation` says.
        default: value used when no argument is given.
        has_default: whether there is one.
    """

    name: str
    kind: ParameterKind
    rank: int | None = None
    dtype: DType | None = None
    number: type | None = None
    declared: str = ""
    group: Any = None
    array: ArrayAnnotation | None = None
    default: object = None
    has_default: bool = False


def names_around(function: object, caller: types.FrameType) -> dict[str, object]:
    """Local variables of `caller` that the annotations of a function it defines name.

    With `from __future__ import annotations` these are text, and the function's closure has only what its
    body uses.
    """
    if not isinstance(function, types.FunctionType) or caller.f_locals is caller.f_globals:
        return {}
    if not function.__code__.co_flags & __future__.annotations.compiler_flag:
        return {}
    found = {}
    for text in function.__annotations__.values():
        for name in compile(text, "<annotation>", "eval").co_names:
            if name in caller.f_locals:
                found[name] = caller.f_locals[name]
    return found


def parameters_of(function: types.FunctionType, names: Mapping[str, object]) -> tuple[Parameter, ...]:
    """The parameters of a kernel; `names` are what annotations written as text refer to, besides globals.

    Raises:
        KernelArgumentError: an annotation that says nothing about kernels, or cannot be evaluated; *args.
    """
    name = function.__name__
    annotations = _evaluated(function, names)
    found = []
    for parameter in inspect.signature(function, follow_wrapped=False).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            hint = ""
            if hasattr(function, "__wrapped__"):
                hint = (
                    f", as {function.__code__.co_name} does, which a decorator made of it; put @tk.kernel directly "
                    "above the def, and decorate helpers"
                )
            raise KernelArgumentError(
                f"{name}: a kernel's parameters are fixed, it cannot take {stars}{parameter.name}{hint}"
            )
        has_default = parameter.default is not parameter.empty
        declared = _declared(name, parameter.name, annotations.get(parameter.name, parameter.empty))
        default = parameter.default if has_default else None
        found.append(replace(declared, default=default, has_default=has_default))
    return tuple(found)


def _evaluated(function: types.FunctionType, names: Mapping[str, object]) -> dict[str, object]:
    """The annotations, evaluated where they are text."""
    visible = dict(names)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            visible[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    where = ""
    try:
        annotations = dict(inspect.get_annotations(function))
        for name, annotation in annotations.items():
            if isinstance(annotation, str):
                where = f"of {name}, {annotation}, "
                annotations[name] = eval(annotation, function.__globals__, visible)
    except Exception as error:
        raise KernelArgumentError(
            f"{function.__name__}: the annotation {where}cannot be evaluated ({type(error).__name__}: {error}); import "
            "what it names at the top of the module, or before the kernel in the function that defines it"
        ) from error
    return annotations


def declared_part(kernel: str, name: str, annotation: object) -> Parameter:
    """The parameter that a part of a group is; an annotation that says nothing about kernels declares nothing."""
    try:
        return _declared(kernel, name, inspect.Parameter.empty if annotation is None else annotation)
    except KernelArgumentError:
        return Parameter(name, "any")


def _declared(kernel: str, name: str, annotation: object) -> Parameter:
    if annotation is inspect.Parameter.empty or annotation is typing.Any:
        return Parameter(name, "any")
    marks = getattr(annotation, "__metadata__", ())
    if any(isinstance(mark, ConstantMarker) for mark in marks):
        return Parameter(name, "constant", declared="tk.Constant")
    array = next((mark for mark in marks if isinstance(mark, ArrayAnnotation)), None)
    if array is not None:
        inner = _declared(kernel, name, typing.get_args(annotation)[0])
        if inner.kind not in ("tensor", "partition"):
            raise KernelArgumentError(f"{kernel}: parameter {name} has an ArrayAnnotation and is no tensor")
        return replace(inner, array=array)
    pointer = next((mark for mark in marks if isinstance(mark, PointerMarker)), None)
    if pointer is not None:
        if not isinstance(pointer.dtype, DType):
            raise KernelArgumentError(
                f"{kernel}: parameter {name} is annotated tk.Pointer[{pointer.dtype!r}]; give it an element type, "
                "such as tk.Pointer[tk.float32]"
            )
        return Parameter(
            name, "pointer", dtype=pointer.dtype, declared=f"tk.Pointer[tk.{pointer.dtype.name}]"
        )
    if annotation is Pointer:
        return Parameter(name, "pointer", declared="tk.Pointer")
    if isinstance(annotation, DType):
        return Parameter(name, "scalar", dtype=annotation, declared=f"tk.{annotation.name}")
    if annotation is int or annotation is float:
        return Parameter(name, "scalar", number=annotation, declared=annotation.__name__)
    if annotation is bool:
        return Parameter(name, "scalar", dtype=bool_, number=bool, declared="bool")
    origin = typing.get_origin(annotation) or annotation
    if origin in (tuple, list, dict):
        of = {tuple: "tuple", list: "list", dict: "dict"}[origin]
        return Parameter(name, "group", declared=of, group=annotation)
    if isinstance(annotation, type):
        declared = f"tk.{annotation.__name__}"
        if issubclass(annotation, Tensor):
            return Parameter(name, "tensor", annotation.rank, declared=declared)
        if issubclass(annotation, MappedTiles):
            return Parameter(name, "mapped", annotation.rank, declared=declared)
        if issubclass(annotation, OwnedTile):
            return Parameter(name, "partition", annotation.rank, declared=declared)
        if issubclass(annotation, enum.Enum):
            return Parameter(name, "constant", declared=annotation.__name__, group=annotation)
        if issubclass(annotation, tuple) or record_fields(annotation) is not None:
            return Parameter(name, "group", declared=annotation.__name__, group=annotation)
    if isinstance(annotation, type) and hasattr(annotation, "__dataclass_fields__"):
        raise KernelArgumentError(
            f"{kernel}: parameter {name} is annotated {annotation.__name__}, which can change; mark it "
            "@dataclass(frozen=True)"
        )
    raise KernelArgumentError(
        f"{kernel}: parameter {name} is annotated {annotation!r}; use tk.Tensor, tk.Tile2D, tk.Pointer and their like, "
        "tk.Constant[int], int, float, bool, an element type such as tk.int64, a tuple, a frozen dataclass or an "
        "enumeration"
    )
