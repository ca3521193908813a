"""Telling a device that checks what a launch may touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..driver import DeclaredUse, DeclaredUses
from ..memory import extent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..driver import ArgumentBlock
    from ..memory import Tensor

__all__ = ["byte_range", "declare", "redeclare"]


def byte_range(tensor: Tensor) -> tuple[int, int]:
    """[start, end) of the addresses that a tensor's elements lie in."""
    low, high = extent(tensor.shape, tensor.strides)
    size = tensor.dtype.itemsize
    return tensor._address + low * size, tensor._address + high * size


def declare(block: ArgumentBlock, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
    """Say with packed arguments which tensors they stand for."""
    block.declared = DeclaredUses(bytes(block), _uses(reads, writes))


def redeclare(
    old: ArgumentBlock,
    new: ArgumentBlock,
    offsets: Sequence[int],
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
) -> None:
    """Say for `new`, which stands for `reads` and `writes` in place of what `old` has at some offsets."""
    known = old.declared
    new.declared = None
    if known is None or known.arguments != bytes(old):
        return
    uses = list(known.uses)
    for offset in offsets:
        address = int.from_bytes(old.buffer[offset : offset + 8], "little")
        replaced = next((use for use in uses if use.address == address), None)
        if replaced is not None:
            uses.remove(replaced)
    new.declared = DeclaredUses(bytes(new), (*uses, *_uses(reads, writes)))


def _uses(reads: Sequence[Tensor], writes: Sequence[Tensor]) -> tuple[DeclaredUse, ...]:
    found = []
    for tensors, is_written in ((reads, False), (writes, True)):
        for tensor in tensors:
            buffer = tensor._buffer
            whole = (buffer.address, buffer.address + buffer.size_bytes)
            found.append(DeclaredUse(tensor._address, byte_range(tensor), whole, is_written))
    return tuple(found)
