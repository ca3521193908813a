"""Random tile kernels, with what NumPy says they give: the other two sides of the interpreter and the compiler.

A program is drawn from a seed: a geometry (tensors of rank 1 to 3 with ragged edges, cut into tiles of 16 elements by a
plain, prefix or mapped partition), a few inputs, which may be strided views, a chain of statements, and up to eight
outputs. Each statement is drawn together with its value in NumPy, for all tiles at once, written from the language's
documentation and not from the interpreter; float rounding comes from rational arithmetic. A value is exact, or has
an absolute tolerance per element; what is not exact is stored and used no further, so that no branch or rounding
hangs on its last bits.

What is counted as drawn is what an output, or memory that is written, hangs on.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from . import arithmetic as arithmetic
from . import cells as cells
from . import combine as combine
from . import control as control
from . import exact as exact
from . import memory as memory
from . import tiles as tiles
from .geometry import TILE, Array, Geometry, View, draw_view
from .program import (
    FLOATS,
    FP8,
    INTEGERS,
    OPERATIONS,
    Chunk,
    Memory,
    Program,
    Value,
    needed,
    numpy_type,
    wide,
)

__all__ = ["NOT_DRAWN", "OPERATIONS", "TILE", "Drawn", "Output", "Program", "draw", "wide"]

NOT_DRAWN = {
    "print": "gives no value",
    "printf": "gives no value",
    "mma_scaled": "only from sm_100 on",
}
"""Functions of the language that no program has, and why."""

MOST_OUTPUTS = 8


@dataclass
class Output:
    """A tensor that the program stores to: a view of memory that holds ones before."""

    dtype: str
    view: View
    expected: Array
    """All of the memory afterwards."""
    tolerance: Array | None


@dataclass
class Drawn:
    """A program: source text of the kernel `drawn`, what it is given, and what to expect.

    Attributes:
        number: the argument `n`.
        options: of the kernel. const_grid: the grid is compiled in.
        used: operations that matter for what the program gives.
    """

    seed: int
    source: str
    geometry: Geometry
    inputs: list[View]
    number: int
    outputs: list[Output]
    memories: list[Memory]
    options: dict[str, object] = field(default_factory=dict)
    const_grid: bool = False
    used: Counter[str] = field(default_factory=Counter)
    opening: list[str] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)

    def slice_of(self, output: int) -> list[str]:
        """The statements that an output hangs on, or one of the memories, which are counted behind the outputs."""
        if output < len(self.outputs):
            kept = [line for line in self.stores if f"o{output}." in line or "o" not in line.split(".")[0]]
            live = needed(self.chunks, set(re.findall(r"\bv\d+\b", "\n".join(kept))), set())
        else:
            kept = []
            live = needed(self.chunks, set(), {self.memories[output - len(self.outputs)].name})
        lines = [line for place in sorted(live) for line in self.chunks[place].lines]
        return [*self.opening, *lines, *kept]


def draw(seed: int, statements: int = 12, first: str | None = None) -> Drawn:
    """The program of a seed, of about so many operations; `first` is drawn for certain."""
    p = Program(seed)
    r = p.random
    dependent = r.random() < 0.06
    with np.errstate(all="ignore"):
        for dtype in (r.choice(INTEGERS), r.choice(FLOATS), r.choice([*INTEGERS, *FLOATS, *FP8, "bool_"])):
            p.input(dtype)
        names = list(OPERATIONS)
        chosen = [r.choice(names) for _ in range(statements)]
        r.shuffle(chosen)
        if first:
            chosen.insert(r.randrange(statements // 2, statements), first)
        for name in chosen:
            p.perform(name)
        for memory_name, store in (("c", "store"), ("q", "pointer_store")):
            if memory_name in p.memories and not p.memories[memory_name].is_written:
                p.perform(store)  # what is given to be written has to be
        outputs = _outputs(p)
        stores, expected, extra = _stores(p, outputs)
    opening = _opening(p, len(outputs))
    body = [*opening, *_indented(p, [*p.lines, *stores])]
    if dependent:
        body.insert(0, "    tk.grid_dependency_control_wait()")
        body.append("    tk.grid_dependency_control_launch_dependents()")
        extra += Counter({"grid_dependency_control_wait": 1, "grid_dependency_control_launch_dependents": 1})
    rank = p.geometry.rank
    kind = "Tiles" if p.geometry.mode == "mapped" else "Tile"
    parameters = [f"o{i}: tk.{kind}{rank}D" for i in range(len(outputs))]
    parameters += [f"x{i}: tk.Tensor{rank}D" for i in range(len(p.inputs))]
    parameters += [f"{m.name}: {m.annotation}" for m in p.memories.values()]
    header = f"import dataclasses\n\nimport tilekern as tk\n\n\n{control.HELPERS}\n\n@tk.kernel\n"
    source = f"{header}def drawn({', '.join(parameters)}, n: int):\n" + "\n".join(body) + "\n"
    options: dict[str, object] = {}
    if dependent:
        options["programmatic_dependent_launch"] = True
    if r.random() < 0.1:
        options["checks_in_place"] = True
    const_grid = p.geometry.mode == "plain" and r.random() < 0.1
    used = p.reaching(outputs) + extra
    drawn = Drawn(seed, source, p.geometry, p.inputs, p.number, expected, list(p.memories.values()))
    drawn.options, drawn.const_grid, drawn.used = options, const_grid, used
    drawn.opening, drawn.chunks, drawn.stores = opening, p.chunks, stores
    return drawn


def _outputs(p: Program) -> list[Value]:
    """Values to store: those that nothing else is made of first, the latest first."""
    unused = p.unused()
    inexact = [v for v in reversed(p.kept) if v.shape == (TILE,)][:4]
    whole = [v for v in reversed(p.values) if v.shape == (TILE,)]
    found = [*inexact, *[v for v in whole if v.name in unused], *[v for v in whole if v.name not in unused]]
    return found[: MOST_OUTPUTS if len([v for v in whole if v.name in unused]) > 2 else 5]


def _opening(p: Program, outputs: int) -> list[str]:
    """What gives a program its tile: `i0`, `i1`, ..., their number `b`, and `index` in a mapped one."""
    geometry = p.geometry
    rank = geometry.rank
    lines: list[str] = []
    if geometry.mode != "mapped":
        source = p.random.choice(["tk.bid({})", "o0.index[{}]"])
        lines += [f"    i{axis} = {source.format(axis)}" for axis in range(rank)]
        counts = [f"tk.num_blocks({axis})" for axis in range(rank)]
        indent = "    "
    else:
        others = ", ".join(f"o{i}" for i in range(1, outputs))
        walk = f"o0.iter_indices_with({others})" if others else "o0.iter_indices()"
        walked = [axis for axis in range(rank) if axis not in geometry.free]
        lines += [
            f"    for place in {walk}:",
            f"        {', '.join(f'i{a}' for a in walked)}, = place.components()",
        ]
        indent = "        "
        for axis in geometry.free:
            lines += [
                f"        for i{axis} in range(tk.num_tiles(x0, {axis}, {p.tile()})):",
            ]
            indent += "    "
        at = f"place.at({', '.join(f'i{a}' for a in geometry.free)})" if geometry.free else "place"
        lines.append(f"{indent}own = {at}")
        lines.append(f"{indent}index = ({', '.join(f'i{a}' for a in range(rank))},)")
        counts = [f"tk.num_tiles(x0, {axis}, {p.tile()})" for axis in range(rank)]
    number = "i0"
    for axis in range(1, rank):
        number = f"({number}) * {counts[axis]} + i{axis}"
    lines.append(f"{indent}b = {number}")
    return lines


def _indented(p: Program, lines: list[str]) -> list[str]:
    depth = 1 if p.geometry.mode != "mapped" else 2 + len(p.geometry.free)
    return ["    " * depth + line for line in lines]


def _stores(p: Program, outputs: list[Value]) -> tuple[list[str], list[Output], Counter[str]]:
    """Statements that store the outputs, what memory holds then, and what else they draw."""
    r, geometry = p.random, p.geometry
    lines: list[str] = []
    expected: list[Output] = []
    extra: Counter[str] = Counter()
    rows: Array | None = None
    place = ", own" if geometry.mode == "mapped" else ""
    inside = "own" if geometry.mode == "mapped" else ""
    leave_at = r.randrange(1, len(outputs)) if len(outputs) > 1 and r.random() < 0.15 else None
    for i, value in enumerate(outputs):
        if i == leave_at:
            limit = r.randrange(3)
            lines += [f"if b == {limit}:", "    continue" if geometry.mode == "mapped" else "    return"]
            rows = np.arange(p.blocks) != limit
            extra["early_return"] += 1
        array = value.array
        text = value.name if geometry.rank == 1 else f"{value.name}.reshape({p.tile()})"
        lines.append(f"o{i}.store({text}{place})")
        if value.dtype in INTEGERS and r.random() < 0.15:
            again = p.name()
            lines += [f"{again} = o{i}.load({inside})", f"o{i}.store({again} + {again}{place})"]
            array = array + array
            extra["load_own"] += 1
        shape, slices, order = draw_view(r, geometry.extents)
        view = View(np.ones(shape, numpy_type(value.dtype)), slices, order)
        after = view.base.copy()
        geometry.put(array, view.of(after), rows)
        tolerance = None
        if value.tolerance is not None:
            tolerance = np.zeros(shape)
            geometry.put(value.tolerance, view.of(tolerance), rows)
        expected.append(Output(value.dtype, view, after, tolerance))
    return lines, expected, extra
