"""The meaning of PTX's pure instructions: registers in, registers out, no memory, no other thread.

`operation("mad", ("lo", "s32"))` yields the NumPy function of one instruction; see `_semantics_forms` for
how spellings are matched and what the arrays hold. Each family has its own module. Source throughout:
PTX ISA, section 9.7, with NVIDIA's hardware behaviour where the manual leaves a result open (said at
the place).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from . import (
    _semantics_approx,
    _semantics_bits,
    _semantics_compare,
    _semantics_convert,
    _semantics_float,
    _semantics_half,
    _semantics_integer,
    _semantics_narrow,
    _semantics_video,
)
from ._semantics_forms import (
    Form,
    Operation,
    UnsupportedInstruction,
    bits_dtype,
    guard,
    is_signed,
    type_bits,
)

__all__ = [
    "FORMS",
    "Operation",
    "UnsupportedInstruction",
    "bits_dtype",
    "is_signed",
    "operation",
    "type_bits",
]

# glibc hands blocks of 128 KiB and more out by mmap and gives the end of its heap back above that size, so that
# every temporary of a large wave would be faulted in page by page. Its threshold follows the largest block
# ever freed: freeing one (untouched, hence free of cost) makes 64-bit instructions on 8192 lanes 2 to 8 times
# faster. Elsewhere this does nothing.
np.empty(16 << 20, np.uint8)


def _forms_by_opcode() -> dict[str, list[Form]]:
    table: dict[str, list[Form]] = {}
    for module in (
        _semantics_integer,
        _semantics_bits,
        _semantics_compare,
        _semantics_float,
        _semantics_approx,
        _semantics_half,
        _semantics_convert,
        _semantics_narrow,
        _semantics_video,
    ):
        for item in module.FORMS:
            table.setdefault(item.opcode, []).append(item)
    return table


FORMS: dict[str, list[Form]] = _forms_by_opcode()
"""Every form known, by opcode."""


@cache
def operation(opcode: str, modifiers: tuple[str, ...], operands: int | None = None) -> Operation:
    """The function of one instruction, `add.rn.f32` being `operation("add", ("rn", "f32"))`.

    Args:
        opcode: the part before the first dot.
        modifiers: the rest, without dots, as written.
        operands: the number of source operands; only needed where the spelling leaves it open
            (`min` and `max` of three values, `vadd` and its kin with a third operand).

    Raises:
        UnsupportedInstruction: no form fits; the message lists the forms of the opcode.
    """
    forms = FORMS.get(opcode, ())
    for item in forms:
        picks = item.match(modifiers)
        if picks is not None and item.operands in (None, operands or item.operands):
            made = item.build(picks)
            count = len(made.operand_types) + made.reads_carry
            return replace(made, fn=guard(made.fn, count), unguarded=made.fn)
    written = ".".join((opcode, *modifiers))
    if not forms:
        raise UnsupportedInstruction(
            f"{written}: the interpreter has no register instruction {opcode!r}; "
            f"known are {', '.join(sorted(FORMS))}"
        )
    # An opcode may have dozens of forms; those for the type that was written say most.
    near = [item for item in forms if modifiers and modifiers[-1] in item.slots[-1].choices]
    known = "; ".join(item.describe() for item in near or forms)
    raise UnsupportedInstruction(
        f"{written}: these modifiers are not supported for {opcode}; known are {known}"
    )
