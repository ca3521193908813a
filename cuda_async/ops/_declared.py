"""Telling a device that checks what a launch may touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..driver import DeclaredUses
from ..memory import extent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..driver import ArgumentBlock
    from ..memory import Tensor

__all__ = ["byte_range", "declare"]


def byte_range(tensor: Tensor) -> tuple[int, int]:
    """[start, end) of the addresses that a tensor's elements lie in."""
    low, high = extent(tensor.shape, tensor.strides)
    size = tensor.dtype.itemsize
    return tensor._address + low * size, tensor._address + high * size


def declare(block: ArgumentBlock, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
    """Say with packed arguments which tensors they stand for."""
    buffers = [tensor._buffer for tensor in (*reads, *writes)]
    block.declared = DeclaredUses(
        bytes(block),
        tuple(byte_range(tensor) for tensor in reads),
        tuple(byte_range(tensor) for tensor in writes),
        tuple((buffer.address, buffer.address + buffer.size_bytes) for buffer in buffers),
    )
