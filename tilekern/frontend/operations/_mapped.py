"""Walks over the tiles of mapped partitions.

Theory. A walk counts the tiles, and block b of n takes the counts b, b + n, b + 2n, ... Which tile a count
stands for: groups of `map_shape` tiles in row-major order, the last group of each axis being what is left, and in
each group its tiles in row-major order. With T tiles and groups of g along the axes, a count c is taken apart as

    r0, c = divmod(c, g0 * T1 * T2);      h0 = min(g0, T0 - r0 * g0)       tiles of group r0 along axis 0
    r1, c = divmod(c, h0 * g1 * T2);      h1 = min(g1, T1 - r1 * g1)
    r2, c = divmod(c, h0 * h1 * g2);      h2 = min(g2, T2 - r2 * g2)
    i0, c = divmod(c, h1 * h2);  i1, i2 = divmod(c, h2)
    tile along axis k = rk * gk + ik

which is one-to-one from 0 ... T0 * T1 * T2 - 1 to all tiles. So no tile has two blocks, whatever the kernel does
with its indices; walks within a box take the same counts and skip those outside of it. That each number is
below its T is stated by `assume_below`, for the proofs of `check-bounds`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ..._terms import Argument, Term, constant, encoded
from ...dtypes import bool_, int32, int64
from ...ir import (
    AddOp,
    AndOp,
    AssertOp,
    AssumeBelowOp,
    CompareOp,
    MinOp,
    MulOp,
    NumBlocksOp,
    Op,
    SelectOp,
    SubOp,
    TruncDivOp,
    Value,
    scalar,
)
from .._checks import Requires
from .._extents import tile_count
from .._mapped import MappedTilesValue, TileIndexValue, WalkValue
from .._pointers import place_tile
from .._promotion import cast
from .._values import describe, is_scalar
from ._access import stored_value
from ._memory import count_tiles, load_tile, store_tile, tile_index, tile_view
from ._program import block_id
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__: list[str] = []

MAX_TILES = (1 << 31) - (1 << 24)
"""Most tiles of a walk: a count plus the number of blocks is an int32."""


def _mapped(t: Translator, value: object, name: str) -> MappedTilesValue:
    if not isinstance(value, MappedTilesValue):
        raise t.wrong_type(f"{name} takes a mapped partition, got {describe(value)}")
    return value


def _require(t: Translator, terms: tuple[Term, ...], reason: str, shown: tuple[Term, ...]) -> None:
    if all(term.number is not None and term.number >= 0 for term in terms):
        return
    flats = {a.position for term in (*terms, *shown) for a in term.atoms() if isinstance(a, Argument)}
    check = Requires(encoded(terms), (), False, reason, encoded(shown), tuple(sorted(flats)), t.location)
    if check not in t.checks:
        t.checks.append(check)


# ------------------------------------------------------------------ walks


@implements(language.MappedTiles.iter_indices)
def iter_indices(t: Translator, self: object) -> object:
    return _walk(t, (_mapped(t, self, "iter_indices"),))


@implements(language.MappedTiles.iter_indices_with)
def iter_indices_with(t: Translator, self: object, others: tuple[object, ...]) -> object:
    first = _mapped(t, self, "iter_indices_with")
    rest = tuple([_mapped(t, other, "iter_indices_with") for other in others])
    for other in rest:
        for what, a, b in (
            ("tiles of shape", first.tile_shape, other.tile_shape),
            ("map shape", first.map_shape, other.map_shape),
        ):
            if a != b:
                raise t.wrong_value(
                    f"{first.name} has {what} {a}, {other.name} {b}; partitions that are walked together agree"
                )
        for axis in range(len(first.tile_shape)):
            own, others_own = tile_count(first, axis), tile_count(other, axis)
            if own != others_own:
                names = f"{first.name} and {other.name}"
                reason = f"{names} are walked together, but have {{0}} and {{1}} tiles along axis {axis}"
                _require(t, (own - others_own, others_own - own), reason, (own, others_own))
    return _walk(t, (first, *rest))


@implements(language.MappedTiles.iter_indices_within)
def iter_indices_within(t: Translator, self: object, ranges: tuple[object, ...]) -> object:
    out = _mapped(t, self, "iter_indices_within")
    rank = len(out.tile_shape)
    if 0 in out.map_shape:
        raise t.wrong_value(f"{out.name} has axes that are not walked; a walk within a box needs all of them")
    if len(ranges) != rank or not all(isinstance(r, tuple) and len(r) == 2 for r in ranges):
        raise t.wrong_value(
            f"iter_indices_within takes a (first tile, number of tiles) for each of {rank} axes of {out.name}"
        )
    box: list[tuple[Value | None, Value | None]] = []
    for pair in ranges:
        assert isinstance(pair, tuple)
        start, count = pair
        if (type(start) is int and start < 0) or (type(count) is int and count < -1):
            raise t.wrong_value(
                f"a box starts at tile 0 or later and has tiles, or -1 for the rest; got {pair}"
            )
        box.append((None if start == 0 and type(start) is int else _far(t, start), _end(t, start, count)))
    return _walk(t, (out,), box)


def _number(t: Translator, value: object) -> Value:
    number = place_tile(t, value, "a tile number")
    if not is_scalar(number):
        raise t.wrong_type(f"tile numbers are whole numbers and integer scalars, got {describe(value)}")
    return number


FAR = 1 << 40
"""Behind all tiles that there can be, and two of it are an int64."""


def _far(t: Translator, value: object) -> Value:
    """A tile number as int64, one that is behind all tiles as one that is not so far behind."""
    number = cast(t, _number(t, value), int64)
    return t.add(MinOp(lhs=number, rhs=t.constant(FAR, int64), result=Value(scalar(int64)))).result


def _end(t: Translator, start: object, count: object) -> Value | None:
    """The tile behind a box's last one along an axis, as int64; None where the box has all the rest."""
    if type(count) is int and count == -1:
        return None
    number = _far(t, count)
    end = t.add(AddOp(lhs=_far(t, start), rhs=number, result=Value(scalar(int64)))).result
    if type(count) is int:
        return end

    def compared(predicate: str, limit: int) -> Value:
        limit_value = t.constant(limit, int64)
        return t.add(
            CompareOp(lhs=number, rhs=limit_value, predicate=predicate, result=Value(scalar(bool_)))
        ).result

    t.add(AssertOp(condition=compared("ge", -1), message="a box has tiles, or -1 for the rest"))
    far = t.constant(FAR, int64)
    rest = compared("eq", -1)
    return t.add(SelectOp(condition=rest, if_true=far, if_false=end, result=Value(scalar(int64)))).result


def _walk(
    t: Translator,
    outs: tuple[MappedTilesValue, ...],
    box: list[tuple[Value | None, Value | None]] | None = None,
) -> WalkValue:
    out = outs[0]
    axes = [axis for axis, size in enumerate(out.map_shape) if size]
    view = tile_view(t, out.tensor, out.tile_shape, "C", "zero")
    tiles: list[Value] = []
    total_term = constant(1)
    for axis in axes:
        tiles.append(_count(t, count_tiles(t, out.tensor, view, axis)))
        total_term = total_term * tile_count(out, axis)
    reason = f"{out.name} has {{0}} tiles to walk, the limit is {MAX_TILES}; use larger tiles"
    _require(t, (constant(MAX_TILES) - total_term,), reason, (total_term,))
    total = tiles[0]
    for count in tiles[1:]:
        total = _two(t, MulOp, total, count)
    groups = [_two(t, MinOp, _constant(t, out.map_shape[a]), n) for a, n in zip(axes, tiles, strict=True)]

    def index(counter: Value) -> tuple[TileIndexValue, Value | None]:
        numbers: list[Value | int | None] = [None] * len(out.map_shape)
        for axis, number in zip(axes, _take_apart(t, counter, tiles, groups), strict=True):
            numbers[axis] = number
        inside = _inside(t, numbers, box) if box else None
        return TileIndexValue(outs, tuple(numbers)), inside

    step = t.add(NumBlocksOp(axis=0, result=Value(scalar(int32)))).result
    return WalkValue(block_id(t, 0), total, step, index)


def _count(t: Translator, count: object) -> Value:
    return cast(t, count, int32) if isinstance(count, Value) else _constant(t, count)


def _constant(t: Translator, number: object) -> Value:
    assert isinstance(number, int)
    return t.constant(min(number, int32.highest), int32)


def _two(t: Translator, kind: type[Op], lhs: Value, rhs: Value) -> Value:
    return t.add(kind(lhs=lhs, rhs=rhs, result=Value(scalar(int32)))).results[0]


def _take_apart(t: Translator, counter: Value, tiles: list[Value], groups: list[Value]) -> list[Value]:
    """The tile numbers of a count; see the module."""
    rest = counter
    starts: list[Value] = []
    heights: list[Value] = []

    def divmod_(by: Value) -> tuple[Value, Value]:
        q = _two(t, TruncDivOp, rest, by)
        return q, _two(t, SubOp, rest, _two(t, MulOp, q, by))

    for axis, (count, group) in enumerate(zip(tiles, groups, strict=True)):
        size = group
        for factor in (*heights, *tiles[axis + 1 :]):
            size = _two(t, MulOp, size, factor)
        place, rest = divmod_(size)
        start = _two(t, MulOp, place, group)
        starts.append(start)
        heights.append(_two(t, MinOp, group, _two(t, SubOp, count, start)))
    numbers: list[Value] = []
    for axis, start in enumerate(starts):
        inner = rest
        if axis + 1 < len(starts):
            size = heights[axis + 1]
            for factor in heights[axis + 2 :]:
                size = _two(t, MulOp, size, factor)
            inner, rest = divmod_(size)
        number = _two(t, AddOp, start, inner)
        op = AssumeBelowOp(
            source=number,
            limit=tiles[axis],
            parts=len(tiles),
            result=Value(scalar(int32), f"tile{axis}"),
        )
        numbers.append(t.add(op).result)
    return numbers


def _inside(
    t: Translator, numbers: list[Value | int | None], box: list[tuple[Value | None, Value | None]]
) -> Value | None:
    found: Value | None = None
    for number, (first, end) in zip(numbers, box, strict=True):
        assert isinstance(number, Value)
        number = cast(t, number, int64)
        for limit, predicate in ((first, "ge"), (end, "lt")):
            if limit is None:
                continue
            op = CompareOp(lhs=number, rhs=limit, predicate=predicate, result=Value(scalar(bool_)))
            one = t.add(op).result
            found = (
                one if found is None else t.add(AndOp(lhs=found, rhs=one, result=Value(scalar(bool_)))).result
            )
    return found


# ------------------------------------------------------------------ indices


def _index(t: Translator, value: object, name: str) -> TileIndexValue:
    if not isinstance(value, TileIndexValue):
        raise t.wrong_type(
            f"{name} takes an index that a walk gave, as in `for index in out.iter_indices():`; got {describe(value)}"
        )
    return value


@implements(language.TileIndex.components)
def components(t: Translator, self: object) -> object:
    index = _index(t, self, "components")
    walked = index.owners[0].map_shape
    return tuple([n for n, size in zip(index.numbers, walked, strict=True) if size])


@implements(language.TileIndex.at)
def at(t: Translator, self: object, numbers: tuple[object, ...]) -> object:
    index = _index(t, self, "at")
    out = index.owners[0]
    free = [axis for axis, size in enumerate(out.map_shape) if not size]
    if len(numbers) != len(free):
        raise t.wrong_value(
            f"{out.name} has {len(free)} axes that are not walked, got {len(numbers)} numbers"
        )
    chosen = dict(zip(free, numbers, strict=True))
    found = [_number(t, chosen[a]) if a in chosen else n for a, n in enumerate(index.numbers)]
    return TileIndexValue(index.owners, tuple(found))


def _place(t: Translator, out: MappedTilesValue, index: object, name: str) -> tuple[Value, ...]:
    given = _index(t, index, f"{out.name}.{name}")
    if out not in given.owners:
        names = " and ".join([owner.name for owner in given.owners])
        raise t.wrong_value(
            f"this index is of a walk over {names}; to use it for {out.name}, too, write "
            f"{given.owners[0].name}.iter_indices_with({out.name})"
        )
    if None in given.numbers:
        raise t.wrong_value(
            f"{out.name} has axes that are not walked; say which tile along them, as in index.at(k)"
        )
    return tile_index(t, out.tensor, given.numbers)


@implements(language.MappedTiles.load)
def load_mapped(t: Translator, self: object, index: object) -> object:
    out = _mapped(t, self, "load")
    numbers = _place(t, out, index, "load")
    return load_tile(t, out.tensor, tile_view(t, out.tensor, out.tile_shape, "C", "zero"), numbers)


@implements(language.MappedTiles.store)
def store_mapped(t: Translator, self: object, tile: object, index: object) -> object:
    out = _mapped(t, self, "store")
    numbers = _place(t, out, index, "store")
    value = stored_value(t, tile, out.tensor.dtype, out.name, out.tile_shape)
    store_tile(t, out.tensor, tile_view(t, out.tensor, out.tile_shape, "C", "zero"), numbers, value)
    return None
