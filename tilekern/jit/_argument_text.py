"""Arguments of a kernel written as text, for the command line and for files that list variants.

float32[*,*16]            a tensor that is read: any rows, columns a multiple of 16, row-major
float32[4096,1024]        one like that: what the extents, strides and address are multiples of is taken from it
mut float32[*]            given as `ca.mut(tensor)`
float32[*16,*16]/64x128   given as a partition with tiles of 64 x 128
int  float  bool          a Python number
int64  bfloat16  ...      a number of that type
128  0.5  True            a number like that; for a compile-time constant, the constant itself
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..dtypes import DTYPES, DType
from ..errors import KernelArgumentError
from ._meta import Meta, MetaMut, MetaPartition, make_meta

if TYPE_CHECKING:
    from ._kernel import Kernel
    from ._parameters import Parameter

__all__ = ["arguments_from_text"]

_TENSOR = re.compile(r"(mut\s+)?(\w+)\s*\[([^\]]*)\]\s*(?:/\s*([\dx\s]+))?$")
_EXAMPLES = {"int": 3, "float": 0.5, "bool": True}


def arguments_from_text(kernel: Kernel, texts: Mapping[str, object]) -> dict[str, object]:
    """Arguments for `kernel.compile` and its like, by parameter name; defaults fill the rest.

    Raises:
        KernelArgumentError: a text that says nothing, or a parameter there is not.
    """
    by_name = {parameter.name: parameter for parameter in kernel.parameters}
    for name in texts:
        if name not in by_name:
            raise KernelArgumentError(
                f"{kernel.name} has no parameter {name}; it has {', '.join(by_name) or 'none'}"
            )
    return {name: _argument(f"{kernel.name}: {name}", by_name[name], text) for name, text in texts.items()}


def _argument(where: str, parameter: Parameter, text: object) -> object:
    if not isinstance(text, str):
        return tuple(text) if isinstance(text, list) else text
    text = text.strip()
    if (match := _TENSOR.fullmatch(text)) is not None:
        return _tensor(where, match)
    if parameter.kind == "constant":
        return _literal(where, text)
    if text in _EXAMPLES:
        return _EXAMPLES[text]
    if (dtype := _dtypes().get(text)) is not None:
        return dtype.dtype.type(1)
    return _literal(where, text)


def _tensor(where: str, match: re.Match[str]) -> Meta | MetaMut | MetaPartition:
    is_mut, name, extents, tile = match.groups()
    dtype = _dtypes().get(name)
    if dtype is None:
        raise KernelArgumentError(
            f"{where}: there is no element type {name}; there are {', '.join(_dtypes())}"
        )
    sides = [_extent(where, part.strip()) for part in extents.split(",")]
    try:
        tensor = make_meta(sides, dtype)
    except (TypeError, ValueError) as error:
        raise KernelArgumentError(f"{where}: {error}") from None
    if tile is None:
        return tensor.mut() if is_mut else tensor
    if is_mut:
        raise KernelArgumentError(f"{where}: a partition is exclusive already; leave out mut")
    try:
        return tensor.partition([int(side) for side in tile.split("x")])
    except ValueError as error:
        raise KernelArgumentError(f"{where}: {error}") from None


def _extent(where: str, text: str) -> int:
    """An extent that is a multiple of what the text says, and of no larger power of two."""
    match = re.fullmatch(r"(\*?)(\d*)", text)
    if match is None or not text:
        raise KernelArgumentError(
            f"{where}: an extent is a number, * or a multiple such as *16, got {text!r}"
        )
    if not match[1]:
        return int(match[2])
    multiple = int(match[2] or 1)
    if multiple not in (1, 2, 4, 8, 16):
        raise KernelArgumentError(f"{where}: *{multiple} is none of *, *2, *4, *8 and *16")
    return 3 * multiple


def _literal(where: str, text: str) -> object:
    if (dtype := _dtypes().get(text)) is not None:
        return dtype
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise KernelArgumentError(
            f"{where}: {text!r} is no argument; write float32[*,*16], with /64x64 for a partition or mut before "
            "it, an element type, or a number"
        ) from None
    return value


def _dtypes() -> dict[str, DType]:
    return {dtype.name: dtype for dtype in DTYPES.values()}
