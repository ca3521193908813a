"""Where operations go: the current block, the current source location, and `emit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from . import types
from ._debug import DebugLocation, LocationTable, SourceLocation
from ._module import Block, Operation, Region, Value
from ._operation import OperandInput, make_operation
from ._version import Version
from .errors import BytecodeError

__all__ = ["OpEmitter"]

TERMINATORS = frozenset({"break", "continue", "return", "yield"})


class OpEmitter:
    """Appends checked operations to nested blocks; base of the typed builders."""

    def __init__(self, version: Version, body: Block, locations: LocationTable | None) -> None:
        self.version = version
        self._blocks = [body]
        self._locations = locations
        self._location: DebugLocation | None = locations.function if locations else None

    def emit(
        self,
        name: str,
        operands: Sequence[OperandInput] = (),
        attributes: Mapping[str, Any] | None = None,  # values as AttributeKind says
        result_types: Sequence[types.Type] = (),
        regions: Sequence[Region] = (),
    ) -> tuple[Value, ...]:
        """Append the operation `name` to the current block; gives its results.

        Args:
            operands: one entry per slot, in the order of the op table: a value; a sequence of values for
                a variadic slot; None for an absent optional one (trailing ones may be left out).
            attributes: by name, all but those that are optional or have a default; enumeration members
                or their names.
            result_types: types of all results.
            regions: bodies, if the op has any; the methods for control flow make them.
        Raises:
            BytecodeError: the operation breaks the op table, or the block has ended.
        """
        operation = make_operation(
            self.version, name, operands, attributes, result_types, regions, self._location
        )
        self._append(operation)
        return operation.results

    def emit_one(
        self,
        name: str,
        operands: Sequence[OperandInput],
        result_type: types.Type,
        attributes: Mapping[str, Any] | None = None,  # values as AttributeKind says
    ) -> Value:
        """`emit` for an operation with one result."""
        return self.emit(name, operands, attributes, (result_type,))[0]

    @contextmanager
    def at(self, location: SourceLocation | None) -> Iterator[None]:
        """Operations made inside stand for code at `location`; None keeps the surrounding one.

        Without a location for the function itself this does nothing: the module has no debug section.
        """
        before = self._location
        if location is not None and self._locations is not None:
            self._location = self._locations.resolve(location)
        try:
            yield
        finally:
            self._location = before

    @property
    def has_terminator(self) -> bool:
        """Whether the current block has ended, so that nothing can be added to it."""
        operations = self._blocks[-1].operations
        return bool(operations) and operations[-1].name in TERMINATORS

    def _append(self, operation: Operation) -> None:
        if self.has_terminator:
            last = self._blocks[-1].operations[-1].name
            raise BytecodeError(
                f"{operation.name}: the block has ended with {last!r}; nothing can follow it", operation.name
            )
        self._blocks[-1].operations.append(operation)

    @contextmanager
    def _inside(self, block: Block) -> Iterator[None]:
        self._blocks.append(block)
        try:
            yield
        finally:
            self._blocks.pop()
