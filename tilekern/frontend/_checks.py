"""What must hold for a launch to be right, found while translating and checked before every launch.

A check sees the flat arguments and the grid, all plain integers by then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._terms import Encoded
    from ..ir import Location

__all__ = ["Fits", "LaunchCheck", "NotZero", "Requires"]

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class NotZero:
    """A scalar argument is not 0."""

    flat: int
    name: str
    why: str
    location: Location | None

    @property
    def flats(self) -> tuple[int, ...]:
        """Positions of the flat arguments it reads."""
        return (self.flat,)

    def problem(self, values: Sequence[int | float], grid: Grid) -> str | None:
        """What is wrong with these arguments; None when nothing is."""
        if values[self.flat] != 0:
            return None
        return f"argument {self.name} is 0, {self.why}"


@dataclass(frozen=True, slots=True)
class Requires:
    """Numbers of the launch are 0 or more: a bound of a tile index, or a declared precondition.

    Attributes:
        at_least: the numbers, as `encoded` of `_terms.py` gives them.
        guards: all is well if one of these is below 1: then no access is reached. So it is without blocks.
        decides: where it does not hold, a variant that checks in the kernel is to run.
        reason: what is wrong otherwise, with braces for the values of `shown`.
        flats: positions of the flat arguments it reads.
    """

    at_least: tuple[Encoded, ...]
    guards: tuple[Encoded, ...]
    decides: bool
    reason: str
    shown: tuple[Encoded, ...]
    flats: tuple[int, ...]
    location: Location | None

    def problem(self, values: Sequence[int | float], grid: Grid) -> str | None:
        """What is wrong with these arguments; None when nothing is."""
        if 0 in grid:
            return None
        for guard in self.guards:
            try:
                if _evaluate(guard, values, grid) < 1:
                    return None
            except ZeroDivisionError:
                continue
        try:
            if all(_evaluate(term, values, grid) >= 0 for term in self.at_least):
                return None
            shown = [str(_evaluate(term, values, grid)) for term in self.shown]
        except ZeroDivisionError:
            return f"{self.reason.split(':')[0]}: a tile index is divided by a number that is 0 or less"
        return _filled(self.reason, shown)


def _filled(reason: str, values: Sequence[str]) -> str:
    """`reason` with its values, by number or in their order. Other braces stay: names may be any text."""
    rest = iter(values)

    def value(found: re.Match[str]) -> str:
        number = found[1]
        if number:
            return values[int(number)] if int(number) < len(values) else found[0]
        return next(rest, found[0])

    return re.sub(r"\{([0-9]?)\}", value, reason)


def _evaluate(term: Encoded, values: Sequence[int | float], grid: Grid) -> int:
    """The value of a term or atom; exact."""
    kind = term[0]
    if kind == "sum":
        total: int = term[1]
        for count, atom in term[2:]:
            total += count * _evaluate(atom, values, grid)
        return total
    if kind == "argument":
        return int(values[term[1]])
    if kind == "grid":
        return grid[term[1]]
    parts = [_evaluate(part, values, grid) for part in term[1:]]
    if kind == "product":
        return math.prod(parts)
    if kind in ("min", "max"):
        return min(parts) if kind == "min" else max(parts)
    above, below = parts
    if below <= 0:
        raise ZeroDivisionError
    return -(-above // below) if kind == "cdiv" else above // below


@dataclass(frozen=True, slots=True)
class Fits:
    """An integer argument fits the type of the tile it meets."""

    flat: int
    name: str
    dtype: str
    lowest: int
    highest: int
    location: Location | None

    @property
    def flats(self) -> tuple[int, ...]:
        """Positions of the flat arguments it reads."""
        return (self.flat,)

    def problem(self, values: Sequence[int | float], grid: Grid) -> str | None:
        """What is wrong with these arguments; None when nothing is."""
        value = values[self.flat]
        if self.lowest <= value <= self.highest:
            return None
        return (
            f"argument {self.name} is {value}, which does not fit {self.dtype}, the type of the tile it meets"
        )


LaunchCheck = NotZero | Fits | Requires
