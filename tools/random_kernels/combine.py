"""Reductions, scans and matrix products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .geometry import TILE, Array
from .program import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    OPERATIONS,
    Program,
    Value,
    larger,
    numpy_type,
    operation,
    smaller,
    wide,
)
from .tiles import spread

Axis = int | tuple[int, ...] | None
_SINGLE: list[tuple[tuple[int, ...], Axis]] = [
    ((16,), 0),
    ((4, 4), 0),
    ((4, 4), 1),
    ((2, 8), -1),
    ((2, 2, 4), 1),
    ((8, 2), 0),
]
_SEVERAL: list[tuple[tuple[int, ...], Axis]] = [
    *_SINGLE,
    ((2, 2, 4), (0, 2)),
    ((4, 4), (0, 1)),
    ((2, 8), None),
]


def _combined(
    p: Program,
    name: str,
    a: Value,
    shape: tuple[int, ...],
    axis: Axis,
    compute: Callable[[Array, int], Array],
    dtype: str,
    options: str = "",
) -> None:
    """A reduction of a tile in a shape along axes, as a tile that can be stored."""
    rank = len(shape)
    axes = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
    gone = sorted(1 + k % rank for k in axes)
    array = a.array.reshape(p.blocks, *shape)
    left = [k for k in range(1, rank + 1) if k not in gone]
    turned = array.transpose(0, *left, *gone)
    rows = turned.reshape(p.blocks, -1, int(np.prod([array.shape[k] for k in gone])))
    result = compute(rows, 2)
    keep = p.random.random() < 0.3
    source = a.name if shape == (TILE,) else f"{a.name}.reshape({shape})"
    text = f"tk.{name}({source}, {axis}{options}{', keepdims=True' if keep else ''})"
    if result.shape[1] == 1 and not keep:
        spread(p, p.add(dtype, text, result[:, 0]))
    elif len(left) == 1 and not keep:
        spread(p, p.add(dtype, text, result))
    else:
        spread(p, p.add(dtype, f"{text}.reshape(({result.shape[1]},))", result))


def reduction(
    name: str, dtypes: list[str], compute: Callable[[Array, int], Array], gives: str | None = None
) -> None:
    def drawn(p: Program) -> None:
        a = p.pick(dtypes)
        shape, axis = p.random.choice(_SINGLE if gives else _SEVERAL)
        _combined(p, name, a, shape, axis, compute, gives or a.dtype)

    OPERATIONS[name] = drawn


def folded(combine: Callable[[Array, Array], Array]) -> Callable[[Array, int], Array]:
    def computed(array: Array, axis: int) -> Array:
        parts = np.moveaxis(array, axis, 0)
        result = parts[0]
        for part in parts[1:]:
            result = combine(result, part)
        return np.asarray(result)

    return computed


reduction("sum", INTEGERS, lambda a, axis: np.add.reduce(a, axis=axis, dtype=a.dtype))
reduction("prod", INTEGERS, lambda a, axis: np.multiply.reduce(a, axis=axis, dtype=a.dtype))
reduction("max", NUMBERS, folded(larger))
reduction("min", NUMBERS, folded(smaller))


def first_best(largest: bool) -> Callable[[Array, int], Array]:
    def computed(array: Array, axis: int) -> Array:
        find = np.argmax if largest else np.argmin
        found = find(wide(array) if array.dtype.kind not in "iu" else array, axis=axis)
        return np.asarray(found, np.int32)

    return computed


reduction("argmax", NUMBERS, first_best(True), "int32")
reduction("argmin", NUMBERS, first_best(False), "int32")


@operation
def reduction_without_nan(p: Program) -> None:
    """Reductions where a NaN loses to any number."""
    a = p.pick(FLOATS)
    shape, axis = p.random.choice(_SINGLE)
    name = p.random.choice(["max", "min", "argmax", "argmin"])
    if name in ("max", "min"):
        combine = larger if name == "max" else smaller
        compute = folded(lambda x, y: combine(x, y, False))
    else:
        compute = _best_number(name == "argmax")
    dtype = a.dtype if name in ("max", "min") else "int32"
    _combined(p, name, a, shape, axis, compute, dtype, ", propagate_nan=False")


def _best_number(largest: bool) -> Callable[[Array, int], Array]:
    def computed(array: Array, axis: int) -> Array:
        x = wide(array)
        filled = np.where(np.isnan(x), -np.inf if largest else np.inf, x)
        best = (filled.max if largest else filled.min)(axis=axis, keepdims=True)
        good = (x == best) | np.isnan(x).all(axis=axis, keepdims=True)
        return np.argmax(good, axis=axis).astype(np.int32)

    return computed


@operation
def whole_floats(p: Program) -> None:
    """Sums, products and scans of floats that are exact in any order."""
    a = p.pick(["int8"])
    dtype = p.random.choice(["float32", "float64", "float16"])
    name = p.random.choice(["sum", "cumsum", "prod", "cumprod"])
    if name in ("sum", "cumsum"):
        small, text = np.mod(a.array, np.int8(8)) - np.int8(3), f"({a.name} % 8 - 3)"
    else:  # powers of two
        small, text = np.mod(a.array, np.int8(2)) + np.int8(1), f"({a.name} % 2 + 1)"
    x = p.add(dtype, f"{text}.astype(tk.{dtype})", small.astype(numpy_type(dtype)))
    if name.startswith("cum"):
        p.add(
            dtype, f"tk.{name}({x.name}, 0)", getattr(np, name)(wide(x.array), axis=1).astype(x.array.dtype)
        )
        return
    shape, axis = p.random.choice(_SEVERAL)
    _combined(
        p,
        name,
        x,
        shape,
        axis,
        lambda rows, k: getattr(np, name)(wide(rows), axis=k).astype(rows.dtype),
        dtype,
    )


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
    shape, axis = p.random.choice(_SINGLE)
    _combined(p, "reduce", a, shape, axis, np.bitwise_xor.reduce, a.dtype, ", lambda a, b: a ^ b, 0")


@operation
def reduce_of_two(p: Program) -> None:
    """The largest of one tile, and what another one has there: the last of equals, by a number that differs."""
    a, b = p.pick(["int32", "int64"]), p.pick(["float32", "int16", "uint8"])
    value, place, other = p.name(), p.name(), p.new(b.dtype, np.zeros((p.blocks, TILE), b.array.dtype))
    rows, lowest = np.arange(p.blocks), np.iinfo(a.array.dtype).min
    last = TILE - 1 - np.argmax(a.array[:, ::-1], axis=1)
    other.array = np.broadcast_to(b.array[rows, last][:, None], (p.blocks, TILE)).copy()
    p.say(
        f"{value}, {place}, {other.name} = tk.reduce(",
        f"    ({a.name}, tk.arange({TILE}, dtype=tk.int32), {b.name}), 0, later, ({lowest}, -1, 0)",
        ")",
        f"{other.name} = tk.broadcast_to({other.name}, ({TILE},))",
        makes=(other,),
    )


@operation
def scan(p: Program) -> None:
    a = p.pick(INTEGERS)
    b = p.pick_like(a)
    ys = []
    y = np.zeros(p.blocks, a.array.dtype)
    for i in range(TILE):  # y = a * y + b: associative, and not commutative
        y = (a.array[:, i] * y + b.array[:, i]).astype(a.array.dtype)
        ys.append(y)
    first, second = p.name(), p.new(a.dtype, np.stack(ys, axis=1))
    combine = "lambda s, h, u, k: (s * u, h * u + k)"
    p.say(f"{first}, {second.name} = tk.scan(({a.name}, {b.name}), 0, {combine}, (1, 0))", makes=(second,))


# -- products


_FACTORS = [
    ("float16", "float32"),
    ("float16", "float16"),
    ("bfloat16", "float32"),
    ("int8", "int32"),
    ("uint8", "int32"),
    ("float32", "float32"),
    ("float64", "float64"),
    ("float8_e4m3fn", "float32"),
    ("float8_e5m2", "float16"),
]


@operation
def mma(p: Program) -> None:
    a = p.pick(["int8"])
    kind, acc = p.random.choice(_FACTORS)
    other = p.random.choice(["int8", "uint8"]) if acc == "int32" else kind
    small = p.add("int8", f"{a.name} % 4", np.mod(a.array, np.int8(4)))
    column = np.arange(16) % 3
    left = small.array.reshape(p.blocks, TILE, 1).astype(np.float64)
    row = np.broadcast_to(left, (p.blocks, TILE, 16))
    product = (row @ np.broadcast_to(column[None, :], (16, 16)) + 5).astype(numpy_type(acc))
    text = (
        f"tk.mma(tk.broadcast_to({small.name}.astype(tk.{kind}).reshape((16, 1)), (16, 16)), "
        f"tk.broadcast_to((tk.arange(16, dtype=tk.int32) % 3).astype(tk.{other})[None, :], (16, 16)), "
        f"tk.full((16, 16), 5, tk.{acc}))"
    )
    x = p.add(acc, text, product)
    part = p.random.randrange(16)
    p.add(acc, f"tk.extract({x.name}, (0, {part}), (16, 1)).reshape((16,))", product[:, :, part])


@operation
def matmul(p: Program) -> None:
    a = p.pick(["int8"])
    small = p.add("int8", f"{a.name} % 4", np.mod(a.array, np.int8(4)))
    x = small.array.reshape(p.blocks, 4, 4).astype(np.float64)
    kind = p.random.choice(["float32", "float16", "int8"])
    gives = {"int8": "int32"}.get(kind, kind)
    square = f"{small.name}.astype(tk.{kind}).reshape((4, 4))"
    text = (
        f"({square} @ {square}).reshape((16,))"
        if p.random.random() < 0.5
        else f"tk.matmul({square}, {square}).reshape((16,))"
    )
    p.add(gives, text, (x @ x).astype(numpy_type(gives)).reshape(p.blocks, TILE))


@operation
def batched_mma(p: Program) -> None:
    """Products with a batch axis, which one factor lacks."""
    a = p.pick(["int8"])
    small = p.add("int8", f"{a.name} % 4", np.mod(a.array, np.int8(4)))
    x = small.array.reshape(p.blocks, 4, 2, 2).astype(np.float64)
    square = f"{small.name}.astype(tk.float16).reshape((4, 2, 2))"
    other = p.random.choice([square, f"tk.extract({square}, (1, 0, 0), (1, 2, 2)).reshape((2, 2))"])
    y = x if other == square else x[:, 1:2]
    text = f"tk.mma({square}, {other}, tk.zeros((4, 2, 2), tk.float32)).reshape((16,))"
    p.add("float32", text, (x @ y).astype(np.float32).reshape(p.blocks, TILE))
