"""Shapes, creation and the program's place."""

from __future__ import annotations

import numpy as np

from .geometry import TILE, Array
from .program import (
    MOVED,
    NUMBERS,
    Program,
    Value,
    in_type,
    numpy_type,
    operation,
)

# -- shapes


@operation
def reshape(p: Program) -> None:
    """Through a shape, in which something may be done to it, and back."""
    a = p.pick(MOVED)
    shape = p.random.choice([(16,), (4, 4), (2, 8), (8, 2), (2, 2, 4), (1, 16), (-1, 4), (2, -1, 4)])
    back = p.random.choice(["(16,)", "(-1,)", "16"])
    if a.dtype in NUMBERS and p.random.random() < 0.5:
        array = in_type(np.multiply)(a.array, a.array)
        p.add(a.dtype, f"({a.name}.reshape({shape}) * {a.name}.reshape({shape})).reshape({back})", array)
    else:
        p.add(a.dtype, f"{a.name}.reshape({shape}).reshape({back})", a.array)


@operation
def permute(p: Program) -> None:
    a = p.pick(MOVED)
    shape = p.random.choice([(4, 4), (2, 8), (2, 2, 4)])
    order = list(range(len(shape)))
    p.random.shuffle(order)
    x = p.add(a.dtype, f"{a.name}.reshape({shape})", a.array.reshape(p.blocks, *shape))
    turned = np.transpose(x.array, (0, *(1 + o for o in order)))
    text = f"tk.permute({x.name}, {tuple(order)}).reshape((16,))"
    p.add(a.dtype, text, turned.reshape(p.blocks, TILE))


@operation
def transpose(p: Program) -> None:
    a = p.pick(MOVED)
    turned = a.array.reshape(p.blocks, 4, 4).swapaxes(1, 2).reshape(p.blocks, TILE)
    p.add(a.dtype, f"tk.transpose({a.name}.reshape((4, 4)), 0, 1).reshape((16,))", turned)


@operation
def broadcast_to(p: Program) -> None:
    a = p.pick(MOVED)
    row = p.add(
        a.dtype, f"tk.extract({a.name}, (1,), (4,)).reshape((1, 4))", a.array[:, 4:8].reshape(p.blocks, 1, 4)
    )
    whole = np.broadcast_to(row.array, (p.blocks, 4, 4)).reshape(p.blocks, TILE)
    p.add(a.dtype, f"tk.broadcast_to({row.name}, (4, 4)).reshape((16,))", whole)


@operation
def expand_dims(p: Program) -> None:
    a = p.pick(["int32", "float32"])
    b = p.pick_like(a)
    outer = in_type(np.add)(a.array[:, :4, None], b.array[:, None, :4])
    left, right = f"tk.extract({a.name}, (0,), (4,))", f"tk.extract({b.name}, (0,), (4,))"
    text = f"(tk.expand_dims({left}, 1) + {right}[None, :]).reshape((16,))"
    p.add(a.dtype, text, outer.reshape(p.blocks, TILE))


@operation
def cat(p: Program) -> None:
    a = p.pick(MOVED)
    b = p.pick_like(a)
    array = np.concatenate([a.array[:, 8:], b.array[:, :8]], axis=1)
    p.add(a.dtype, f"tk.cat((tk.extract({a.name}, (1,), (8,)), tk.extract({b.name}, (0,), (8,))), 0)", array)


@operation
def extract(p: Program) -> None:
    a = p.pick(MOVED)
    part = p.random.randrange(4)
    x = a.array[:, part * 4 : part * 4 + 4]
    p.add(
        a.dtype,
        f"tk.cat(({', '.join([f'tk.extract({a.name}, ({part},), (4,))'] * 4)}), 0)",
        np.concatenate([x] * 4, 1),
    )


@operation
def insert(p: Program) -> None:
    a = p.pick(MOVED)
    b = p.pick_like(a)
    part = p.random.randrange(4)
    array = a.array.copy()
    array[:, part * 4 : part * 4 + 4] = b.array[:, :4]
    p.add(a.dtype, f"tk.insert({a.name}, ({part},), tk.extract({b.name}, (0,), (4,)))", array)


@operation
def arange(p: Program) -> None:
    dtype = p.random.choice(["int32", "int64", "uint32", "float32"])
    start, step = p.random.randrange(5), p.random.choice([1, 2, 3])
    row = (start + step * np.arange(TILE)).astype(numpy_type(dtype))
    p.add(
        dtype, f"tk.arange({TILE}, start={start}, step={step}, dtype=tk.{dtype})", np.tile(row, (p.blocks, 1))
    )


@operation
def zeros(p: Program) -> None:
    dtype = p.random.choice(NUMBERS)
    p.add(dtype, f"tk.zeros(({TILE},), tk.{dtype})", np.zeros((p.blocks, TILE), numpy_type(dtype)))


@operation
def ones(p: Program) -> None:
    dtype = p.random.choice(NUMBERS)
    p.add(dtype, f"tk.ones(({TILE},), tk.{dtype})", np.ones((p.blocks, TILE), numpy_type(dtype)))


@operation
def bid(p: Program) -> None:
    if p.geometry.mode == "mapped":
        axis, numbers = 0, p.geometry.block_numbers()
    else:
        axis = p.random.randrange(p.geometry.rank)
        numbers = p.geometry.coordinates()[:, axis]
    array = np.broadcast_to(numbers.astype(np.int32)[:, None], (p.blocks, TILE)).copy()
    p.add("int32", f"tk.full(({TILE},), 0, tk.int32) + tk.bid({axis})", array)


@operation
def index(p: Program) -> None:
    """The numbers of the program's tile."""
    axis = p.random.randrange(p.geometry.rank)
    array = np.broadcast_to(p.geometry.coordinates()[:, axis, None], (p.blocks, TILE)).copy()
    p.add("int32", f"tk.full(({TILE},), 0, tk.int32) + i{axis}", array)


def _everywhere(p: Program, number: int) -> Array:
    return np.full((p.blocks, TILE), number, np.int32)


@operation
def num_blocks(p: Program) -> None:
    geometry = p.geometry
    if geometry.mode == "mapped":
        axis, number = 0, geometry.tile_blocks
    else:
        axis = p.random.randrange(geometry.rank)
        number = geometry.reached[axis]
    p.add("int32", f"tk.full(({TILE},), 0, tk.int32) + tk.num_blocks({axis})", _everywhere(p, number))


@operation
def cdiv(p: Program) -> None:
    axis = p.random.randrange(p.geometry.rank)
    extent, side = p.geometry.extents[axis], p.geometry.tile[axis]
    text = f"tk.full(({TILE},), 0, tk.int32) + tk.cdiv(o0.tensor_shape[{axis}], {side})"
    p.add("int32", text, _everywhere(p, -(-extent // side)))


@operation
def num_tiles(p: Program) -> None:
    rank = p.geometry.rank
    axis = p.random.randrange(rank)
    text = f"tk.full(({TILE},), 0, tk.int32) + tk.num_tiles(x0, {axis}, ({'4, ' * rank}))"
    p.add("int32", text, _everywhere(p, -(-p.geometry.extents[axis] // 4)))


def spread(p: Program, value: Value) -> None:
    """A scalar, or a few elements, as a tile that can be stored."""
    if value.array.ndim == 1:
        array = np.broadcast_to(value.array[:, None], (p.blocks, TILE)).copy()
        p.add(value.dtype, f"tk.broadcast_to({value.name}, ({TILE},))", array)
    else:
        count = value.array.shape[1]
        times = TILE // count
        text = f"tk.broadcast_to({value.name}.reshape(({count}, 1)), ({count}, {times})).reshape(({TILE},))"
        p.add(value.dtype, text, np.repeat(value.array, times, axis=1))
