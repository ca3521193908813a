"""wmma: matrix fragments whose layout is nobody's business.

PTX leaves open which lane holds which element, so the layout is ours: lane after lane, row by row, and from
the start again where fragments have more places than the matrix has elements (f16 operands).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ._lanes import Array
from ._ops_matrix import ELEMENTS, elements_of, gate_whole_warps, pack_results
from ._ops_memory import spaces_of
from ._semantics import UnsupportedInstruction
from ._syntax import Instruction, Operand, Tuple
from ._translate import Handler, Source, Translator, unsigned

if TYPE_CHECKING:
    from ._code import Step
    from ._lanes import Group

__all__ = ["HANDLERS"]

_SHAPES: dict[str, frozenset[str]] = {
    "f16": frozenset(("m16n16k16", "m8n32k16", "m32n8k16")),
    "bf16": frozenset(("m16n16k16", "m8n32k16", "m32n8k16")),
    "s8": frozenset(("m16n16k16", "m8n32k16", "m32n8k16")),
    "u8": frozenset(("m16n16k16", "m8n32k16", "m32n8k16")),
    "tf32": frozenset(("m16n16k8",)),
    "f64": frozenset(("m8n8k4",)),
}


def _parts(operand: Operand) -> list[Operand]:
    return list(operand.elements) if isinstance(operand, Tuple) else [operand]


def _extent(shape: str, matrix: str) -> tuple[int, int]:
    m, n, k = (int(part) for part in re.findall(r"\d+", shape))
    return {"a": (m, k), "b": (k, n)}.get(matrix, (m, n))


def _places(registers: int, bits: int, rows: int, columns: int) -> tuple[Array, Array]:
    """Row and column of every place of a fragment, each (32, places)."""
    per_lane = registers * max(1, 32 // bits)
    if per_lane * 32 < rows * columns:
        raise UnsupportedInstruction(f"{registers} registers for {rows} by {columns} elements of {bits} bits")
    number = np.arange(32 * per_lane).reshape(32, per_lane) % (rows * columns)
    return number // columns, number % columns


def _access(
    t: Translator, instruction: Instruction, matrix: str, registers: Operand, rest: list[Operand]
) -> Step:
    """wmma.load and wmma.store: one access for every place of the fragment."""
    space, words = spaces_of(instruction.modifiers[2:])
    words = [word for word in words if word not in ("sync", "aligned")]
    if len(words) != 3 or words[0] not in ("row", "col") or words[2] not in ELEMENTS:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    layout, shape, name = words
    if not any(shape in shapes for shapes in _SHAPES.values()):
        raise UnsupportedInstruction(f"shape {shape}")
    rows, columns = _extent(shape, matrix)
    bits = 32 if name == "tf32" else ELEMENTS[name][1]
    parts = _parts(registers)
    row, column = _places(len(parts), bits, rows, columns)
    locate = t.address(rest[0])
    stride = t.source(rest[1], "u32") if len(rest) > 1 else None
    default = columns if layout == "row" else rows
    major, minor = (row, column) if layout == "row" else (column, row)
    element = unsigned(bits)
    per_register = max(1, 32 // bits)
    register_type = f"b{max(32, bits)}"

    def addresses(group: Group, place: int) -> Array:
        base = group.full(locate(group))
        lead = np.uint64(default) if stride is None else group.full(stride.read(group)).astype(np.uint64)
        lane = np.arange(group.size) % 32 if group.lanes is None else group.lanes % 32
        offset = major[lane, place].astype(np.uint64) * lead + minor[lane, place].astype(np.uint64)
        found: Array = base + offset * np.uint64(element.itemsize)
        return found

    gate_whole_warps(t)
    if instruction.modifiers[0] == "load":
        destinations = [t.destination(part, register_type) for part in parts]

        def load(group: Group) -> None:
            where = group.active
            for number, destination in enumerate(destinations):
                first = number * per_register
                values = [
                    space.load(group, addresses(group, first + inner), where, element)
                    for inner in range(per_register)
                ]
                packed = np.stack(values, axis=1).view(unsigned(max(32, bits))).reshape(-1)
                if destination is not None:
                    destination.scatter(group, where, packed, keep=False)

        return load
    sources = [t.source(part, register_type) for part in parts]

    def store(group: Group) -> None:
        where = group.active
        for number, source in enumerate(sources):
            value = np.ascontiguousarray(group.full(source.read(group)))
            elements = value.view(element).reshape(group.size, per_register)
            for inner in range(per_register):
                chosen = np.ascontiguousarray(elements[:, inner])
                place = addresses(group, number * per_register + inner)
                space.store(group, place, where, chosen if where is None else chosen[where])

    return store


def _mma(t: Translator, instruction: Instruction) -> Step:
    words = [m for m in instruction.modifiers[1:] if m not in ("sync", "aligned", "rn")]
    saturate = "satfinite" in words
    words = [word for word in words if word != "satfinite"]
    if len(words) == 5:  # f16 operands are not named
        words[4:4] = ["f16", "f16"]
    if len(words) != 7 or len(instruction.operands) != 4:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    shape, d_type, a_type, b_type, c_type = words[2:]
    if shape not in _SHAPES.get(a_type, ()) or shape not in _SHAPES.get(b_type, ()):
        raise UnsupportedInstruction(f"wmma of shape {shape} on .{a_type} and .{b_type}")
    if d_type not in ELEMENTS or c_type not in ELEMENTS:
        raise UnsupportedInstruction(f"accumulators of .{d_type} and .{c_type}")
    d, *others = (_parts(operand) for operand in instruction.operands)
    names, matrices = (a_type, b_type, c_type), ("a", "b", "c")
    sources: list[list[Source]] = []
    places = []
    for parts, name, matrix in zip(others, names, matrices):
        bits = ELEMENTS[name][1]
        sources.append([t.source(part, f"b{max(32, bits)}") for part in parts])
        places.append(_places(len(parts), bits, *_extent(shape, matrix)))
    d_bits = ELEMENTS[d_type][1]
    destinations = [t.destination(part, f"b{max(32, d_bits)}") for part in d]
    row, column = _places(len(d), d_bits, *_extent(shape, "d"))
    gate_whole_warps(t)

    def step(group: Group) -> None:
        values = []
        for registers, name, matrix, (where_row, where_column) in zip(sources, names, matrices, places):
            fragments = np.concatenate(elements_of(group, registers, name), axis=2)
            whole = np.zeros((fragments.shape[0], *_extent(shape, matrix)))
            whole[:, where_row, where_column] = fragments
            values.append(whole)
        a, b, c = values
        total = a @ b + c
        if saturate and d_type == "s32":
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        pack_results(group, total[:, row, column], d_type, destinations)

    return step


def _wmma(t: Translator, instruction: Instruction) -> Step:
    match instruction.modifiers[:2]:
        case ("load", "a" | "b" | "c" as matrix):
            return _access(t, instruction, matrix, instruction.operands[0], list(instruction.operands[1:]))
        case ("store", "d"):
            address, registers, *stride = instruction.operands
            return _access(t, instruction, "d", registers, [address, *stride])
        case ("mma", _):
            return _mma(t, instruction)
    raise UnsupportedInstruction(f"{instruction.spelling} is not supported")


HANDLERS: dict[str, Handler] = {"wmma": _wmma}
