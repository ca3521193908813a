"""Random IR programs of integer scalars, loops, branches and tile accesses, and a way to run them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tilekern import ir
from tilekern.interpreter import TileHostFunction

TILE = (4, 2)
SLOTS = 48
"""Elements of the output; each `observe` writes one of its own."""

PRELUDE = """\
func @f(%p: ptr<f32>, %x_shape0: i32, %x_shape1: i32, %y_shape0: i32, %s: i32, %q: ptr<i32>) {
  %d0 = assume_bounded %x_shape0 lower=0 upper=none : i32
  %d1 = assume_bounded %x_shape1 lower=0 upper=none : i32
  %e0 = assume_bounded %y_shape0 lower=0 upper=none : i32
  %stride = constant value=1 : i32
  %x = make_tensor %p, [%d0, %d1], [%stride, %stride] : tensor<?x?xf32, [?, ?]>
  %y = make_tensor %p, [%e0], [] : tensor<?xf32, [1]>
  %v = make_view %x : view<4x2, tensor<?x?xf32, [?, ?]>>
  %w = make_view %y : view<4, tensor<?xf32, [1]>>
  %c0, %c1 = index_space %v : i32, i32
  %b0 = index_space %w : i32
  %out = make_tensor %q, [], [] : tensor<48xi32, [1]>
  %slots = make_view %out : view<1, tensor<48xi32, [1]>>
  %bid0 = block_id axis=0 : i32
  %bid1 = block_id axis=1 : i32
  %nb = num_blocks axis=0 : i32
  %tile = constant value=1.0 : tile<4x2xf32>
  %row = constant value=1.0 : tile<4xf32>
"""
BASIC = ["%d0", "%d1", "%e0", "%c0", "%c1", "%b0", "%s", "%bid0", "%bid1", "%nb"]


class _Writer:
    def __init__(self, draw, *, accesses: bool) -> None:
        self.draw = draw
        self.accesses = accesses
        self.lines: list[str] = []
        self.names = 0
        self.slots = 0

    def name(self) -> str:
        self.names += 1
        return f"%n{self.names}"

    def add(self, depth: int, text: str) -> None:
        self.lines.append("  " * (depth + 1) + text)

    def constant(self, depth: int, number: int) -> str:
        name = self.name()
        self.add(depth, f"{name} = constant value={number} : i32")
        return name

    def value(self, depth: int, pool: list[str]) -> str:
        if self.draw(st.integers(0, 3)) == 0:
            return self.constant(depth, self.draw(st.sampled_from([-1, 0, 1, 2, 3, 5, 1 << 30])))
        return self.draw(st.sampled_from(pool))

    def small(self, depth: int, pool: list[str]) -> str:
        """A value that bounds a loop: never large."""
        if self.draw(st.integers(0, 2)) == 0:
            return self.constant(depth, self.draw(st.integers(-1, 4)))
        return self.draw(st.sampled_from([v for v in pool if v in BASIC or v.startswith("%i")]))

    def arithmetic(self, depth: int, pool: list[str]) -> str:
        op = self.draw(
            st.sampled_from(
                ["add", "sub", "mul", "add", "sub", "min", "max", "floordiv", "mod", "truncdiv", "and", "neg"]
            )
        )
        name, left = self.name(), self.value(depth, pool)
        if op == "neg":
            self.add(depth, f"{name} = neg {left} : i32")
            return name
        right = self.value(depth, pool)
        if op in ("floordiv", "mod", "truncdiv"):
            one, safe = self.constant(depth, 1), self.name()
            self.add(depth, f"{safe} = max {right}, {one} : i32")
            right = self.draw(st.sampled_from([safe, self.constant(depth, self.draw(st.integers(1, 4)))]))
        self.add(depth, f"{name} = {op} {left}, {right} : i32")
        return name

    def index(self, depth: int, pool: list[str]) -> str:
        """What a tile index may look like: mostly counters, block indices, and what was computed last."""
        kind = self.draw(st.integers(0, 5))
        if kind == 0:
            return self.constant(depth, self.draw(st.integers(0, 2)))
        counters = [v for v in pool if v.startswith("%i")]
        if kind <= 3:
            return self.draw(st.sampled_from([*counters[-2:], "%bid0", "%bid1"]))
        return self.draw(st.sampled_from(pool[-3:]))

    def access(self, depth: int, pool: list[str]) -> None:
        name = self.name()
        if self.draw(st.booleans()):
            i, j = self.index(depth, pool), self.index(depth, pool)
            self.add(depth, f"{name} = store %v, %tile, [{i}, {j}], _ : token")
        else:
            self.add(depth, f"{name} = store %w, %row, [{self.index(depth, pool)}], _ : token")

    def observe(self, depth: int, pool: list[str]) -> None:
        if self.slots == SLOTS:
            return
        tile, at = self.name(), self.constant(depth, self.slots)
        self.slots += 1
        self.add(depth, f"{tile} = reshape {self.draw(st.sampled_from(pool))} : tile<1xi32>")
        self.add(depth, f"{tile}_t = store %slots, {tile}, [{at}], _ : token")

    def compare(self, depth: int, pool: list[str]) -> str:
        name, predicate = self.name(), self.draw(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
        self.add(
            depth,
            f"{name} = compare {self.value(depth, pool)}, {self.value(depth, pool)} predicate={predicate} : bool",
        )
        return name

    def block(self, depth: int, pool: list[str], size: int) -> list[str]:
        pool = list(pool)
        for _ in range(size):
            kinds = (
                ["arithmetic"] * 4 + ["use"] * 3 + (["for", "if", "while", "carried"] if depth < 3 else [])
            )
            kind = self.draw(st.sampled_from(kinds))
            if kind == "arithmetic":
                pool.append(self.arithmetic(depth, pool))
            elif kind == "use":
                (self.access if self.accesses else self.observe)(depth, pool)
            elif kind == "for":
                self.loop(depth, pool)
            elif kind == "while":
                self.while_(depth, pool)
            elif kind == "carried":
                pool.append(self.carried(depth, pool))
            else:
                pool += self.branch(depth, pool)
        return pool

    def loop(self, depth: int, pool: list[str]) -> None:
        lower, upper = self.small(depth, pool), self.small(depth, pool)
        step, counter = self.constant(depth, self.draw(st.sampled_from([1, 1, 1, 2, 3]))), f"%i{self.names}"
        self.add(depth, f"for {lower}, {upper}, {step}, [] ({counter}: i32) {{")
        self.block(depth + 1, [*pool, counter], self.draw(st.integers(1, 4)))
        if self.draw(st.integers(0, 4)) == 0:
            self.add(depth + 1, f"if {self.compare(depth + 1, [*pool, counter])} {{")
            self.add(depth + 2, "continue []")
            self.add(depth + 1, "} else {")
            self.add(depth + 2, "yield []")
            self.add(depth + 1, "}")
            self.block(depth + 1, [*pool, counter], 1)
        self.add(depth + 1, "continue []")
        self.add(depth, "}")

    def carried(self, depth: int, pool: list[str]) -> str:
        lower, upper, first = self.small(depth, pool), self.small(depth, pool), self.value(depth, pool)
        step, counter, result = self.constant(depth, 1), f"%i{self.names}", self.name()
        self.add(
            depth,
            f"{result} = for {lower}, {upper}, {step}, [{first}] : i32 ({counter}: i32, {result}_c: i32) {{",
        )
        inner = self.block(depth + 1, [*pool, counter, f"{result}_c"], self.draw(st.integers(1, 3)))
        self.add(depth + 1, f"continue [{self.draw(st.sampled_from(inner))}]")
        self.add(depth, "}")
        return result

    def while_(self, depth: int, pool: list[str]) -> None:
        """Counts up below a bound; may be left before."""
        first, upper, one = (
            self.constant(depth, self.draw(st.integers(-1, 2))),
            self.small(depth, pool),
            self.constant(depth, 1),
        )
        counter, more = f"%i{self.names}", self.name()
        self.add(depth, f"loop [{first}] ({counter}: i32) {{")
        self.add(depth + 1, f"{more} = compare {counter}, {upper} predicate=lt : bool")
        for condition in (more, None):
            if condition is None:
                if self.draw(st.booleans()):
                    break
                condition = self.compare(depth + 1, [*pool, counter])
            self.add(depth + 1, f"if {condition} {{")
            self.add(depth + 2, "yield []")
            self.add(depth + 1, "} else {")
            self.add(depth + 2, "break []")
            self.add(depth + 1, "}")
            self.block(depth + 1, [*pool, counter], self.draw(st.integers(1, 3)))
        following = self.name()
        self.add(depth + 1, f"{following} = add {counter}, {one} : i32")
        self.add(depth + 1, f"continue [{following}]")
        self.add(depth, "}")

    def branch(self, depth: int, pool: list[str]) -> list[str]:
        merged = self.name() if self.draw(st.booleans()) else ""
        condition = self.compare(depth, pool)
        self.add(depth, f"{merged} = if {condition} : i32 {{" if merged else f"if {condition} {{")
        for end in ("} else {", "}"):
            inner = self.block(depth + 1, pool, self.draw(st.integers(0, 3)))
            self.add(depth + 1, f"yield [{self.draw(st.sampled_from(inner)) if merged else ''}]")
            self.add(depth, end)
        return [merged] if merged else []


@st.composite
def programs(draw, *, accesses: bool) -> str:
    """A program's text: with tile accesses that may be out of range, or with values written to the output."""
    writer = _Writer(draw, accesses=accesses)
    pool = writer.block(0, BASIC, draw(st.integers(2, 7)))
    (writer.access if accesses else writer.observe)(0, pool)
    return PRELUDE + "\n".join(writer.lines) + "\n  return\n}\n"


@st.composite
def launches(draw) -> tuple[list[int], tuple[int, int, int]]:
    """Extents, the scalar, and the grid."""
    sizes = [draw(st.integers(0, 14)) for _ in range(3)]
    return [*sizes, draw(st.integers(-2, 6))], (draw(st.integers(0, 4)), draw(st.integers(1, 3)), 1)


class Memory:
    """Memory wherever one looks, and an output."""

    def __init__(self) -> None:
        self.out = np.zeros(SLOTS, "i4")

    def array(self, base, dtype, extents, strides, access):
        return self.out if np.dtype(dtype) == np.int32 else np.zeros(extents, dtype)


def run(function: ir.Function, numbers: list[int], grid: tuple[int, int, int]) -> list[int]:
    """What the interpreter leaves in the output."""
    memory = Memory()
    x0, x1, y0, s = numbers
    arguments = [np.array([0], "i8"), *[np.array([n], "i4") for n in (x0, x1, y0, s)], np.array([0], "i8")]
    for _ in TileHostFunction(function)._steps(arguments, grid, memory, None):
        pass
    return memory.out.tolist()
