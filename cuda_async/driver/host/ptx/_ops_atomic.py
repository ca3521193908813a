"""atom and red: read-modify-write for many lanes at once.

The lanes of one instruction count as executing one after another in the order of the lanes; the order in
which threads perform atomics is open, so any order is right, and a fixed one can be reproduced. Where all
addresses differ, one vector operation does it. Otherwise lanes are sorted by address, and each address sees
its operands as a sequence:

- without a result wanted (`red`, or `_`), `ufunc.at` applies them;
- short sequences are done in rounds, the n-th operand of every address together;
- long ones one address at a time, with a cumulative operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ._lanes import Array
from ._ops_memory import named_space, spaces_of
from ._semantics import UnsupportedInstruction
from ._syntax import TYPE_BITS, Instruction, Operand, Tuple
from ._translate import Destination, Handler, Source, Translator, unsigned

if TYPE_CHECKING:
    from ._code import Step
    from ._lanes import Group, Lanes
    from ._spaces import Space

__all__ = ["HANDLERS"]

_ROUNDS = 12
"""An address with more operands than this in one instruction is done by itself."""


@dataclass(frozen=True)
class _Kind:
    """One read-modify-write operation on values.

    Attributes:
        dtype: type of a value in memory; packed types have two parts.
        parts: values per element: 2 for f16x2 and bf16x2.
        apply: new value from (old, b, c).
        ufunc: the same as a binary ufunc, where it is one.
        sequence: all the old values and the last new one, from (first old, all b, all c).
    """

    dtype: np.dtype[Any]
    parts: int
    apply: Callable[[Array, Array, Array], Array]
    ufunc: np.ufunc | None
    sequence: Callable[[Array, Array, Array], tuple[Array, Array]]


_FLOATS: dict[str, tuple[Any, int]] = {
    "f32": (np.float32, 1),
    "f64": (np.float64, 1),
    "f16": (np.float16, 1),
    "bf16": (ml_dtypes.bfloat16, 1),
    "f16x2": (np.float16, 2),
    "bf16x2": (ml_dtypes.bfloat16, 2),
}
_TYPES: dict[str, frozenset[str]] = {
    "add": frozenset(("u32", "s32", "u64", "s64", *_FLOATS)),
    "min": frozenset(("u32", "s32", "u64", "s64", "f16", "bf16", "f16x2", "bf16x2")),
    "max": frozenset(("u32", "s32", "u64", "s64", "f16", "bf16", "f16x2", "bf16x2")),
    "and": frozenset(("b32", "b64")),
    "or": frozenset(("b32", "b64")),
    "xor": frozenset(("b32", "b64")),
    "exch": frozenset(("b32", "b64", "b128")),
    "cas": frozenset(("b16", "b32", "b64", "b128")),
    "inc": frozenset(("u32",)),
    "dec": frozenset(("u32",)),
}


def _accumulated(ufunc: np.ufunc) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    def sequence(first: Array, b: Array, _: Array) -> tuple[Array, Array]:
        values = np.concatenate([first[None], b])
        if values.dtype == ml_dtypes.bfloat16:
            for number in range(1, values.shape[0]):
                values[number] = ufunc(values[number - 1], values[number])
        else:
            values = ufunc.accumulate(values, axis=0, dtype=values.dtype)
        return values[:-1], values[-1]

    return sequence


def _one_by_one(
    apply: Callable[[int, int, int], int],
) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    def sequence(first: Array, b: Array, c: Array) -> tuple[Array, Array]:
        value = int(first)
        old = []
        for left, right in zip(b.tolist(), c.tolist()):
            old.append(value)
            value = apply(value, left, right)
        return np.array(old, b.dtype), b.dtype.type(value)

    return sequence


def _exchanged(first: Array, b: Array, _: Array) -> tuple[Array, Array]:
    return np.concatenate([first[None], b[:-1]]), b[-1]


def _increment(old: Array, b: Array, _: Array) -> Array:
    return np.where(old >= b, np.uint32(0), old + np.uint32(1))


def _decrement(old: Array, b: Array, _: Array) -> Array:
    return np.where((old == 0) | (old > b), b, old - np.uint32(1))


def _kind(name: str, ptx_type: str) -> _Kind:
    if ptx_type not in _TYPES.get(name, ()):
        raise UnsupportedInstruction(f"atomic {name} of .{ptx_type} is not supported")
    if ptx_type in _FLOATS:
        base, parts = _FLOATS[ptx_type]
        ufunc = {"add": np.add, "min": np.fmin, "max": np.fmax}[name]
        usable = None if base is ml_dtypes.bfloat16 else ufunc
        return _Kind(np.dtype(base), parts, lambda o, b, _: ufunc(o, b), usable, _accumulated(ufunc))
    signed = ptx_type[0] == "s" and name in ("min", "max")
    dtype = np.dtype(f"{'i' if signed else 'u'}{TYPE_BITS[ptx_type] // 8}")
    ufuncs: dict[str, np.ufunc] = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    if name in ufuncs:
        integer = ufuncs[name]
        return _Kind(dtype, 1, lambda o, b, _: integer(o, b), integer, _accumulated(integer))
    if name == "exch":
        return _Kind(dtype, 1, lambda o, b, _: b, None, _exchanged)
    if name == "cas":
        return _Kind(
            dtype,
            1,
            lambda o, b, c: np.where(o == b, c, o),
            None,
            _one_by_one(lambda o, b, c: c if o == b else o),
        )
    if name == "inc":
        return _Kind(dtype, 1, _increment, None, _one_by_one(lambda o, b, _: 0 if o >= b else o + 1))
    return _Kind(dtype, 1, _decrement, None, _one_by_one(lambda o, b, _: b if o == 0 or o > b else o - 1))


def _update(kind: _Kind, window: Array, index: Lanes, b: Array, c: Array, wanted: bool) -> Array | None:
    """Perform the operations on elements `index` of `window`; gives the old values where wanted."""
    memory = window.view(kind.dtype)
    b, c = b.view(kind.dtype), c.view(kind.dtype)
    if kind.parts > 1:
        memory, b, c = (array.reshape(-1, kind.parts) for array in (memory, b, c))
    count = index.size
    if count == 1:
        old = memory[index]
        memory[index] = kind.apply(old, b, c)
        return old
    first = int(index[0])
    if int(np.minimum.reduce(index)) == int(np.maximum.reduce(index)):
        old, last = kind.sequence(memory[first], b, c)
        memory[first] = last
        return old
    if not wanted and kind.ufunc is not None and kind.parts == 1:
        kind.ufunc.at(memory, index, b)
        return None
    order = np.argsort(index, kind="stable")
    places = index[order]
    fresh = np.flatnonzero(places[1:] != places[:-1]) + 1
    if fresh.size == count - 1:
        old = memory[index]
        memory[index] = kind.apply(old, b, c)
        return old
    starts = np.concatenate([[0], fresh])
    sizes = np.diff(np.concatenate([starts, [count]]))
    old = np.empty((count, *memory.shape[1:]), kind.dtype)
    for number in range(min(int(sizes.max()), _ROUNDS)):
        lanes = order[starts[(sizes > number) & (sizes <= _ROUNDS)] + number]
        target = index[lanes]
        before = memory[target]
        old[lanes] = before
        memory[target] = kind.apply(before, b[lanes], c[lanes])
    for segment in np.flatnonzero(sizes > _ROUNDS).tolist():
        lanes = order[starts[segment] : starts[segment] + sizes[segment]]
        target = int(index[lanes[0]])
        old[lanes], memory[target] = kind.sequence(memory[target], b[lanes], c[lanes])
    return old


def _atomic(t: Translator, instruction: Instruction) -> Step:
    has_result = instruction.opcode == "atom"
    if instruction.opcode == "red" and instruction.modifiers[:1] == ("async",):
        raise UnsupportedInstruction("red.async is not supported")
    space, rest = spaces_of(instruction.modifiers)
    hint = any(m.startswith("L2::cache_hint") for m in instruction.modifiers)
    rest = [m for m in rest if m != "noftz"]
    vector = 1
    for name in ("v2", "v4", "v8"):
        if name in rest:
            vector = int(name[1:])
            rest.remove(name)
    if len(rest) != 2 or rest[1] not in TYPE_BITS:
        raise UnsupportedInstruction(f"the modifiers of {instruction.spelling} are not known")
    name, ptx_type = rest
    operands = list(instruction.operands)
    if hint:
        operands.pop()
    wanted = 1 + has_result + (2 if name == "cas" else 1)
    if len(operands) != wanted:
        raise UnsupportedInstruction(f"{instruction.spelling} takes {wanted} operands")
    space = named_space(space, operands[int(has_result)])
    if ptx_type == "b128":
        return _atomic_128(t, instruction, space, operands, name)
    kind = _kind(name, ptx_type)
    target = operands.pop(0) if has_result else None
    address = t.address(operands[0])
    bits = TYPE_BITS[ptx_type]
    dtype = unsigned(bits)
    values = [_parts(operand, vector) for operand in operands[1:]]
    sources = [[t.source(part, ptx_type) for part in parts] for parts in values]
    destinations = _destinations(t, target, vector, ptx_type)
    guard = t.guard(instruction)

    def step(group: Group) -> None:
        where = group.active if guard is None else group.selected(group.registers[guard[0]], guard[1])
        if where is not None and not where.size:
            return
        places = address(group)
        for number in range(vector):
            here = places if number == 0 else places + np.uint64(number * dtype.itemsize)
            operand_values = [_lanes_of(group, source[number], where) for source in sources]
            destination = destinations[number]
            old = _perform(group, space, kind, dtype, here, where, operand_values, destination is not None)
            if destination is not None and old is not None:
                destination.scatter(group, where, old, guard is not None)

    return step


def _parts(operand: Operand, vector: int) -> list[Operand]:
    if vector == 1:
        return [operand]
    if not isinstance(operand, Tuple) or len(operand.elements) != vector:
        raise UnsupportedInstruction(f"a vector of {vector} registers is expected here")
    return list(operand.elements)


def _destinations(
    t: Translator, target: Operand | None, vector: int, ptx_type: str
) -> list[Destination | None]:
    if target is None:
        return [None] * vector
    found = [t.destination(part, ptx_type) for part in _parts(target, vector)]
    return [destination if t.is_wanted(destination) else None for destination in found]


def _lanes_of(group: Group, source: Source, where: Lanes | None) -> Array:
    """An operand with an element per lane that takes part."""
    value = source.read(group)
    if value.size == 1:
        return np.repeat(value, group.size if where is None else where.size)
    return np.ascontiguousarray(value) if where is None else value[where]


def _perform(
    group: Group,
    space: Space,
    kind: _Kind,
    dtype: np.dtype[Any],
    address: Array,
    where: Lanes | None,
    values: list[Array],
    wanted: bool,
) -> Array | None:
    b = values[0]
    c = values[1] if len(values) > 1 else b
    regions = space.regions(group, group.full(address), where, dtype, "write")
    if len(regions) == 1 and regions[0].which is None:
        old = _update(kind, regions[0].window, regions[0].elements, b, c, wanted)
        return None if old is None else old.view(dtype).reshape(-1)
    result = np.empty(b.size, dtype)
    for window, index, which in regions:
        assert which is not None
        old = _update(kind, window, index, b[which], c[which], wanted)
        if old is not None:
            result[which] = old.view(dtype).reshape(-1)
    return result


def _atomic_128(
    t: Translator, instruction: Instruction, space: Space, operands: list[Operand], name: str
) -> Step:
    """Exchange and compare-and-swap of 16 bytes, lane by lane."""
    if name not in ("cas", "exch") or instruction.opcode != "atom":
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    address = t.address(operands[1])
    halves = [_parts(operand, 2) for operand in operands[2:]]
    sources = [[t.source(half, "b64") for half in pair] for pair in halves]
    destinations = [t.destination(half, "b64") for half in _parts(operands[0], 2)]
    guard = t.guard(instruction)
    unit = np.dtype(np.complex128)

    def step(group: Group) -> None:
        where = group.active if guard is None else group.selected(group.registers[guard[0]], guard[1])
        if where is not None and not where.size:
            return
        values = [np.stack([_lanes_of(group, half, where) for half in pair], axis=1) for pair in sources]
        old = np.empty_like(values[0])
        for window, index, which in space.regions(group, group.full(address(group)), where, unit, "write"):
            memory = window.view(np.uint64).reshape(-1, 2)
            lanes = range(old.shape[0]) if which is None else which.tolist()
            for lane, place in zip(lanes, index.tolist()):
                old[lane] = memory[place]
                if name == "exch":
                    memory[place] = values[0][lane]
                elif (old[lane] == values[0][lane]).all():
                    memory[place] = values[1][lane]
        for number, destination in enumerate(destinations):
            if destination is not None:
                destination.scatter(group, where, old[:, number].copy(), guard is not None)

    return step


HANDLERS: dict[str, Handler] = {"atom": _atomic, "red": _atomic}
