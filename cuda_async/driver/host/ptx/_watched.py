"""Steps of instructions that touch memory or order it, for a device that checks: they say who they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._code import Step
    from ._lanes import Group
    from ._syntax import Instruction

__all__ = ["watched"]

_MEMORY = frozenset(
    ("ld", "ldu", "st", "atom", "red", "cp", "mbarrier", "ldmatrix", "stmatrix", "wmma", "wgmma")
)
_EXCHANGING = frozenset(("shfl", "vote", "match", "redux", "elect"))


def watched(step: Step | None, instruction: Instruction) -> Step | None:
    """The step of an instruction, which tells `wave.watch` what it does besides."""
    opcode = instruction.opcode
    if opcode in ("membar", "fence"):
        return _fence
    if step is None:
        return None
    run = step
    if opcode == "mbarrier":

        def arrive_or_look(group: Group) -> None:
            wave = group.wave
            wave.instruction = instruction
            run(group)
            if wave.watch is not None:
                wave.watch.after_mbarrier(group)

        return arrive_or_look
    if opcode in _MEMORY:

        def access(group: Group) -> None:
            group.wave.instruction = instruction
            run(group)

        return access
    if opcode in _EXCHANGING and "sync" in instruction.modifiers:

        def exchange(group: Group) -> None:
            run(group)
            watch = group.wave.watch
            if watch is not None:
                watch.after_warp_operation(group)

        return exchange
    return step


def _fence(group: Group) -> None:
    watch = group.wave.watch
    if watch is not None:
        watch.fence(group)
