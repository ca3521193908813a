"""Running the IR for many blocks of a launch at once.

Theory. All blocks of a batch go through an operation together: a value is a NumPy array with one row per
block, in front of the tile's own axes. A value that is the same for all blocks has one row, whatever the
number of blocks; NumPy's broadcasting lets the two meet. NumPy does the work of an operation for a whole
batch in one call, which is what makes an interpreter of tiles fast.

Blocks part where a condition or a trip count differs between them. A `Frame` stands for a set of blocks: it
holds the values they defined together and, where it is a part of another frame, the rows of that frame it
is. A value of an outer frame is cut to those rows when it is asked for. A region runs in a frame of its own
and gives exits: how it was left (`yield`, `continue`, `break`, `return`), by which rows, with which values.
`if` merges the yields of its two sides; a loop goes on with the rows that continued; rows that left further
out are handed on, and what follows runs for the others only.

Blocks of a batch run in step, which is one of the orders a GPU may take. Steps: the machine is a generator
and gives up control when its time is over, between any two operations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import TilekernError
from ..ir import (
    Block,
    BreakOp,
    ContinueOp,
    ForOp,
    Function,
    IfOp,
    LoopOp,
    Op,
    Value,
    YieldOp,
)

__all__ = [
    "CONTROL",
    "HANDLERS",
    "STEP_S",
    "Array",
    "Exit",
    "Frame",
    "Machine",
    "Rows",
    "run_block",
    "runs",
    "uniform",
]

# A row per block, or one row for all, in front of the tile's axes. Any: of whatever element type.
Array = NDArray[Any]
Rows = NDArray[np.intp] | None
"""Rows of a frame; None for all of them."""

STEP_S = 0.001
"""How long a step runs before it gives up control."""

OpT = TypeVar("OpT", bound=Op)
Handler = Callable[["Frame", OpT], None]

# Any: each handler takes its own operation
HANDLERS: dict[type[Op], Callable[[Frame, Any], None]] = {}
"""What runs each operation, other than control flow."""


def runs(op: type[OpT]) -> Callable[[Handler[OpT]], Handler[OpT]]:
    """Mark a function as what runs operations of a class."""

    def register(handler: Handler[OpT]) -> Handler[OpT]:
        HANDLERS[op] = handler
        return handler

    return register


class Exit(NamedTuple):
    """How some rows left a region."""

    how: type[Op]
    rows: Rows
    """Rows of the frame the region was entered with."""
    values: list[Any]


class Frame:
    """Blocks that run together, and the values they have defined.

    Attributes:
        machine: what runs them.
        size: number of blocks.
    """

    __slots__ = ("_outer", "_rows", "_values", "machine", "size")

    def __init__(self, machine: Machine, size: int, outer: Frame | None = None, rows: Rows = None) -> None:
        self.machine = machine
        self.size = size
        self._outer = outer
        self._rows = rows
        # Any: arrays, and tensors that know how to give rows
        self._values: dict[Value, Any] = {}

    def __getitem__(self, value: Value) -> Any:
        found = self._values.get(value)
        if found is None:
            assert self._outer is not None, f"{value!r} is not defined"
            found = self._outer[value]
            if self._rows is not None and len(found) != 1:
                found = found[self._rows]
            self._values[value] = found
        return found

    def __setitem__(self, value: Value, content: Any) -> None:
        self._values[value] = content

    def part(self, rows: Rows) -> Frame:
        """A frame inside of this one: of some of its rows, or all."""
        return Frame(self.machine, self.size if rows is None else len(rows), self, rows)


def uniform(array: Array) -> Any | None:
    """The one value all rows of a scalar have; None where they differ."""
    if len(array) == 1:
        return array[0]
    first = array[0]
    return first if bool((array == first).all()) else None


@dataclass(eq=False)
class Machine:
    """One launch.

    Attributes:
        function: what runs.
        memory: the device's memory.
        grid: blocks along each axis.
        block_ids: stand for the indices of a frame's blocks along each axis.
        constants: arrays of constants, made once.
        deadline: when this step is to give up control.
        watch: is told what blocks touch, on a device that checks.
    """

    function: Function
    # Any: the host device's memory, which this package knows by its methods only
    memory: Any
    grid: tuple[int, int, int]
    block_ids: tuple[Value, Value, Value]
    constants: dict[Op, Array]
    deadline: float = 0.0
    watch: Any = None  # of the host device, as the memory is

    def run(self, arguments: Sequence[Array], ids: Sequence[Array]) -> Generator[None]:
        """Run blocks, given the entry arguments and each block's index along the grid axes."""
        frame = Frame(self, len(ids[0]))
        for value, content in zip(self.function.body.arguments, arguments, strict=True):
            frame[value] = content
        for axis, value in enumerate(self.block_ids):
            frame[value] = ids[axis]
        yield from run_block(frame, self.function.body)

    def numbers(self, frame: Frame) -> Array:
        """The numbers of a frame's blocks, x running fastest."""
        x, y, z = (frame[value].astype(np.int64) for value in self.block_ids)
        columns, rows, _ = self.grid
        found: Array = x + columns * (y + rows * z)
        return found

    def over(self) -> bool:
        """True when the step has run long enough."""
        return time.perf_counter() >= self.deadline


def run_block(frame: Frame, block: Block) -> Generator[None, None, list[Exit]]:
    """Run a region in a frame made for it; its arguments are set already."""
    exits: list[Exit] = []
    place: Rows = None  # the current frame's rows in the frame of entry
    machine = frame.machine
    for op in block.ops:
        if machine.over():
            yield
        if op.terminator:
            exits.append(Exit(type(op), place, [frame[v] for v in op.operands]))
            break
        kind = type(op)
        if kind not in CONTROL:
            try:
                HANDLERS[kind](frame, op)
            except TilekernError:
                raise
            except Exception as error:
                error.add_note(f"while the kernel ran {op.mnemonic} of {op.location or 'an unknown line'}")
                raise
            continue
        left = yield from CONTROL[kind](frame, op)
        if left:
            going = np.ones(frame.size, bool)
            for one in left:
                going[slice(None) if one.rows is None else one.rows] = False
                exits.append(one._replace(rows=_compose(place, one.rows)))
            rest = np.flatnonzero(going)
            if not len(rest):
                break
            frame = frame.part(rest)
            place = _compose(place, rest)
    return exits


def _compose(outer: Rows, inner: Rows) -> Rows:
    """Rows of rows."""
    if outer is None or inner is None:
        return inner if outer is None else outer
    return outer[inner]


def _run_if(frame: Frame, op: IfOp) -> Generator[None, None, list[Exit]]:
    condition = frame[op.condition]
    decided = uniform(condition)
    if decided is not None:
        sides: list[tuple[Block, Rows]] = [(op.then if decided else op.otherwise, None)]
    else:
        sides = [(op.then, np.flatnonzero(condition)), (op.otherwise, np.flatnonzero(~condition))]
    merged, left = _Merge(frame.size), []
    for block, rows in sides:
        for one in (yield from run_block(frame.part(rows), block)):
            placed = one._replace(rows=_compose(rows, one.rows))
            if one.how is YieldOp:
                merged.add(placed)
            else:
                left.append(placed)
    for value, content in zip(op.merged, merged.values(len(op.merged)), strict=True):
        frame[value] = content
    return left


def _run_for(frame: Frame, op: ForOp) -> Generator[None, None, list[Exit]]:
    lower, upper, step = frame[op.lower], frame[op.upper], frame[op.step]
    wide = [a.astype(np.int64) for a in (lower, upper, step)]
    turns = np.maximum(0, -((wide[0] - wide[1]) // wide[2]))
    carried = [frame[v] for v in op.initial]
    left: list[Exit] = []
    gone = np.zeros(frame.size, bool)
    dtype = lower.dtype
    for turn in range(int(turns.max())):
        going = (turns > turn) & ~gone
        rows: Rows = None if going.all() else np.flatnonzero(going)
        inside = frame.part(rows)
        counter = (wide[0] + turn * wide[2]).astype(dtype)
        inside[op.body.arguments[0]] = _take(counter, rows)
        carried, more = yield from _turn(frame, inside, rows, op.body, 1, carried)
        for one in more:
            gone[slice(None) if one.rows is None else one.rows] = True
            left.append(one)
        if gone.all():
            break
    for value, content in zip(op.final, carried, strict=True):
        frame[value] = content
    return left


def _turn(
    frame: Frame, inside: Frame, rows: Rows, body: Block, first: int, carried: list[Any]
) -> Generator[None, None, tuple[list[Any], list[Exit]]]:
    """One turn of a loop for some rows; gives what is carried by all, and exits other than `continue`."""
    for argument, content in zip(body.arguments[first:], carried, strict=True):
        inside[argument] = _take(content, rows)
    merged, left = _Merge(frame.size), []
    if rows is not None:  # rows that are not in this turn keep what they have
        merged.add(Exit(ContinueOp, None, carried))
    for one in (yield from run_block(inside, body)):
        placed = one._replace(rows=_compose(rows, one.rows))
        if one.how is ContinueOp:
            merged.add(placed)
        else:
            left.append(placed)
            if rows is None and one.rows is not None:
                merged.add_missing(Exit(ContinueOp, None, carried))
    return merged.values(len(carried)) if merged.parts else carried, left


def _run_loop(frame: Frame, op: LoopOp) -> Generator[None, None, list[Exit]]:
    carried = [frame[v] for v in op.initial]
    results, left = _Merge(frame.size), []
    rows: Rows = None
    while True:
        inside = frame.part(rows)
        carried, exits = yield from _turn(frame, inside, rows, op.body, 0, carried)
        going = np.zeros(frame.size, bool)
        going[slice(None) if rows is None else rows] = True
        for one in exits:
            going[slice(None) if one.rows is None else one.rows] = False
            if one.how is BreakOp:
                results.add(one)
            else:
                left.append(one)
        if not going.any():
            break
        rows = None if going.all() else np.flatnonzero(going)
    for value, content in zip(op.final, results.values(len(op.final)), strict=True):
        frame[value] = content
    return left


def _take(content: Any, rows: Rows) -> Any:
    return content if rows is None or len(content) == 1 else content[rows]


class _Merge:
    """Puts together values that different rows of a frame got in different ways."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.parts: list[Exit] = []

    def add(self, one: Exit) -> None:
        """Values of some rows; later ones win."""
        self.parts.append(one)

    def add_missing(self, one: Exit) -> None:
        """Values of the rows nothing else gives any."""
        self.parts.insert(0, one)

    def values(self, count: int) -> list[Any]:
        """The values; rows that were given none have zeros, and nobody asks for them."""
        if count == 0:
            return []
        if len(self.parts) == 1 and self.parts[0].rows is None:
            return self.parts[0].values
        return [self._merge([(p.rows, p.values[i]) for p in self.parts]) for i in range(count)]

    def _merge(self, parts: list[tuple[Rows, Array]]) -> Array:
        if not parts:
            return np.zeros(1, bool)
        sample = parts[0][1]
        result = np.zeros((self._size, *sample.shape[1:]), sample.dtype)
        for rows, content in parts:
            result[slice(None) if rows is None else rows] = content
        return result


CONTROL: dict[type[Op], Callable[[Frame, Any], Generator[None, None, list[Exit]]]] = {
    IfOp: _run_if,
    ForOp: _run_for,
    LoopOp: _run_loop,
}
"""What runs each operation that has regions; a generator that gives the rows that left further out."""
