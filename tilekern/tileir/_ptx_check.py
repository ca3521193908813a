"""Registers that the assembler's PTX uses before it sets them.

NVIDIA's assembler moves what is the same in all turns of a loop in front of the loop. In one of 2,600 random kernels,
for every target and from optimisation level 1 on (seen with 13.5), it put an address in front of the sum that the
address is made of: a load from wherever the register pointed before. Nothing says so, ptxas included.

What is looked for cannot be right: a register that one instruction alone sets, used earlier in the same straight piece
of code, which is no part of a loop (there, it may have been set a turn before).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["used_before_set"]

_INSTRUCTION = re.compile(r"^\s*(@!?%\w+\s+)?([a-z][\w.:]*)\s*(.*);\s*$")
_BEGUN = re.compile(r"^\s*(@!?%\w+\s+)?[a-z][^;]*(?<!:)$")
_LABEL = re.compile(r"^\s*([$\w]+):\s*$")
_REGISTER = re.compile(r"%[a-z]+\d+\b")
_SETS_NOTHING = (
    "st.",
    "red.",
    "bra",
    "brx",
    "ret",
    "exit",
    "bar.",
    "barrier.",
    "cp.",
    "membar",
    "fence",
    "trap",
)
_SETS_ALL_THE_SAME = ("bar.red.", "barrier.cta.red.")


@dataclass
class _Piece:
    """Instructions without a label or a jump in between: (registers set, registers used, text) each."""

    instructions: list[tuple[list[str], list[str], str]] = field(default_factory=list)
    in_loop: bool = False


def used_before_set(ptx: str) -> str | None:
    """The first instruction that uses a register which is only set further on; None where there is none."""
    pieces = _pieces(ptx)
    places: dict[str, list[tuple[int, int]]] = {}
    for number, piece in enumerate(pieces):
        for line, (sets, _, _) in enumerate(piece.instructions):
            for register in sets:
                places.setdefault(register, []).append((number, line))
    for number, piece in enumerate(pieces):
        if piece.in_loop:
            continue
        for line, (_, uses, text) in enumerate(piece.instructions):
            for register in uses:
                found = places.get(register, ())
                if len(found) == 1 and found[0][0] == number and found[0][1] > line:
                    return text
    return None


def _pieces(ptx: str) -> list[_Piece]:
    pieces = [_Piece()]
    labels: dict[str, int] = {}
    begun = ""
    for line in ptx.splitlines():
        text = f"{begun} {line}" if begun else line
        begun = text if _BEGUN.match(text) else ""  # matrix products are written on several lines
        if begun:
            continue
        label = _LABEL.match(text)
        if label is not None:
            pieces.append(_Piece())
            labels[label[1]] = len(pieces) - 1
            continue
        found = _INSTRUCTION.match(text)
        if found is None:
            continue
        guard, name, operands = found.groups()
        sets, uses = _split(name, operands)
        pieces[-1].instructions.append((sets, uses + _REGISTER.findall(guard or ""), " ".join(text.split())))
        if name.startswith(("bra", "brx", "ret", "exit")):
            for target in re.findall(r"\$\w+", operands):
                for piece in pieces[labels.get(target, len(pieces)) :]:
                    piece.in_loop = True  # a jump back to there
            pieces.append(_Piece())
    return pieces


def _split(name: str, operands: str) -> tuple[list[str], list[str]]:
    """The registers that an instruction sets, and those that it uses."""
    depth = 0
    end = len(operands)
    for i, character in enumerate(operands):
        depth += (character in "{[(") - (character in "}])")
        if character == "," and not depth:
            end = i
            break
    first, rest = operands[:end], operands[end:]
    sets_nothing = name.startswith(_SETS_NOTHING) and not name.startswith(_SETS_ALL_THE_SAME)
    if sets_nothing or first.lstrip().startswith("["):
        return [], _REGISTER.findall(operands)
    return _REGISTER.findall(first), _REGISTER.findall(rest)
