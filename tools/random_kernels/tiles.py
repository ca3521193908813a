"""Shapes, reductions, scans and products."""

from __future__ import annotations

from collections.abc import Callable

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
    larger,
    numpy_type,
    operation,
    smaller,
    wide,
)

# -- shapes


@operation
def reshape(p: Program) -> None:
    a = p.pick([*INTEGERS, *FLOATS, "bool_"], None)
    if a.array[0].size != TILE:
        return
    shape = p.random.choice([(16,), (4, 4), (2, 8), (8, 2), (2, 2, 4), (1, 16)])
    p.add(a.dtype, f"{a.name}.reshape({shape})", a.array.reshape(p.blocks, *shape))


@operation
def permute(p: Program) -> None:
    a = p.pick([*INTEGERS, *FLOATS])
    shape = p.random.choice([(4, 4), (2, 8), (2, 2, 4)])
    order = list(range(len(shape)))
    p.random.shuffle(order)
    x = p.add(a.dtype, f"{a.name}.reshape({shape})", a.array.reshape(p.blocks, *shape))
    turned = np.transpose(x.array, (0, *(1 + o for o in order)))
    text = f"tk.permute({x.name}, {tuple(order)}).reshape((16,))"
    p.add(a.dtype, text, turned.reshape(p.blocks, TILE))


@operation
def transpose(p: Program) -> None:
    a = p.pick([*INTEGERS, *FLOATS])
    turned = a.array.reshape(p.blocks, 4, 4).swapaxes(1, 2).reshape(p.blocks, TILE)
    p.add(a.dtype, f"tk.transpose({a.name}.reshape((4, 4)), 0, 1).reshape((16,))", turned)


@operation
def broadcast_to(p: Program) -> None:
    a = p.pick([*INTEGERS, *FLOATS])
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
    a = p.pick([*INTEGERS, *FLOATS])
    b = p.pick_like(a)
    array = np.concatenate([a.array[:, 8:], b.array[:, :8]], axis=1)
    p.add(a.dtype, f"tk.cat((tk.extract({a.name}, (1,), (8,)), tk.extract({b.name}, (0,), (8,))), 0)", array)


@operation
def extract(p: Program) -> None:
    a = p.pick([*INTEGERS, *FLOATS])
    part = p.random.randrange(4)
    x = a.array[:, part * 4 : part * 4 + 4]
    p.add(
        a.dtype,
        f"tk.cat(({', '.join([f'tk.extract({a.name}, ({part},), (4,))'] * 4)}), 0)",
        np.concatenate([x] * 4, 1),
    )


@operation
def insert(p: Program) -> None:
    a = p.pick([*INTEGERS, *FLOATS])
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
    dtype = p.random.choice(INTEGERS + FLOATS)
    p.add(dtype, f"tk.zeros(({TILE},), tk.{dtype})", np.zeros((p.blocks, TILE), numpy_type(dtype)))


@operation
def ones(p: Program) -> None:
    dtype = p.random.choice(INTEGERS + FLOATS)
    p.add(dtype, f"tk.ones(({TILE},), tk.{dtype})", np.ones((p.blocks, TILE), numpy_type(dtype)))


@operation
def bid(p: Program) -> None:
    array = np.broadcast_to(np.arange(p.blocks, dtype=np.int32)[:, None], (p.blocks, TILE))
    p.add("int32", f"tk.full(({TILE},), 0, tk.int32) + tk.bid(0)", array.copy())


@operation
def num_blocks(p: Program) -> None:
    p.add(
        "int32",
        f"tk.full(({TILE},), 0, tk.int32) + tk.num_blocks(0)",
        np.full((p.blocks, TILE), p.blocks, np.int32),
    )


@operation
def cdiv(p: Program) -> None:
    array = np.full((p.blocks, TILE), -(-p.length // TILE), np.int32)
    p.add("int32", f"tk.full(({TILE},), 0, tk.int32) + tk.cdiv(o0.tensor_shape[0], {TILE})", array)


@operation
def num_tiles(p: Program) -> None:
    p.add(
        "int32",
        f"tk.full(({TILE},), 0, tk.int32) + tk.num_tiles(x0, 0, 4)",
        np.full((p.blocks, TILE), -(-p.length // 4), np.int32),
    )


# -- reductions and scans


def spread(p: Program, value: Value) -> None:
    """A scalar, or 4 elements, as a tile that can be stored."""
    if value.array.ndim == 1:
        array = np.broadcast_to(value.array[:, None], (p.blocks, TILE)).copy()
        p.add(value.dtype, f"tk.broadcast_to({value.name}, ({TILE},))", array)
    else:
        array = np.repeat(value.array, 4, axis=1)
        p.add(value.dtype, f"tk.broadcast_to({value.name}.reshape((4, 1)), (4, 4)).reshape((16,))", array)


def reduction(
    name: str, dtypes: list[str], compute: Callable[[Array, int], Array], gives: str | None = None
) -> None:
    def drawn(p: Program) -> None:
        a = p.pick(dtypes)
        if p.random.random() < 0.5:
            value = p.add(gives or a.dtype, f"tk.{name}({a.name}, 0)", compute(a.array, 1))
        else:
            value = p.add(
                gives or a.dtype,
                f"tk.{name}({a.name}.reshape((4, 4)), 1)",
                compute(a.array.reshape(p.blocks, 4, 4), 2),
            )
        spread(p, value)

    OPERATIONS[name] = drawn


def folded(combine: Callable[[Array, Array], Array]) -> Callable[[Array, int], Array]:
    def computed(array: Array, axis: int) -> Array:
        parts = np.moveaxis(array, axis, 0)
        result = parts[0]
        for part in parts[1:]:
            result = combine(result, part)
        return result

    return computed


WHOLE = [t for t in INTEGERS if numpy_type(t).itemsize >= 4]
reduction("sum", INTEGERS, lambda a, axis: np.add.reduce(a, axis=axis, dtype=a.dtype))
reduction("prod", INTEGERS, lambda a, axis: np.multiply.reduce(a, axis=axis, dtype=a.dtype))
reduction("max", INTEGERS + FLOATS, folded(larger))
reduction("min", INTEGERS + FLOATS, folded(smaller))


def first_best(largest: bool) -> Callable[[Array, int], Array]:
    def computed(array: Array, axis: int) -> Array:
        find = np.argmax if largest else np.argmin
        return find(wide(array) if array.dtype.kind not in "iu" else array, axis=axis).astype(np.int32)

    return computed


reduction("argmax", INTEGERS + FLOATS, first_best(True), "int32")
reduction("argmin", INTEGERS + FLOATS, first_best(False), "int32")


@operation
def sum_of_floats(p: Program) -> None:
    a = p.pick(["float32", "float64"])
    finite = np.where(np.isfinite(a.array), a.array, 0).astype(a.array.dtype)
    x = p.add(
        a.dtype,
        f"tk.where(tk.abs({a.name}) < 1e30, {a.name}, 0.0)",
        np.where(np.abs(np.nan_to_num(a.array, nan=np.inf)) < np.float32(1e30), finite, 0).astype(
            a.array.dtype
        ),
    )
    total = x.array.astype(np.float64).sum(axis=1)
    scale = np.abs(x.array.astype(np.float64)).sum(axis=1)
    unit = 2.0**-20 if a.dtype == "float32" else 2.0**-48
    shape = (p.blocks, TILE)
    array = np.broadcast_to(total.astype(a.array.dtype)[:, None], shape).copy()
    p.add(
        a.dtype,
        f"tk.broadcast_to(tk.sum({x.name}), ({TILE},))",
        array,
        np.broadcast_to((scale * unit + 1e-37)[:, None], shape).copy(),
    )


def running(name: str, combine: np.ufunc) -> None:
    def drawn(p: Program) -> None:
        a = p.pick(INTEGERS)
        backwards = p.random.random() < 0.3
        source = a.array[:, ::-1] if backwards else a.array
        result = combine.accumulate(source, axis=1, dtype=a.array.dtype)
        result = result[:, ::-1] if backwards else result
        p.add(a.dtype, f"tk.{name}({a.name}, 0{', reverse=True' if backwards else ''})", result.copy())

    OPERATIONS[name] = drawn


running("cumsum", np.add)
running("cumprod", np.multiply)


@operation
def reduce(p: Program) -> None:
    a = p.pick(INTEGERS)
    value = p.add(
        a.dtype, f"tk.reduce({a.name}, 0, lambda a, b: a ^ b, 0)", np.bitwise_xor.reduce(a.array, axis=1)
    )
    spread(p, value)


@operation
def scan(p: Program) -> None:
    a = p.pick(INTEGERS)
    b = p.pick_like(a)
    ys = []
    y = np.zeros(p.blocks, a.array.dtype)
    for i in range(TILE):  # y = a * y + b: associative, and not commutative
        y = (a.array[:, i] * y + b.array[:, i]).astype(a.array.dtype)
        ys.append(y)
    first, second = p.name(), p.name()
    p.say(
        f"{first}, {second} = tk.scan(({a.name}, {b.name}), 0, lambda s, h, u, k: (s * u, h * u + k), (1, 0))"
    )
    p.values.append(Value(second, a.dtype, np.stack(ys, axis=1)))


# -- products


@operation
def mma(p: Program) -> None:
    a = p.pick(["int8"])
    kind, acc = p.random.choice(
        [
            ("float16", "float32"),
            ("bfloat16", "float32"),
            ("int8", "int32"),
            ("float32", "float32"),
            ("float64", "float64"),
        ]
    )
    small = p.add("int8", f"{a.name} % 4", np.mod(a.array, np.int8(4)))
    left = small.array.reshape(p.blocks, TILE, 1).astype(np.float64)
    row = np.broadcast_to(left, (p.blocks, TILE, 16))
    product = (row @ (2 * np.ones((16, TILE)))).astype(numpy_type(acc))
    text = (
        f"tk.mma(tk.broadcast_to({small.name}.astype(tk.{kind}).reshape((16, 1)), (16, 16)), "
        f"tk.full((16, 16), 2, tk.{kind}), tk.zeros((16, 16), tk.{acc}))"
    )
    x = p.add(acc, text, product)
    p.add(acc, f"tk.extract({x.name}, (0, 0), (16, 1)).reshape((16,))", product[:, :, 0])


@operation
def matmul(p: Program) -> None:
    a = p.pick(["int8"])
    small = p.add("int8", f"{a.name} % 4", np.mod(a.array, np.int8(4)))
    x = small.array.reshape(p.blocks, 4, 4).astype(np.float64)
    square = f"{small.name}.astype(tk.float32).reshape((4, 4))"
    text = f"({square} @ {square}).reshape((16,))"
    p.add("float32", text, (x @ x).astype(np.float32).reshape(p.blocks, TILE))
