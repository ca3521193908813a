"""Translated functions: what the engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from ._lanes import Array, Frame, Group
    from ._syntax import Function, Instruction, Variable

__all__ = ["Code", "CodeBlock", "Finish", "Gate", "Step"]

Step: TypeAlias = "Callable[[Group], object]"
"""Runs one instruction for a group."""

Finish: TypeAlias = "Callable[[Group], CodeBlock | None]"
"""Ends a block: gives the block the group goes on with, or None when the group waits, split or ended."""

Gate: TypeAlias = "Callable[[Group], bool]"
"""Asked before a block that exchanges values inside warps: whether the group may enter."""


class CodeBlock:
    """A basic block as callables.

    Attributes:
        steps: one callable per instruction that does anything.
        instructions: the instruction of each step, then the one of `finish`.
        order: position in the order that makes groups meet.
        live_in: registers read later.
        spins: part of a loop that may wait for other threads.
    """

    __slots__ = ("code", "finish", "gate", "instructions", "live_in", "order", "spins", "steps")

    def __init__(self, order: int, live_in: int, spins: bool) -> None:
        self.code: Code
        self.steps: list[Step] = []
        self.instructions: list[Instruction | None] = []
        self.finish: Finish
        self.gate: Gate | None = None
        self.order = order
        self.live_in = live_in
        self.spins = spins


class Code:
    """A function, translated for one entry.

    Attributes:
        blocks: in the text's order; the first is where it starts.
        registers: initial value of every slot: registers, the carry flag, constants, special registers.
        specials: (slot, name, part) of the special registers used.
        local_bytes: local memory of one activation; `local_offsets` says where its variables lie.
    """

    __slots__ = ("blocks", "function", "local_bytes", "local_offsets", "registers", "specials")

    def __init__(self, function: Function) -> None:
        self.function = function
        self.blocks: list[CodeBlock] = []
        self.registers: list[Array] = []
        self.specials: list[tuple[int, str, str]] = []
        self.local_bytes = 0
        self.local_offsets: dict[Variable, int] = {}

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    def initial_registers(self, frame: Frame) -> list[Array]:
        """The slots of a new frame."""
        registers = self.registers.copy()
        for slot, name, part in self.specials:
            if name == "%local_base":
                registers[slot] = np.array([frame.local_base], np.uint32)
            else:
                registers[slot] = frame.wave.special(name, part, frame.lanes)
        return registers
