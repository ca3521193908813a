"""Values other than tiles mean in a kernel what they mean in Python: tuples, records, enums, dicts, functions.

Each function here is run by Python on plain ints, and as the body of a kernel on the same numbers.
"""

import dataclasses
import enum
import functools
import math
import operator
from collections import namedtuple
from typing import NamedTuple

import numpy as np
import pytest

import tilekern as tk

FUNCTIONS = []


def like_python(function):
    """The function gives in a kernel what it gives in Python."""
    FUNCTIONS.append(function)
    return function


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int = 2
    scale: int = dataclasses.field(default=1, kw_only=True)

    @property
    def total(self):
        return (self.x + self.y) * self.scale

    def moved(self, dx, *, dy=0):
        return Point(self.x + dx, self.y + dy, scale=self.scale)

    def larger(self, other):
        return self if self.total > other.total else other

    @classmethod
    def square(cls, side):
        return cls(side, side)

    @staticmethod
    def twice(n):
        return 2 * n

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y, scale=self.scale)

    def __rmul__(self, n):
        return Point(n * self.x, n * self.y)

    def __neg__(self):
        return Point(-self.x, -self.y)

    def __getitem__(self, i):
        return (self.x, self.y)[i]

    def __len__(self):
        return 2

    def __call__(self, n):
        return self.x * n + self.y


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    start: Point
    end: Point
    name: str = "line"

    @property
    def width(self):
        return self.end.x - self.start.x


class Pair(NamedTuple):
    first: int
    second: int = 7

    def difference(self):
        return self.first - self.second


Old = namedtuple("Old", "p q")


class Mode(enum.Enum):
    ADD = 1
    SUBTRACT = 2


class Factor(enum.IntEnum):
    ONE = 1
    THREE = 3


@like_python
def record_fields(a, b):
    p = Point(a, y=b)
    return p.x * 100 + p.y * 10 + p.scale


@like_python
def record_property_and_methods(a, b):
    p = Point(a, scale=3).moved(b, dy=a).moved(1)
    return p.total + Point.square(b).total + Point.twice(a) + p.larger(Point(b, b)).y


@like_python
def record_operators(a, b):
    p = -(Point(a, b) + Point(b)) + 3 * Point(1, a)
    return p[0] * 10 + p[1] + len(p) + Point(a)(b)


@like_python
def record_in_loop(a, b):
    p = Point(a, 0)
    for i in range(b):
        p = p.moved(i, dy=p.x)
        if p.y > 20:
            p = dataclasses.replace(p, y=0)
    return p.x * 1000 + p.y


@like_python
def record_in_branch(a, b):
    if a > b:  # noqa: SIM108
        line = Line(Point(a), Point(b, 5))
    else:
        line = Line(Point(0, b), Point(a, scale=2))
    return line.width * 100 + line.end.total + len(line.name)


@like_python
def record_comparison(a, b):
    r = 0
    if Point(a, 2) == Point(b):
        r += 1
    if Point(a) != Point(a):
        r += 10
    if Line(Point(a), Point(b)) == Line(Point(b), Point(a)):
        r += 100
    return r


@like_python
def record_returned_early(a, b):
    def shape(n):
        if n < 2:
            return Point(n, 1)
        return Point(1, n).moved(b)

    return shape(a).total


@like_python
def record_taken_apart(a, b):
    values = dataclasses.astuple(Line(Point(a), Point(b)))
    return values[0][0] + values[1][0] * 2 + dataclasses.asdict(Point(a, b))["y"]


@like_python
def named_tuples(a, b):
    p = Pair(a)
    q = p._replace(second=b)
    first, second = q
    o = Old(q=a, p=b)
    return p.difference() * 10 + q.difference() + first * second + o.p - o[1] + len(o)


@like_python
def named_tuple_in_loop(a, b):
    p = Pair(0, 1)
    while p.first < a:
        p = Pair(p.first + 1, p.first + p.second)
    return p.second + b


@like_python
def tuples(a, b):
    t = (a, b)
    u = (*t, 3) + (4,)  # noqa: RUF005
    v = u[1:] + u[::-1]
    first, *rest, last = v
    (p, q), r = t, u[-1]
    return first + 10 * len(rest) + last * 100 + sum(rest) + p * q + r + ((0, 5) * 2)[3]


@like_python
def tuple_comparison(a, b):
    r = 0
    if (a, 1) == (b, 1):
        r += 1
    if (a, b) < (b, a):
        r += 10
    if (a, 2, b) >= (3, 2, 1):
        r += 100
    if (a, b) != (a, b, 1):
        r += 1000
    if (1, a) < (2, b):
        r += 10000
    return r


@like_python
def membership(a, b):
    r = 0
    if a in (b, 3, 5):
        r += 1
    if a not in (1, 2):
        r += 10
    if 3 in (a, b):
        r += 100
    if a in range(1, 6):
        r += 1000
    if b in range(9, -7, -3):
        r += 10000
    return r + ("x" in {"x": a}) + (2 in (1, 2))


@like_python
def enumerations(a, b):
    r = 0
    for mode in (Mode.ADD, Mode.SUBTRACT):
        if mode is Mode.ADD:
            r += a
        elif mode == Mode.SUBTRACT:
            r = r * 2 - b
    return r + Factor.THREE * a + Mode(2).value + len(Mode["ADD"].name) + sum(m.value for m in Mode)


@like_python
def dicts(a, b):
    d = {"x": a, "y": b}
    e = {**d, "x": 1, 3: a}
    total = 0
    for key, value in e.items():
        total = total * 3 + (value if key != "y" else -value)
    for key in d:
        total += d[key]
    return total + d.get("z", 4) + len(e) + dict(p=a)["p"] + (d | {"x": 5})["x"] + sum(e.values())  # noqa: C408


@like_python
def dict_in_branch(a, b):
    d = {"k": a}
    if b > 2:
        d = {"k": a + b}
    return d["k"]


@like_python
def comprehensions(a, b):
    squares = [a * i for i in range(4) if i != 2]
    pairs = [(i, j) for i in (1, 2) for j in (a, b)]
    table = {i: a + i for i in range(3)}
    i = 100
    return sum(squares) + sum(x * y for x, y in pairs) + table[2] + sum([i * n for n in (1, 2)])


@like_python
def any_and_all(a, b):
    r = 0
    if any(x > 2 for x in (a, b)):
        r += 1
    if all(x > 2 for x in (a, b)):
        r += 10
    if any([]) or not all(()):
        r += 100
    return r


@like_python
def python_functions(a, b):
    q, m = divmod(a, 3)
    lists = list(reversed((a, b, 1)))
    mapped = tuple(map(lambda x, y: x * y, (a, 2), (b, a)))
    kept = tuple(filter(lambda n: n > 1, (1, 2, 3)))
    return (
        q * 100
        + m
        + lists[0] * 7
        + sum(mapped)
        + len(kept)
        + functools.reduce(operator.mul, (2, 3))
        + functools.reduce(lambda x, y: x * 2 + y, (a, b, 1), 5)
        + pow(a, 2)
        + math.isqrt(17)
        + sum(x * y for x, y in zip((a, b), (1, 2), strict=True))
    )


@like_python
def reversed_ranges(a, b):
    s = 0
    for i in reversed(range(a)):
        s = s * 2 + i
    for i in reversed(range(b, 9, 2)):
        s = s - i
    for i in reversed(range(5)):
        s += i * i
    return s


def scaled(x, factor, *, plus=0):
    return x * factor + plus


TRIPLED = functools.partial(scaled, factor=3)


@functools.cache
def cached(n):
    return n + 1


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) + 1

    return wrapper


@wrapped
def decorated(x, y=1):
    return x * y


@like_python
def partials_and_wrappers(a, b):
    local = functools.partial(scaled, a, plus=b)
    return TRIPLED(a) + TRIPLED(b, plus=1) + local(2) + local(3, plus=0) + decorated(a, y=b) + cached(3)


@like_python
def closures(a, b):
    def adder(n):
        def add(x):
            return x + n

        return add

    functions = (adder(1), adder(b), lambda x: x * a)
    r = a
    for f in functions:
        r = f(r)
    return r + (lambda *xs, **ys: sum(xs) + ys["k"])(a, b, k=1)


@like_python
def chosen_function(a, b):
    table = {"up": lambda x: x + 1, "down": lambda x: x - 1}
    return table["up"](a) * 10 + table["down"](b)


@like_python
def walrus(a, b):
    r = 0
    if (n := a + b) > 3:
        r = n
    while (a := a - 2) > 0:
        r += a
    return r + n + (m := b * 2) - m


@like_python
def strings(a, b):
    name = f"{'ab'!r:>6}{3:02d}"
    return a + len(name) + (b if name.startswith("  'ab'") else 0) + "x,y".count(",")


@like_python
def attributes_by_name(a, b):
    p = Point(a, b)
    r = getattr(p, "x") + getattr(p, "missing", 5)  # noqa: B009
    return r + (hasattr(p, "y") and 1) + isinstance(p, Point) + isinstance(3, int) + (type(p) is Point)


PAIRS = [(0, 0), (3, 1), (1, 3), (5, 5), (6, 2), (4, -5), (-3, 2)]


@tk.kernel
def at_run_time(out: tk.Tile1D, a: int, b: int, f: tk.Constant[object]):
    out.store(f(a, b))


@tk.kernel
def per_block(out: tk.Tile1D, a: tk.Tensor1D, b: tk.Tensor1D, f: tk.Constant[object]):
    out.store(f(tk.load(a, out.index, 1).item(), tk.load(b, out.index, 1).item()))


@tk.kernel
def at_compile_time(out: tk.Tile1D, a: tk.Constant[int], b: tk.Constant[int], f: tk.Constant[object]):
    out.store(f(a, b))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_python(function, run):
    a, b = (np.array(numbers, "i4") for numbers in zip(*PAIRS))
    expected = [function(x, y) for x, y in PAIRS]
    assert run(per_block, ((len(PAIRS),), "i4", 1), a, b, function).tolist() == expected
    for (x, y), wanted in zip(PAIRS[1:4], expected[1:4]):
        assert run(at_run_time, ((1,), "i4", 1), x, y, function)[0] == wanted, (x, y)
    assert run(at_compile_time, ((1,), "i4", 1), 3, 1, function)[0] == function(3, 1)


@dataclasses.dataclass(frozen=True)
class Softmax:
    """What goes on from block to block in a softmax: tiles in a record."""

    largest: tk.Tile
    total: tk.Tile

    def __post_init__(self):
        tk.static_assert(self.largest.shape == self.total.shape)

    def with_block(self, t):
        largest = tk.maximum(self.largest, tk.max(t, axis=1, keepdims=True))
        total = self.total * tk.exp(self.largest - largest)
        return Softmax(largest, total + tk.sum(tk.exp(t - largest), axis=1, keepdims=True))


@tk.kernel
def log_sum_exp(out: tk.Tile2D, x: tk.Tensor2D, width: tk.Constant[int]):
    state = Softmax(tk.full((4, 1), -1e30, tk.float32), tk.zeros((4, 1), tk.float32))
    for j in range(tk.num_tiles(x, 1, (4, width))):
        state = state.with_block(tk.load(x, (0, j), (4, width)))
    out.store(state.largest + tk.log(state.total))


def test_record_of_tiles_in_a_loop(run):
    x = np.random.default_rng(0).standard_normal((4, 32)).astype("f4")
    expected = np.log(np.exp(x.astype("f8")).sum(1, keepdims=True))
    assert np.allclose(run(log_sum_exp, ((4, 1), "f4", (4, 1)), x, 8), expected, rtol=1e-6)


@tk.kernel
def evaluated(out: tk.Tile1D, x: tk.Tensor1D):
    t = tk.load_like(x, out)
    table = tk.static_eval({n: math.factorial(n) for n in range(5)})
    side = tk.static_eval(max([s for s in (1, 2, 4, 8, 16) if s <= t.shape[0]]))
    chosen = tk.static_eval(t if t.dtype.is_float else None)
    tk.static_assert(tk.ensure_constant(side) == 4)
    out.store(chosen * table[4] + side)


def test_static_eval(run):
    assert run(evaluated, ((4,), "f4", 4), np.arange(4, dtype="f4")).tolist() == [4, 28, 52, 76]


def test_made_records_are_no_captures():
    """What a kernel makes itself is not compared again at every launch."""
    from tilekern.frontend import ScalarSpec, source_of, translate

    def kernel(a):
        tk.assert_(Point(a).moved(3).x * Point(1).x > 0)  # noqa: PT009

    program = translate(source_of(kernel), [ScalarSpec(tk.int32)])
    assert {capture.name for capture in program.captures} <= {"Point", "__code__", "moved"}
