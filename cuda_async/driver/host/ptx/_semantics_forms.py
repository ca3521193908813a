"""What a PTX instruction's spelling means: forms, their matching, and the operation they yield.

Every family of instructions lists its *forms* in the notation of the PTX manual:

    form("add", "{.rnd}{.ftz}{.sat}.f32", build_add, rnd="rn rz rm rp")

A name in a form that is also a keyword is a choice; any other name stands for itself; braces make it
optional. One written instruction matches at most one form of its opcode, and the modifiers picked decide
the NumPy function, the operand types and the result types. Types are matched in the order written, other
modifiers in any order (PTX text in the wild is not strict about it). The same list is the source of the
table in the documentation and of the message for an instruction that is not covered.

Registers are arrays of raw bits, unsigned of the operand's width, `bool` for `.pred`. The functions
reinterpret them (`.view`, no copy), compute lane by lane, and hand raw bits back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cuda_async.errors import CudaAsyncError

__all__ = [
    "Array",
    "Form",
    "LaneFunction",
    "Operation",
    "Picks",
    "UnsupportedInstruction",
    "bits_dtype",
    "form",
    "guard",
    "is_signed",
    "same_lanes",
    "type_bits",
    "value_dtype",
]

# The element type of a register array depends on the instruction, which the type checker cannot follow.
Array: TypeAlias = NDArray[Any]
LaneFunction: TypeAlias = Callable[..., tuple[Array, ...]]
Picks: TypeAlias = dict[str, str]

_WIDTHS: dict[str, int] = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "sub" for bits in (8, 16, 32, 64)},
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "tf32": 32,
    "f64": 64,
    **dict.fromkeys(
        ("f16x2", "bf16x2", "u16x2", "s16x2", "u8x4", "s8x4", "e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4"), 32
    ),
    **dict.fromkeys(("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "ue8m0x2", "s2f6x2", "e2m1x4"), 16),
    "e2m1x2": 8,
    "f32x2": 64,
}

_TYPES = frozenset(_WIDTHS) | {"u2", "s2", "u4", "s4"}


class UnsupportedInstruction(CudaAsyncError):
    """The interpreter does not know this opcode with these modifiers; the message lists what it knows."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One instruction as a function of its operands' bits.

    Attributes:
        fn: takes one array per operand type (0-d, one lane or many lanes; they broadcast), each of the
            unsigned type of the operand's width (`bool` for `pred`); returns one array per result type.
            A result may share memory with an operand. Raises no warnings.
        operand_types: PTX types of the operands, in the order written.
        result_types: PTX types of the results; for a wider destination register the type says whether
            to extend by sign or by zero.
        reads_carry: the carry flag comes as one more operand, a `bool` array.
        writes_carry: the carry flag is one more result, a `bool` array; after a subtraction it is clear
            where something was borrowed, as on the hardware.
        unguarded: `fn` without its guard, for a caller that passes no 0-d arrays and holds
            `numpy.errstate(all="ignore")` itself; saves about a microsecond.
    """

    fn: LaneFunction
    operand_types: tuple[str, ...]
    result_types: tuple[str, ...]
    reads_carry: bool = False
    writes_carry: bool = False
    unguarded: LaneFunction = field(default=lambda *_: (), compare=False)


def type_bits(ptx_type: str) -> int:
    """Width of a PTX type in bits; 1 for `pred`."""
    return _WIDTHS[ptx_type]


def bits_dtype(ptx_type: str) -> np.dtype[Any]:
    """The NumPy type of a register array of this PTX type: unsigned, or `bool` for `pred`."""
    bits = _WIDTHS[ptx_type]
    return np.dtype(np.bool_) if bits == 1 else np.dtype(f"u{bits // 8}")


def is_signed(ptx_type: str) -> bool:
    """Whether a wider register is filled with this type's sign bit."""
    return ptx_type[0] == "s" and ptx_type[1:].isdigit()


def value_dtype(ptx_type: str) -> np.dtype[Any]:
    """The NumPy type whose values a scalar PTX type has; `b` types count as unsigned."""
    if ptx_type == "pred":
        return np.dtype(np.bool_)
    kind = {"s": "i", "u": "u", "b": "u", "f": "f"}[ptx_type[0]]
    return np.dtype(f"{kind}{_WIDTHS[ptx_type] // 8}")


def same_lanes(*registers: Array) -> list[Array]:
    """The registers, contiguous and each with as many lanes as the longest; needed before packed parts
    are split off by a view.
    """
    lanes = max(r.size for r in registers)
    return [np.ascontiguousarray(r) if r.size == lanes else r.repeat(lanes) for r in registers]


def guard(fn: LaneFunction, operands: int) -> LaneFunction:
    """`fn` that also takes 0-d operands and lets no floating-point warning out."""
    ignoring = np.errstate

    if operands == 1:

        def unary(a: Array) -> tuple[Array, ...]:
            with ignoring(all="ignore"):
                return fn(a if a.ndim else a.reshape(1))

        return unary
    if operands == 2:

        def binary(a: Array, b: Array) -> tuple[Array, ...]:
            with ignoring(all="ignore"):
                return fn(a if a.ndim else a.reshape(1), b if b.ndim else b.reshape(1))

        return binary

    def general(*values: Array) -> tuple[Array, ...]:
        with ignoring(all="ignore"):
            return fn(*[v if v.ndim else v.reshape(1) for v in values])

    return general


@dataclass(frozen=True, slots=True)
class Slot:
    """One place of a form: the modifiers that may stand there."""

    name: str
    choices: tuple[str, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class Form:
    """One line of an instruction's syntax.

    Attributes:
        syntax: the line as in the manual, without the opcode.
        build: makes the operation from the modifiers picked, by slot name; a literal's name is itself.
        operands: the number of source operands, where forms of one opcode differ in nothing else.
        accepts: says no to picks that fit the line but not the instruction.
        note: what `accepts` asks for, in words, for the documentation.
    """

    opcode: str
    syntax: str
    slots: tuple[Slot, ...]
    build: Callable[[Picks], Operation]
    operands: int | None = None
    accepts: Callable[[Picks], bool] | None = None
    note: str = ""

    def match(self, modifiers: tuple[str, ...]) -> Picks | None:
        """The modifiers by slot, or None where they do not fit this form."""
        left = list(modifiers)
        types = [m for m in modifiers if m in _TYPES]
        picks: Picks = {}
        for slot in self.slots:
            candidates = types[:1] if slot.choices[0] in _TYPES else left
            found = next((m for m in candidates if m in slot.choices), None)
            if found is None:
                if slot.optional:
                    continue
                return None
            left.remove(found)
            if found in _TYPES:
                types.remove(found)
            picks[slot.name] = found
        if left or (self.accepts is not None and not self.accepts(picks)):
            return None
        return picks

    def spellings(self) -> Iterator[tuple[str, ...]]:
        """Every sequence of modifiers this form takes."""
        options = [((None,) if s.optional else ()) + s.choices for s in self.slots]
        for chosen in product(*options):
            modifiers = tuple(m for m in chosen if m is not None)
            if self.match(modifiers) is not None:
                yield modifiers

    def describe(self) -> str:
        """The form on one line with its choices written out."""
        parts = []
        for slot in self.slots:
            text = "." + "|.".join(slot.choices)
            parts.append(f"{{{text}}}" if slot.optional else f"({text})" if "|" in text else text)
        return self.opcode + "".join(parts)


_PLACE = re.compile(r"(\{)?\.([\w:]+)(\})?")


def form(
    opcodes: str,
    syntax: str,
    build: Callable[[Picks], Operation],
    *,
    operands: int | None = None,
    accepts: Callable[[Picks], bool] | None = None,
    note: str = "",
    **choices: str,
) -> list[Form]:
    """The form `syntax` for each of the opcodes (separated by blanks); the opcode is picked as `opcode`."""
    slots = tuple(
        Slot(name, tuple(choices[name].split()) if name in choices else (name,), bool(brace))
        for brace, name, _ in _PLACE.findall(syntax)
    )

    def builder(opcode: str) -> Callable[[Picks], Operation]:
        return lambda picks: build({"opcode": opcode, **picks})

    return [Form(o, syntax, slots, builder(o), operands, accepts, note) for o in opcodes.split()]
