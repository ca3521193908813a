"""Memory and control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .program import (
    FLOATS,
    INTEGERS,
    OPERATIONS,
    TILE,
    Array,
    Program,
    Value,
    in_type,
    operation,
)
from .tiles import spread


def padded_input(p: Program, place: int, count: int, fill: Any) -> Array:
    data = p.inputs[place]
    out = np.full(count, fill, data.dtype)
    out[: len(data)] = data
    return out


@operation
def load(p: Program) -> None:
    place = p.random.randrange(len(p.inputs))
    dtype = p.values[place].dtype
    tiles = -(-p.length // 4)
    index = p.random.randrange(tiles)
    mode, fill = ("ZERO", 0)
    if dtype in FLOATS:
        mode, fill = p.random.choice(
            [("ZERO", 0), ("NAN", np.nan), ("NEG_INF", -np.inf), ("POS_INF", np.inf), ("NEG_ZERO", -0.0)]
        )
    row = padded_input(p, place, tiles * 4, fill)[index * 4 : index * 4 + 4]
    text = f"tk.load(x{place}, {index}, 4, padding_mode=tk.PaddingMode.{mode})"
    x = p.add(dtype, text, np.tile(row, (p.blocks, 1)))
    spread(p, x)


@operation
def gather(p: Program) -> None:
    place = p.random.randrange(len(p.inputs))
    a = p.pick(["int32"])
    index = p.add(
        "int32",
        f"{a.name} % {p.length + 4} - 2",
        (np.mod(a.array, np.int32(p.length + 4)) - 2).astype(np.int32),
    )
    data = p.inputs[place]
    inside = (index.array >= 0) & (index.array < p.length)
    array = np.where(inside, data[np.where(inside, index.array, 0)], np.zeros((), data.dtype))
    p.add(p.values[place].dtype, f"tk.gather(x{place}, {index.name})", array.astype(data.dtype))


@operation
def for_(p: Program) -> None:
    a = p.pick(INTEGERS)
    kind = p.random.choice(["up", "down", "known", "tiles"])
    result = p.name()
    p.say(f"{result} = {a.name}")
    array = a.array
    bounds = {
        "up": (0, "n", 1),
        "down": ("n + 3", 1, -2),
        "known": (2, 9, 3),
        "tiles": (0, "tk.num_tiles(x0, 0, 4)", 1),
    }[kind]
    numbers = {
        "up": range(p.number),
        "down": range(p.number + 3, 1, -2),
        "known": range(2, 9, 3),
        "tiles": range(-(-p.length // 4)),
    }[kind]
    p.say(f"for i in range({bounds[0]}, {bounds[1]}, {bounds[2]}):")
    with np.errstate(all="ignore"):
        p.say(f"    {result} = {result} * 3 + i.astype(tk.{a.dtype})")
        for i in numbers:
            array = (array * np.array(3, array.dtype) + np.array(i).astype(array.dtype)).astype(array.dtype)
    p.values.append(Value(result, a.dtype, array))


@operation
def if_(p: Program) -> None:
    a = p.pick(INTEGERS + FLOATS)
    b = p.pick_like(a)
    result = p.name()
    block = np.arange(p.blocks)
    if p.random.random() < 0.5:
        limit = p.random.randrange(3)
        p.say(f"if tk.bid(0) > {limit}:")
        taken = block > limit
    else:
        limit = p.random.randrange(6)
        p.say(f"if n >= {limit} and tk.bid(0) % 2 == 0:")
        taken = (block % 2 == 0) & (p.number >= limit)
    p.say(f"    {result} = {a.name}")
    p.say("else:")
    p.say(f"    {result} = -{b.name}")
    other = np.negative(b.array).astype(b.array.dtype)
    p.values.append(Value(result, a.dtype, np.where(taken[:, None], a.array, other)))


@operation
def while_(p: Program) -> None:
    a = p.pick(["int32", "int64"])
    result, turn = p.name(), p.name()
    p.say(f"{result}, {turn} = {a.name}, n")
    p.say(f"while {turn} > 0:")
    p.say(f"    {turn} = {turn} - 1")
    p.say(f"    if {turn} == 3:")
    p.say("        continue")
    p.say(f"    {result} = {result} ^ ({result} << 1)")
    array = a.array
    for i in reversed(range(p.number)):
        if i != 3:
            array = array ^ np.left_shift(array, np.array(1, array.dtype))
    p.values.append(Value(result, a.dtype, array))


@operation
def helper(p: Program) -> None:
    a = p.pick(["int32", "float32"])
    b = p.pick_like(a)
    array = in_type(np.subtract)(in_type(np.multiply)(a.array, np.array(2, a.array.dtype)), b.array)
    p.add(a.dtype, f"twice_less({a.name}, {b.name})", array)


@operation
def static_iter(p: Program) -> None:
    a = p.pick(["int32", "uint8", "int64"])
    result = p.name()
    p.say(f"{result} = {a.name}")
    p.say("for k in tk.static_iter((1, 2, 5)):")
    p.say(f"    {result} = {result} * k + k")
    array = a.array
    for k in (1, 2, 5):
        array = (array * np.array(k, array.dtype) + np.array(k, array.dtype)).astype(array.dtype)
    p.values.append(Value(result, a.dtype, array))


@operation
def astile(p: Program) -> None:
    p.add(
        "int32",
        f"tk.astile(({', '.join(str(i * i) for i in range(TILE))}), dtype=tk.int32)",
        np.tile((np.arange(TILE) ** 2).astype(np.int32), (p.blocks, 1)),
    )


@operation
def item(p: Program) -> None:
    a = p.pick(["int32", "float32"])
    scalar = p.add(a.dtype, f"tk.extract({a.name}, (5,), (1,)).item()", a.array[:, 5])
    spread(p, scalar)


# Memory that all blocks share: `m` takes atomic updates of one kind a program, in whatever order; of `c`, each block
# has its own 16 elements, and they are written once.

ATOMICS: list[str] = []
CELLS: list[str] = []


def atomic(name: str, combine: np.ufunc) -> None:
    def drawn(p: Program) -> None:
        if p.shared_kind not in (None, name):
            return
        p.shared_kind = name
        a, b = p.pick(["int32"]), p.pick(["int32"])
        index = p.add("int32", f"{a.name} % 70 - 3", (np.mod(a.array, np.int32(70)) - 3).astype(np.int32))
        p.say(f"tk.atomic_{name}(m, {index.name}, {b.name})")
        for place, number in zip(index.array.flat, b.array.flat, strict=True):
            if 0 <= place < len(p.shared):
                p.shared[place] = combine(p.shared[place], number)

    OPERATIONS[f"atomic_{name}"] = drawn
    ATOMICS.append(f"atomic_{name}")


atomic("add", np.add)
atomic("max", np.maximum)
atomic("min", np.minimum)
atomic("and", np.bitwise_and)
atomic("or", np.bitwise_or)
atomic("xor", np.bitwise_xor)


def once(function_: Callable[[Program, Value], None]) -> Callable[[Program], None]:
    """An operation that writes `c`, drawn at most once a program."""

    def drawn(p: Program) -> None:
        if p.has_cells:
            return
        p.has_cells = True
        function_(p, p.pick(["int32"]))

    OPERATIONS[function_.__name__] = drawn
    CELLS.append(function_.__name__)
    return drawn


PLACES = "tk.bid(0) * 16 + tk.arange(16, dtype=tk.int32)"


@once
def scatter(p: Program, a: Value) -> None:
    p.say(f"tk.scatter(c, {PLACES}, {a.name})")
    p.cells[: a.array.size] = a.array.reshape(-1)


@once
def store_by_index(p: Program, a: Value) -> None:
    p.say(f"tk.store(c, tk.bid(0), {a.name})")
    p.cells[: a.array.size] = a.array.reshape(-1)


@once
def atomic_xchg(p: Program, a: Value) -> None:
    old = p.add("int32", f"tk.atomic_xchg(c, {PLACES}, {a.name})", np.full_like(a.array, 5))
    p.cells[: old.array.size] = a.array.reshape(-1)


@once
def atomic_cas(p: Program, a: Value) -> None:
    p.add(
        "int32",
        f"tk.atomic_cas(c, {PLACES}, tk.where({a.name} > 0, 5, 6), {a.name})",
        np.full_like(a.array, 5),
    )
    p.cells[: a.array.size] = np.where(a.array > 0, a.array, 5).reshape(-1)


@once
def store_offset(p: Program, a: Value) -> None:
    p.say(f"c.get_raw_memory().store_offset({PLACES}, {a.name}, mask={a.name} % 2 == 0)")
    p.cells[: a.array.size] = np.where(a.array % 2 == 0, a.array, 5).reshape(-1)


@operation
def tiled_view(p: Program) -> None:
    place = p.random.randrange(len(p.inputs))
    tiles = -(-p.length // 4)
    index = p.random.randrange(tiles)
    row = padded_input(p, place, tiles * 4, 0)[index * 4 : index * 4 + 4]
    x = p.add(
        p.values[place].dtype, f"x{place}.tiled_view((4,)).load(({index},))", np.tile(row, (p.blocks, 1))
    )
    spread(p, x)


@operation
def load_offset(p: Program) -> None:
    place = p.random.randrange(len(p.inputs))
    a = p.pick(["int32"])
    limit = p.length
    index = p.add("int32", f"{a.name} % {limit}", np.mod(a.array, np.int32(limit)).astype(np.int32))
    p.add(
        p.values[place].dtype,
        f"x{place}.get_raw_memory().load_offset({index.name})",
        p.inputs[place][index.array],
    )
