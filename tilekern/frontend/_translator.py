"""The state of one translation, and the few things every part of it does: add an operation, make a
constant, refuse with the user's line.

Parts of the front end are functions that take the translator (`t`) and the frame of the function being
translated; each file has one concern: `_statements`, `_branches`, `_loops`, `_expressions`, `_calls`,
`_operators`, `_promotion`, and `operations/` for the language's functions. The translator's `location` is
the expression that is being translated: it goes on operations and into errors.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from .._terms import Term
from ..dtypes import DType, bool_, float4_e2m1fn
from ..errors import KernelError, KernelSyntaxError, KernelTypeError, KernelValueError
from ..ir import Block, Builder, ConstantOp, Location, Op, TileType, Value, tile_shape_problem
from ._captures import Captures
from ._checks import LaunchCheck
from ._effects import Effects
from ._frame import Frame
from ._values import Loose, describe, is_numpy_type, is_scalar

__all__ = ["MAX_CALL_DEPTH", "Translator"]

MAX_CALL_DEPTH = 40
"""How deep helper calls nest. Python's own recursion limit is a few times that many calls away."""

_TYPES: dict[object, str] = {
    int: "int32",
    float: "float32",
    **dict.fromkeys(("float32", "f4", "float"), "float32"),
    **dict.fromkeys(("float16", "f2", "half"), "float16"),
    **dict.fromkeys(("float64", "f8", "double"), "float64"),
    **dict.fromkeys(("int32", "i4", "int"), "int32"),
    **dict.fromkeys(("int64", "i8"), "int64"),
    "bfloat16": "bfloat16",
}
"""What other systems call element types by."""

OpT = TypeVar("OpT", bound=Op)


class Translator:
    """One kernel in translation.

    Attributes:
        builder: where operations go.
        checks: what launches must satisfy, as far as found.
        captures: what it read of the program around it, so far.
        effects: what it does to memory, as far as found.
        entry: position among the launch's flat arguments, by entry parameter.
        terms: what a loose whole number is, where arithmetic made it of arguments alone.
        dimensions: the entry parameters that are dimensions of tensors.
        positive: numbers that are known to be above 0.
        grid_limits: (axis, term): the launcher sees to it that the grid is not larger.
        memory: name of each parameter that is an address, and whether it was given for writing.
        body: the kernel's own block.
        depth: helper calls around the current statement.
        grid: the launch's grid where it is compiled in.
    """

    def __init__(self, body: Block) -> None:
        self.builder = Builder(body)
        self.checks: list[LaunchCheck] = []
        self.captures = Captures()
        self.effects = Effects()
        self.entry: dict[Value, int] = {}
        self.terms: dict[Value, Term] = {}
        self.memory: dict[Value, tuple[str, bool]] = {}
        self.body = body
        self.dimensions: set[Value] = set()
        self.positive: set[Value] = set()
        self.grid_limits: list[tuple[int, Term]] = []
        self.depth = 0
        self.grid: tuple[int, int, int] | None = None

    # -- where we are
    @property
    def location(self) -> Location | None:
        """Place in the user's source that is being translated."""
        return self.builder.location

    def at(self, frame: Frame, node: ast.AST) -> None:
        """Make `node` the place that is being translated."""
        self.builder.location = frame.locate(node)

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Add operations to `block` within the `with` statement."""
        with self.builder.inside(block):
            yield block

    @contextmanager
    def scratch(self) -> Iterator[Block]:
        """Translate within the `with` statement for what it tells; nothing of it is kept."""
        checks = len(self.checks)
        location = self.location
        try:
            with self.builder.inside(Block()) as block:
                yield block
        finally:
            del self.checks[checks:]
            self.builder.location = location

    # -- errors at the current place
    def syntax(self, reason: str) -> KernelError:
        """The error for Python that kernels cannot use."""
        return KernelSyntaxError(reason, self.location)

    def wrong_type(self, reason: str) -> KernelError:
        """The error for a value of the wrong type."""
        return KernelTypeError(reason, self.location)

    def wrong_value(self, reason: str) -> KernelError:
        """The error for a value out of range."""
        return KernelValueError(reason, self.location)

    # -- operations
    def add(self, op: OpT) -> OpT:
        """Append `op`."""
        for value in op.results:
            kind = value.type
            if isinstance(kind, TileType) and kind.dtype is float4_e2m1fn and kind.size % 2:
                raise self.wrong_type(
                    "a tile of float4_e2m1fn has an even number of elements, since two share a byte; this one "
                    f"would have shape {kind.shape}"
                )
        return self.builder.add(op)

    def constant(self, number: bool | int | float, dtype: DType, shape: tuple[int, ...] = ()) -> Value:
        """A tile with `number` everywhere, rounded to `dtype`; refuses an integer that does not fit."""
        value = self.held(number, dtype)
        return self.add(ConstantOp(value=value, result=Value(TileType(dtype, shape)))).result

    def held(self, number: bool | int | float, dtype: DType) -> bool | int | float:
        """`number` as `dtype` holds it."""
        value: bool | int | float
        if dtype.is_float:
            try:
                value = dtype.rounded(number)
            except OverflowError:
                raise self.wrong_value(f"{_shown(number)} is too large for {dtype.name}") from None
        elif dtype is bool_:
            value = bool(number)
        elif isinstance(number, float):
            if not math.isfinite(number) or number != int(number):
                raise self.wrong_value(f"{number} is no whole number, and {dtype.name} holds only those")
            value = int(number)
        else:
            value = int(number)
        if type(value) is int and not dtype.holds(value):
            raise self.wrong_value(
                f"{_shown(value)} does not fit {dtype.name}, which holds {dtype.lowest} to {dtype.highest}"
            )
        return value

    # -- what must be known at compile time
    def static_int(self, value: object, what: str) -> int:
        """`value`, a whole number known at compile time."""
        if isinstance(value, np.integer) or (isinstance(value, int) and not isinstance(value, bool)):
            return int(value)
        if isinstance(value, Loose) and value in self.entry:
            raise self.wrong_type(
                f"{what} is known at compile time, and {value.name} is an argument of the launch; declare it "
                f"{value.name}: tk.Constant[int]"
            )
        hint = ""
        if is_scalar(value):
            hint = (
                "; what comes from a tensor's shape, a tile or the grid is known only when the kernel runs: use a "
                "tk.Constant[int] parameter, or loop over tiles of a fixed shape"
            )
        raise self.wrong_type(f"{what} is a whole number known at compile time, got {describe(value)}{hint}")

    def static_bool(self, value: object, what: str) -> bool:
        """`value`, a bool known at compile time."""
        if type(value) is not bool:
            raise self.wrong_type(f"{what} is True or False, known at compile time, got {describe(value)}")
        return value

    def static_ints(self, value: object, what: str) -> tuple[int, ...]:
        """`value`, a tuple of whole numbers known at compile time; one number stands for a tuple of it."""
        parts = value if isinstance(value, tuple | list) else (value,)
        return tuple([self.static_int(part, f"each number of {what}") for part in parts])

    def static_shape(self, value: object) -> tuple[int, ...]:
        """`value`, the shape of a tile."""
        shape = self.static_ints(value, "a tile's shape")
        if problem := tile_shape_problem(shape):
            raise self.wrong_value(problem)
        return shape

    def static_dtype(self, value: object, what: str = "dtype") -> DType:
        """`value`, an element type: ours, or NumPy's."""
        from ..dtypes import dtype_of

        if isinstance(value, DType):
            return value
        if value is bool:
            return bool_
        if is_numpy_type(value):
            try:
                return dtype_of(value)
            except TypeError as error:
                raise self.wrong_type(str(error)) from None
        wanted = _TYPES.get(value) if isinstance(value, type | str) else None
        hint = f"; use tk.{wanted}" if wanted else ""
        raise self.wrong_type(f"{what} is an element type such as tk.float32, got {describe(value)}{hint}")

    def axis(self, value: object, rank: int, what: str = "axis") -> int:
        """`value`, an axis of a tile of rank `rank`; negative ones count from the end."""
        axis = self.static_int(value, what)
        if not -rank <= axis < rank:
            raise self.wrong_value(f"{what} is {axis}, but there are {rank} axes")
        return axis % rank


def _shown(number: int | float) -> str:
    """A number in a message; Python refuses to print very long ones."""
    if isinstance(number, int) and number.bit_length() > 128:
        return f"an int of {number.bit_length()} bits"
    return str(number)
