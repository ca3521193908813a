"""A program being drawn, its values, and what NumPy needs to follow the language."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

TILE = 16
SHARED = 64
"""Elements of the tensors that all blocks reach."""
Array = np.ndarray[Any, Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64", "float16", "bfloat16"]


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy type of an element type of the language."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name.rstrip("_"))


@dataclass
class Value:
    """A tile of a program: its name, element type, shape, contents (blocks first), and tolerance if it is not exact."""

    name: str
    dtype: str
    array: Array
    tolerance: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


def wide(array: Array) -> Array:
    """In a type that holds every value."""
    return array if array.dtype == np.float64 else array.astype(np.float32)


def flat_rounded(array: Array, dtype: str) -> Array:
    return array.astype(numpy_type(dtype))


class Program:
    """A program being drawn."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.length = self.random.choice([1, 7, 15, 16, 17, 31, 32, 33, 45, 48])
        self.blocks = -(-self.length // TILE)
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.kept: list[Value] = []
        self.inputs: list[Array] = []
        self.used: Counter[str] = Counter()
        self.number = self.random.randrange(0, 6)
        self.shared = np.zeros(SHARED, np.int32)
        self.shared_kind: str | None = None
        self.cells = np.full(SHARED, 5, np.int32)
        self.has_cells = False
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def say(self, line: str) -> None:
        self.lines.append(line)

    def add(self, dtype: str, text: str, array: Array, tolerance: Array | None = None) -> Value:
        """A statement that gives a new value."""
        value = Value(self.name(), dtype, np.ascontiguousarray(array), tolerance)
        self.say(f"{value.name} = {text}")
        (self.values if tolerance is None else self.kept).append(value)
        return value

    def pick(self, dtypes: list[str], shape: tuple[int, ...] | None = (TILE,)) -> Value:
        """An exact value of one of these types; a new constant where there is none."""
        found = [v for v in self.values if v.dtype in dtypes and shape in (None, v.shape)]
        if found and self.random.random() < 0.9:
            return self.random.choice(found[-12:])
        return self.constant(self.random.choice(dtypes), shape or (TILE,))

    def pick_like(self, value: Value) -> Value:
        return self.pick([value.dtype], value.shape)

    def constant(self, dtype: str, shape: tuple[int, ...]) -> Value:
        self.used["full"] += 1
        if dtype in FLOATS:
            number: Any = self.random.choice([0.0, -0.0, 0.5, 1.0, -3.0, 7.0, 100.0])
            text = repr(number)
        elif dtype == "bool_":
            number = self.random.random() < 0.5
            text = repr(number)
        else:
            number = self.random.randrange(0, 100)
            text = repr(number)
        array = np.full((self.blocks, *shape), number, numpy_type(dtype))
        return self.add(dtype, f"tk.full({shape}, {text}, tk.{dtype})", array)

    # -- inputs

    def input(self, dtype: str) -> Value:
        kind, n = numpy_type(dtype), self.length
        if dtype in FLOATS:
            whole = self.numbers.integers(-9, 9, n).astype(np.float64)
            broken = self.numbers.normal(0, 4, n)
            data = np.where(self.numbers.random(n) < 0.3, whole, broken)
            special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 65504.0, 1e-7])
            data = np.where(self.numbers.random(n) < 0.1, self.numbers.choice(special, n), data)
            array = data.astype(np.float32).astype(kind) if dtype != "float64" else data
        elif dtype == "bool_":
            array = self.numbers.random(n) < 0.5
        else:
            limits = np.iinfo(kind)
            small = self.numbers.integers(max(limits.min, -20), 21, n)
            array = small.astype(kind)
            extreme = self.numbers.integers(limits.min, limits.max, n, dtype=kind, endpoint=True)
            array = np.where(self.numbers.random(n) < 0.3, extreme, array)
            ends = np.where(
                self.numbers.random(n) < 0.5, np.array(limits.min, kind), np.array(limits.max, kind)
            )
            array = np.where(self.numbers.random(n) < 0.1, ends, array).astype(kind)
        self.inputs.append(np.ascontiguousarray(array))
        padded = np.zeros(self.blocks * TILE, kind)
        padded[:n] = array
        self.used["load_like"] += 1
        place = len(self.inputs) - 1
        return self.add(dtype, f"tk.load_like(x{place}, o0)", padded.reshape(self.blocks, TILE))


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


def larger(a: Array, b: Array) -> Array:
    """A NaN wins; +0 is larger than -0."""
    if a.dtype.kind in "iu":
        return np.maximum(a, b)
    x, y = wide(a), wide(b)
    tie = np.where(np.signbit(x), b, a)
    chosen = np.where(x > y, a, np.where(y > x, b, tie))
    return np.where(np.isnan(x) | np.isnan(y), np.array(np.nan, a.dtype), chosen).astype(a.dtype)


def smaller(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        return np.minimum(a, b)
    x, y = wide(a), wide(b)
    tie = np.where(np.signbit(x), a, b)
    chosen = np.where(x < y, a, np.where(y < x, b, tie))
    return np.where(np.isnan(x) | np.isnan(y), np.array(np.nan, a.dtype), chosen).astype(a.dtype)
