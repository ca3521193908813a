"""Whether a GGUF file holds what its header counts: asked before a reader believes it.

Readers take the counts as they are: an array of 2**60 elements in a file of a kilobyte is a loop that never ends. All
that is looked at here is that every count leads to bytes that are there, and that no name comes twice.

Source: the GGUF specification, "File Structure".
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_gguf"]

VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type; strings and arrays have lengths of their own."""
MAX_DIMENSIONS = 4


def check_gguf(path: Path) -> None:
    """Walk through the header.

    Raises:
        ValueError: it is no GGUF file of a version that is known and of this byte order, or it is damaged.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path.name} is no GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                _Walk(data).header()
            except (struct.error, UnicodeDecodeError, _Beyond):
                raise ValueError(
                    f"{path.name} is damaged: its header counts more than its {len(data)} bytes; was it cut short?"
                ) from None


class _Beyond(Exception):
    """Something is counted that is not there."""


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 4

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def skip(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise _Beyond
        self.at += size

    def count(self, smallest: int) -> int:
        """A number of things that take at least so many bytes each."""
        count = self.number("<Q")
        if count * smallest > len(self.data) - self.at:
            raise _Beyond
        return count

    def string(self) -> str:
        size = self.count(1)
        self.skip(size)
        return self.data[self.at - size : self.at].decode()

    def header(self) -> None:
        version = self.number("<I")
        if version not in VERSIONS:
            raise ValueError(f"this is GGUF of version {version}; {VERSIONS} are known, little-endian")
        tensors, fields = self.number("<Q"), self.number("<Q")
        if tensors * 24 + fields * 13 > len(self.data):
            raise _Beyond
        names: set[str] = set()
        for _ in range(fields):
            self.named(names)
            self.value(self.number("<I"))
        names.clear()
        for _ in range(tensors):
            self.named(names)
            dimensions = self.number("<I")
            if dimensions > MAX_DIMENSIONS:
                raise ValueError(f"a tensor of {dimensions} dimensions; at most {MAX_DIMENSIONS} are known")
            self.skip(8 * dimensions + 12)

    def named(self, names: set[str]) -> None:
        name = self.string()
        if name in names:
            raise ValueError(f"{name!r} is there twice")
        names.add(name)

    def value(self, kind: int) -> None:
        if kind in SIZES:
            self.skip(SIZES[kind])
        elif kind == STRING:
            self.skip(self.count(1))
        elif kind == ARRAY:
            inner = self.number("<I")
            if inner in SIZES:
                self.skip(self.count(SIZES[inner]) * SIZES[inner])
            elif inner == STRING:
                for _ in range(self.count(8)):
                    self.skip(self.count(1))
            else:
                raise ValueError(f"an array of values of type {inner}, which is not known")
        else:
            raise ValueError(f"a value of type {kind}, which is not known")
