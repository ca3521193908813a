"""What must hold for a launch to be right, found while translating and checked before every launch.

A check sees the flat arguments and the grid, all plain integers by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ir import Location

__all__ = ["CoversGrid", "Fits", "LaunchCheck", "NotZero"]

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class NotZero:
    """A scalar argument is not 0."""

    flat: int
    name: str
    why: str
    location: Location | None

    def problem(self, values: Sequence[int | float], grid: Grid) -> str | None:
        """What is wrong with these arguments; None when nothing is."""
        if values[self.flat] != 0:
            return None
        return f"argument {self.name} is 0, {self.why}"


@dataclass(frozen=True, slots=True)
class CoversGrid:
    """A dimension of a tensor has a tile for every block along a grid axis."""

    flat: int | None
    """Position of the dimension among the flat arguments; None where it is known: then `known` is it."""
    known: int
    tile: int
    grid_axis: int
    name: str
    axis: int
    location: Location | None

    def problem(self, values: Sequence[int | float], grid: Grid) -> str | None:
        """What is wrong with these arguments; None when nothing is."""
        extent = self.known if self.flat is None else int(values[self.flat])
        if extent > (grid[self.grid_axis] - 1) * self.tile:
            return None
        return (
            f"axis {self.axis} of {self.name} is {extent}, too short for {grid[self.grid_axis]} blocks that "
            f"each load a tile of {self.tile} along it"
        )


@dataclass(frozen=True, slots=True)
class Fits:
    """An integer argument fits the type of the tile it meets."""

    flat: int
    name: str
    dtype: str
    lowest: int
    highest: int
    location: Location | None

    def problem(self, values: Sequence[int | float], grid: Grid) -> str | None:
        """What is wrong with these arguments; None when nothing is."""
        value = values[self.flat]
        if self.lowest <= value <= self.highest:
            return None
        return (
            f"argument {self.name} is {value}, which does not fit {self.dtype}, the type of the tile it meets"
        )


LaunchCheck = NotZero | CoversGrid | Fits
