"""Numbers as C's printf writes them, where Python's % does not: unsigned ones, precisions of whole ones, `#`."""

from __future__ import annotations

import math

__all__ = ["c_text"]


def c_text(flags: str, width: str, precision: str | None, kind: str, number: int | float) -> str:
    """One number by the conversion `%<flags><width>.<precision><kind>`; `kind` is one of diouxX and eEfFgG.

    A negative number takes no `o`, `u`, `x` or `X`: add 2 to the power of its width before.
    """
    if width.startswith("-"):  # of a *
        flags, width = flags + "-", width[1:]
    if precision is not None and precision.startswith("-"):
        precision = None
    if kind in "eEfFgG":
        if not math.isfinite(number):
            flags = flags.replace("0", "")
        return ("%" + flags + width + ("" if precision is None else f".{precision or 0}") + kind) % number
    digits = format(abs(int(number)), kind if kind in "oxX" else "d")
    if precision is not None:
        digits = digits.rjust(int(precision or 0), "0") if number or int(precision or 0) else ""
    sign = ""
    if kind in "di":
        sign = "-" if number < 0 else "+" if "+" in flags else " " if " " in flags else ""
    elif "#" in flags and kind == "o":
        digits = digits if digits.startswith("0") else "0" + digits
    elif "#" in flags and kind in "xX" and number:
        sign = "0" + kind
    room = int(width or 0) - len(sign)
    if "-" in flags:
        return sign + digits.ljust(room)
    if "0" in flags and precision is None:
        return sign + digits.rjust(room, "0")
    return (sign + digits).rjust(int(width or 0))
