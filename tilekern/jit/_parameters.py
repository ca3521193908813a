"""A kernel's parameters as their annotations declare them."""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass
from typing import Literal

from ..dtypes import DType, bool_
from ..errors import KernelArgumentError
from ..language import ConstantMarker, OwnedTile, Tensor

__all__ = ["Parameter", "parameters_of"]

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


def parameters_of(function: types.FunctionType) -> tuple[Parameter, ...]:
    """The parameters of a kernel.

    Raises:
        KernelArgumentError: an annotation that says nothing about kernels, or cannot be evaluated; *args.
    """
    name = function.__name__
    try:
        annotations = inspect.get_annotations(function, eval_str=True)
    except Exception as error:
        raise KernelArgumentError(
            f"{name}: its annotations cannot be evaluated ({type(error).__name__}: {error}); use names that are "
            "visible where the kernel is defined"
        ) from error
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
