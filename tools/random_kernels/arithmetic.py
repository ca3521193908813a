"""Arithmetic, comparisons, functions and conversions."""

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


def binary(
    name: str, symbol: str | None, dtypes: list[str], compute: Callable[[Array, Array], Array]
) -> None:
    """An operation of two tiles of one type, as a function and as an operator."""

    def drawn(p: Program) -> None:
        a = p.pick(dtypes)
        b = p.pick_like(a)
        text = (
            f"{a.name} {symbol} {b.name}"
            if symbol and p.random.random() < 0.5
            else f"tk.{name}({a.name}, {b.name})"
        )
        p.add(a.dtype, text, compute(a.array, b.array))

    OPERATIONS[name] = drawn


binary("add", "+", INTEGERS + FLOATS, in_type(np.add))
binary("sub", "-", INTEGERS + FLOATS, in_type(np.subtract))
binary("mul", "*", INTEGERS + FLOATS, in_type(np.multiply))
binary("truediv", "/", FLOATS, in_type(np.divide))
binary("bitwise_and", "&", [*INTEGERS, "bool_"], np.bitwise_and)
binary("bitwise_or", "|", [*INTEGERS, "bool_"], np.bitwise_or)
binary("bitwise_xor", "^", [*INTEGERS, "bool_"], np.bitwise_xor)


binary("maximum", None, INTEGERS + FLOATS, larger)
binary("minimum", None, INTEGERS + FLOATS, smaller)


def comparison(name: str, symbol: str, compute: Callable[[Array, Array], Array]) -> None:
    def drawn(p: Program) -> None:
        a = p.pick(INTEGERS + FLOATS)
        b = p.pick_like(a)
        text = f"{a.name} {symbol} {b.name}" if p.random.random() < 0.5 else f"tk.{name}({a.name}, {b.name})"
        left, right = (wide(a.array), wide(b.array)) if a.is_float else (a.array, b.array)
        p.add("bool_", text, compute(left, right))

    OPERATIONS[name] = drawn


comparison("equal", "==", np.equal)
comparison("not_equal", "!=", np.not_equal)
comparison("less", "<", np.less)
comparison("less_equal", "<=", np.less_equal)
comparison("greater", ">", np.greater)
comparison("greater_equal", ">=", np.greater_equal)


def divisor(p: Program, a: Value) -> Value:
    """A value like `a` without zeros."""
    b = p.pick_like(a)
    return p.add(
        a.dtype,
        f"tk.where({b.name} == 0, 3, {b.name})",
        np.where(b.array == 0, 3, b.array).astype(b.array.dtype),
    )


@operation
def floordiv(p: Program) -> None:
    a = p.pick(INTEGERS)
    b = divisor(p, a)
    text = f"{a.name} // {b.name}" if p.random.random() < 0.5 else f"tk.floordiv({a.name}, {b.name})"
    p.add(a.dtype, text, np.floor_divide(a.array, b.array).astype(a.array.dtype))


@operation
def mod(p: Program) -> None:
    a = p.pick(INTEGERS)
    b = divisor(p, a)
    text = f"{a.name} % {b.name}" if p.random.random() < 0.5 else f"tk.mod({a.name}, {b.name})"
    p.add(a.dtype, text, np.mod(a.array, b.array).astype(a.array.dtype))


@operation
def divmod_(p: Program) -> None:
    a = p.pick(INTEGERS)
    b = divisor(p, a)
    quotient, rest = p.name(), p.name()
    p.say(f"{quotient}, {rest} = divmod({a.name}, {b.name})")
    p.values.append(Value(quotient, a.dtype, np.floor_divide(a.array, b.array).astype(a.array.dtype)))
    p.values.append(Value(rest, a.dtype, np.mod(a.array, b.array).astype(a.array.dtype)))


@operation
def mulhi(p: Program) -> None:
    a = p.pick(INTEGERS)
    b = p.pick_like(a)
    bits = a.array.dtype.itemsize * 8
    high = [(int(x) * int(y)) >> bits for x, y in zip(a.array.flat, b.array.flat)]
    p.add(a.dtype, f"tk.mulhi({a.name}, {b.name})", np.array(high, a.array.dtype).reshape(a.array.shape))


def shift(name: str, symbol: str, compute: Callable[[Array, Array], Array]) -> None:
    def drawn(p: Program) -> None:
        a = p.pick(INTEGERS)
        b = p.pick_like(a)
        bits = a.array.dtype.itemsize * 8
        amount = p.add(b.dtype, f"{b.name} & {bits - 1}", b.array & np.array(bits - 1, b.array.dtype))
        text = (
            f"{a.name} {symbol} {amount.name}"
            if p.random.random() < 0.5
            else f"tk.{name}({a.name}, {amount.name})"
        )
        p.add(a.dtype, text, compute(a.array, amount.array).astype(a.array.dtype))

    OPERATIONS[name] = drawn


shift("bitwise_lshift", "<<", np.left_shift)
shift("bitwise_rshift", ">>", np.right_shift)


@operation
def bitwise_not(p: Program) -> None:
    a = p.pick([*INTEGERS, "bool_"])
    p.add(a.dtype, f"~{a.name}" if p.random.random() < 0.5 else f"tk.bitwise_not({a.name})", ~a.array)


@operation
def negative(p: Program) -> None:
    a = p.pick(INTEGERS + FLOATS)
    p.add(
        a.dtype,
        f"-{a.name}" if p.random.random() < 0.5 else f"tk.negative({a.name})",
        np.negative(a.array).astype(a.array.dtype),
    )


@operation
def abs_(p: Program) -> None:
    a = p.pick(INTEGERS + FLOATS)
    p.add(a.dtype, f"tk.abs({a.name})", np.abs(a.array).astype(a.array.dtype))


@operation
def where(p: Program) -> None:
    condition, a = p.pick(["bool_"]), p.pick(INTEGERS + FLOATS)
    b = p.pick_like(a)
    p.add(
        a.dtype,
        f"tk.where({condition.name}, {a.name}, {b.name})",
        np.where(condition.array, a.array, b.array),
    )


@operation
def fma(p: Program) -> None:
    a = p.pick(["float32"])
    b, c = p.pick_like(a), p.pick_like(a)
    exact = a.array.astype(np.longdouble) * b.array.astype(np.longdouble) + c.array.astype(np.longdouble)
    p.add(a.dtype, f"tk.fma({a.name}, {b.name}, {c.name})", exact.astype(np.float32))


@operation
def rounded(p: Program) -> None:
    """Directed rounding of a sum: exact in float64, where float32 terms of like size are."""
    a = p.pick(["int16"])
    x = p.add("float32", f"{a.name}.astype(tk.float32)", a.array.astype(np.float32))
    mode = p.random.choice(["RZ", "RM", "RP"])
    exact = x.array.astype(np.float64) + 2.0**-20
    near = exact.astype(np.float32)
    error = near.astype(np.float64) - exact
    down, up = np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))
    low, high = np.where(error > 0, down, near), np.where(error < 0, up, near)
    result = {"RM": low, "RP": high, "RZ": np.where(exact >= 0, low, high)}[mode]
    text = f"tk.add({x.name}, {2.0**-20!r}, rounding_mode=tk.RoundingMode.{mode})"
    p.add("float32", text, result.astype(np.float32))


@operation
def floor(p: Program) -> None:
    a = p.pick(FLOATS)
    p.add(a.dtype, f"tk.floor({a.name})", np.floor(wide(a.array)).astype(a.array.dtype))


@operation
def ceil(p: Program) -> None:
    a = p.pick(FLOATS)
    p.add(a.dtype, f"tk.ceil({a.name})", np.ceil(wide(a.array)).astype(a.array.dtype))


@operation
def sqrt(p: Program) -> None:
    a = p.pick(FLOATS)
    p.add(a.dtype, f"tk.sqrt({a.name})", np.sqrt(wide(a.array)).astype(a.array.dtype))


@operation
def isnan(p: Program) -> None:
    a = p.pick(FLOATS)
    p.add("bool_", f"tk.isnan({a.name})", np.isnan(wide(a.array)))


def tolerance_of(result: Array, dtype: str, ulps: float) -> Array:
    """`ulps` units in the last place of `result`."""
    eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dtype]
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}[
        dtype
    ]
    size = np.abs(wide(result)).astype(np.float64)
    return np.where(np.isfinite(size), size, 0) * eps * ulps + 2 * smallest


def function(name: str, compute: Callable[[Array], Array], low: float, high: float) -> None:
    """A function that is not exact on a GPU, of arguments between `low` and `high`."""

    def drawn(p: Program) -> None:
        a = p.pick(FLOATS)
        kind = a.array.dtype
        text = f"tk.minimum(tk.maximum({a.name}, {low!r}), {high!r})"
        bounded = smaller(larger(a.array, np.array(low, kind)), np.array(high, kind))
        x = p.add(a.dtype, text, bounded)
        exact = compute(x.array.astype(np.float64))
        p.add(
            a.dtype,
            f"tk.{name}({x.name})",
            exact.astype(kind),
            tolerance_of(exact, a.dtype, 16 if kind.itemsize > 2 else 2),
        )

    OPERATIONS[name] = drawn


function("exp", np.exp, -8.0, 8.0)
function("exp2", np.exp2, -8.0, 8.0)
function("log", np.log, 0.5, 1000.0)
function("log2", np.log2, 0.5, 1000.0)
function("rsqrt", lambda x: 1 / np.sqrt(x), 0.25, 1000.0)
function("sin", np.sin, -1.5, 1.5)
function("cos", np.cos, -1.5, 1.5)
function("tan", np.tan, -1.25, 1.25)
function("sinh", np.sinh, -8.0, 8.0)
function("cosh", np.cosh, -8.0, 8.0)
function("tanh", np.tanh, -8.0, 8.0)


@operation
def atan2(p: Program) -> None:
    a = p.pick(["float32", "float64"])
    b = p.pick_like(a)
    exact = np.arctan2(a.array.astype(np.float64), b.array.astype(np.float64))
    p.add(
        a.dtype,
        f"tk.atan2({a.name}, {b.name})",
        exact.astype(a.array.dtype),
        tolerance_of(exact, a.dtype, 16),
    )


@operation
def pow_(p: Program) -> None:
    a = p.pick(["float32", "float64"])
    b = p.pick_like(a)
    kind = a.array.dtype
    x = p.add(
        a.dtype,
        f"tk.minimum(tk.maximum({a.name}, 0.5), 8.0)",
        smaller(larger(a.array, np.array(0.5, kind)), np.array(8, kind)),
    )
    y = p.add(
        a.dtype,
        f"tk.minimum(tk.maximum({b.name}, -4.0), 4.0)",
        smaller(larger(b.array, np.array(-4, kind)), np.array(4, kind)),
    )
    exact = np.power(x.array.astype(np.float64), y.array.astype(np.float64))
    # whatever is said of NaN to the power 0 and the like is not looked at here
    odd = np.isnan(x.array) | np.isnan(y.array)
    safe = np.where(odd, np.inf, tolerance_of(exact, a.dtype, 64))
    p.add(a.dtype, f"tk.pow({x.name}, {y.name})", exact.astype(kind), safe)


# -- conversions


def truncated(array: Array, dtype: str) -> Array:
    """A float as an integer: without the fraction; out of range the nearest; NaN is 0."""
    limits = np.iinfo(dtype)
    x = np.trunc(array.astype(np.float64))
    out = np.zeros(x.shape, dtype)
    for place in np.ndindex(x.shape):
        number = x[place]
        if not np.isnan(number):
            out[place] = (
                limits.max if number >= limits.max else limits.min if number <= limits.min else int(number)
            )
    return out


@operation
def astype(p: Program) -> None:
    a = p.pick([*INTEGERS, *FLOATS, "bool_"])
    choices = [d for d in [*INTEGERS, *FLOATS, "bool_"] if d != a.dtype]
    if a.dtype == "float64":
        choices.remove("bfloat16")  # NumPy's rounds twice
    if a.dtype in INTEGERS and a.array.dtype.itemsize > 2:
        choices.remove("bfloat16")
    target = p.random.choice(choices)
    if target == "bool_":
        array = (wide(a.array) if a.is_float else a.array) != 0
    elif a.is_float and target in INTEGERS:
        array = truncated(wide(a.array), target)
    elif a.is_float:
        array = wide(a.array).astype(numpy_type(target))
    else:
        array = a.array.astype(numpy_type(target))
    text = f"tk.{target}({a.name})" if p.random.random() < 0.3 else f"{a.name}.astype(tk.{target})"
    p.add(target, text, array)


@operation
def bitcast(p: Program) -> None:
    pairs = {
        "int32": "float32",
        "float32": "uint32",
        "int16": "float16",
        "float16": "int16",
        "uint16": "bfloat16",
        "int64": "float64",
        "float64": "uint64",
        "uint8": "int8",
        "bfloat16": "uint16",
    }
    a = p.pick(list(pairs))
    target = pairs[a.dtype]
    if a.is_float:  # the bits of a NaN are open
        zero = p.add(
            a.dtype,
            f"tk.where(tk.isnan({a.name}), 0.0, {a.name})",
            np.where(np.isnan(wide(a.array)), np.array(0, a.array.dtype), a.array),
        )
        a = zero
    p.add(target, f"tk.bitcast({a.name}, tk.{target})", a.array.view(numpy_type(target)))


@operation
def pack_to_bytes(p: Program) -> None:
    a = p.pick(["int16", "uint32", "int32", "uint64"])
    data = a.array.reshape(p.blocks, -1).view(np.uint8)
    packed = p.add("uint8", f"tk.pack_to_bytes({a.name})", data)
    part = p.random.randrange(data.shape[1] // TILE)
    p.add(
        "uint8", f"tk.extract({packed.name}, ({part},), ({TILE},))", data[:, part * TILE : (part + 1) * TILE]
    )


@operation
def unpack_from_bytes(p: Program) -> None:
    a = p.pick(["int16", "uint32"])
    packed = f"tk.pack_to_bytes({a.name})"
    target = (
        p.random.choice(["int16", "uint16"]) if a.dtype == "int16" else p.random.choice(["int32", "uint32"])
    )
    p.add(
        target,
        f"tk.unpack_from_bytes({packed}, tk.{target})",
        a.array.reshape(p.blocks, -1).view(numpy_type(target)),
    )
