"""The state of one lowering, and control flow.

Each operation of the IR has a handler that emits one operation of Tile IR, or the few that mean the same.
The IR's integers have a sign; Tile IR's have none, and its operations say how to read them. A bool in
memory is a byte, and Tile IR sees bool tensors and parameters as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..dtypes import DType, bool_
from ..ir import (
    Block,
    BreakOp,
    ConstantOp,
    ContinueOp,
    ForOp,
    Function,
    IfOp,
    Location,
    LoopOp,
    MakeTensorOp,
    Op,
    PointerType,
    ReturnOp,
    TileType,
    TokenType,
    Value,
    YieldOp,
)
from ..tileir import ComparisonPredicate, FunctionBuilder, Signedness, SourceLocation, types
from ..tileir import Value as TileValue

__all__ = [
    "HANDLERS",
    "Lowerer",
    "element_type",
    "lowers",
    "signedness",
    "source_location",
    "stored_element_type",
    "tile_type",
]

OpT = TypeVar("OpT", bound=Op)

# Any: each handler takes its own operation
HANDLERS: dict[type[Op], Callable[[Lowerer, Any], None]] = {}
"""What emits each operation, other than control flow."""


def lowers(op: type[OpT]) -> Callable[[Callable[[Lowerer, OpT], None]], Callable[[Lowerer, OpT], None]]:
    """Mark a function as what emits operations of a class."""

    def register(handler: Callable[[Lowerer, OpT], None]) -> Callable[[Lowerer, OpT], None]:
        HANDLERS[op] = handler
        return handler

    return register


def signedness(dtype: DType) -> Signedness:
    """How operations are to read integers of a type."""
    return Signedness.SIGNED if dtype.is_signed else Signedness.UNSIGNED


def source_location(location: Location | None) -> SourceLocation | None:
    """A place in the user's source, for the bytecode: columns count from 1 there."""
    if location is None:
        return None
    return SourceLocation(
        location.file,
        location.line,
        location.column + 1,
        location.function,
        source_location(location.caller),
    )


def element_type(dtype: DType) -> types.NumberType:
    """An element type in registers."""
    if dtype is bool_:
        return types.i1
    return types.number(f"i{dtype.bits}" if dtype.is_integer else dtype.short)


def stored_element_type(dtype: DType) -> types.NumberType:
    """An element type in memory."""
    return types.i8 if dtype is bool_ else element_type(dtype)


def tile_type(kind: TileType) -> types.TileType:
    """The type of a tile of numbers or pointers."""
    if isinstance(kind.dtype, PointerType):
        return types.tile(types.ptr(stored_element_type(kind.dtype.pointee)), kind.shape)
    return types.tile(element_type(kind.dtype), kind.shape)


class Lowerer:
    """Emits one function.

    Attributes:
        fn: builder of the kernel.
        block_id: this block's index along each axis, once asked for.
        num_blocks: the grid, once asked for.
        tensors: what makes each tensor.
    """

    def __init__(self, function: Function, fn: FunctionBuilder) -> None:
        self.fn = fn
        self._values: dict[Value, TileValue] = {}
        self._numbers: dict[Value, bool | int | float] = {}
        self.tensors: dict[Value, MakeTensorOp] = {}
        for value, argument in zip(function.body.arguments, fn.arguments, strict=True):
            if value.type == TileType(bool_):
                zero = fn.constant(types.tile(types.i8), 0)
                argument = fn.cmpi(ComparisonPredicate.NOT_EQUAL, argument, zero)
            self[value] = argument
        self._printed: TileValue | None = None
        self.block_id = fn.tile_block_id()
        self.num_blocks = fn.num_tile_blocks()

    def __getitem__(self, value: Value) -> TileValue:
        return self._values[value]

    def __setitem__(self, value: Value, emitted: TileValue) -> None:
        self._values[value] = emitted

    def all(self, values: tuple[Value, ...]) -> list[TileValue]:
        """What several values are."""
        return [self._values[value] for value in values]

    def number(self, value: Value) -> bool | int | float | None:
        """The one number a value is everywhere, if known."""
        return self._numbers.get(value)

    def tile(self, value: Value) -> types.TileType:
        """The type of a tile."""
        assert isinstance(value.type, TileType)
        return tile_type(value.type)

    def carried(self, value: Value) -> types.Type:
        """The type of a tile or token."""
        return types.token if isinstance(value.type, TokenType) else self.tile(value)

    # -- operations
    def ordered_print(self, text: str, values: list[TileValue]) -> None:
        """Print after what was printed before in this block or in front of one around it."""
        self._printed = self.fn.print_(text, values, self._printed)

    def block(self, block: Block) -> None:
        """Emit the operations of a block; its arguments have been set."""
        printed = self._printed
        self._block(block)
        self._printed = printed  # a token of this block is not visible outside

    def _block(self, block: Block) -> None:
        for op in block.ops:
            with self.fn.at(source_location(op.location)):
                if isinstance(op, ConstantOp) and not isinstance(op.value, tuple):
                    self._numbers[op.result] = op.value
                control = _CONTROL.get(type(op))
                if control is not None:
                    control(self, op)
                else:
                    HANDLERS[type(op)](self, op)

    def set_all(self, values: tuple[Value, ...] | list[Value], emitted: tuple[TileValue, ...]) -> None:
        """Say what several values are."""
        self._values.update(zip(values, emitted, strict=True))


def _if(b: Lowerer, op: IfOp) -> None:
    with b.fn.if_(b[op.condition], [b.carried(v) for v in op.merged]) as branch:
        with branch.then():
            b.block(op.then)
        with branch.otherwise():
            b.block(op.otherwise)
    b.set_all(op.merged, branch.results)


def _for(b: Lowerer, op: ForOp) -> None:
    with b.fn.for_(b[op.lower], b[op.upper], b[op.step], b.all(op.initial)) as loop:
        b.set_all(op.body.arguments, (loop.induction, *loop.carried))
        b.block(op.body)
    b.set_all(op.final, loop.results)


def _loop(b: Lowerer, op: LoopOp) -> None:
    with b.fn.loop(b.all(op.initial), [b.carried(v) for v in op.final]) as loop:
        b.set_all(op.body.arguments, loop.carried)
        b.block(op.body)
    b.set_all(op.final, loop.results)


# Any: each takes its own operation
_CONTROL: dict[type[Op], Callable[[Lowerer, Any], None]] = {
    IfOp: _if,
    ForOp: _for,
    LoopOp: _loop,
    YieldOp: lambda b, op: b.fn.yield_(*b.all(op.values)),
    ContinueOp: lambda b, op: b.fn.continue_(*b.all(op.values)),
    BreakOp: lambda b, op: b.fn.break_(*b.all(op.values)),
    ReturnOp: lambda b, op: b.fn.return_(),
}
