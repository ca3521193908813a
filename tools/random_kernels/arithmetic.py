"""Arithmetic, comparisons, functions and conversions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import exact
from .geometry import TILE, Array
from .program import (
    FLOATS,
    FP8,
    INTEGERS,
    MOVED,
    NUMBERS,
    OPERATIONS,
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


binary("add", "+", NUMBERS, in_type(np.add))
binary("sub", "-", NUMBERS, in_type(np.subtract))
binary("mul", "*", NUMBERS, in_type(np.multiply))
binary("truediv", "/", FLOATS, in_type(np.divide))
binary("bitwise_and", "&", [*INTEGERS, "bool_"], np.bitwise_and)
binary("bitwise_or", "|", [*INTEGERS, "bool_"], np.bitwise_or)
binary("bitwise_xor", "^", [*INTEGERS, "bool_"], np.bitwise_xor)


binary("maximum", None, NUMBERS, larger)
binary("minimum", None, NUMBERS, smaller)


def comparison(name: str, symbol: str, compute: Callable[[Array, Array], Array]) -> None:
    def drawn(p: Program) -> None:
        a = p.pick(NUMBERS)
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
    quotient = p.new(a.dtype, np.floor_divide(a.array, b.array).astype(a.array.dtype))
    rest = p.new(a.dtype, np.mod(a.array, b.array).astype(a.array.dtype))
    p.say(
        f"{quotient.name}, {rest.name} = {p.random.choice(['', 'tk.'])}divmod({a.name}, {b.name})",
        makes=(quotient, rest),
    )


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
    a = p.pick(NUMBERS)
    p.add(
        a.dtype,
        f"-{a.name}" if p.random.random() < 0.5 else f"tk.negative({a.name})",
        np.negative(a.array).astype(a.array.dtype),
    )


@operation
def abs_(p: Program) -> None:
    a = p.pick(NUMBERS)
    p.add(a.dtype, f"tk.abs({a.name})", np.abs(a.array).astype(a.array.dtype))


@operation
def where(p: Program) -> None:
    condition, a = p.pick(["bool_"]), p.pick(NUMBERS)
    b = p.pick_like(a)
    p.add(
        a.dtype,
        f"tk.where({condition.name}, {a.name}, {b.name})",
        np.where(condition.array, a.array, b.array),
    )


@operation
def fma(p: Program) -> None:
    a = p.pick(FLOATS)
    b, c = p.pick_like(a), p.pick_like(a)
    array = exact.rounded("fma", [a.array, b.array, c.array], a.dtype)
    p.add(a.dtype, f"tk.fma({a.name}, {b.name}, {c.name})", array)


@operation
def rounding_mode(p: Program) -> None:
    """Directed rounding, from rational arithmetic."""
    name = p.random.choice(["add", "sub", "mul", "truediv", "fma", "sqrt"])
    a = p.pick(FLOATS)
    operands = [a, *[p.pick_like(a) for _ in range({"fma": 2, "sqrt": 0}.get(name, 1))]]
    mode = p.random.choice(["RN", "RZ", "RM", "RP"])
    names = ", ".join(v.name for v in operands)
    array = exact.rounded(name, [v.array for v in operands], a.dtype, mode)
    p.add(a.dtype, f"tk.{name}({names}, rounding_mode=tk.RoundingMode.{mode})", array)


@operation
def flush_to_zero(p: Program) -> None:
    name = p.random.choice(["add", "sub", "mul", "truediv", "fma", "sqrt", "maximum", "minimum"])
    a = p.pick(["float32"])
    operands = [a, *[p.pick_like(a) for _ in range({"fma": 2, "sqrt": 0}.get(name, 1))]]
    names = ", ".join(v.name for v in operands)
    if name in ("maximum", "minimum"):
        x, y = [exact.flushed(v.array) for v in operands]
        array = larger(x, y) if name == "maximum" else smaller(x, y)
    else:
        array = exact.rounded(name, [v.array for v in operands], a.dtype, flush=True)
    p.add(a.dtype, f"tk.{name}({names}, flush_to_zero=True)", array)


@operation
def propagate_nan(p: Program) -> None:
    """`maximum` and `minimum` where a NaN loses."""
    a = p.pick(FLOATS)
    b = p.pick_like(a)
    name, combine = p.random.choice([("maximum", larger), ("minimum", smaller)])
    p.add(a.dtype, f"tk.{name}({a.name}, {b.name}, propagate_nan=False)", combine(a.array, b.array, False))


_MEET = [
    ("int8", "int32"),
    ("int16", "int64"),
    ("uint8", "uint64"),
    ("uint16", "uint32"),
    ("bool_", "int16"),
    ("bool_", "uint64"),
    ("bool_", "float32"),
    ("int32", "float32"),
    ("uint64", "float64"),
    ("int8", "float16"),
    ("uint8", "bfloat16"),
    ("float16", "float32"),
    ("bfloat16", "float64"),
    ("float32", "float64"),
]


@operation
def promotion(p: Program) -> None:
    """Two types meet in the second one of these."""
    narrow, meet = p.random.choice(_MEET)
    a, b = p.pick([narrow]), p.pick([meet])
    x = exact.converted(a.array, meet, b.array.dtype) if meet in FLOATS else a.array.astype(b.array.dtype)
    symbol, compute = p.random.choice([("+", np.add), ("-", np.subtract), ("*", np.multiply)])
    if p.random.random() < 0.5:
        p.add(meet, f"{a.name} {symbol} {b.name}", in_type(compute)(x, b.array))
    else:
        p.add(meet, f"{b.name} {symbol} {a.name}", in_type(compute)(b.array, x))


@operation
def loose_number(p: Program) -> None:
    """A number of the source, or the argument, takes the type of the tile it meets."""
    a = p.pick(NUMBERS)
    number: float
    text, number = p.random.choice([("3", 3), ("n", p.number), ("(n + 2)", p.number + 2), ("0", 0)])
    if a.is_float and p.random.random() < 0.5:
        text, number = "0.75", 0.75
    other = np.full_like(a.array, number)
    symbol, compute = p.random.choice([("+", np.add), ("-", np.subtract), ("*", np.multiply)])
    if p.random.random() < 0.5:
        p.add(a.dtype, f"{a.name} {symbol} {text}", in_type(compute)(a.array, other))
    else:
        p.add(a.dtype, f"{text} {symbol} {a.name}", in_type(compute)(other, a.array))


@operation
def divided_integers(p: Program) -> None:
    """`/` of integers is that of float32."""
    a = p.pick(INTEGERS)
    b = p.pick_like(a)
    single = np.dtype(np.float32)
    x, y = exact.converted(a.array, "float32", single), exact.converted(b.array, "float32", single)
    p.add("float32", f"{a.name} / {b.name}", x / y)


@operation
def floored_floats(p: Program) -> None:
    """`//` is the floor of the rounded quotient; `%` leaves the sign of the divisor, exactly where it can."""
    a = p.pick(["float32", "float64"])
    b = p.pick_like(a)
    if p.random.random() < 0.5:
        p.add(a.dtype, f"{a.name} // {b.name}", np.floor(a.array / b.array))
        return
    kind = a.array.dtype
    x = p.add(a.dtype, f"tk.minimum(tk.maximum({a.name}, -1000.0), 1000.0)", _between(a.array, -1000, 1000))
    y = p.add(
        a.dtype,
        f"tk.where(tk.abs({b.name}) > 0.01, tk.minimum(tk.maximum({b.name}, -100.0), 100.0), 3.0)",
        np.where(np.abs(b.array) > kind.type(0.01), _between(b.array, -100, 100), kind.type(3)),
    )
    p.add(a.dtype, f"{x.name} % {y.name}", np.mod(x.array, y.array))


def _between(array: Array, low: float, high: float) -> Array:
    return smaller(larger(array, np.array(low, array.dtype)), np.array(high, array.dtype))


@operation
def power_of_a_constant(p: Program) -> None:
    a = p.pick(NUMBERS)
    exponent = p.random.choice([1, 2, 3, 4]) if a.is_float else p.random.choice([0, 1, 2, 3, 5, 7, 10])
    times = in_type(np.multiply)
    result: Array | None = None
    base, left = a.array, exponent
    while left:  # by squares
        if left & 1:
            result = base if result is None else times(result, base)
        left >>= 1
        base = times(base, base)
    array = np.ones_like(a.array) if result is None else result
    p.add(a.dtype, f"{a.name} ** {exponent}", array)


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
    a = p.pick(MOVED)
    target = p.random.choice([d for d in MOVED if d != a.dtype])
    floats = a.dtype in FLOATS + FP8
    if target == "bool_":
        array = (wide(a.array) if floats else a.array) != 0
    elif floats and target in INTEGERS:
        array = truncated(wide(a.array), target)
    elif target in FLOATS + FP8:
        array = exact.converted(a.array, target, numpy_type(target))
    else:
        array = a.array.astype(numpy_type(target))
    text = f"tk.{target}({a.name})" if p.random.random() < 0.3 else f"{a.name}.astype(tk.{target})"
    p.add(target, text, array)


_ROUNDED = [("float64", "float32", ["RN", "RZ", "RM", "RP"]), ("float32", "bfloat16", ["RN", "RZ"])]
_ROUNDED += [("float64", "float16", ["RN", "RZ"]), ("float32", "float16", ["RN", "RZ"])]
_ROUNDED += [("float64", "bfloat16", ["RN", "RZ"])]


@operation
def rounded_conversion(p: Program) -> None:
    source, target, modes = p.random.choice(_ROUNDED)
    a, mode = p.pick([source]), p.random.choice(modes)
    array = exact.converted(a.array, target, numpy_type(target), mode)
    p.add(target, f"{a.name}.astype(tk.{target}, rounding_mode=tk.RoundingMode.{mode})", array)


@operation
def fp8(p: Program) -> None:
    """To fp8 and back, through memory's bytes or not."""
    a, target = p.pick(["float32", "float16", "bfloat16", "float64"]), p.random.choice(FP8)
    x = p.add(target, f"{a.name}.astype(tk.{target})", exact.converted(a.array, target, numpy_type(target)))
    back = p.random.choice(["float32", "float16", "int16"])
    array = truncated(wide(x.array), back) if back == "int16" else wide(x.array).astype(numpy_type(back))
    p.add(back, f"{x.name}.astype(tk.{back})", array)


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
        "int8": "float8_e5m2",
        "float8_e4m3fn": "uint8",
    }
    a = p.pick(list(pairs))
    target = pairs[a.dtype]
    if a.dtype in FP8 and np.isnan(wide(a.array)).any():
        return
    if a.is_float:  # which NaN it is, is open
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
