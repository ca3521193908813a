"""Functions that CUDA provides to every kernel: printf, assert, malloc and free."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from .._c_text import c_text
from ._spaces import GENERIC

if TYPE_CHECKING:
    from ._lanes import Array, Group, Lanes

__all__ = ["BUILTINS", "Builtin", "format_printf"]

Builtin: TypeAlias = "Callable[[Group, list[Array]], Array | None]"
"""Takes the arguments' registers; gives the result's."""

_BYTE = np.dtype(np.uint8)
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d*))?"
    r"(?P<length>hh|h|ll|l|L|j|z|t)?(?P<kind>[diouxXeEfFgGaAcsp%])"
)


def _text_at(group: Group, address: int, where: Lanes, limit: int = 1 << 16) -> str:
    """The zero-terminated string at a generic address, as the lane at `where` sees it."""
    data = bytearray()
    while len(data) < limit:
        place = np.array([address + len(data)], np.uint64)
        byte = int(GENERIC.load(group, place, where, _BYTE)[-1])
        if byte == 0:
            break
        data.append(byte)
    return data.decode("utf-8", errors="replace")


def _lanes(group: Group) -> list[int]:
    active = group.active
    return list(range(group.size)) if active is None else [int(lane) for lane in active]


def _vprintf(group: Group, arguments: list[Array]) -> Array:
    """Print one line per lane, in the order of the lanes; gives the number of arguments."""
    formats, buffers = (group.full(argument) for argument in arguments[:2])
    count = np.zeros(group.size, np.uint32)
    known: dict[int, str] = {}
    pieces = []
    for lane in _lanes(group):
        where = np.array([lane])
        text = known.get(int(formats[lane]))
        if text is None:
            text = known[int(formats[lane])] = _text_at(group, int(formats[lane]), where)
        base = int(buffers[lane])
        printed, used = format_printf(
            text, partial(_argument, group, base, where), partial(_text_at, group, where=where)
        )
        pieces.append(printed)
        count[lane] = used
    sys.stdout.write("".join(pieces))
    return count


def _argument(group: Group, base: int, where: Lanes, offset: int, size: int) -> bytes:
    place = np.array([base + offset], np.uint64)
    return bytes(GENERIC.load(group, place, where, np.dtype(f"u{size}"))[-1:].tobytes())


def format_printf(
    text: str, argument: Callable[[int, int], bytes], string: Callable[[int], str]
) -> tuple[str, int]:
    """What C's printf writes for `text`, and how many arguments it used.

    Args:
        argument: bytes of the argument buffer, by offset and size; arguments are 4 or 8 bytes, each
            aligned to its size, as `vprintf` gets them.
        string: the string at an address.
    """
    offset = 0
    used = 0

    def take(kind: str, size: int) -> int | float:
        nonlocal offset, used
        offset = -(-offset // size) * size
        raw = argument(offset, size)
        offset += size
        used += 1
        value: int | float = struct.unpack("<" + kind, raw)[0]
        return value

    def convert(match: re.Match[str]) -> str:
        kind = match["kind"]
        if kind == "%":
            return "%"
        flags = match["flags"]
        width = str(take("i", 4)) if match["width"] == "*" else match["width"] or ""
        precision = match["precision"]
        if precision == "*":
            precision = str(take("i", 4))
        spec = "%" + flags + width + ("" if precision is None else "." + (precision or "0"))
        length = match["length"] or ""
        if kind in "diouxX":
            wide = length in ("l", "ll", "j", "z", "t")
            signed = kind in "di"
            value = int(
                take(("q" if signed else "Q") if wide else ("i" if signed else "I"), 8 if wide else 4)
            )
            if length in ("h", "hh"):
                bits = 16 if length == "h" else 8
                value &= (1 << bits) - 1
                if signed and value >> (bits - 1):
                    value -= 1 << bits
            return c_text(flags, width, precision, kind, value)
        if kind in "eEfFgG":
            return c_text(flags, width, precision, kind, take("d", 8))
        if kind in "aA":
            shown = float(take("d", 8)).hex()
            return ("%" + flags.replace("0", "") + width + "s") % (shown.upper() if kind == "A" else shown)
        if kind == "c":
            return (spec + "s") % chr(int(take("I", 4)) & 0xFF)
        if kind == "s":
            address = int(take("Q", 8))
            return (spec + "s") % (string(address) if address else "(null)")
        pointer = int(take("Q", 8))
        return ("%" + flags + width + "s") % (f"{pointer:#x}" if pointer else "(nil)")

    return _CONVERSION.sub(convert, text), used


def _assert_fail(group: Group, arguments: list[Array]) -> None:
    """__assertfail(message, file, line, function, char size), and __assert_fail without the size."""
    lane = _lanes(group)[0]
    where = np.array([lane])
    message, file, line, function = (int(group.full(argument)[lane]) for argument in arguments[:4])
    group.wave.fail(
        group,
        f"assertion failed: {_text_at(group, message, where)!r}, in "
        f"{_text_at(group, function, where)} at {_text_at(group, file, where)}:{line}",
    )


def _malloc(group: Group, arguments: list[Array]) -> Array:
    heap = group.wave.launch.program.heap
    sizes = group.full(arguments[0])
    addresses = np.zeros(group.size, np.uint64)
    for lane in _lanes(group):
        addresses[lane] = heap.allocate(int(sizes[lane]))
    return addresses


def _free(group: Group, arguments: list[Array]) -> None:
    heap = group.wave.launch.program.heap
    addresses = group.full(arguments[0])
    for lane in _lanes(group):
        address = int(addresses[lane])
        if address and group.wave.watch is not None:
            group.wave.watch.frees(group, lane)
        if address and not heap.release(address):
            group.wave.fail(
                group, f"free of {address:#x}, which this module's malloc did not return or was freed before"
            )


BUILTINS: dict[str, Builtin] = {
    "vprintf": _vprintf,
    "__assertfail": _assert_fail,
    "__assert_fail": _assert_fail,
    "malloc": _malloc,
    "free": _free,
}
