"""How inexact results are rounded."""

from __future__ import annotations

import enum

__all__ = ["RoundingMode"]


class RoundingMode(enum.Enum):
    """How a float result that cannot be exact is rounded; which operation takes which is in docs/language.md."""

    RN = "nearest_even"
    """To the nearest number, of two equally near to the even one. The usual way."""
    RZ = "zero"
    """Towards zero."""
    RM = "negative_inf"
    """Down."""
    RP = "positive_inf"
    """Up."""
    RA = "nearest_away"
    """To the nearest number, of two equally near to the larger magnitude. To tfloat32 only."""
    FULL = "full"
    """Within a few units in the last place; division of float32, `exp` and `tanh`."""
    APPROX = "approx"
    """As the hardware approximates it; float32 only."""
    RZI = "zero_int"
    """To the whole number towards zero; float to integer only."""
