"""The packed argument block of a launch: written in place, handed to the driver by address.

`cuLaunchKernel` copies the parameters before it returns, so one block per kernel serves every launch
under the device lock: no allocation per launch. The array of pointers that `kernelParams` wants is built
once, because the block never moves.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._protocol import ParameterInfo

__all__ = ["ArgumentBlock", "ArgumentRule", "DeclaredUse", "DeclaredUses"]

Range = tuple[int, int]


class DeclaredUse(NamedTuple):
    """A tensor that a launch was given; ranges [start, end) of addresses.

    Attributes:
        address: what stands for it in the arguments.
        elements: where they lie. buffer: the whole memory that they are part of.
    """

    address: int
    elements: Range
    buffer: Range
    is_written: bool


class DeclaredUses(NamedTuple):
    """What a launch was told that its kernel may touch, for a device that checks it.

    Attributes:
        arguments: the packed arguments that this goes with.
    """

    arguments: bytes
    uses: tuple[DeclaredUse, ...]


ArgumentRule: TypeAlias = "Callable[[Sequence[int], Sequence[int], tuple[int, int, int]], str | None]"
"""What is wrong with launching a kernel with other arguments than it was launched with: the whole numbers and addresses
before, and then (0 in the place of floats), by position, and the grid. None where nothing is."""


class ArgumentBlock:
    """`size_bytes` bytes with one pointer per parameter.

    Attributes:
        buffer: the bytes; write with `struct.pack_into`.
        pointers_address: address of the `void*[]` for `cuLaunchKernel`; 0 when there are no parameters.
        declared: what goes with the bytes, on a device that checks; None otherwise.
        signature: the parameters' types as the kernel's author gave them, or None.
        rule: of kernels whose launcher makes sure of more than types, else None. See `ArgumentRule`.
    """

    __slots__ = (
        "_parameters",
        "_pointers",
        "_storage",
        "buffer",
        "declared",
        "pointers_address",
        "rule",
        "signature",
        "size_bytes",
    )

    def __init__(
        self, parameters: Sequence[ParameterInfo], signature: tuple[str | None, ...] | None = None
    ) -> None:
        size = max((p.offset_bytes + p.size_bytes for p in parameters), default=0)
        self.size_bytes = size
        self.declared: DeclaredUses | None = None
        self.signature = signature
        self.rule: ArgumentRule | None = None
        self._parameters = parameters
        # 16 spare bytes: parameters are aligned to at most 16, and the start must be too.
        self._storage = (ctypes.c_ubyte * (size + 16))()
        base = ctypes.addressof(self._storage)
        shift = -base % 16
        self.buffer = memoryview(self._storage).cast("B")[shift : shift + size]
        self._pointers = (ctypes.c_void_p * max(1, len(parameters)))()
        for i, parameter in enumerate(parameters):
            self._pointers[i] = base + shift + parameter.offset_bytes
        self.pointers_address = ctypes.addressof(self._pointers) if parameters else 0

    def pack_into(self, layout: struct.Struct, *values: object) -> None:
        """Write all arguments at once; `layout` spans the block."""
        layout.pack_into(self.buffer, 0, *values)

    def numbers(self) -> list[int]:
        """The whole numbers and addresses, by position; 0 in the place of floats. For blocks with a signature."""
        types = self.signature or (None,) * len(self._parameters)
        return [
            0
            if kind is None or kind[0] not in "iup"
            else int.from_bytes(
                self.buffer[p.offset_bytes : p.offset_bytes + p.size_bytes], "little", signed=kind[0] == "i"
            )
            for p, kind in zip(self._parameters, types, strict=True)
        ]

    def copy(self) -> ArgumentBlock:
        """Another block, with the same bytes now."""
        other = ArgumentBlock(self._parameters, self.signature)
        other.rule = self.rule
        other.buffer[:] = self.buffer
        other.declared = self.declared
        return other

    def __bytes__(self) -> bytes:
        return bytes(self.buffer)
