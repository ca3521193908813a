"""The grid of a launch: given, or that of its partitions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuda_async import LaunchError, MappedPartition, Partition

if TYPE_CHECKING:
    from ._parameters import Parameter

__all__ = ["MAX_GRID", "Grid", "as_grid", "grid_of"]

Grid = tuple[int, int, int]

MAX_GRID = (1 << 24) - 1
"""Most blocks along an axis: beyond it block indices come out wrong."""


def as_grid(grid: object) -> Grid:
    """(x, y, z) from an int or 1 to 3 ints; missing axes are 1.

    Raises:
        TypeError: something that is no integer. LaunchError: no or more than three axes.
    """
    axes = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
    if not 1 <= len(axes) <= 3:
        raise LaunchError(f"grid {axes} has {len(axes)} axes; a grid has 1 to 3")
    try:
        sizes = [operator.index(axis) for axis in axes]
    except TypeError:
        raise TypeError(f"grid {grid!r} must hold integers") from None
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def grid_of(
    kernel: str, parameters: Sequence[Parameter], args: Sequence[object], explicit: Grid | None
) -> Grid:
    """The launch grid: the one given, checked against the partitions, or theirs.

    Raises:
        LaunchError: none given and no partition, they do not agree, or an axis is out of range.
    """
    from ._meta import MetaMapped, MetaPartition

    grid = explicit
    given = "the grid given"
    for parameter, arg in zip(parameters, args, strict=True):
        if isinstance(arg, MappedPartition | MetaMapped):
            own = as_grid(arg.grid)
            if grid is not None and grid != own:
                raise LaunchError(
                    f"{kernel}: {given} is {_shown(grid)}, but {parameter.name} is mapped to {arg.tile_blocks} blocks; "
                    "map all partitions of a call to the same number, and give no other grid"
                )
            grid, given = own, f"the grid of {parameter.name}"
        elif isinstance(arg, Partition | MetaPartition) and not arg.prefix:
            own = as_grid(arg.grid)
            if grid is not None and grid != own:
                raise LaunchError(
                    f"{kernel}: {given} is {_shown(grid)}, but {parameter.name} has {_shown(own)} tiles; every tile "
                    "needs a block: use one tile shape and equal shapes, or partition_prefix"
                )
            grid, given = own, f"the grid of {parameter.name}"
    if grid is None:
        raise LaunchError(
            f"{kernel}: the grid is not known; give one with .grid(...), or an output as a partition"
        )
    for parameter, arg in zip(parameters, args, strict=True):
        if isinstance(arg, Partition | MetaPartition) and arg.prefix:
            own = as_grid(arg.grid)
            if any(a > b for a, b in zip(grid, own, strict=True)):
                raise LaunchError(
                    f"{kernel}: {given} is {_shown(grid)}, more than the {_shown(own)} tiles of {parameter.name}"
                )
    for axis, size in zip("xyz", grid, strict=True):
        if not 0 <= size <= MAX_GRID:
            raise LaunchError(
                f"{kernel}: grid axis {axis} is {size}, the limit is {MAX_GRID} (and 0 the least); use larger "
                "tiles, another axis, or a loop over tiles in the kernel"
            )
    return grid


def _shown(grid: Grid) -> str:
    return " x ".join(map(str, grid))
