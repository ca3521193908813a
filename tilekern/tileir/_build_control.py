"""Operations with bodies: for, loop, if, reduce, scan; and the terminators that end a block.

A body is a context manager. The operation is added to the surrounding block when the context ends,
which is when its results exist:

    with fn.for_(lower, upper, step, init=[acc]) as loop:
        fn.continue_(fn.addf(loop.carried[0], x))
    total = loop.results[0]

A body without anything to hand on may end without a terminator: an empty one is added to `for` without
carried values and to `if` without results. In all other cases it must be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from . import types
from ._attributes import Attribute, FloatAttribute, IntegerAttribute
from ._constants import Scalar, element_bits
from ._debug import DebugLocation
from ._emitter import TERMINATORS, OpEmitter
from ._module import Block, Operation, Region, Value
from ._operation import OperandInput, make_operation
from .errors import BytecodeError

__all__ = ["Body", "ControlOps", "ForBody", "IfBodies", "LoopBody"]


class _WithResults:
    """An operation that is made when its context ends."""

    def __init__(self, builder: ControlOps, name: str, result_types: Sequence[types.Type]) -> None:
        self._builder = builder
        self._name = name
        self._result_types = tuple(result_types)
        self._location: DebugLocation | None = builder._location
        self._operation: Operation | None = None

    @property
    def results(self) -> tuple[Value, ...]:
        """Results of the operation, once its context has ended."""
        if self._operation is None:
            raise BytecodeError(f"{self._name}: has no results before its body has ended", self._name)
        return self._operation.results

    def _finish(
        self,
        operands: Sequence[OperandInput],
        attributes: Mapping[str, Any],  # values as AttributeKind says
        regions: Sequence[Region],
    ) -> None:
        operation = make_operation(
            self._builder.version,
            self._name,
            operands,
            attributes,
            self._result_types,
            regions,
            self._location,
        )
        self._builder._append(operation)
        self._operation = operation

    def _close(self, block: Block, terminator: str, wanted: Sequence[types.Type]) -> None:
        """Check how a body ends: with `terminator` and those types, or by leaving in another way."""
        last = block.operations[-1] if block.operations else None
        if last is None or last.name not in TERMINATORS:
            if wanted or terminator not in ("continue", "yield"):
                raise BytecodeError(
                    f"{self._name}: its body must end with {terminator!r} of {_type_names(wanted)}",
                    self._name,
                )
            location = last.location if last else self._location
            block.operations.append(
                make_operation(self._builder.version, terminator, ((),), location=location)
            )
        elif last.name == terminator:
            given = [value.type for value in last.values()]
            if given != list(wanted):
                raise BytecodeError(
                    f"{self._name}: its body must end with {terminator!r} of {_type_names(wanted)}, "
                    f"got {_type_names(given)}",
                    self._name,
                )


class Body(_WithResults):
    """The one body of `reduce`, `scan`, `for` or `loop`, entered with `with`."""

    def __init__(
        self,
        builder: ControlOps,
        name: str,
        operands: Sequence[OperandInput],
        attributes: Mapping[str, Any],  # values as AttributeKind says
        argument_types: Sequence[types.Type],
        result_types: Sequence[types.Type],
        terminator: str,
        yielded_types: Sequence[types.Type],
    ) -> None:
        super().__init__(builder, name, result_types)
        self._operands = operands
        self._attributes = attributes
        self._terminator = terminator
        self._yielded_types = yielded_types
        self._block = Block(tuple(Value(kind) for kind in argument_types))

    @property
    def arguments(self) -> tuple[Value, ...]:
        """The body's own values; for `reduce` and `scan` (element, accumulator) of each operand in turn."""
        return self._block.arguments

    def __enter__(self) -> Body:
        self._builder._blocks.append(self._block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._builder._blocks.pop()
        if error is None:
            self._close(self._block, self._terminator, self._yielded_types)
            self._finish(self._operands, self._attributes, (Region([self._block]),))


class LoopBody(Body):
    """Body of `loop`; ends with `continue_` of the carried values or `break_` of the results."""

    def __enter__(self) -> LoopBody:
        super().__enter__()
        return self

    @property
    def carried(self) -> tuple[Value, ...]:
        """This iteration's values of what `init` started."""
        return self.arguments


class ForBody(Body):
    """Body of `for`; ends with `continue_` of the carried values."""

    def __enter__(self) -> ForBody:
        super().__enter__()
        return self

    @property
    def induction(self) -> Value:
        """lower, lower + step, ... below upper."""
        return self.arguments[0]

    @property
    def carried(self) -> tuple[Value, ...]:
        """This iteration's values of what `init` started."""
        return self.arguments[1:]


class IfBodies(_WithResults):
    """The two bodies of `if`: `with branch.then():`, and `with branch.otherwise():` if there is an else."""

    def __init__(self, builder: ControlOps, condition: Value, result_types: Sequence[types.Type]) -> None:
        super().__init__(builder, "if", result_types)
        self._condition = condition
        self._then: Block | None = None
        self._else: Block | None = None

    @contextmanager
    def then(self) -> Iterator[None]:
        """The body for a true condition."""
        if self._then is not None:
            raise BytecodeError("if: has two `then` bodies", "if")
        self._then = Block()
        with self._builder._inside(self._then):
            yield
        self._close(self._then, "yield", self._result_types)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The body for a false condition."""
        if self._else is not None:
            raise BytecodeError("if: has two `otherwise` bodies", "if")
        self._else = Block()
        with self._builder._inside(self._else):
            yield
        self._close(self._else, "yield", self._result_types)

    def __enter__(self) -> IfBodies:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        if self._then is None:
            raise BytecodeError("if: has no `then` body", "if")
        if self._else is None and self._result_types:
            raise BytecodeError("if: with results needs an `otherwise` body", "if")
        regions = (Region([self._then]), Region([] if self._else is None else [self._else]))
        self._finish((self._condition,), {}, regions)


class ControlOps(OpEmitter):
    """Control flow, reductions and terminators."""

    def for_(
        self, lower: Value, upper: Value, step: Value, init: Sequence[Value] = (), *, unsigned: bool = False
    ) -> ForBody:
        """for i in range(lower, upper, step), carrying values; bounds are scalars of one integer type."""
        for bound in (upper, step):
            if bound.type != lower.type:
                raise BytecodeError(f"for: bounds are of one type, got {lower.type} and {bound.type}", "for")
        carried = [value.type for value in init]
        return ForBody(
            self,
            "for",
            (lower, upper, step, tuple(init)),
            {"unsignedCmp": unsigned},
            (lower.type, *carried),
            carried,
            "continue",
            carried,
        )

    def loop(self, init: Sequence[Value] = (), result_types: Sequence[types.Type] | None = None) -> LoopBody:
        """Endless loop, left by `break_` with its results, which have the carried types if not given."""
        carried = [value.type for value in init]
        results = carried if result_types is None else list(result_types)
        return _LoopBody(self, "loop", (tuple(init),), {}, carried, results, "continue", carried)

    def if_(self, condition: Value, result_types: Sequence[types.Type] = ()) -> IfBodies:
        """Branch on a scalar of i1; both bodies yield values of `result_types`."""
        return IfBodies(self, condition, result_types)

    def reduce(self, operands: Sequence[Value], dim: int, identities: Sequence[Scalar | Attribute]) -> Body:
        """Combine along `dim`, which goes away.

        The body has (element, accumulator) per operand, scalars, and yields the new accumulators; it must be
        associative. `identities` has the neutral element of each operand.
        """
        kinds = [_reduced(value, dim, "reduce") for value in operands]
        shapes = [kind.with_shape(kind.shape[:dim] + kind.shape[dim + 1 :]) for kind in kinds]
        return self._reduction("reduce", operands, kinds, shapes, identities, {"dim": dim})

    def scan(
        self,
        operands: Sequence[Value],
        dim: int,
        identities: Sequence[Scalar | Attribute],
        *,
        reverse: bool = False,
    ) -> Body:
        """Inclusive prefix combination along `dim`; body and identities as in `reduce`."""
        kinds = [_reduced(value, dim, "scan") for value in operands]
        return self._reduction("scan", operands, kinds, kinds, identities, {"dim": dim, "reverse": reverse})

    def _reduction(
        self,
        name: str,
        operands: Sequence[Value],
        kinds: Sequence[types.TileType],
        result_types: Sequence[types.TileType],
        identities: Sequence[Scalar | Attribute],
        attributes: dict[str, Any],  # values as AttributeKind says
    ) -> Body:
        if len(identities) != len(operands) or not operands:
            raise BytecodeError(
                f"{name}: {len(operands)} operands need as many identities and at least one", name
            )
        scalars = [types.tile(kind.element) for kind in kinds]
        attributes["identities"] = tuple(_identity(k, value, name) for k, value in zip(kinds, identities))
        arguments = [scalar for scalar in scalars for _ in range(2)]
        return Body(self, name, (tuple(operands),), attributes, arguments, result_types, "yield", scalars)

    def yield_(self, *values: Value) -> None:
        """End a body of `if`, `reduce` or `scan` with its results."""
        self.emit("yield", (values,))

    def continue_(self, *values: Value) -> None:
        """Go on with the next iteration of the innermost `for` or `loop`."""
        self.emit("continue", (values,))

    def break_(self, *values: Value) -> None:
        """Leave the innermost `loop` with its results."""
        self.emit("break", (values,))

    def return_(self) -> None:
        """End the kernel."""
        self.emit("return", ((),))


class _LoopBody(LoopBody):
    """A loop has no natural end: without a terminator it is not clear whether it goes on or stops."""

    def _close(self, block: Block, terminator: str, wanted: Sequence[types.Type]) -> None:
        if not block.operations or block.operations[-1].name not in TERMINATORS:
            raise BytecodeError("loop: its body must end with 'continue' or 'break'", "loop")
        super()._close(block, terminator, wanted)


def _reduced(value: Value, dim: int, name: str) -> types.TileType:
    kind = value.tile_type
    if not 0 <= dim < kind.rank:
        raise BytecodeError(f"{name}: dim is an axis of {kind}, got {dim}", name)
    return kind


def _identity(kind: types.TileType, value: Scalar | Attribute, name: str) -> Attribute:
    if isinstance(value, Attribute):
        return value
    element = kind.element
    if not isinstance(element, types.NumberType):
        raise BytecodeError(f"{name}: tiles of numbers are needed, got {kind}", name)
    bits = element_bits(element, value)
    return FloatAttribute(element, bits) if element.is_float else IntegerAttribute(element, bits)


def _type_names(kinds: Sequence[types.Type]) -> str:
    return f"({', '.join(map(str, kinds))})"
