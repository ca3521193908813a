"""Reading the headers of kernels from PTX text: names, parameters and block sizes, without parsing code.

The CUDA driver tells offset and size of a kernel's parameters but not their kinds, names or the block size a
kernel requires; the text it was made from does. This is a tolerant reader of `.entry` headers only: what it
does not understand it leaves out, and the caller then knows sizes and nothing more.

Source: PTX ISA, "Kernel and Function Directives", "Kernel Function Parameters".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._protocol import ParameterInfo, ParameterKind

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PtxSignature", "read_ptx_header", "read_ptx_signatures"]


@dataclass(frozen=True, kw_only=True)
class PtxSignature:
    """The header of one `.entry`."""

    name: str
    parameters: tuple[ParameterInfo, ...]
    required_block: tuple[int, int, int] | None = None
    """`.reqntid`."""
    max_block: tuple[int, int, int] | None = None
    """`.maxntid`."""


_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)\s*(\(|\{|\.|;)")
_SCALAR = re.compile(r"\.([bsuf])(8|16|32|64|128)\b")
_OTHER_TYPE = re.compile(r"\.(f16x2|bf16x2|bf16|tf32|texref|samplerref|surfref)\b")
_POINTER = re.compile(r"\.ptr\b(?:\s*\.(?:global|shared|const|local|generic)\b)?(?:\s*\.align\s+\d+)?")
_ALIGN = re.compile(r"\.align\s+(\d{1,9})\b")
_NAME = re.compile(r"(?<![.\w])([A-Za-z_$%][\w$]*)\s*((?:\[\s*\d*\s*\]\s*)*)$")
_DIMENSION = re.compile(r"\[\s*(\d{1,9})\s*\]")
_BLOCK = re.compile(r"\.(reqntid|maxntid)\s+(\d{1,9})\b(?:\s*,\s*(\d{1,9})\b)?(?:\s*,\s*(\d{1,9})\b)?")
_VERSION = re.compile(r"^\s*\.version\s+(\d{1,4})\.(\d{1,4})\b", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)


_MAX_BYTES = 32764
"""Of a kernel's parameters together."""


def _without_comments(text: str) -> str:
    """`text` with comments blanked (line numbers stay right) and strings emptied."""

    def blank(match: re.Match[str]) -> str:
        piece = match[0]
        return '""' if piece[0] == '"' else " " + "\n" * piece.count("\n")

    return _COMMENT_OR_STRING.sub(blank, text)


def read_ptx_header(text: str) -> tuple[tuple[int, int] | None, str]:
    """(`.version` as a pair, `.target` such as `"sm_90a"`); None and "" where they are not found."""
    start = _without_comments(text[:65536])
    version = _VERSION.search(start)
    target = _TARGET.search(start)
    return (int(version[1]), int(version[2])) if version else None, target[1] if target else ""


def read_ptx_signatures(text: str) -> dict[str, PtxSignature]:
    """The kernels of a PTX module by name, in the order of the text.

    A kernel whose header is not understood is left out.
    """
    text = _without_comments(text)
    found: dict[str, PtxSignature] = {}
    for match in _ENTRY.finditer(text):
        signature = _read_entry(text, match)
        if signature is not None:
            found[signature.name] = signature
    return found


def _read_entry(text: str, match: re.Match[str]) -> PtxSignature | None:
    position = match.start(2)
    declarations = ""
    if text[position] == "(":
        end = text.find(")", position)
        if end < 0:
            return None
        declarations = text[position + 1 : end]
        position = end + 1
    parameters = _read_parameters(declarations)
    if parameters is None:
        return None
    body = text.find("{", position)
    if text.find(";", position, body if body >= 0 else None) >= 0:
        # A forward declaration: its directives, if any, are repeated at the definition.
        body = text.find(";", position)
    blocks: dict[str, tuple[int, int, int]] = {}
    for directive in _BLOCK.finditer(text, position, body if body >= 0 else len(text)):
        x, y, z = (int(directive[i] or 1) for i in (2, 3, 4))
        blocks[directive[1]] = (x, y, z)
    return PtxSignature(
        name=match[1],
        parameters=parameters,
        required_block=blocks.get("reqntid"),
        max_block=blocks.get("maxntid"),
    )


def _read_parameters(declarations: str) -> tuple[ParameterInfo, ...] | None:
    """Parameters laid out as PTX says: in order, each at the next multiple of its alignment."""
    parameters: list[ParameterInfo] = []
    offset = 0
    for name, size, alignment, kind in _declared(declarations):
        if size <= 0 or alignment < 1 or alignment & (alignment - 1):
            return None
        offset = -(-offset // alignment) * alignment
        parameters.append(
            ParameterInfo(
                name=name, offset_bytes=offset, size_bytes=size, alignment_bytes=alignment, kind=kind
            )
        )
        offset += size
    return tuple(parameters) if offset <= _MAX_BYTES else None


def _declared(declarations: str) -> Iterator[tuple[str, int, int, ParameterKind]]:
    """(name, size, alignment, kind) of each declaration; size 0 for one that is not understood."""
    if not declarations.strip():
        return
    for declaration in declarations.split(","):
        # `.ptr .global .align 16` says what a pointer points to; its alignment is not the parameter's.
        own = _POINTER.sub(" ", declaration)
        named = _NAME.search(own.strip())
        if ".param" not in own or named is None:
            yield "", 0, 1, ParameterKind.UNKNOWN
            continue
        item, kind = _type_of(own)
        if item == 8 and kind is ParameterKind.INTEGER and own != declaration:
            kind = ParameterKind.POINTER
        count = 1
        dimensions = _DIMENSION.findall(named[2])
        for extent in dimensions:
            count *= int(extent)
        if "[" in named[2]:
            kind = ParameterKind.STRUCT
            if not dimensions:
                count = 0
        align = _ALIGN.search(own)
        yield named[1], item * count, int(align[1]) if align else max(item, 1), kind


def _type_of(declaration: str) -> tuple[int, ParameterKind]:
    """(size in bytes, kind) of a declaration's type; size 0 when there is none."""
    other = _OTHER_TYPE.search(declaration)
    if other is not None:
        sizes = {"bf16": 2, "f16x2": 4, "bf16x2": 4, "tf32": 4}
        kind = ParameterKind.FLOAT if other[1] == "bf16" else ParameterKind.UNKNOWN
        return sizes.get(other[1], 8), kind
    scalar = _SCALAR.search(declaration)
    if scalar is None:
        return 0, ParameterKind.UNKNOWN
    size = int(scalar[2]) // 8
    if size > 8:
        return size, ParameterKind.UNKNOWN
    return size, ParameterKind.FLOAT if scalar[1] == "f" else ParameterKind.INTEGER
