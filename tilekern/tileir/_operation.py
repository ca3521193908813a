"""Making one operation: everything the op table says about it is checked here.

Counts of operands, results and regions; which slots may be empty; every attribute's presence, Python
type, enumeration and range; and that the op, its attributes and its types exist in the file's version.
What the table does not say (equal operand types and the like) is the business of whoever emits, and of
NVIDIA's verifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import types
from ._attributes import MEMORY_HINTS, VIEW_HINTS, Attribute, check_hints
from ._debug import DebugLocation
from ._enums import RoundingMode
from ._module import Operand, Operation, Region, Value
from ._op_table import OPS, Arity, AttributeKind, AttributeSpec, OpSpec, Slot
from ._version import Version, version_text
from .errors import BytecodeError, NewerBytecodeError

__all__ = ["check_type_version", "make_operation"]

NEAREST_AWAY_SINCE: Version = (13, 4)
OperandInput = Value | Sequence[Value] | None


def make_operation(
    version: Version,
    name: str,
    operands: Sequence[OperandInput] = (),
    attributes: Mapping[str, Any] | None = None,  # values as AttributeKind says
    result_types: Sequence[types.Type] = (),
    regions: Sequence[Region] = (),
    location: DebugLocation | None = None,
) -> Operation:
    """An operation checked against the op table; see the module's docstring.

    Raises:
        BytecodeError: what is wrong, with the op's name.
    """
    spec = OPS.get(name)
    if spec is None:
        raise BytecodeError(f"no Tile IR operation {name!r}", name)
    if spec.since > version:
        raise _too_new(spec, "the operation", spec.since, version)
    slots = _check_operands(spec, operands, version)
    values = _check_attributes(spec, attributes or {}, slots, version)
    results = _check_results(spec, result_types, version)
    _check_regions(spec, regions)
    return Operation(spec, slots, values, results, tuple(regions), location)


def check_type_version(kind: types.Type, version: Version, where: str) -> None:
    """Refuse a type the file's version cannot hold."""
    needed = types.since(kind)
    if needed > version:
        raise NewerBytecodeError(
            f"{where}: type {kind} needs bytecode {version_text(needed)}, "
            f"this module is written as {version_text(version)}",
            where,
            needed,
        )


def _check_operands(spec: OpSpec, operands: Sequence[OperandInput], version: Version) -> tuple[Operand, ...]:
    wanted = spec.operands
    if len(operands) > len(wanted):
        raise BytecodeError(
            f"{spec.name}: takes {len(wanted)} operands ({_names(wanted)}), got {len(operands)}", spec.name
        )
    slots: list[Operand] = []
    for position, slot in enumerate(wanted):
        given = operands[position] if position < len(operands) else None
        if given is not None and slot.since > version:
            raise _too_new(spec, f"operand {slot.name!r}", slot.since, version)
        slots.append(_check_operand(spec, slot, given))
    return tuple(slots)


def _check_operand(spec: OpSpec, slot: Slot, given: OperandInput) -> Operand:
    if slot.arity is Arity.VARIADIC:
        values = (given,) if isinstance(given, Value) else tuple(given or ())
        for value in values:
            if not isinstance(value, Value):
                raise BytecodeError(
                    f"{spec.name}: operand {slot.name!r} holds {value!r}, no value", spec.name
                )
        return values
    if given is None and slot.arity is Arity.OPTIONAL:
        return None
    if not isinstance(given, Value):
        raise BytecodeError(
            f"{spec.name}: operand {slot.name!r} is one value, got {given!r}; "
            f"the op takes {_names(spec.operands)}",
            spec.name,
        )
    return given


def _check_attributes(
    spec: OpSpec, given: Mapping[str, Any], slots: tuple[Operand, ...], version: Version
) -> dict[str, Any]:
    known = {attribute.name for attribute in spec.attributes}
    for name in given:
        if name not in known:
            has = ", ".join(sorted(known)) or "none"
            raise BytecodeError(f"{spec.name}: no attribute {name!r}; it has {has}", spec.name)
    values: dict[str, Any] = {}
    for attribute in spec.attributes:
        value = given.get(attribute.name)
        if value is None:
            value = _default(spec, attribute)
            if value is None:
                continue
        else:
            value = _check_attribute(spec, attribute, value)
        if value is RoundingMode.NEAREST_AWAY and version < NEAREST_AWAY_SINCE:
            raise _too_new(spec, f"attribute {attribute.name}={value.name}", NEAREST_AWAY_SINCE, version)
        if attribute.name == "inbounds":
            value = _check_inbounds(spec, slots, value)
        if attribute.since > version:
            meant_before = not any(value) if attribute.name == "inbounds" else value == attribute.value_before
            if not meant_before:
                raise _too_new(spec, f"attribute {attribute.name}={value!r}", attribute.since, version)
        values[attribute.name] = value
    _check_scope(spec, values)
    return values


def _default(spec: OpSpec, attribute: AttributeSpec) -> Any:  # as AttributeKind says
    if attribute.optional:
        return None
    if attribute.value_before is not None:
        return attribute.value_before
    if attribute.kind is AttributeKind.UNIT:
        return False
    raise BytecodeError(f"{spec.name}: attribute {attribute.name!r} is missing", spec.name)


def _check_attribute(spec: OpSpec, attribute: AttributeSpec, value: Any) -> Any:  # as AttributeKind says
    match attribute.kind:
        case AttributeKind.UNIT | AttributeKind.BOOL if isinstance(value, bool):
            return value
        case AttributeKind.ENUM if attribute.enum is not None:
            if isinstance(value, attribute.enum):
                return value
            if isinstance(value, str) and value.upper() in attribute.enum.__members__:
                return attribute.enum[value.upper()]
            members = ", ".join(attribute.enum.__members__)
            raise BytecodeError(
                f"{spec.name}: {attribute.name} is one of {members}, got {value!r}",
                spec.name,
            )
        case AttributeKind.INTEGER if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return int(value)
        case AttributeKind.STRING if isinstance(value, str):
            if value:
                return value
        case AttributeKind.DENSE if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        case AttributeKind.INTEGERS if all(isinstance(item, int) for item in value):
            return tuple(int(item) for item in value)
        case AttributeKind.BOOLS if all(isinstance(item, bool) for item in value):
            return tuple(value)
        case AttributeKind.TAGGED if isinstance(value, Attribute):
            return value
        case AttributeKind.TAGGED_ARRAY if all(isinstance(item, Attribute) for item in value):
            return tuple(value)
        case AttributeKind.HINTS if isinstance(value, Mapping):
            allowed = VIEW_HINTS if "view" in spec.name else MEMORY_HINTS
            return check_hints(value, allowed, spec.name) or None
        case AttributeKind.HINTS if isinstance(value, tuple):
            return value
        case _:
            pass
    raise BytecodeError(
        f"{spec.name}: attribute {attribute.name!r} is of kind {attribute.kind.value!r}, got {value!r}",
        spec.name,
    )


def _check_inbounds(spec: OpSpec, slots: tuple[Operand, ...], value: tuple[bool, ...]) -> tuple[bool, ...]:
    position = next(i for i, slot in enumerate(spec.operands) if slot.name == "index")
    indices = slots[position]
    count = len(indices) if isinstance(indices, tuple) else 0
    if value and len(value) != count:
        raise BytecodeError(f"{spec.name}: inbounds has {len(value)} entries for {count} indices", spec.name)
    return value or (False,) * count


def _check_scope(spec: OpSpec, values: dict[str, Any]) -> None:
    ordering = values.get("memory_ordering_semantics")
    if ordering is None:
        return
    is_weak = ordering.name == "WEAK"
    has_scope = values.get("memory_scope") is not None
    if is_weak and has_scope:
        raise BytecodeError(f"{spec.name}: ordering WEAK takes no memory_scope", spec.name)
    if not is_weak and not has_scope:
        raise BytecodeError(f"{spec.name}: ordering {ordering.name} needs a memory_scope", spec.name)


def _check_results(spec: OpSpec, result_types: Sequence[types.Type], version: Version) -> tuple[Value, ...]:
    slots = [slot for slot in spec.results if slot.since <= version]
    is_variadic = any(slot.arity is Arity.VARIADIC for slot in slots)
    if not is_variadic and len(result_types) != len(slots):
        raise BytecodeError(
            f"{spec.name}: has {len(slots)} results ({_names(slots)}) in bytecode {version_text(version)}, "
            f"got {len(result_types)} types",
            spec.name,
        )
    for kind in result_types:
        if not isinstance(kind, types.Type):
            raise BytecodeError(f"{spec.name}: result type is {kind!r}, no Tile IR type", spec.name)
        check_type_version(kind, version, spec.name)
    return tuple(Value(kind) for kind in result_types)


def _check_regions(spec: OpSpec, regions: Sequence[Region]) -> None:
    if len(regions) != spec.regions:
        raise BytecodeError(f"{spec.name}: has {spec.regions} regions, got {len(regions)}", spec.name)
    for position, region in enumerate(regions):
        may_be_empty = spec.name == "if" and position == 1
        if len(region.blocks) != 1 and not (may_be_empty and not region.blocks):
            raise BytecodeError(f"{spec.name}: a region has one block, got {len(region.blocks)}", spec.name)


def _names(slots: Sequence[Slot]) -> str:
    marks = {Arity.SINGLE: "", Arity.VARIADIC: "...", Arity.OPTIONAL: "?"}
    return ", ".join(slot.name + marks[slot.arity] for slot in slots) or "none"


def _too_new(spec: OpSpec, what: str, needed: Version, version: Version) -> BytecodeError:
    return NewerBytecodeError(
        f"{spec.name}: {what} needs bytecode {version_text(needed)}, "
        f"this module is written as {version_text(version)}",
        spec.name,
        needed,
    )
