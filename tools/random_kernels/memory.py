"""Loads of the inputs, which are views of memory of whatever strides: tiles, elements, rows, slices, offsets."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from .geometry import TILE, Array, tile_at
from .program import FLOATS, Program, operation
from .tiles import spread

_SIDES: dict[int, list[tuple[int, ...]]] = {
    1: [(4,), (16,)],
    2: [(2, 2), (4, 4), (1, 16), (8, 2), (1, 4), (4, 1)],
    3: [(2, 2, 1), (2, 2, 4), (1, 4, 1), (1, 1, 16), (4, 2, 2)],
}
_PADDING: list[tuple[str, Any]] = [
    ("ZERO", 0),
    ("NAN", np.nan),
    ("NEG_INF", -np.inf),
    ("POS_INF", np.inf),
    ("NEG_ZERO", -0.0),
]


def _padding(p: Program, dtype: str) -> tuple[str, Any]:
    return p.random.choice(_PADDING) if dtype in FLOATS else ("ZERO", 0)


def _uniform(p: Program, dtype: str, text: str, tile: Array) -> None:
    """A tile that is the same in all of them, of 4 elements or 16, as one that can be stored."""
    row = tile.reshape(-1)
    flat = text if tile.ndim == 1 else f"{text}.reshape(({row.size},))"
    x = p.add(dtype, flat, np.tile(row, (p.blocks, 1)))
    if row.size != TILE:
        spread(p, x)


def _ordered(p: Program, array: Array) -> tuple[str, Array]:
    """An order of axes as text, and the array with its axes in it."""
    order = list(range(array.ndim))
    if array.ndim == 1 or p.random.random() < 0.6:
        return "", array
    p.random.shuffle(order)
    text = f"({', '.join(map(str, order))},)"
    if order == list(reversed(range(array.ndim))) and p.random.random() < 0.5:
        text = "'F'"
    return f", order={text}", array.transpose(order)


@operation
def load_at(p: Program) -> None:
    """A tile at a number, in some order of axes."""
    place = p.random.randrange(len(p.inputs))
    dtype = p.input_types[place]
    order, array = _ordered(p, p.inputs[place].array)
    shape = p.random.choice(_SIDES[array.ndim])
    index = tuple([p.random.randrange(-(-n // s)) for n, s in zip(array.shape, shape)])
    mode, fill = _padding(p, dtype)
    tile = tile_at(array, tuple(i * s for i, s in zip(index, shape)), shape, fill)
    text = f"tk.load(x{place}, {index}, {shape}{order}, padding_mode=tk.PaddingMode.{mode})"
    _uniform(p, dtype, text, tile)


@operation
def load_by_number(p: Program) -> None:
    """A tile at an index that is computed, along the last axis."""
    place = p.random.randrange(len(p.inputs))
    array = p.inputs[place].array
    side = p.random.choice([2, 4])
    shape = (1,) * (array.ndim - 1) + (side,)
    count = -(-array.shape[-1] // side)
    start = p.random.randrange(4)
    head = tuple([p.random.randrange(n) for n in array.shape[:-1]])
    numbers = (np.arange(p.blocks) + start) % count
    rows = np.stack([tile_at(array, (*head, k * side), shape, 0).reshape(-1) for k in numbers])
    index = (
        "".join(f"{k}, " for k in head) + f"(b + {start}) % tk.num_tiles(x{place}, {array.ndim - 1}, {shape})"
    )
    text = f"tk.load(x{place}, ({index},), {shape}).reshape(({side},))"
    spread(p, p.add(p.input_types[place], text, rows))


@operation
def tiled_view(p: Program) -> None:
    """A view in tiles, which may overlap or have gaps."""
    place = p.random.randrange(len(p.inputs))
    dtype = p.input_types[place]
    order, array = _ordered(p, p.inputs[place].array)
    shape = p.random.choice(_SIDES[array.ndim])
    steps, options = shape, order
    if p.random.random() < 0.6:
        steps = tuple([p.random.choice([1, s, s + 1, 2 * s, 3]) for s in shape])
        options += f", traversal_steps={steps}"
    mode, fill = _padding(p, dtype)
    if mode != "ZERO":
        options += f", padding_mode=tk.PaddingMode.{mode}"
    index = tuple([p.random.randrange(-(-n // s)) for n, s in zip(array.shape, steps)])
    tile = tile_at(array, tuple(i * s for i, s in zip(index, steps)), shape, fill)
    _uniform(p, dtype, f"x{place}.tiled_view({shape}{options}).load({index})", tile)


@operation
def overlapping_tiles(p: Program) -> None:
    """A loop over all tiles of a view, whose largest elements or sum is taken."""
    whole = [k for k, d in enumerate(p.input_types) if d not in FLOATS and "float8" not in d and d != "bool_"]
    if not whole:
        return
    place = p.random.choice(whole)
    array = p.inputs[place].array
    step = p.random.choice([1, 2, 3, 5])
    shape, steps = (1,) * (array.ndim - 1) + (4,), (1,) * (array.ndim - 1) + (step,)
    head = tuple([p.random.randrange(n) for n in array.shape[:-1]])
    total = np.zeros(4, array.dtype)
    for k in range(-(-array.shape[-1] // step)):
        total = (total + tile_at(array, (*head, k * step), shape, 0).reshape(-1)).astype(array.dtype)
    value = p.new(p.input_types[place], np.repeat(np.tile(total, (p.blocks, 1)), 4, axis=1))
    view, index = p.name(), "".join(f"{k}, " for k in head) + "k,"
    p.say(
        f"{view} = x{place}.tiled_view({shape}, traversal_steps={steps})",
        f"{value.name} = tk.zeros((4,), tk.{value.dtype})",
        f"for k in range({view}.num_tiles({array.ndim - 1})):",
        f"    {value.name} = {value.name} + {view}.load(({index})).reshape((4,))",
        f"{value.name} = tk.broadcast_to({value.name}.reshape((4, 1)), (4, 4)).reshape((16,))",
        makes=(value,),
    )


@operation
def slice_(p: Program) -> None:
    """A part of a tensor as a tensor: what is past its end is padding."""
    place = p.random.randrange(len(p.inputs))
    array = p.inputs[place].array
    axis = p.random.randrange(array.ndim)
    extent = array.shape[axis]
    start = p.random.randrange(extent)
    stop = p.random.randint(start + 1, extent)
    first = str(start)
    if p.number <= start and p.random.random() < 0.5:
        first = f"n + {start - p.number}"
    part = np.take(array, range(start, stop), axis=axis)
    shape = p.random.choice(_SIDES[array.ndim])
    index = tuple([p.random.randrange(-(-n // s)) for n, s in zip(part.shape, shape)])
    tile = tile_at(part, tuple(i * s for i, s in zip(index, shape)), shape, 0)
    text = f"tk.load(x{place}.slice({axis}, {first}, {stop}), {index}, {shape})"
    _uniform(p, p.input_types[place], text, tile)


@operation
def gather(p: Program) -> None:
    place = p.random.randrange(len(p.inputs))
    array = p.inputs[place].array
    checked = p.random.random() < 0.8
    names, numbers = [], []
    for extent in array.shape:
        a = p.pick(["int32", "int64"] if p.random.random() < 0.3 else ["int32"])
        more, less = (4, 2) if checked else (0, 0)
        found = np.mod(a.array, a.array.dtype.type(extent + more)) - a.array.dtype.type(less)
        index = p.add(a.dtype, f"{a.name} % {extent + more} - {less}", found)
        names.append(index.name)
        numbers.append(index.array.astype(np.int64))
    inside = np.ones((p.blocks, TILE), bool)
    for number, extent in zip(numbers, array.shape):
        inside &= (number >= 0) & (number < extent)
    options, fill = "" if checked else ", check_bounds=False", 0
    if p.random.random() < 0.4:
        mask = p.pick(["bool_"])
        inside &= mask.array
        options += f", mask={mask.name}"
    if p.input_types[place] != "bool_" and p.random.random() < 0.4:
        options, fill = options + ", padding_value=3", 3
    found = array[tuple([np.where(inside, k, 0) for k in numbers])]
    result = np.where(inside, found, np.array(fill, array.dtype)).astype(array.dtype)
    p.add(p.input_types[place], f"tk.gather(x{place}, ({', '.join(names)},){options})", result)


@operation
def load_offset(p: Program) -> None:
    """By offsets from the first element of a view, whatever its strides."""
    place = p.random.randrange(len(p.inputs))
    view = p.inputs[place]
    a = p.pick(["int32"])
    limit = view.last_offset() + 1
    index = p.add("int32", f"{a.name} % {limit}", np.mod(a.array, np.int32(limit)).astype(np.int32))
    array, options = view.element(index.array), ""
    if p.random.random() < 0.4:
        mask = p.pick(["bool_"])
        array, options = np.where(mask.array, array, np.array(0, array.dtype)), f", mask={mask.name}"
    text = f"x{place}.get_raw_memory().load_offset({index.name}{options})"
    p.add(p.input_types[place], text, array.astype(view.base.dtype))


@operation
def load_advanced_indexing(p: Program) -> None:
    """Rows by their numbers, of which some are outside."""
    place = p.random.randrange(len(p.inputs))
    array = p.inputs[place].array
    if array.ndim == 1:
        return
    axis = p.random.randrange(array.ndim)
    shape = p.random.choice(
        [s for s in itertools.product((1, 2, 4, 8), repeat=array.ndim) if math.prod(s) == TILE]
    )
    a = p.pick(["int32"])
    count, extent = shape[axis], array.shape[axis]
    ids = np.mod(a.array[:, :count], np.int32(extent + 3)) - 1
    rows = f"tk.extract({a.name}, (0,), ({count},)) % {extent + 3} - 1"
    starts = [p.random.randrange(n) for n in array.shape]
    dtype = p.input_types[place]
    mode, fill = _padding(p, dtype)
    found = []
    for numbers in ids:
        places = [s + np.arange(side) for s, side in zip(starts, shape)]
        places[axis] = numbers
        inside = [(k >= 0) & (k < n) for k, n in zip(places, array.shape)]
        tile = np.full(shape, fill, array.dtype)
        kept = array[np.ix_(*[k[m] for k, m in zip(places, inside)])]
        tile[np.ix_(*[np.flatnonzero(m) for m in inside])] = kept
        found.append(tile.reshape(-1))
    parts = [f"tk.Slice({s}, {side})" for s, side in zip(starts, shape)]
    parts[axis] = rows
    text = f"tk.load_advanced_indexing(x{place}, ({', '.join(parts)},), padding_mode=tk.PaddingMode.{mode})"
    p.add(dtype, f"{text}.reshape(({TILE},))", np.stack(found))
