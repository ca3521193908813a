"""A program being drawn, its values, and what NumPy needs to follow the language.

Every value is a row of 16 elements per tile that the program computes, whatever the shape of the tiles. A
statement, or several that belong together, is a chunk: it says which names it makes and whether it writes to
memory. From the end of the program back, chunks show what of it matters for an output, and only that is counted.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .geometry import TILE, Array, View, draw_geometry, draw_view

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64", "float16", "bfloat16"]
FP8 = ["float8_e4m3fn", "float8_e5m2"]
NUMBERS = INTEGERS + FLOATS
MOVED = [*NUMBERS, *FP8, "bool_"]
"""Types whose elements can be moved; fp8 does not compute."""


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy type of an element type of the language."""
    return (
        np.dtype(getattr(ml_dtypes, name))
        if "float8" in name or name == "bfloat16"
        else np.dtype(name.rstrip("_"))
    )


@dataclass
class Value:
    """A tile of a program: its name, element type, contents (a row per tile), and tolerance if it is not exact."""

    name: str
    dtype: str
    array: Array
    tolerance: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape[1:])

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclass
class Memory:
    """A tensor that the program is given to write to, or its address: what it holds before, and as it goes."""

    name: str
    dtype: str
    before: Array
    now: Array
    annotation: str
    is_written: bool = False


@dataclass(frozen=True)
class Chunk:
    """Statements that belong together: names they make and use, memory they access, and whether they write to it."""

    lines: tuple[str, ...]
    makes: frozenset[str]
    uses: frozenset[str]
    memory: frozenset[str]
    writes: bool


@dataclass
class Draw:
    """An operation that was drawn; its last chunk is the one that its result hangs on."""

    name: str
    chunk: int


def needed(chunks: list[Chunk], names: set[str], memory: set[str]) -> set[int]:
    """Which chunks it takes to make these names, and what these memories hold in the end."""
    names, memory = set(names), set(memory)
    live: set[int] = set()
    for place in range(len(chunks) - 1, -1, -1):
        chunk = chunks[place]
        if chunk.makes & names or (chunk.writes and chunk.memory & memory):
            live.add(place)
            names |= chunk.uses
            memory |= chunk.memory
    return live


def wide(array: Array) -> Array:
    """In a type that holds every value."""
    return array if array.dtype == np.float64 else array.astype(np.float32)


class Program:
    """A program being drawn."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.geometry = draw_geometry(self.random)
        self.blocks = self.geometry.count
        self.lines: list[str] = []
        self.chunks: list[Chunk] = []
        self.draws: list[Draw] = []
        self.values: list[Value] = []
        self.kept: list[Value] = []
        self.inputs: list[View] = []
        self.input_types: list[str] = []
        self.number = self.random.randrange(0, 6)
        self.memories: dict[str, Memory] = {}
        self.notes: dict[str, Any] = {}
        """What operations want to know of earlier ones of their kind."""
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def say(self, *lines: str, makes: tuple[Value, ...] = (), writes: bool = False) -> None:
        """Statements that belong together, the values they make, and whether they write to memory."""
        self.lines += lines
        text = "\n".join(lines)
        used, memory = (frozenset(re.findall(pattern, text)) for pattern in (r"\bv\d+\b", r"\b[cqm]\b"))
        self.chunks.append(Chunk(lines, frozenset(v.name for v in makes), used, memory, writes))
        for value in makes:
            (self.values if value.tolerance is None else self.kept).append(value)

    def new(self, dtype: str, array: Array, tolerance: Array | None = None) -> Value:
        """A value that a chunk will make."""
        return Value(self.name(), dtype, np.ascontiguousarray(array), tolerance)

    def add(self, dtype: str, text: str, array: Array, tolerance: Array | None = None) -> Value:
        """A statement that gives a new value."""
        value = self.new(dtype, array, tolerance)
        self.say(f"{value.name} = {text}", makes=(value,))
        return value

    def perform(self, name: str) -> None:
        """Draw an operation."""
        before = len(self.chunks)
        OPERATIONS[name](self)
        if len(self.chunks) > before:
            self.counted(name)

    def counted(self, name: str) -> None:
        """What the last chunk does is such an operation."""
        self.draws.append(Draw(name, len(self.chunks) - 1))

    def reaching(self, outputs: list[Value]) -> Counter[str]:
        """How often each operation was drawn that an output, or what is in memory afterwards, hangs on."""
        live = needed(self.chunks, {v.name for v in outputs}, set("cqm"))
        return Counter(draw.name for draw in self.draws if draw.chunk in live)

    def unused(self) -> set[str]:
        """Names that nothing else is made of."""
        used: set[str] = set()
        for chunk in self.chunks:
            used |= chunk.uses - chunk.makes
        return {v.name for v in [*self.values, *self.kept]} - used

    # -- values

    def pick(self, dtypes: list[str], shape: tuple[int, ...] | None = (TILE,)) -> Value:
        """An exact value of one of these types; a new constant where there is none."""
        found = [v for v in self.values if v.dtype in dtypes and shape in (None, v.shape)]
        if found and self.random.random() < 0.9:
            return self.random.choice(found[-12:])
        return self.constant(self.random.choice(dtypes), shape or (TILE,))

    def pick_like(self, value: Value) -> Value:
        return self.pick([value.dtype], value.shape)

    def constant(self, dtype: str, shape: tuple[int, ...]) -> Value:
        if dtype in FLOATS + FP8:
            number: Any = self.random.choice([0.0, -0.0, 0.5, 1.0, -3.0, 7.0, 96.0])
        elif dtype == "bool_":
            number = self.random.random() < 0.5
        else:
            number = self.random.randrange(0, 100)
        array = np.full((self.blocks, *shape), number, numpy_type(dtype))
        value = self.add(dtype, f"tk.full({shape}, {number!r}, tk.{dtype})", array)
        self.counted("full")
        return value

    def tile(self) -> str:
        """The shape of the program's tiles, as text."""
        return f"({', '.join(map(str, self.geometry.tile))},)"

    def flat(self, text: str, shape: tuple[int, ...] | None = None) -> str:
        """An expression of a tile of a shape, the program's own if none is given, as a row of 16."""
        return text if len(shape or self.geometry.tile) == 1 else f"{text}.reshape(({TILE},))"

    # -- inputs

    def _data(self, dtype: str, shape: tuple[int, ...]) -> Array:
        kind = numpy_type(dtype)
        numbers = self.numbers
        if dtype in FLOATS + FP8:
            whole = numbers.integers(-9, 9, shape).astype(np.float64)
            broken = numbers.normal(0, 4, shape)
            data = np.where(numbers.random(shape) < 0.3, whole, broken)
            special = np.array([*_SPECIAL, *_SPECIAL_OF.get(dtype, ())])
            if self.random.random() < 0.7:
                data = np.where(numbers.random(shape) < 0.2, numbers.choice(special, shape), data)
            if dtype in FP8:
                from .exact import converted

                return np.where(
                    np.isnan(data), np.nan, converted(data, dtype, kind).astype(np.float32)
                ).astype(kind)
            return data if dtype == "float64" else data.astype(np.float32).astype(kind)
        if dtype == "bool_":
            return numbers.random(shape) < 0.5
        limits = np.iinfo(kind)
        small = numbers.integers(max(limits.min, -20), 21, shape).astype(kind)
        extreme = numbers.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)
        array = np.where(numbers.random(shape) < 0.3, extreme, small)
        low, high = np.array(limits.min, kind), np.array(limits.max, kind)
        ends = np.where(numbers.random(shape) < 0.5, low, high)
        return np.where(numbers.random(shape) < 0.1, ends, array).astype(kind)

    def input(self, dtype: str) -> None:
        """A tensor to read, and this tile of it."""
        shape, slices, order = draw_view(self.random, self.geometry.extents)
        self.inputs.append(View(np.ascontiguousarray(self._data(dtype, shape)), slices, order))
        self.input_types.append(dtype)
        place = len(self.inputs) - 1
        array = self.geometry.cut(self.inputs[-1].array)
        if self.geometry.mode == "mapped":
            self.add(dtype, self.flat(f"tk.load(x{place}, index, {self.tile()})"), array)
            self.counted("load")
        else:
            self.add(dtype, self.flat(f"tk.load_like(x{place}, o0)"), array)
            self.counted("load_like")


_SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 65504.0, 1e-7, -3e-6, 448.0, -465.0, 61440.0, 0.0019]
_SPECIAL_OF = {
    # around the smallest normal and subnormal numbers, and the largest ones
    "float32": [1e-40, -1e-45, 2.0**-126, -(2.0**-127), 3.4e38, -3e38, 1.5e19],
    "bfloat16": [1e-40, -(2.0**-133), 2.0**-126, 3.3e38],
    "float64": [1e-310, -5e-324, 2.0**-1022, 1e308, 1e-40, 2.5e-45],
    "float16": [6e-8, -6e-5, 2.0**-14, 65472.0],
}

OPERATIONS: dict[str, Callable[[Program], None]] = {}


def operation(function: Callable[[Program], None]) -> Callable[[Program], None]:
    OPERATIONS[function.__name__.rstrip("_")] = function
    return function


def in_type(compute: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Integers wrap in their own type; 16-bit floats are computed in float32 and rounded once."""

    def computed(a: Array, b: Array) -> Array:
        if a.dtype.kind in "iu":
            return compute(a, b).astype(a.dtype)
        return compute(wide(a), wide(b)).astype(a.dtype)

    return computed


def _extreme(a: Array, b: Array, is_larger: bool, propagate: bool) -> Array:
    if a.dtype.kind in "iu":
        return np.maximum(a, b) if is_larger else np.minimum(a, b)
    x, y = wide(a), wide(b)
    sign = np.signbit(x) if is_larger else ~np.signbit(x)
    tie = np.where(sign, b, a)
    first, second = (x > y, y > x) if is_larger else (x < y, y < x)
    chosen = np.where(first, a, np.where(second, b, tie))
    if propagate:
        return np.where(np.isnan(x) | np.isnan(y), np.array(np.nan, a.dtype), chosen).astype(a.dtype)
    return np.where(np.isnan(x), b, np.where(np.isnan(y), a, chosen)).astype(a.dtype)


def larger(a: Array, b: Array, propagate: bool = True) -> Array:
    """A NaN wins, or, where it is not to be propagated, loses; +0 is larger than -0."""
    return _extreme(a, b, True, propagate)


def smaller(a: Array, b: Array, propagate: bool = True) -> Array:
    return _extreme(a, b, False, propagate)
