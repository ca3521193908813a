"""A Tile IR module in memory: what the builder makes, the encoder writes and the decoder reads back.

Plain data without rules of its own; operations are checked when they are made (`make_operation`).
Values are compared by identity: a value is defined by being an argument of a block or a result of an op.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import types
from ._attributes import Attribute
from ._debug import DebugLocation
from ._op_table import OpSpec
from ._version import DEFAULT_VERSION, Version

__all__ = ["Block", "Function", "Global", "Module", "Operand", "Operation", "Region", "Value"]


class Value:
    """An SSA value: a type and an identity."""

    __slots__ = ("type",)

    def __init__(self, kind: types.Type) -> None:
        self.type = kind

    def __repr__(self) -> str:
        return f"<Value of {self.type}>"

    @property
    def tile_type(self) -> types.TileType:
        """The type, where only a tile makes sense."""
        if not isinstance(self.type, types.TileType):
            raise TypeError(f"a tile is needed here, got a value of {self.type}")
        return self.type


Operand = Value | tuple[Value, ...] | None
"""What one operand slot holds: a value, the values of a variadic slot, or nothing."""


@dataclass(slots=True, eq=False)
class Operation:
    """One instruction. `operands` has one entry per slot of the spec; `attributes` every attribute it has."""

    spec: OpSpec
    operands: tuple[Operand, ...]
    # Python values as `AttributeKind` describes them: int, bool, str, bytes, tuples, Attribute.
    attributes: dict[str, Any]
    results: tuple[Value, ...]
    regions: tuple[Region, ...] = ()
    location: DebugLocation | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    def values(self) -> Iterator[Value]:
        """All operands, in the order they are written."""
        for operand in self.operands:
            if isinstance(operand, tuple):
                yield from operand
            elif operand is not None:
                yield operand


@dataclass(slots=True, eq=False)
class Block:
    """Operations in order, the last one a terminator."""

    arguments: tuple[Value, ...] = ()
    operations: list[Operation] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Region:
    """The body of an op: one block, or none for an `if` without else."""

    blocks: list[Block] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Function:
    """A kernel entry."""

    name: str
    body: Block
    hints: tuple[tuple[str, Attribute], ...] = ()
    location: DebugLocation | None = None
    argument_attributes: tuple[Attribute, ...] = ()
    """One dictionary per argument or none at all; bytecode 13.5 only."""

    def operations(self) -> Iterator[Operation]:
        """Every operation in encoding order: an op before the ops of its regions."""
        stack = [iter(self.body.operations)]
        while stack:
            for operation in stack[-1]:
                yield operation
                inner = [
                    o for region in operation.regions for block in region.blocks for o in block.operations
                ]
                if inner:
                    stack.append(iter(inner))
                    break
            else:
                stack.pop()


@dataclass(slots=True, frozen=True)
class Global:
    """Module-level data of a rank-1 tile type; `get_global` gives its address."""

    name: str
    type: types.TileType
    data: bytes
    alignment: int = 0
    is_private: bool = False
    is_constant: bool = False


@dataclass(slots=True, eq=False)
class Module:
    """A whole bytecode file."""

    version: Version = DEFAULT_VERSION
    functions: list[Function] = field(default_factory=list)
    globals: list[Global] = field(default_factory=list)
    producer: str | None = None
