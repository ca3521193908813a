"""Threads in lanes: waves, frames and groups.

A *wave* is some blocks of a launch that run together, one lane per thread; each block is padded to whole
warps, and the padding never runs. A *frame* is one activation of a function by some lanes: it holds the
registers, one array with an element per lane of the frame. A *group* is the lanes of a frame that are at one
instruction; all that runs is one group at a time.

Registers
    Arrays of raw bits of the register's width, `bool` for predicates. Arrays are never changed in place. An
    array with one element stands for the same value in every lane, and most instructions keep it so; loops
    whose counters are uniform then cost next to nothing. The list ends in slots for constants and special
    registers, so that every operand is a slot.

Which lanes an instruction writes
    A group need not cover its frame: other lanes may wait elsewhere. Pure instructions compute all lanes
    anyway, which is harmless. The result is stored whole if no lane waiting elsewhere needs the old value of
    that register (`protect` holds the registers somebody needs), else it is mixed with the old one under the
    mask. Memory and other effects happen for the active lanes only.

Compact groups
    A group of few lanes of a large frame works on a copy: `registers` then gathers a register when it is
    first used, all arrays have an element per active lane, and there is no mask. `Group.expand` writes what
    has changed back to the frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ._code import Code, CodeBlock
    from ._syntax import Variable
    from ._wave import Wave

__all__ = ["Array", "CallRecord", "Frame", "Group", "Lanes", "ParameterBytes", "expand_mask", "merge"]

# The element type of a register array is known at run time only.
Array: TypeAlias = NDArray[Any]
Lanes: TypeAlias = NDArray[np.int64]

_COMPACT_LANES = 1024
"""Frames smaller than this are not worth compacting: NumPy's cost per call dominates."""
_COMPACT_RATIO = 5
_WIDE = 2048
"""From here on three bitwise operations are faster than `np.where`."""


def merge(mask: NDArray[np.bool_], new: Array, old: Array) -> Array:
    """`new` where `mask`, else `old`."""
    if new.size == old.size == mask.size >= _WIDE and new.dtype != np.bool_ and new.dtype == old.dtype:
        bits = np.negative(mask.astype(new.dtype))
        mixed: Array = old ^ ((old ^ new) & bits)
        return mixed
    return np.where(mask, new, old)


def expand_mask(size: int, positions: Lanes) -> NDArray[np.bool_]:
    """A mask that is true at `positions`."""
    mask = np.zeros(size, np.bool_)
    mask[positions] = True
    return mask


class ParameterBytes:
    """A `.param` variable: values written to it, by byte offset, with an element per lane (or one)."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: dict[int, Array] | None = None) -> None:
        self.pieces: dict[int, Array] = {} if pieces is None else pieces

    def write(self, offset: int, value: Array, mask: NDArray[np.bool_] | None = None) -> None:
        """Store a value; under a mask the other lanes keep theirs."""
        old = self.pieces.get(offset)
        if old is not None and old.itemsize == value.itemsize:
            self.pieces[offset] = value if mask is None else merge(mask, value, old)
            return
        end = offset + value.itemsize
        if any(start < end and offset < start + piece.itemsize for start, piece in self.pieces.items()):
            self._split(offset, end)
            for number, byte in enumerate(_bytes_of(value)):
                here = self.pieces.get(offset + number)
                self.pieces[offset + number] = (
                    byte if mask is None or here is None else merge(mask, byte, here)
                )
            return
        self.pieces[offset] = value

    def _split(self, start: int, end: int) -> None:
        for offset, piece in list(self.pieces.items()):
            if piece.itemsize > 1 and offset < end and start < offset + piece.itemsize:
                del self.pieces[offset]
                for number, byte in enumerate(_bytes_of(piece)):
                    self.pieces[offset + number] = byte

    def read(self, offset: int, dtype: np.dtype[Any]) -> Array:
        """A value of `dtype` at `offset`; bytes never written are zero."""
        piece = self.pieces.get(offset)
        if piece is not None and piece.dtype == dtype:
            return piece
        result: Array = np.zeros(1, dtype)
        for start, part in self.pieces.items():
            for number, byte in enumerate(_bytes_of(part)):
                place = start + number - offset
                if 0 <= place < dtype.itemsize:
                    result = result | (byte.astype(dtype) << dtype.type(8 * place))
        return result

    def at(self, positions: Lanes) -> ParameterBytes:
        """The same values for some of the lanes, in the order of `positions`."""
        return ParameterBytes({o: v if v.size == 1 else v[positions] for o, v in self.pieces.items()})


def _bytes_of(value: Array) -> list[Array]:
    raw = np.ascontiguousarray(value).view(np.uint8).reshape(value.size, value.itemsize)
    return [np.ascontiguousarray(raw[:, number]) for number in range(value.itemsize)]


class CallRecord:
    """Lanes of a frame that are inside a call: the block it was made in, and the one they return to."""

    __slots__ = ("block", "results", "site")

    def __init__(self, site: CodeBlock, block: CodeBlock, results: tuple[Variable | int | None, ...]) -> None:
        self.site = site
        self.block = block
        self.results = results


class Frame:
    """One activation of a function.

    Attributes:
        code: the function's code.
        size: number of lanes.
        lanes: the wave's lane of each element; None where they are the same.
        registers: see the module's text.
        parameters: arguments, for device functions.
        results: what has been stored to the return parameters.
        returned: results of calls this frame made, by the caller's variable.
        parent: the caller's frame, with `positions` there of this frame's lanes (None: the same).
        record: the caller's note of this call.
        local_base: offset of this frame's local memory in each thread's.
        key: orders this frame's groups among all groups: the blocks of the calls that led here.
        members: everything that holds lanes of this frame: groups, and records of calls under way.
    """

    __slots__ = (
        "_tops",
        "code",
        "key",
        "lanes",
        "local_base",
        "members",
        "parameters",
        "parent",
        "positions",
        "record",
        "registers",
        "results",
        "returned",
        "size",
        "wave",
    )

    def __init__(
        self,
        wave: Wave,
        code: Code,
        size: int,
        lanes: Lanes | None,
        local_base: int,
        key: tuple[int, ...] = (),
        parent: Frame | None = None,
        positions: Lanes | None = None,
        record: CallRecord | None = None,
    ) -> None:
        self.wave = wave
        self.code = code
        self.size = size
        self.lanes = lanes
        self.local_base = local_base
        self.key = key
        self.parent = parent
        self.positions = positions
        self.record = record
        self.parameters: dict[Variable, ParameterBytes] = {}
        self.results: dict[Variable, ParameterBytes] = {}
        self.returned: dict[Variable, ParameterBytes] = {}
        self.members: list[Group | CallRecord] = []
        self.registers: list[Array] = code.initial_registers(self)
        self._tops: Lanes | None = None

    @property
    def stack_base(self) -> int:
        """Where `alloca` begins: behind the function's variables."""
        return self.local_base + self.code.local_bytes

    def stack_tops(self) -> Lanes:
        """Where each lane's next `alloca` begins, to be changed in place."""
        if self._tops is None:
            self._tops = np.full(self.size, self.stack_base, np.int64)
        return self._tops

    @property
    def local_end(self) -> int:
        """Where the local memory of a function called from here begins."""
        return self.stack_base if self._tops is None else -(-int(self._tops.max()) // 16) * 16


class _CompactRegisters(dict[int, Array]):
    """Registers of a few lanes, gathered from the frame on first use."""

    __slots__ = ("gathered", "positions", "source")

    def __init__(self, source: list[Array], positions: Lanes) -> None:
        super().__init__()
        self.source = source
        self.positions = positions
        self.gathered: dict[int, Array] = {}

    def __missing__(self, slot: int) -> Array:
        whole = self.source[slot]
        value: Array = whole if whole.size == 1 else whole[self.positions]
        self.gathered[slot] = value
        self[slot] = value
        return value


class Group:
    """Lanes of one frame at one place.

    Attributes:
        block: the block they are in, or wait to enter; `position` counts its operations done.
        size: elements per register array.
        mask: which of them are active; None for all.
        count: how many are active.
        protect: registers that other lanes of the frame still need.
        origin: for a compact group, the frame's positions of its lanes; else None.
        lanes: the wave's lane of each element; None where they are the same.
        outgoing: arguments stored for the next call.
        turns: backward branches since others last ran.
        ticket: when it last ran, for fairness.
    """

    __slots__ = (
        "_active",
        "_rows",
        "block",
        "count",
        "frame",
        "key",
        "lanes",
        "mask",
        "origin",
        "outgoing",
        "position",
        "protect",
        "registers",
        "size",
        "ticket",
        "turns",
        "wave",
    )

    def __init__(self, frame: Frame, block: CodeBlock, mask: NDArray[np.bool_] | None, count: int) -> None:
        self.wave = frame.wave
        self.block = block
        self.position = 0
        self.protect = 0
        self.turns = 0
        self.ticket = 0
        self.key: tuple[int, ...] = ()
        self.outgoing: dict[Variable, ParameterBytes] = {}
        self.attach(frame, mask, count)

    def attach(self, frame: Frame, mask: NDArray[np.bool_] | None, count: int) -> None:
        """Make this the group of `frame`'s lanes in `mask`."""
        self.frame = frame
        self.size = frame.size
        self.lanes = frame.lanes
        self.registers: list[Array] | _CompactRegisters = frame.registers
        self.origin: Lanes | None = None
        self.mask = mask if mask is not None and count < frame.size else None
        self.count = count
        self._active: Lanes | None = None
        self._rows: Lanes | None = None

    @property
    def active(self) -> Lanes | None:
        """Positions of the active lanes; None for all."""
        if self.mask is None:
            return None
        if self._active is None:
            self._active = np.flatnonzero(self.mask)
        return self._active

    @property
    def rows(self) -> Lanes | None:
        """Offset of each position's block in the wave's shared memory; None where there is one block."""
        wave = self.wave
        if wave.blocks == 1:
            return None
        if self._rows is None:
            self._rows = wave.rows if self.lanes is None else wave.rows[self.lanes]
        return self._rows

    def selected(self, predicate: Array, negated: bool) -> Lanes | None:
        """Positions of the active lanes whose predicate holds; None for all."""
        if predicate.size == 1:
            return self.active if bool(predicate[0]) != negated else _NONE
        chosen = ~predicate if negated else predicate
        if self.mask is not None:
            chosen = chosen & self.mask
        return np.flatnonzero(chosen)

    def select(self, new: Array, old: Array) -> Array:
        """`new` in the active lanes, `old` in the others."""
        assert self.mask is not None
        return merge(self.mask, new, old)

    def wave_lanes(self, positions: Lanes | None) -> Lanes | None:
        """Lanes of the wave at `positions` (None: all active ones); None for every lane of the wave."""
        if positions is None:
            positions = self.active
        if positions is None:
            return self.lanes
        return positions if self.lanes is None else self.lanes[positions]

    def full(self, value: Array) -> Array:
        """A register's value with an element per position."""
        return np.broadcast_to(value, (self.size,)) if value.size == 1 else value

    def spread(self, value: Array) -> Array:
        """A register's value with an element per lane of the wave; zero where this group has none."""
        if self.lanes is None:
            return self.full(value)
        out = np.zeros(self.wave.size, value.dtype)
        out[self.lanes] = value
        return out

    def active_lanes(self) -> NDArray[np.bool_]:
        """Which lanes of the wave are active in this group."""
        if self.lanes is None:
            return np.ones(self.size, np.bool_) if self.mask is None else self.mask
        return expand_mask(self.wave.size, self.lanes if self.mask is None else self.lanes[self.mask])

    # -------------------------------------------------------------------------- compaction

    def compact(self) -> None:
        """Work on a copy of the active lanes, if they are few."""
        if (
            self.mask is None
            or self.origin is not None
            or self.size < _COMPACT_LANES
            or self.count * _COMPACT_RATIO > self.size
        ):
            return
        positions = self.active
        assert positions is not None
        self.origin = positions
        self.lanes = positions if self.frame.lanes is None else self.frame.lanes[positions]
        self.registers = _CompactRegisters(self.frame.registers, positions)
        if self.outgoing:
            self.outgoing = {v: holder.at(positions) for v, holder in self.outgoing.items()}
        self.size = self.count
        self.mask = None
        self.protect = 0
        self._active = None
        self._rows = None

    def expand(self, live: int) -> None:
        """Leave the compact form; registers in `live` that were written go back to the frame."""
        if self.origin is None:
            return
        compact = self.registers
        assert isinstance(compact, _CompactRegisters)
        whole = self.frame.registers
        positions = self.origin
        for slot, value in compact.items():
            if value is compact.gathered.get(slot) or not live >> slot & 1:
                continue
            old = whole[slot]
            new = old.copy() if old.size == self.frame.size else np.repeat(old, self.frame.size)
            new[positions] = value
            whole[slot] = new
        self.attach(self.frame, expand_mask(self.frame.size, positions), self.count)


_NONE: Lanes = np.empty(0, np.int64)
