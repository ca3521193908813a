"""A kernel's parameters as their annotations declare them."""

from __future__ import annotations
import __future__

import inspect
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..dtypes import DType, bool_
from ..errors import KernelArgumentError
from ..language import ConstantMarker, OwnedTile, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Parameter", "names_around", "parameters_of"]

ParameterKind = Literal["any", "tensor", "partition", "scalar", "constant"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        name: as in the source.
        kind: "any" where it is not annotated: the argument decides.
        rank: of a tensor or partition; None: any.
        dtype: of a scalar with a declared type; None: the argument decides.
        number: int, float or bool for a scalar annotated so.
        declared: the annotation as written in messages.
        default: value used when no argument is given.
        has_default: whether there is one.
    """

    name: str
    kind: ParameterKind
    rank: int | None = None
    dtype: DType | None = None
    number: type | None = None
    declared: str = ""
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
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise KernelArgumentError(
                f"{name}: a kernel's parameters are fixed, it cannot take *{parameter.name}"
            )
        has_default = parameter.default is not parameter.empty
        declared = _declared(name, parameter.name, annotations.get(parameter.name, parameter.empty))
        found.append(
            Parameter(
                parameter.name,
                *declared,
                parameter.default if has_default else None,
                has_default,
            )
        )
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


def _declared(
    kernel: str, name: str, annotation: object
) -> tuple[ParameterKind, int | None, DType | None, type | None, str]:
    if annotation is inspect.Parameter.empty or annotation is typing.Any:
        return "any", None, None, None, ""
    if any(isinstance(mark, ConstantMarker) for mark in getattr(annotation, "__metadata__", ())):
        return "constant", None, None, None, "tk.Constant"
    if isinstance(annotation, DType):
        return "scalar", None, annotation, None, f"tk.{annotation.name}"
    if annotation is int or annotation is float:
        return "scalar", None, None, annotation, annotation.__name__
    if annotation is bool:
        return "scalar", None, bool_, bool, "bool"
    if isinstance(annotation, type) and issubclass(annotation, Tensor):
        return "tensor", annotation.rank, None, None, f"tk.{annotation.__name__}"
    if isinstance(annotation, type) and issubclass(annotation, OwnedTile):
        return "partition", annotation.rank, None, None, f"tk.{annotation.__name__}"
    raise KernelArgumentError(
        f"{kernel}: parameter {name} is annotated {annotation!r}; use tk.Tensor, tk.Tile2D and their like, "
        "tk.Constant[int], int, float, bool, or an element type such as tk.int64"
    )
