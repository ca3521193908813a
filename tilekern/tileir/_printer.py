"""A module as text, for people and for comparing modules.

    entry @add(%0: tile<ptr<f32>>, %1: tile<i32>) {
      %2 = constant {value = 0x00000000} : tile<128xf32>
      %3, %4 = load_view_tko(%1, [%0], _) {memory_ordering_semantics = WEAK} : tile<128xf32>, token
    }

Values are numbered through the whole kernel, the results of an op after what is in its bodies. An absent
optional operand is `_`, a variadic one a list.
NVIDIA's own spelling comes from `disassemble`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

from ._attributes import (
    ArrayAttribute,
    Attribute,
    BoolAttribute,
    Bounded,
    DenseAttribute,
    DictionaryAttribute,
    DivBy,
    FloatAttribute,
    HintsAttribute,
    IntegerAttribute,
    SameElements,
    StringAttribute,
    TypeAttribute,
)
from ._debug import DebugLocation, Location
from ._module import Block, Function, Module, Operation, Value
from ._version import version_text

__all__ = ["print_module"]

_SHOWN_BYTES = 32


def print_module(module: Module, *, locations: bool = False) -> str:
    """The module as text; with `locations` each operation is followed by its source line."""
    lines = [f"// Tile IR {version_text(module.version)}"]
    if module.producer:
        lines.append(f"// producer: {module.producer}")
    for item in module.globals:
        words = "private " * item.is_private + "constant " * item.is_constant
        lines.append(f"{words}global @{item.name} align {item.alignment} = {_hex(item.data)} : {item.type}")
    for function in module.functions:
        lines += _Printer(locations).function(function)
    return "\n".join(lines) + "\n"


class _Printer:
    def __init__(self, locations: bool) -> None:
        self.locations = locations
        self.names: dict[Value, str] = {}

    def function(self, function: Function) -> Iterator[str]:
        self._define(function.body.arguments)
        hints = f" hints {_dictionary(function.hints)}" if function.hints else ""
        yield f"entry @{function.name}({self._typed(function.body.arguments)}){hints} {{"
        yield from self._operations(function.body, "  ")
        yield "}"

    def _define(self, values: Sequence[Value]) -> None:
        for value in values:
            self.names[value] = f"%{len(self.names)}"

    def _typed(self, values: Sequence[Value]) -> str:
        return ", ".join(f"{self.names[value]}: {value.type}" for value in values)

    def _operations(self, block: Block, indent: str) -> Iterator[str]:
        for operation in block.operations:
            yield from self._operation(operation, indent)

    def _operation(self, op: Operation, indent: str) -> Iterator[str]:
        operands = [self._operand(operand) for operand in op.operands]
        bodies: list[str] = []
        for number, block in enumerate(block for region in op.regions for block in region.blocks):
            self._define(block.arguments)
            arguments = f"({self._typed(block.arguments)}) " if block.arguments else ""
            bodies.append(f"{indent}}} else {{" if number else f" {arguments}{{")
            bodies += self._operations(block, indent + "  ")
        self._define(op.results)
        text = op.name + (f"({', '.join(operands)})" if operands else "")
        if op.results:
            text = f"{', '.join(self.names[value] for value in op.results)} = {text}"
        shown = {name: value for name, value in op.attributes.items() if value is not False}
        if shown:
            items = ", ".join(f"{name} = {_attribute(value)}" for name, value in shown.items())
            text += f" {{{items}}}"
        if op.results:
            text += " : " + ", ".join(str(value.type) for value in op.results)
        place = f" // {_place(op.location)}" if self.locations and op.location is not None else ""
        yield f"{indent}{text}{bodies[0] if bodies else ''}{place}"
        if bodies:
            yield from bodies[1:]
            yield indent + "}"

    def _operand(self, operand: Value | tuple[Value, ...] | None) -> str:
        if operand is None:
            return "_"
        if isinstance(operand, tuple):
            return f"[{', '.join(self.names[value] for value in operand)}]"
        return self.names[operand]


def _attribute(value: Any) -> str:  # as AttributeKind says
    match value:
        case IntEnum():
            return value.name
        case bytes():
            return _hex(value)
        case str():
            return '"' + value.encode("unicode_escape").decode().replace('"', '\\"') + '"'
        case bool():
            return str(value).lower()
        case tuple() if value and isinstance(value[0], tuple):
            return _dictionary(value)
        case tuple():
            return f"[{', '.join(map(_attribute, value))}]"
        case Attribute():
            return _tagged(value)
        case _:
            return str(value)


def _tagged(value: Attribute) -> str:
    match value:
        case IntegerAttribute():
            return f"{value.value} : {value.type}"
        case FloatAttribute():
            return f"{value.bits:#x} : {value.type}"
        case BoolAttribute() | StringAttribute():
            return _attribute(value.value)
        case TypeAttribute():
            return str(value.type)
        case ArrayAttribute():
            return f"[{', '.join(map(_tagged, value.items))}]"
        case DenseAttribute():
            return f"{_hex(value.data)} : {value.type}"
        case DivBy():
            group = "" if value.every is None else f", every {value.every} along {value.along}"
            return f"div_by<{value.divisor}{group}>"
        case SameElements():
            return f"same_elements<{list(value.groups)}>"
        case Bounded():
            bounds = ("?" if bound is None else str(bound) for bound in (value.lower, value.upper))
            return f"bounded<{', '.join(bounds)}>"
        case DictionaryAttribute() | HintsAttribute():
            return _dictionary(value.items)
        case _:
            return repr(value)


def _dictionary(items: tuple[tuple[str, Attribute], ...]) -> str:
    return "{" + ", ".join(f"{key} = {_tagged(value)}" for key, value in items) + "}"


def _hex(data: bytes) -> str:
    rest = f"... ({len(data)} bytes)" if len(data) > _SHOWN_BYTES else ""
    return "0x" + data[:_SHOWN_BYTES].hex() + rest


def _place(location: DebugLocation) -> str:
    if isinstance(location, Location):
        return f"{location.file_name}:{location.line}:{location.column}"
    return f"{_place(location.callee)} called at {_place(location.caller)}"
