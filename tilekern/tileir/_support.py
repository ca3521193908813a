"""What an architecture refuses, known without asking the assembler.

Measured with `tileiras` 13.5.37 for every target: a program that uses an element type anywhere (loads,
constants, products) is refused on targets without it; every other operation is lowered in some way.
A target that is not in the table is not judged: the assembler has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import types
from ._architectures import ARCHITECTURES
from ._enums import AtomicMode, PointerKind
from ._module import Module, Operation

__all__ = ["refused_atomic_add", "refused_operation", "refused_operations", "refused_type"]

_FROM_89 = frozenset(ARCHITECTURES[ARCHITECTURES.index("sm_89") :])
_FROM_100 = frozenset(ARCHITECTURES[ARCHITECTURES.index("sm_100") :])
_ONLY_107 = frozenset({"sm_107"})
_MULTICAST = frozenset({"sm_100", "sm_103", "sm_107"})

_NUMBERS: dict[types.NumberType, frozenset[str]] = {
    types.f8e4m3fn: _FROM_89,
    types.f8e5m2: _FROM_89,
    types.f8e8m0fnu: _FROM_100,
    types.f4e2m1fn: _FROM_100,
    types.fnv8e5m3fnu: _ONLY_107,
}

_NAMES = {
    types.f8e4m3fn: "float8_e4m3fn",
    types.f8e5m2: "float8_e5m2",
    types.f8e8m0fnu: "float8_e8m0fnu",
    types.f4e2m1fn: "float4_e2m1fn",
}
"""Element types as users write them; one that is not here has no other name than that of Tile IR."""


def refused_type(architecture: str, kind: types.Type) -> str | None:
    """Why `architecture` cannot have values of `kind`; None if it can, or the target is not known here."""
    if isinstance(kind, types.NumberType) and kind in _NUMBERS:
        return _refused(f"element type {_NAMES.get(kind, kind)}", architecture, _NUMBERS[kind])
    is_multicast = (
        (isinstance(kind, types.PointerType) and kind.kind is PointerKind.MULTICAST)
        or (isinstance(kind, types.TensorViewType) and kind.pointer_kind is PointerKind.MULTICAST)
    )  # fmt: skip
    if is_multicast:
        return _refused("multicast memory", architecture, _MULTICAST)
    reasons = (refused_type(architecture, part) for part in types.components(kind))
    return next((reason for reason in reasons if reason), None)


def refused_operation(architecture: str, operation: Operation) -> str | None:
    """Why `architecture` cannot run this operation; None if it can, or the target is not known here."""
    values = [*operation.values(), *operation.results]
    for block in (block for region in operation.regions for block in region.blocks):
        values += block.arguments
    for value in values:
        if (reason := refused_type(architecture, value.type)) is not None:
            return f"{operation.name}: {reason}"
    if operation.attributes.get("mode") is AtomicMode.ADDF:
        for value in values:
            if isinstance(value.type, types.TileType) and isinstance(value.type.element, types.NumberType):
                reason = refused_atomic_add(architecture, value.type.element)
                if reason is not None:
                    return f"{operation.name}: {reason}"
    return None


def refused_atomic_add(architecture: str, element: types.NumberType) -> str | None:
    """Why `architecture` cannot add to memory atomically in that type; None if it can."""
    if element == types.bf16:
        return _refused("atomic addition of bfloat16", architecture, _FROM_89)
    return None


def refused_operations(architecture: str, module: Module) -> Iterator[tuple[Operation, str]]:
    """The operations of `module` that `architecture` cannot run, each with the reason."""
    for function in module.functions:
        for operation in function.operations():
            if (reason := refused_operation(architecture, operation)) is not None:
                yield operation, reason


def _refused(what: str, architecture: str, accepted: frozenset[str]) -> str | None:
    if architecture in accepted or architecture not in ARCHITECTURES:
        return None
    names = [name for name in ARCHITECTURES if name in accepted]
    is_tail = tuple(names) == ARCHITECTURES[-len(names) :]
    needed = f"{names[0]} or later" if is_tail else ", ".join(names)
    return (
        f"{what} needs {needed}, not {architecture}; convert to a type it has, or compile for another target"
    )
