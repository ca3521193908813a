"""What the assembler says about a program it accepts: warnings, and remarks on how it was compiled.

Both look like

    remark[failed]: Failed to select TMA load instruction
      --> "kernel.py":8:5
       |
       = name: RemarkMemoryTmaLoadFailed
       = reason: loc("kernel.py":8:5): base pointer not 16-byte aligned

remarks under `in function: NAME:` and `category: NAME`, warnings by themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Place", "Remark", "parse_places", "parse_remarks"]

Place = tuple[str, int, int]
"""(file, line, column) of the user's source."""

_HEAD = re.compile(r"\s*(warning|remark)\[(\w*)\]: (.*)")
_ARROW = re.compile(r'\s*--> (?:loc\()?(?:"((?:[^"\\]|\\.)*)":(\d+):(\d+)|.*)')
_FIELD = re.compile(r"\s*= (\w+): (.*)")
_FUNCTION = re.compile(r"\s*in function: (.*):\s*$")
_CATEGORY = re.compile(r"\s*category: (.*?)\s*$")
_PLACE = re.compile(r'loc\("((?:[^"\\]|\\.)*)":(\d+):(\d+)\)')


@dataclass(frozen=True, slots=True)
class Remark:
    """One warning or remark.

    Attributes:
        kind: "warning", or of a remark "passed", "failed", "missed" or "analysis".
        name: identifier such as "RemarkMemoryTmaLoadFailed" or "RegisterPressure".
        title: the sentence itself.
        function: the kernel it is about; empty for a warning.
        category: "Memory", "Tensor-core", "Hints", ...; empty for a warning.
        place: where in the user's source, if the module has locations.
        details: notes, reasons and suggestions, in order.
    """

    kind: str
    name: str
    title: str
    function: str = ""
    category: str = ""
    place: Place | None = None
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.place[0]}:{self.place[1]}: " if self.place else ""
        details = f" ({'; '.join(self.details)})" if self.details else ""
        return f"{where}{self.kind}: {self.title}{details}"


def parse_places(text: str) -> tuple[Place, ...]:
    """Every source location in a message; of inlined code the innermost comes first."""
    return tuple((_unescape(file), int(line), int(column)) for file, line, column in _PLACE.findall(text))


def parse_remarks(text: str) -> tuple[Remark, ...]:
    """The warnings and remarks in what the assembler printed, in order; other lines are skipped."""
    found: list[Remark] = []
    function = category = ""
    lines = text.splitlines()
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if match := _FUNCTION.match(line):
            function, category = match[1], ""
        elif match := _CATEGORY.match(line):
            category = match[1]
        elif match := _HEAD.match(line):
            body = []
            while position < len(lines) and re.match(r"\s*(-->|\||= )", lines[position]):
                body.append(lines[position])
                position += 1
            found.append(_remark(match[1], match[2], match[3], function, category, body))
    return tuple(found)


def _remark(what: str, kind: str, title: str, function: str, category: str, body: list[str]) -> Remark:
    name = ""
    place: Place | None = None
    details = []
    for line in body:
        if (arrow := _ARROW.match(line)) and arrow[1] is not None:
            place = (_unescape(arrow[1]), int(arrow[2]), int(arrow[3]))
        elif field := _FIELD.match(line):
            if field[1] == "name":
                name = field[2]
            else:
                details.append(field[2])
    is_warning = what == "warning"
    return Remark(
        "warning" if is_warning else kind,
        name,
        title,
        "" if is_warning else function,
        "" if is_warning else category,
        place,
        tuple(details),
    )


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
