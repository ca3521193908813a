"""What a target cannot run, said at the user's line before the assembler is asked.

Which element types and operations a target has is data of `tileir` (measured there for every target); here it
is held against the operations of the IR. A target that is not in those tables is left to the assembler.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..dtypes import DType
from ..errors import KernelTypeError
from ..ir import Function, Op, TensorType, TileType, Type, Value, walk
from ..tileir import refused_atomic_add, refused_type
from ._lowerer import element_type, tile_type

__all__ = ["check_target", "refusals"]


def refusals(function: Function, architecture: str) -> Iterator[tuple[Op | None, str]]:
    """What of a function a target refuses, each with the operation (None: an unused parameter) and the reason."""
    known: dict[Type, str | None] = {}

    def refused(values: tuple[Value, ...] | list[Value]) -> str | None:
        for value in values:
            if value.type not in known:
                known[value.type] = _refused(value.type, architecture)
            if (reason := known[value.type]) is not None:
                return reason
        return None

    for argument in function.body.arguments:
        if (reason := refused([argument])) is not None:
            # what is made of it stands at the parameter
            yield next((op for op in function.body.ops if argument in op.operands), None), reason
    for op in walk(function.body):
        reason = refused((*op.operands, *op.results)) or _refused_atomic(op, architecture)
        if reason is not None:
            yield op, reason


def check_target(function: Function, architecture: str) -> None:
    """Refuse a kernel that a target cannot run.

    Raises:
        KernelTypeError: at the line of the first operation it cannot run.
    """
    for op, reason in refusals(function, architecture):
        where = (op.location if op is not None else None) or function.location
        raise KernelTypeError(reason, where)


def _refused(kind: Type, architecture: str) -> str | None:
    if isinstance(kind, TileType):
        return refused_type(architecture, tile_type(kind))
    tensor = kind if isinstance(kind, TensorType) else getattr(kind, "tensor", None)
    return refused_type(architecture, element_type(tensor.dtype)) if tensor is not None else None


def _refused_atomic(op: Op, architecture: str) -> str | None:
    if op.attributes.get("mode") != "add":
        return None
    dtypes = {v.type.dtype for v in op.operands if isinstance(v.type, TileType)}
    elements = [element_type(dtype) for dtype in dtypes if isinstance(dtype, DType)]
    return next((r for e in elements if (r := refused_atomic_add(architecture, e))), None)
