"""The few byte encodings everything else is made of: little-endian integers and LEB128 varints.

Padding is the byte 0xCB. `align` is relative to the start of the writer's own bytes, which is what
tables inside a section need; a section that must start at an aligned file offset is padded by the
module writer, whose bytes start at file offset 0.
"""

from __future__ import annotations

import struct

from .errors import DecodeError

__all__ = ["PAD", "ByteReader", "ByteWriter"]

PAD = 0xCB
_U64 = (1 << 64) - 1


class ByteWriter:
    """A growing byte string."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def byte(self, value: int) -> None:
        self.data.append(value)

    def varint(self, value: int) -> None:
        """Unsigned LEB128: 7 bits a byte, lowest first, high bit set on all but the last."""
        if not 0 <= value <= _U64:
            raise ValueError(f"a varint holds 0 to 2**64-1, got {value}")
        while value > 0x7F:
            self.data.append((value & 0x7F) | 0x80)
            value >>= 7
        self.data.append(value)

    def signed_varint(self, value: int) -> None:
        """Zigzag of a 64-bit signed value (0, -1, 1, -2 become 0, 1, 2, 3), then a varint."""
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"a signed varint holds -2**63 to 2**63-1, got {value}")
        self.varint(((value << 1) ^ (value >> 63)) & _U64)

    def u16(self, value: int) -> None:
        self.data += struct.pack("<H", value)

    def u32(self, value: int) -> None:
        self.data += struct.pack("<I", value)

    def u64(self, value: int) -> None:
        self.data += struct.pack("<Q", value)

    def i32(self, value: int) -> None:
        self.data += struct.pack("<i", value)

    def i64(self, value: int) -> None:
        self.data += struct.pack("<q", value)

    def raw(self, data: bytes | bytearray) -> None:
        self.data += data

    def align(self, size: int) -> None:
        """Pad to a multiple of `size` bytes."""
        self.data += bytes([PAD]) * (-len(self.data) % size)

    def __len__(self) -> int:
        return len(self.data)


class ByteReader:
    """A cursor over `data[start:end]` that refuses to read past its end."""

    __slots__ = ("data", "end", "offset", "start")

    def __init__(self, data: bytes, start: int = 0, end: int | None = None) -> None:
        self.data = data
        self.start = start
        self.offset = start
        self.end = len(data) if end is None else end

    def raw(self, size: int) -> bytes:
        if size < 0 or self.offset + size > self.end:
            raise DecodeError(f"{size} bytes wanted where {self.end - self.offset} are left", self.offset)
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def byte(self) -> int:
        return self.raw(1)[0]

    def varint(self) -> int:
        begin = self.offset
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if value > _U64 or shift > 70:
                raise DecodeError("a varint of more than 64 bits", begin)
            if not byte & 0x80:
                return value

    def signed_varint(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def u16(self) -> int:
        return int.from_bytes(self.raw(2), "little")

    def u32(self) -> int:
        return int.from_bytes(self.raw(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.raw(8), "little")

    def i32(self) -> int:
        return int.from_bytes(self.raw(4), "little", signed=True)

    def i64(self) -> int:
        return int.from_bytes(self.raw(8), "little", signed=True)

    def align(self, size: int) -> None:
        """Skip padding up to a multiple of `size` bytes from the start."""
        self.raw(-(self.offset - self.start) % size)

    @property
    def at_end(self) -> bool:
        return self.offset == self.end
