"""Enumerations of Tile IR attributes; the numbers are what the bytecode holds."""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "AtomicMode",
    "ComparisonOrdering",
    "ComparisonPredicate",
    "IntegerOverflow",
    "MemoryOrdering",
    "MemoryScope",
    "MultimemReduction",
    "PaddingValue",
    "PointerKind",
    "RoundingMode",
    "Signedness",
]


class RoundingMode(IntEnum):
    """How an inexact float result is rounded; which op takes which is in the Tile IR specification."""

    NEAREST_EVEN = 0
    ZERO = 1
    NEGATIVE_INF = 2
    POSITIVE_INF = 3
    APPROX = 4
    """A fast hardware approximation; f32 only."""
    FULL = 5
    """About 2 ulp; the default of `exp` and `tanh`."""
    NEAREST_INT_TO_ZERO = 6
    """Truncation; the only mode of `ftoi`."""
    NEAREST_AWAY = 7
    """Bytecode 13.4 and later, f32 to tf32."""


class IntegerOverflow(IntEnum):
    """A promise that an operation does not overflow; breaking it is undefined behaviour."""

    NONE = 0
    NSW = 1
    NUW = 2
    NW = 3


class Signedness(IntEnum):
    """How an operation reads the bits of its signless integers."""

    UNSIGNED = 0
    SIGNED = 1


class ComparisonOrdering(IntEnum):
    """What a float comparison with a NaN gives: false if ordered, true if unordered."""

    UNORDERED = 0
    ORDERED = 1


class ComparisonPredicate(IntEnum):
    """The relation tested by `cmpi` and `cmpf`."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS_THAN = 2
    LESS_THAN_OR_EQUAL = 3
    GREATER_THAN = 4
    GREATER_THAN_OR_EQUAL = 5


class MemoryOrdering(IntEnum):
    """Ordering of a memory access. `WEAK` takes no scope, every other one needs a scope."""

    WEAK = 0
    RELAXED = 1
    ACQUIRE = 2
    RELEASE = 3
    ACQ_REL = 4


class MemoryScope(IntEnum):
    """The set of threads an ordered access is ordered with."""

    TL_BLK = 0
    DEVICE = 1
    SYS = 2


class AtomicMode(IntEnum):
    """The operation of an atomic read-modify-write."""

    AND = 0
    OR = 1
    XOR = 2
    ADD = 3
    ADDF = 4
    MAX = 5
    MIN = 6
    UMAX = 7
    UMIN = 8
    XCHG = 9


class MultimemReduction(IntEnum):
    """The operation of a multimem reduction."""

    ADD = 0
    MIN = 1
    MAX = 2
    AND = 3
    OR = 4
    XOR = 5
    UMIN = 6
    UMAX = 7


class PaddingValue(IntEnum):
    """What a view load gives for elements past the tensor's edge; all but ZERO are for floats only."""

    ZERO = 0
    NEG_ZERO = 1
    NAN = 2
    POS_INF = 3
    NEG_INF = 4


class PointerKind(IntEnum):
    """Memory a pointer may point to; MULTICAST is what the multimem ops need (13.4 and later)."""

    DEFAULT = 0
    UNICAST = 1
    MULTICAST = 2
