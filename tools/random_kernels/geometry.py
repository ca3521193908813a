"""Where the tiles of a program lie, which block has which, and views of memory that are no simple arrays."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
TILE = 16
"""Elements of a tile, whatever its shape."""

_TILES: dict[int, list[tuple[int, ...]]] = {
    1: [(16,)],
    2: [(4, 4), (2, 8), (8, 2), (1, 16), (16, 1)],
    3: [(2, 2, 4), (1, 4, 4), (4, 1, 4), (2, 8, 1)],
}
_MOST_TILES = 6


@dataclass(frozen=True)
class Geometry:
    """The outputs and inputs of a program: tensors of these extents, cut into tiles.

    Attributes:
        reached: tiles along each axis that the program computes; all but for a prefix partition.
        map_shape, tile_blocks: of a mapped partition, else empty and 0.
    """

    extents: tuple[int, ...]
    tile: tuple[int, ...]
    mode: Literal["plain", "prefix", "mapped"]
    reached: tuple[int, ...]
    map_shape: tuple[int, ...] = ()
    tile_blocks: int = 0

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def count(self) -> int:
        """Tiles that are computed: the rows of every value."""
        return math.prod(self.reached)

    @property
    def free(self) -> tuple[int, ...]:
        """Axes of a mapped partition that are not walked."""
        return tuple([axis for axis, side in enumerate(self.map_shape) if not side])

    def coordinates(self) -> Array:
        """Tile numbers along each axis, a row per tile."""
        return np.array(list(np.ndindex(self.reached)), np.int32)

    def cut(self, array: Array, fill: Any = 0) -> Array:
        """The tiles of an array, a row each; `fill` past its edge."""
        rows = [
            tile_at(array, tuple(c * s for c, s in zip(place, self.tile)), self.tile, fill).reshape(-1)
            for place in np.ndindex(self.reached)
        ]
        return np.stack(rows)

    def put(self, values: Array, into: Array, rows: Array | None = None) -> None:
        """Write tiles to an array, those of some rows or all; what is past its edge is dropped."""
        for row, place in enumerate(np.ndindex(self.reached)):
            if rows is None or rows[row]:
                cut = tuple(
                    [slice(c * s, min(c * s + s, n)) for c, s, n in zip(place, self.tile, self.extents)]
                )
                inside = tuple([slice(0, part.stop - part.start) for part in cut])
                into[cut] = values[row].reshape(self.tile)[inside]

    def block_numbers(self) -> Array:
        """`bid(0)` where each tile is computed, as docs/bounds.md tells."""
        if self.mode != "mapped":
            return self.coordinates()[:, 0]
        numbers: dict[tuple[int, ...], int] = {}
        walked = [axis for axis, side in enumerate(self.map_shape) if side]
        tiles = [self.reached[axis] for axis in walked]
        groups = [self.map_shape[axis] for axis in walked]
        for group in np.ndindex(*[-(-n // g) for n, g in zip(tiles, groups)]):
            first = [k * g for k, g in zip(group, groups)]
            for inner in np.ndindex(*[min(g, n - f) for g, n, f in zip(groups, tiles, first)]):
                numbers[tuple(f + i for f, i in zip(first, inner))] = len(numbers) % self.tile_blocks
        return np.array([numbers[tuple([place[a] for a in walked])] for place in np.ndindex(self.reached)])


def tile_at(array: Array, start: tuple[int, ...], shape: tuple[int, ...], fill: Any) -> Array:
    """A tile that starts at an element, which may be anywhere; `fill` where the array has nothing."""
    out = np.full(shape, fill, array.dtype)
    places = [s + np.arange(side) for s, side in zip(start, shape)]
    inside = [(p >= 0) & (p < n) for p, n in zip(places, array.shape)]
    kept = array[np.ix_(*[p[m] for p, m in zip(places, inside)])]
    out[np.ix_(*[np.flatnonzero(m) for m in inside])] = kept
    return out


def draw_geometry(r: random.Random) -> Geometry:
    rank = r.choices([1, 2, 3], [5, 4, 2])[0]
    tile = r.choice(_TILES[rank])
    while True:
        counts = [r.randint(1, 3) for _ in range(rank)]
        if math.prod(counts) <= _MOST_TILES:
            break
    edges = [r.choice([0, 0, 1, side // 2, r.randrange(side)]) for side in tile]
    extents = tuple([max(1, n * side - min(edge, side - 1)) for n, side, edge in zip(counts, tile, edges)])
    tiles = tuple(counts)
    mode = r.choices(["plain", "prefix", "mapped"], [6, 1, 3])[0]
    if mode == "plain":
        return Geometry(extents, tile, "plain", tiles)
    if mode == "prefix":
        return Geometry(extents, tile, "prefix", tuple([r.randint(1, n) for n in tiles]))
    map_shape = [r.randint(1, n + 1) for n in tiles]
    if rank > 1 and r.random() < 0.25:
        map_shape[-1] = 0
    places = math.prod(n for n, side in zip(tiles, map_shape) if side)
    return Geometry(extents, tile, "mapped", tiles, tuple(map_shape), r.randint(1, places))


@dataclass(frozen=True)
class View:
    """Memory, and a view of it: slices with steps, then axes in another order."""

    base: Array
    slices: tuple[slice, ...]
    order: tuple[int, ...]

    def of(self, base: Array) -> Array:
        view: Array = base[self.slices].transpose(self.order)
        return view

    @property
    def array(self) -> Array:
        return self.of(self.base)

    @property
    def is_plain(self) -> bool:
        return self.array.flags.c_contiguous

    def element(self, offset: Array) -> Array:
        """The elements at offsets from the first one of the view, in memory's order."""
        array = self.array
        first = (
            array.__array_interface__["data"][0] - self.base.__array_interface__["data"][0]
        ) // array.itemsize
        found: Array = self.base.reshape(-1)[first + offset]
        return found

    def last_offset(self) -> int:
        """The largest offset, in elements, that the view itself reaches."""
        array = self.array
        return sum((n - 1) * (stride // array.itemsize) for n, stride in zip(array.shape, array.strides))


def draw_view(
    r: random.Random, extents: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[slice, ...], tuple[int, ...]]:
    """Shape of the memory, slices and order that give a view of these extents."""
    rank = len(extents)
    order = tuple(range(rank))
    plain = tuple([slice(0, n) for n in extents])
    if r.random() < 0.6:
        return extents, plain, order
    shuffled = list(order)
    if r.random() < 0.5:
        r.shuffle(shuffled)
    shape, slices = [0] * rank, list(plain)
    for axis, source in enumerate(shuffled):  # axis of the view -> axis of the memory
        n, start, step = extents[axis], r.choice([0, 0, 1, 3]), r.choice([1, 1, 2, 3])
        shape[source] = start + (n - 1) * step + 1 + r.choice([0, 1, 5])
        slices[source] = slice(start, start + (n - 1) * step + 1, step)
    return tuple(shape), tuple(slices), tuple(shuffled)
