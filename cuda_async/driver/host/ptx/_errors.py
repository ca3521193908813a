"""What goes wrong while a kernel runs, with the place: kernel, PTX line, source line, block and thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .... import errors

if TYPE_CHECKING:
    from ._syntax import Instruction

__all__ = ["KernelError", "KernelMemoryFault", "Place"]


class Place(NamedTuple):
    """Where a kernel was when something went wrong."""

    kernel: str
    module: str
    function: str
    """The device function, where it is not the kernel itself."""
    instruction: Instruction | None
    block: tuple[int, int, int] | None
    thread: tuple[int, int, int] | None

    def __str__(self) -> str:
        text = f"kernel {self.kernel}"
        if self.function not in ("", self.kernel):
            text += f", function {self.function}"
        if self.block is not None:
            text += f", block {_axes(self.block)}"
        if self.thread is not None:
            text += f", thread {_axes(self.thread)}"
        if self.instruction is not None:
            text += f", {self.instruction.describe(self.module)}"
        return text


class KernelError(errors.KernelError):
    """A kernel on the host device ended in an error: a trap, a failed assert, a deadlock, a stack overflow.

    Attributes:
        place: where; its fields may be read one by one.
    """

    def __init__(self, what: str, place: Place) -> None:
        self.place = place
        super().__init__(f"{what}; in {place}", place.kernel)


class KernelMemoryFault(errors.MemoryFault):
    """A kernel accessed memory it may not touch; says which kernel, instruction, block and thread."""

    def __init__(self, fault: errors.MemoryFault, place: Place) -> None:
        super().__init__(fault.address, fault.size_bytes, fault.access, fault.reason, index=fault.index)
        self.kernel = place.kernel
        self.place = place

    def __str__(self) -> str:
        return (
            f"{self.access} of {self.size_bytes} bytes at {self.address:#x}: {self.reason}; in {self.place}"
        )


def _axes(value: tuple[int, int, int]) -> str:
    return f"({value[0]}, {value[1]}, {value[2]})"
