"""Exchange inside a warp: shfl, vote, match, redux, elect, activemask.

Values are brought to one element per lane of the wave and seen as rows of 32. A block is padded to whole
warps, so row and warp are the same. The `.sync` forms wait for the lanes of their mask: the blocks they begin
have a gate that holds back warps whose lanes are not all here (`Wave.warp_ready`). Guards are branches
around these instructions by the time they get here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ._semantics import UnsupportedInstruction
from ._syntax import Instruction, Operand, Pair
from ._translate import Destination, Handler, Source, Translator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._code import Step
    from ._lanes import Array, Group

__all__ = ["HANDLERS", "pack_warps", "write_lanes"]

_LANE = np.arange(32, dtype=np.uint32)


def pack_warps(lanes: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """A bool per lane as one word per warp."""
    packed = np.packbits(lanes.reshape(-1, 32), axis=1, bitorder="little")
    return packed.view(np.uint32).reshape(-1)


def write_lanes(group: Group, destination: Destination | None, value: Array) -> None:
    """Write a value that has an element per lane of the wave."""
    if destination is not None:
        destination.write(group, value if group.lanes is None else value[group.lanes])


def _rows(group: Group, value: Array) -> Array:
    return group.spread(value).reshape(-1, 32)


def _pair(t: Translator, operand: Operand, ptx_type: str) -> tuple[Destination | None, Destination | None]:
    if isinstance(operand, Pair):
        return t.destination(operand.first, ptx_type), t.destination(operand.second, "pred")
    return t.destination(operand, ptx_type), None


def _synchronized(t: Translator, instruction: Instruction, mask: Operand) -> Source:
    """The member mask; the block waits for its lanes."""
    source = t.source(mask, "b32")
    t.current.gate = lambda group: group.wave.warp_ready(group, source.read(group))
    return source


def _members(group: Group, mask: Array) -> Array:
    """Per lane of the wave, the lanes of its warp that take part with it."""
    active = np.repeat(pack_warps(group.active_lanes()), 32)
    result: Array = active & (mask if mask.size == 1 else group.spread(mask))
    return result


# -------------------------------------------------------------------------------------- shfl


def _source_lane(mode: str, lane: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Lane to read from, and whether it is in range; PTX ISA, "shfl"."""
    b5, clamp, segment = b & 31, c & 31, (c >> 8) & 31
    lowest = lane & segment
    highest = lowest | (clamp & ~segment & 31)
    if mode == "up":
        other = lane - b5
        valid = other >= highest.astype(np.int64)
    elif mode == "down":
        other = lane + b5
        valid = other <= highest
    elif mode == "bfly":
        other = lane ^ b5
        valid = other <= highest
    else:
        other = lowest | (b5 & ~segment & 31)
        valid = other <= highest
    return np.where(valid, other, lane), valid


@cache
def _pattern(mode: str, b: int, c: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    lane = np.arange(32, dtype=np.int64)
    return _source_lane(mode, lane, np.array(b), np.array(c))


def _shfl(t: Translator, instruction: Instruction) -> Step:
    modifiers = [m for m in instruction.modifiers if m != "sync"]
    synchronized = len(modifiers) < len(instruction.modifiers)
    if (
        len(modifiers) != 2
        or modifiers[0] not in ("up", "down", "bfly", "idx")
        or modifiers[1] not in ("b32", "u32", "s32", "f32")
        or len(instruction.operands) != 4 + synchronized
    ):
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    mode = modifiers[0]
    result, valid_result = _pair(t, instruction.operands[0], "b32")
    a, b, c = (t.source(operand, "b32") for operand in instruction.operands[1:4])
    if synchronized:
        _synchronized(t, instruction, instruction.operands[4])

    def step(group: Group) -> None:
        value, offset, clamp = a.read(group), b.read(group), c.read(group)
        if offset.size == 1 and clamp.size == 1:
            other, valid = _pattern(mode, int(offset[0]) & 31, int(clamp[0]) & 0x1F1F)
            if value.size == 1:
                if result is not None:
                    result.write(group, value)
            else:
                write_lanes(group, result, _rows(group, value).take(other, axis=1).reshape(-1))
            if valid_result is not None:
                write_lanes(group, valid_result, np.tile(valid, group.wave.size // 32))
            return
        lane = np.tile(np.arange(32, dtype=np.int64), group.wave.size // 32)
        wide = group.spread(offset).astype(np.int64), group.spread(clamp).astype(np.int64)
        other, valid = _source_lane(mode, lane, *wide)
        source = np.arange(group.wave.size) - lane + other
        write_lanes(group, result, group.spread(value)[source])
        write_lanes(group, valid_result, valid)

    return step


# -------------------------------------------------------------------------------------- vote


def _vote(t: Translator, instruction: Instruction) -> Step:
    modifiers = [m for m in instruction.modifiers if m != "sync"]
    synchronized = len(modifiers) < len(instruction.modifiers)
    operands = instruction.operands
    if (
        tuple(modifiers) not in (("all", "pred"), ("any", "pred"), ("uni", "pred"), ("ballot", "b32"))
        or len(operands) != 2 + synchronized
    ):
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    mode = modifiers[0]
    result = t.destination(operands[0], modifiers[1])
    predicate = t.source(operands[1], "pred")
    if synchronized:
        mask = _synchronized(t, instruction, operands[2])
    else:
        mask = Source(t.constant(0xFFFFFFFF, np.dtype(np.uint32)))

    def step(group: Group) -> None:
        members = _members(group, mask.read(group))
        ballot = np.repeat(pack_warps(group.spread(predicate.read(group))), 32) & members
        if mode == "ballot":
            value: Array = ballot
        elif mode == "all":
            value = ballot == members
        elif mode == "any":
            value = ballot != 0
        else:
            value = (ballot == members) | (ballot == 0)
        write_lanes(group, result, value)

    return step


def _activemask(t: Translator, instruction: Instruction) -> Step:
    if instruction.modifiers != ("b32",) or len(instruction.operands) != 1:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    result = t.destination(instruction.operands[0], "b32")
    guard = t.guard(instruction)

    def step(group: Group) -> None:
        value = np.repeat(pack_warps(group.active_lanes()), 32)
        if guard is None:
            write_lanes(group, result, value)
        elif result is not None:
            chosen = group.registers[guard[0]]
            own = value if group.lanes is None else value[group.lanes]
            result.write_where(group, own, ~chosen if guard[1] else chosen)

    return step


def _elect(t: Translator, instruction: Instruction) -> Step:
    """elect.sync d|p, mask: the lowest lane of the mask."""
    if instruction.modifiers != ("sync",) or len(instruction.operands) != 2:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    result, chosen = _pair(t, instruction.operands[0], "b32")
    if not isinstance(instruction.operands[0], Pair):
        raise UnsupportedInstruction("elect.sync needs d|p")
    mask = _synchronized(t, instruction, instruction.operands[1])

    def step(group: Group) -> None:
        members = _members(group, mask.read(group)).reshape(-1, 32)
        lowest = members & (~members + np.uint32(1))
        leader = np.where(members != 0, np.log2(np.maximum(lowest, 1).astype(np.float64)), 0).astype(
            np.uint32
        )
        write_lanes(group, result, leader.reshape(-1))
        write_lanes(group, chosen, (leader == _LANE).reshape(-1))

    return step


# ------------------------------------------------------------------------------------- match


def _match(t: Translator, instruction: Instruction) -> Step:
    modifiers = [m for m in instruction.modifiers if m != "sync"]
    if (
        len(modifiers) != 2
        or modifiers[0] not in ("any", "all")
        or modifiers[1] not in ("b32", "b64")
        or len(instruction.operands) != 3
    ):
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    every = modifiers[0] == "all"
    result, agreed = _pair(t, instruction.operands[0], "b32")
    a = t.source(instruction.operands[1], modifiers[1])
    mask = _synchronized(t, instruction, instruction.operands[2])

    def step(group: Group) -> None:
        rows = _rows(group, a.read(group))
        equal = (rows[:, :, None] == rows[:, None, :]).reshape(-1, 32)
        members = _members(group, mask.read(group))
        same = pack_warps(equal) & members
        if not every:
            write_lanes(group, result, same)
            return
        all_same = same == members
        write_lanes(group, result, np.where(all_same, members, np.uint32(0)))
        write_lanes(group, agreed, all_same)

    return step


# ------------------------------------------------------------------------------------- redux

_REDUX: dict[tuple[str, str], tuple[np.ufunc, type[np.generic], int]] = {
    ("add", "u32"): (np.add, np.uint32, 0),
    ("add", "s32"): (np.add, np.uint32, 0),
    ("min", "u32"): (np.minimum, np.uint32, 0xFFFFFFFF),
    ("max", "u32"): (np.maximum, np.uint32, 0),
    ("min", "s32"): (np.minimum, np.int32, 0x7FFFFFFF),
    ("max", "s32"): (np.maximum, np.int32, 0x80000000),
    ("and", "b32"): (np.bitwise_and, np.uint32, 0xFFFFFFFF),
    ("or", "b32"): (np.bitwise_or, np.uint32, 0),
    ("xor", "b32"): (np.bitwise_xor, np.uint32, 0),
    ("min", "f32"): (np.fmin, np.float32, 0x7FFFFFFF),
    ("max", "f32"): (np.fmax, np.float32, 0x7FFFFFFF),
}


def _redux(t: Translator, instruction: Instruction) -> Step:
    modifiers = [m for m in instruction.modifiers if m != "sync"]
    absolute, with_nan = "abs" in modifiers, "NaN" in modifiers
    key = tuple(m for m in modifiers if m not in ("abs", "NaN"))
    found = _REDUX.get((key[0], key[1])) if len(key) == 2 else None
    if found is None or len(instruction.operands) != 3 or ((absolute or with_nan) and key[1] != "f32"):
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    ufunc, value_type, neutral = found
    if with_nan:
        ufunc = np.minimum if key[0] == "min" else np.maximum
        neutral = 0x7F800000 if key[0] == "min" else 0xFF800000
    result = t.destination(instruction.operands[0], "b32")
    a = t.source(instruction.operands[1], "b32")
    mask = _synchronized(t, instruction, instruction.operands[2])
    reduce: Callable[..., Array] = ufunc.reduce

    def step(group: Group) -> None:
        value = _rows(group, a.read(group))
        if absolute:
            value = value & np.uint32(0x7FFFFFFF)
        members = _members(group, mask.read(group)).reshape(-1, 32)
        out = np.zeros(value.shape, np.uint32)
        active = group.active_lanes().reshape(-1, 32)
        pending = active.copy()
        while pending.any():  # once per different mask in a warp
            first = np.take_along_axis(members, pending.argmax(axis=1)[:, None], axis=1)
            inside = ((first >> _LANE) & np.uint32(1)).astype(np.bool_) & active
            taken = np.where(inside, value, np.uint32(neutral)).view(value_type)
            reduced = np.ascontiguousarray(reduce(taken, axis=1, dtype=value_type)).view(np.uint32)[:, None]
            if value_type is np.float32:
                nan = (reduced & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
                reduced = np.where(nan, np.uint32(0x7FFFFFFF), reduced)
            mine = pending & (members == first)
            out = np.where(mine, reduced, out)
            pending &= ~mine
        write_lanes(group, result, out.reshape(-1))

    return step


HANDLERS: dict[str, Handler] = {
    "shfl": _shfl,
    "vote": _vote,
    "activemask": _activemask,
    "elect": _elect,
    "match": _match,
    "redux": _redux,
}
