"""alloca, stacksave, stackrestore: local memory that a function takes while it runs.

It lies behind the function's variables in each thread's local memory, and what the function calls begins
behind the longest of its threads' (`Frame.local_end`). It is gone when the function returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._semantics import UnsupportedInstruction
from ._syntax import Immediate, Instruction
from ._translate import Handler, Translator, unsigned

if TYPE_CHECKING:
    from ._code import Step
    from ._lanes import Group, Lanes

__all__ = ["HANDLERS"]


def _type(instruction: Instruction, least: int, most: int) -> str:
    if instruction.modifiers not in (("u32",), ("u64",)) or not least <= len(instruction.operands) <= most:
        raise UnsupportedInstruction(f"{instruction.spelling} with these operands is not supported")
    return instruction.modifiers[0]


def _chosen(group: Group, guard: tuple[int, bool] | None) -> Lanes | None:
    return group.active if guard is None else group.selected(group.registers[guard[0]], guard[1])


def _in_frame(group: Group, where: Lanes | None) -> Any:
    """The frame's positions of the group's lanes at `where`, as an index."""
    if group.origin is None:
        return slice(None) if where is None else where
    return group.origin if where is None else group.origin[where]


def _allocate(t: Translator, instruction: Instruction) -> Step:
    ptx_type = _type(instruction, 2, 3)
    operands = instruction.operands
    destination = t.destination(operands[0], ptx_type)
    dtype = unsigned(t.bits_of(ptx_type))
    size = t.source(operands[1], ptx_type)
    align = 8
    if len(operands) == 3:
        operand = operands[2]
        if not isinstance(operand, Immediate) or operand.value < 1 or operand.value & (operand.value - 1):
            raise UnsupportedInstruction("the alignment is a constant, a power of two")
        align = operand.value
    guard = t.guard(instruction)

    def step(group: Group) -> None:
        where = _chosen(group, guard)
        if where is not None and not where.size:
            return
        sizes = size.read(group)
        if where is not None and sizes.size > 1:
            sizes = sizes[where]
        frame = group.frame
        tops = frame.stack_tops()
        lanes = _in_frame(group, where)
        starts = (tops[lanes] + (align - 1)) & -align
        group.wave.ensure_local(group, int(starts.max()) + int(sizes.max()))
        tops[lanes] = starts + sizes.astype(np.int64)
        if destination is not None:
            destination.scatter(group, where, starts.astype(dtype), guard is not None)

    return step


def _save(t: Translator, instruction: Instruction) -> Step | None:
    ptx_type = _type(instruction, 1, 1)
    destination = t.destination(instruction.operands[0], ptx_type)
    dtype = unsigned(t.bits_of(ptx_type))
    guard = t.guard(instruction)
    if destination is None:
        return None

    def step(group: Group) -> None:
        where = _chosen(group, guard)
        if where is None or where.size:
            tops = group.frame.stack_tops()[_in_frame(group, where)]
            destination.scatter(group, where, tops.astype(dtype), guard is not None)

    return step


def _restore(t: Translator, instruction: Instruction) -> Step:
    saved = t.source(instruction.operands[0], _type(instruction, 1, 1))
    guard = t.guard(instruction)

    def step(group: Group) -> None:
        where = _chosen(group, guard)
        if where is not None and not where.size:
            return
        values = saved.read(group).astype(np.int64)
        if where is not None and values.size > 1:
            values = values[where]
        frame = group.frame
        tops = frame.stack_tops()
        lanes = _in_frame(group, where)
        bad = (values < frame.stack_base) | (values > tops[lanes])
        if bad.any():
            wrong = int(np.broadcast_to(values, bad.shape)[bad][0])
            group.wave.fail(group, f"stackrestore of {wrong:#x}, which stacksave did not give this function")
        tops[lanes] = values

    return step


HANDLERS: dict[str, Handler] = {"alloca": _allocate, "stacksave": _save, "stackrestore": _restore}
