"""What a module image is, told from its bytes: PTX text, a cubin (ELF) or a fatbin.

The driver answers a wrong image with a code and often no log; the facts that make the message (both
architectures, both PTX versions, the line) are read here.

Formats: PTX ISA; ELF with `e_machine` 190 (EM_CUDA), whose `e_flags` hold the architecture (bits 8 to 15
with ABI version 8 and newer, bits 0 to 7 before); a fatbin is a 16-byte header and entries of
kind, header size, size and, at byte 28, architecture.
"""

from __future__ import annotations

import re
import struct
from enum import Enum

from ...errors import CompileError

__all__ = ["ImageKind", "cubin_architecture", "fatbin_contents", "ptx_bytes", "sniff_image"]

_SHT_NOBITS = 8
_ELF = b"\x7fELF"
_EM_CUDA = 190
_OSABI_CUDA_NEW = 0x41
_FATBIN = 0xBA55ED50
_FATBIN_PTX = 1
_LTO_IR = (b"\x7fNVV", b"NVVM", b"BC\xc0\xde", b"\xed\x43\x4e\x7f")


_PTX_START = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|//[^\n]*\n|/\*.*?\*/)*+\.version", re.DOTALL)


class ImageKind(Enum):
    """What `module_load` was given."""

    PTX = "PTX"
    CUBIN = "cubin"
    FATBIN = "fatbin"


def sniff_image(image: bytes, name: str) -> ImageKind:
    """The kind of an image.

    Raises:
        CompileError: it is none that the driver loads.
    """
    if not image.strip(b"\0 \t\r\n"):
        raise CompileError(f"{name} is empty: a module needs PTX text, a cubin or a fatbin")
    if image.startswith(_ELF):
        if len(image) < 52 or struct.unpack_from("<H", image, 18)[0] != _EM_CUDA:
            raise CompileError(
                f"{name} is an ELF file but not a cubin (a host object or library?); give the output of "
                "nvcc -cubin, nvcc -ptx or nvcc -fatbin"
            )
        _check_elf_is_whole(image, name)
        return ImageKind.CUBIN
    if len(image) >= 16 and struct.unpack_from("<I", image)[0] == _FATBIN:
        return ImageKind.FATBIN
    if image.startswith(_LTO_IR):
        raise CompileError(
            f"{name} is intermediate code for link-time optimisation; link it to a cubin first"
        )
    if _is_ptx(image):
        return ImageKind.PTX
    raise CompileError(
        f"{name} is neither PTX text, a cubin nor a fatbin: it starts with {image[:16]!r}; "
        "CUDA C++ source goes through Module.from_cuda_source"
    )


def _check_elf_is_whole(image: bytes, name: str) -> None:
    """Every header and section lies inside the file: r580's loader reads past the end of a shortened cubin.

    Raises:
        CompileError: one does not.
    """
    size = len(image)
    broken = CompileError(
        f"{name} is a damaged cubin: its ELF headers reach beyond its {size} bytes; was the file cut short?"
    )
    if size < 64 or image[4] != 2:  # ELFCLASS64
        raise broken
    segments_at, sections_at = struct.unpack_from("<QQ", image, 32)
    segment_size, segments, section_size, sections = struct.unpack_from("<HHHH", image, 54)
    if segments_at + segment_size * segments > size or sections_at + section_size * sections > size:
        raise broken
    for i in range(sections if section_size >= 64 else 0):
        kind, _, _, offset, length = struct.unpack_from("<IQQQQ", image, sections_at + section_size * i + 4)
        if kind != _SHT_NOBITS and offset + length > size:
            raise broken
    for i in range(segments if segment_size >= 56 else 0):
        offset, _, _, length = struct.unpack_from("<QQQQ", image, segments_at + segment_size * i + 8)
        if offset + length > size:
            raise broken


def _is_ptx(image: bytes) -> bool:
    """Text whose first directive is `.version`, after comments."""
    return _PTX_START.match(image) is not None


def ptx_bytes(image: bytes) -> bytes:
    """PTX as the driver wants it: without a byte order mark, ended by exactly one NUL."""
    return image.removeprefix(b"\xef\xbb\xbf").rstrip(b"\0") + b"\0"


def cubin_architecture(image: bytes) -> int | None:
    """The SM number of a cubin (90 for sm_90 and sm_90a); None where it cannot be told."""
    if len(image) < 52 or not image.startswith(_ELF):
        return None
    flags = struct.unpack_from("<I", image, 48)[0]
    number = (flags >> 8) & 0xFF if image[7] == _OSABI_CUDA_NEW else flags & 0xFF
    return number if 20 <= number <= 250 else None


def fatbin_contents(image: bytes) -> list[str]:
    """What a fatbin holds, such as `["sm_80 cubin", "compute_90 PTX"]`; empty where it cannot be told."""
    contents: list[str] = []
    try:
        _, _, header, size = struct.unpack_from("<IHHQ", image)
        position, end = header, min(len(image), header + size)
        while position + 32 <= end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", image, position)
            architecture = struct.unpack_from("<I", image, position + 28)[0]
            is_ptx = kind == _FATBIN_PTX
            contents.append(f"{'compute' if is_ptx else 'sm'}_{architecture} {'PTX' if is_ptx else 'cubin'}")
            if entry_header + entry_size <= 0:
                break
            position += entry_header + entry_size
    except struct.error:
        return contents
    return contents
