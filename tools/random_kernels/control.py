"""Control flow, helper functions, Python's values, and what is known while compiling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .geometry import TILE, Array
from .program import INTEGERS, NUMBERS, Program, in_type, operation

HELPERS = """def twice_less(a, b):
    return a * 2 - b


def power(a, k):
    return a if k == 1 else a * power(a, k - 1)


def both(a, b, *rest, first=True, **options):
    if first:
        return a + b, len(rest)
    return a - b, options["k"]


def signed(a, limit):
    if limit > 3:
        return a
    return -a


def later(a, i, x, b, j, y):
    takes = (b > a) | ((b == a) & (j > i))
    return tk.where(takes, b, a), tk.where(takes, j, i), tk.where(takes, y, x)


@dataclasses.dataclass(frozen=True)
class Pair:
    one: object
    two: object

    def swapped(self):
        return Pair(self.two, self.one)

    @property
    def total(self):
        return self.one + self.two
"""


def _same(a: Array, number: int) -> Array:
    return np.array(number).astype(a.dtype)


@operation
def for_(p: Program) -> None:
    a = p.pick(INTEGERS)
    kind = p.random.choice(["up", "down", "known", "tiles", "reversed", "block"])
    result = p.new(a.dtype, a.array)
    array = a.array
    tiles = f"tk.num_tiles(x0, 0, ({'4, ' * p.geometry.rank}))"
    count = -(-p.geometry.extents[0] // 4)
    bounds, numbers = {
        "up": ("range(0, n, 1)", range(p.number)),
        "down": ("range(n + 3, 1, -2)", range(p.number + 3, 1, -2)),
        "known": ("range(2, 9, 3)", range(2, 9, 3)),
        "tiles": (f"range({tiles})", range(count)),
        "reversed": ("reversed(range(n + 2))", reversed(range(p.number + 2))),
        "block": ("range(b)", None),
    }[kind]
    rows = [list(numbers)] * p.blocks if numbers is not None else [list(range(k)) for k in range(p.blocks)]
    found = []
    for row, turns in zip(array, rows):
        for i in turns:
            row = (row * _same(row, 3) + _same(row, i)).astype(row.dtype)
        found.append(row)
    result.array = np.stack(found)
    p.say(
        f"{result.name} = {a.name}",
        f"for i in {bounds}:",
        f"    {result.name} = {result.name} * 3 + i.astype(tk.{a.dtype})",
        makes=(result,),
    )


@operation
def nested_for(p: Program) -> None:
    """Two loops, the inner one left early."""
    a = p.pick(INTEGERS)
    stop = p.random.randrange(1, 4)
    result, found = p.new(a.dtype, a.array), []
    for block, row in enumerate(a.array):
        for i in range(p.number):
            for j in range(4):
                if j == stop or i + j > block + 3:
                    break
                row = (row + _same(row, i * j)) ^ _same(row, j)
        found.append(row)
    result.array = np.stack(found)
    p.say(
        f"{result.name} = {a.name}",
        "for i in range(n):",
        "    for j in range(4):",
        f"        if j == {stop} or i + j > b + 3:",
        "            break",
        f"        {result.name} = ({result.name} + (i * j).astype(tk.{a.dtype})) ^ j.astype(tk.{a.dtype})",
        makes=(result,),
    )


@operation
def if_(p: Program) -> None:
    a = p.pick(NUMBERS)
    b = p.pick_like(a)
    block = np.arange(p.blocks)
    other = np.negative(b.array).astype(b.array.dtype)
    kind = p.random.choice(["block", "and", "elif", "expression", "or"])
    limit = p.random.randrange(6)
    if kind == "block":
        condition, taken = f"b > {limit // 2}", block > limit // 2
    elif kind == "or":
        condition, taken = f"n < {limit} or b % 3 == 1", (p.number < limit) | (block % 3 == 1)
    else:
        condition, taken = f"n >= {limit} and b % 2 == 0", (block % 2 == 0) & (p.number >= limit)
    array = np.where(taken[:, None], a.array, other)
    if kind == "expression":
        p.add(a.dtype, f"{a.name} if {condition} else -{b.name}", array)
        return
    lines = [f"if {condition}:", "    {0} = {1}", "else:", "    {0} = -{2}"]
    if kind == "elif":
        array = np.where(taken[:, None], a.array, np.where((block == 1)[:, None], b.array, other))
        lines[2:2] = ["elif 0 < b <= 1:", "    {0} = {2}"]
    result = p.new(a.dtype, array)
    p.say(*[line.format(result.name, a.name, b.name) for line in lines], makes=(result,))


@operation
def while_(p: Program) -> None:
    a = p.pick(["int32", "int64", "uint16"])
    turn = p.name()
    stops = p.random.choice([None, 1, 4])
    found = []
    for block, row in enumerate(a.array):
        for i in reversed(range(p.number)):
            if i == 3:
                continue
            if i == stops and block > 0:
                break
            row = row ^ np.left_shift(row, _same(row, 1))
        found.append(row)
    result = p.new(a.dtype, np.stack(found))
    leave = [f"    if {turn} == {stops} and b > 0:", "        break"] if stops is not None else []
    p.say(
        f"{result.name}, {turn} = {a.name}, n",
        f"while {turn} > 0:",
        f"    {turn} = {turn} - 1",
        f"    if {turn} == 3:",
        "        continue",
        *leave,
        f"    {result.name} = {result.name} ^ ({result.name} << 1)",
        makes=(result,),
    )


@operation
def while_by_values(p: Program) -> None:
    """A loop that ends when the elements say so."""
    a = p.pick(["uint8", "uint16"])
    array = a.array.copy()
    turns = np.zeros(p.blocks, np.int32)
    for row in range(p.blocks):
        while array[row].max() > 5:
            array[row] >>= 1
            turns[row] += 1
    result, count = p.new(a.dtype, array), p.name()
    shown = p.new("int32", np.broadcast_to(turns[:, None], (p.blocks, TILE)).copy())
    p.say(
        f"{result.name}, {count} = {a.name}, tk.full((), 0, tk.int32)",
        f"while tk.max({result.name}) > 5:",
        f"    {result.name}, {count} = {result.name} >> 1, {count} + 1",
        f"{shown.name} = tk.broadcast_to({count}, ({TILE},))",
        makes=(result, shown),
    )


@operation
def swapped_in_a_loop(p: Program) -> None:
    """Two values that a loop carries and changes for each other, in a tuple or a dataclass."""
    a = p.pick(["int32", "uint64", "int16"])
    b = p.pick_like(a)
    x, y = a.array, b.array
    for _ in range(p.number):
        x, y = y, x + y
    one, two = p.new(a.dtype, x), p.new(a.dtype, y)
    if p.random.random() < 0.5:
        lines = [
            f"{one.name}, {two.name} = {a.name}, {b.name}",
            "for i in range(n):",
            f"    {one.name}, {two.name} = {two.name}, {one.name} + {two.name}",
        ]
    else:
        pair = p.name()
        lines = [
            f"{pair} = Pair({a.name}, {b.name})",
            "for i in range(n):",
            f"    {pair} = dataclasses.replace({pair}.swapped(), two={pair}.total)",
            f"{one.name}, {two.name} = {pair}.one, {pair}.two",
        ]
    p.say(*lines, makes=(one, two))


@operation
def helper(p: Program) -> None:
    a = p.pick(["int32", "float32", "uint8", "float64"])
    b = p.pick_like(a)
    two = np.array(2, a.array.dtype)
    add, subtract, times = in_type(np.add), in_type(np.subtract), in_type(np.multiply)
    block = (np.arange(p.blocks) > 3)[:, None]
    text, array = p.random.choice(
        [
            (f"twice_less({a.name}, {b.name})", subtract(times(a.array, two), b.array)),
            (f"power({a.name}, 3)", times(a.array, times(a.array, a.array))),
            (f"both({a.name}, {b.name}, 1, 2)[0]", add(a.array, b.array)),
            (f"both(*({a.name}, {b.name}), first=False, k=3)[0]", subtract(a.array, b.array)),
            (f"signed({a.name}, b)", np.where(block, a.array, np.negative(a.array))),
            (f"(lambda u, v=2: u * v)({a.name})", times(a.array, two)),
            (f"sum(({a.name}, {b.name}, {a.name}))", add(add(a.array, b.array), a.array)),
        ]
    )
    p.add(a.dtype, text, array.astype(a.array.dtype))


@operation
def static_iter(p: Program) -> None:
    a = p.pick(["int32", "uint8", "int64"])
    array = a.array
    for k in (1, 2, 5):
        array = (array * _same(array, k) + _same(array, k)).astype(array.dtype)
    result = p.new(a.dtype, array)
    p.say(
        f"{result.name} = {a.name}",
        "for k in tk.static_iter((1, 2, 5)):",
        f"    {result.name} = {result.name} * k + k",
        makes=(result,),
    )


@operation
def static_eval(p: Program) -> None:
    """What Python itself computes, at compile time."""
    a = p.pick(NUMBERS)
    text = f"{a.name} + tk.static_eval({a.name}.size // 8)"
    p.add(a.dtype, text, in_type(np.add)(a.array, np.full_like(a.array, 2)))


@operation
def ensure_constant(p: Program) -> None:
    a = p.pick(INTEGERS)
    name = p.name()
    result = p.new(a.dtype, in_type(np.multiply)(a.array, np.full_like(a.array, 3)))
    p.say(
        f"tk.static_assert({a.name}.shape == ({TILE},), 'a row')",
        f"{name} = tk.ensure_constant({a.name}.ndim + 2)",
        f"{result.name} = {a.name} * {name}",
        makes=(result,),
    )


@operation
def assert_(p: Program) -> None:
    """An assertion that holds, on a value that goes on."""
    a = p.pick(INTEGERS)
    result = p.new(a.dtype, np.bitwise_and(a.array, a.array.dtype.type(7)))
    said = (
        f"tk.assert_({result.name} <= 7, 'small')"
        if p.random.random() < 0.5
        else f"assert {result.name} <= 7"
    )
    p.say(f"{result.name} = {a.name} & 7", said, makes=(result,))


@operation
def assume_divisible_by(p: Program) -> None:
    factor = p.random.choice([2, 4, 16])
    numbers = (np.arange(p.blocks, dtype=np.int32) * factor)[:, None]
    array = np.broadcast_to(numbers, (p.blocks, TILE)).copy()
    p.add("int32", f"tk.full(({TILE},), 0, tk.int32) + tk.assume_divisible_by(b * {factor}, {factor})", array)


@operation
def astile(p: Program) -> None:
    squares = (np.arange(TILE) ** 2).astype(np.int32)
    items = [str(k) for k in squares]
    array = np.tile(squares, (p.blocks, 1))
    place = p.random.randrange(TILE)
    items[place], array[:, place] = "b", np.arange(p.blocks)
    p.add("int32", f"tk.astile(({', '.join(items)}), dtype=tk.int32)", array)


@operation
def item(p: Program) -> None:
    from .tiles import spread

    a = p.pick(["int32", "float32"])
    spread(p, p.add(a.dtype, f"tk.extract({a.name}, (5,), (1,)).item()", a.array[:, 5]))


@operation
def choice_of_scalars(p: Program) -> None:
    """Branches between scalars, which the passes make selections of."""
    limit, other = p.random.randrange(4), p.random.randrange(4)
    numbers = np.array(
        [7 if k > limit and p.number != other else k * 2 - 1 for k in range(p.blocks)], np.int32
    )
    name, result = p.name(), p.new("int32", np.broadcast_to(numbers[:, None], (p.blocks, TILE)).copy())
    p.say(
        f"{name} = b * 2 - 1",
        f"if b > {limit} and n != {other}:",
        f"    {name} = 7",
        f"{result.name} = tk.full(({TILE},), 0, tk.int32) + {name}",
        makes=(result,),
    )


@operation
def computed_twice(p: Program) -> None:
    """What loops do not change, and what is computed more than once."""
    a = p.pick(INTEGERS)
    b = p.pick_like(a)
    product = (a.array * b.array + a.array).astype(a.array.dtype)
    array = a.array
    for i in range(3):
        array = (array + product) ^ (product if i != 1 else b.array)
    result = p.new(a.dtype, array)
    text = f"({a.name} * {b.name} + {a.name})"
    p.say(
        f"{result.name} = {a.name}",
        "for i in range(3):",
        "    if i != 1:",
        f"        {result.name} = ({result.name} + {text}) ^ {text}",
        "    else:",
        f"        {result.name} = ({result.name} + {text}) ^ {b.name}",
        makes=(result,),
    )


@operation
def known_numbers(p: Program) -> None:
    """What is known while compiling, in scalars of the language, so that the passes fold it."""
    left, right = p.random.choice([(7, -2), (-7, 2), (2**31 - 1, 2), (-(2**31), -1), (13, 5)])
    symbol, compute = p.random.choice(
        [
            ("+", np.add),
            ("-", np.subtract),
            ("*", np.multiply),
            ("//", np.floor_divide),
            ("%", np.mod),
            ("&", np.bitwise_and),
        ]
    )
    x, y = np.full((p.blocks, TILE), left, np.int32), np.full((p.blocks, TILE), right, np.int32)
    text = f"tk.full(({TILE},), {left}, tk.int32) {symbol} tk.full(({TILE},), {right}, tk.int32)"
    p.add("int32", text, compute(x, y).astype(np.int32))


@operation
def neutral(p: Program) -> None:
    """Operations that leave a value as it is, or seem to."""
    a = p.pick(NUMBERS)
    if a.is_float and p.random.random() < 0.6:  # zeros of both signs, which few values have
        b = p.pick(["bool_"])
        zero = p.random.choice([-0.0, 0.0])
        array = np.where(b.array, a.array, np.array(zero, a.array.dtype))
        a = p.add(a.dtype, f"tk.where({b.name}, {a.name}, {zero!r})", array)
    cases: list[tuple[str, Callable[[Array], Array]]] = [
        ("{0} + 0", lambda x: x + _same(x, 0)),
        ("{0} - 0", lambda x: x - _same(x, 0)),
        ("{0} * 1", lambda x: x * _same(x, 1)),
        ("{0} * 0", lambda x: x * _same(x, 0)),
        ("0 - {0}", lambda x: _same(x, 0) - x),
        ("{0} - {0}", lambda x: x - x),
        ("-(-{0})", lambda x: x),
    ]
    if a.is_float:
        cases += [("{0} + 0.0", lambda x: x + _same(x, 0)), ("{0} - (-0.0)", lambda x: x + _same(x, 0))]
        cases += [("{0} + (-0.0)", lambda x: x - _same(x, 0)), ("0.0 + {0}", lambda x: x + _same(x, 0))]
    source = a.array if a.dtype not in ("float16", "bfloat16") else a.array.astype(np.float32)
    for text, compute in p.random.sample(cases, 3):
        p.add(a.dtype, text.format(a.name), compute(source).astype(a.array.dtype))
