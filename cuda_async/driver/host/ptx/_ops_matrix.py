"""mma.sync, ldmatrix, stmatrix and movmatrix: small matrices spread over the lanes of a warp.

A *fragment* is the part of a matrix that one lane holds, as elements in the order of its registers. The
functions below give, for each kind of fragment, the row and column of every element, from the figures in PTX
ISA, "Matrix Fragments for mma". With g = lane / 4 and t = lane % 4:

- accumulators have rows g and g + 8 and columns 2 t, 2 t + 1;
- multiplicands hold as many neighbours along K as fit a register, `t` counting these groups; the second half
  of the rows (A only) comes before the second half of K, except where one register holds one element.

Products are exact and sums are rounded once, to the type of the accumulator: hardware sums in an order and
with a precision that it does not promise.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ._lanes import Array
from ._ops_memory import spaces_of
from ._ops_warp import write_lanes
from ._semantics import UnsupportedInstruction
from ._syntax import Instruction, Operand, Tuple
from ._translate import Destination, Handler, Source, Translator

if TYPE_CHECKING:
    from ._code import Step
    from ._lanes import Group

__all__ = [
    "ELEMENTS",
    "HANDLERS",
    "accumulator_positions",
    "elements_of",
    "gate_whole_warps",
    "multiplicand_positions",
    "pack_results",
    "to_fragments",
]

ELEMENTS: dict[str, tuple[Any, int]] = {
    "f16": (np.float16, 16),
    "bf16": (ml_dtypes.bfloat16, 16),
    "tf32": (np.float32, 32),
    "f32": (np.float32, 32),
    "f64": (np.float64, 64),
    "s32": (np.int32, 32),
    "s8": (np.int8, 8),
    "u8": (np.uint8, 8),
    "e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "e5m2": (ml_dtypes.float8_e5m2, 8),
}
"""Element types: how NumPy sees them, and their bits."""

_LANE = np.arange(32)
_GROUP, _THREAD = _LANE // 4, _LANE % 4
_TF32 = np.uint32(0xFFFFE000)
_UNIT = np.dtype(np.complex128)

_SHAPES: dict[str, frozenset[str]] = {
    "f16": frozenset(("m16n8k8", "m16n8k16")),
    "bf16": frozenset(("m16n8k8", "m16n8k16")),
    "tf32": frozenset(("m16n8k4", "m16n8k8")),
    "f64": frozenset(("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")),
    "s8": frozenset(("m8n8k16", "m16n8k16", "m16n8k32")),
    "u8": frozenset(("m8n8k16", "m16n8k16", "m16n8k32")),
    "e4m3": frozenset(("m16n8k16", "m16n8k32")),
    "e5m2": frozenset(("m16n8k16", "m16n8k32")),
}


@cache
def multiplicand_positions(rows: int, depth: int, bits: int) -> tuple[Array, Array]:
    """(row, k) of every element of a fragment, each of shape (32, elements); rows are columns for B."""
    per_register = max(1, 32 // bits)
    count = rows * depth // 32
    element = np.arange(count)
    inside, register = element % per_register, element // per_register
    high = rows // 8
    row = _GROUP[:, None] + 8 * (register % high)
    k = _THREAD[:, None] * per_register + inside + 4 * per_register * (register // high)
    return row, k


@cache
def accumulator_positions(rows: int, columns: int) -> tuple[Array, Array]:
    """(row, column) of every element of an accumulator fragment, each of shape (32, elements)."""
    count = rows * columns // 32
    element = np.arange(count)
    high = rows // 8
    row = _GROUP[:, None] + 8 * (element // 2 % high)
    column = 2 * _THREAD[:, None] + element % 2 + 8 * (element // (2 * high))
    return row, column


def to_fragments(matrices: Array, row: Array, column: Array) -> Array:
    """Elements per lane, (warps, 32, elements)."""
    fragments: Array = matrices[:, row, column]
    return fragments


def elements_of(group: Group, sources: list[Source], name: str) -> list[Array]:
    """The registers of an operand as (warps, 32, elements of a register), widened to float64."""
    dtype, _ = ELEMENTS[name]
    registers = []
    for source in sources:
        raw = np.ascontiguousarray(group.spread(source.read(group)))
        if name == "tf32":
            raw = raw & _TF32
        registers.append(raw.view(dtype).astype(np.float64).reshape(group.wave.size // 32, 32, -1))
    return registers


def _matrix(group: Group, sources: list[Source], name: str, row: Array, column: Array, shape: Any) -> Array:
    values = np.concatenate(elements_of(group, sources, name), axis=2)
    matrices: Array = np.zeros((values.shape[0], *shape))
    matrices[:, row, column] = values
    return matrices


def pack_results(group: Group, fragments: Array, name: str, destinations: list[Destination | None]) -> None:
    """Round float64 elements to a type and write them to registers."""
    dtype, bits = ELEMENTS[name]
    per_register = max(1, 32 // bits)
    unit = np.dtype(f"u{max(4, bits // 8)}")
    whole = fragments.astype(np.int64) if name == "s32" else fragments
    rounded = whole.astype(dtype)
    lanes = rounded.reshape(-1, fragments.shape[2])
    for number, destination in enumerate(destinations):
        part = np.ascontiguousarray(lanes[:, number * per_register : (number + 1) * per_register])
        value = part.view(unit).reshape(-1)
        if name == "f32":
            value = np.where(np.isnan(part.reshape(-1)), np.uint32(0x7FFFFFFF), value)
        write_lanes(group, destination, value)


def _registers(t: Translator, operand: Operand, count: int, bits: int) -> list[Source]:
    parts = list(operand.elements) if isinstance(operand, Tuple) else [operand]
    if len(parts) != count:
        raise UnsupportedInstruction(f"{count} registers are expected, {len(parts)} are given")
    return [t.source(part, f"b{max(32, bits)}") for part in parts]


def _mma(t: Translator, instruction: Instruction) -> Step:
    match = re.fullmatch(
        r"sync\.aligned\.(m\d+n\d+k\d+)\.row\.col(?:\.(satfinite))?"
        r"(?:\.kind::f8f6f4)?\.(\w+)\.(\w+)\.(\w+)\.(\w+)(?:\.rn)?",
        ".".join(instruction.modifiers),
    )
    if match is None or len(instruction.operands) != 4:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    shape, saturate, d_type, a_type, b_type, c_type = match.groups()
    m, n, k = (int(part) for part in re.findall(r"\d+", shape))
    if shape not in _SHAPES.get(a_type, ()) or shape not in _SHAPES.get(b_type, ()):
        known = {name: sorted(shapes) for name, shapes in _SHAPES.items()}
        raise UnsupportedInstruction(f"mma of shape {shape} on .{a_type}; known are {known}")
    accumulators = {"f64": ("f64",), "s8": ("s32",), "u8": ("s32",), "bf16": ("f32",), "tf32": ("f32",)}
    allowed = accumulators.get(a_type, ("f16", "f32"))
    if d_type not in allowed or c_type not in allowed:
        raise UnsupportedInstruction(f"accumulators of .{d_type} and .{c_type} for .{a_type}")
    a_bits, b_bits, c_bits = ELEMENTS[a_type][1], ELEMENTS[b_type][1], ELEMENTS[c_type][1]
    d_bits = ELEMENTS[d_type][1]

    def count(elements: int, bits: int) -> int:
        return max(1, elements // 32 // max(1, 32 // bits))

    d, a, b, c = instruction.operands
    d_parts = list(d.elements) if isinstance(d, Tuple) else [d]
    if len(d_parts) != count(m * n, d_bits):
        raise UnsupportedInstruction(f"{count(m * n, d_bits)} destination registers are expected")
    destinations = [t.destination(part, f"b{max(32, d_bits)}") for part in d_parts]
    a_sources = _registers(t, a, count(m * k, a_bits), a_bits)
    b_sources = _registers(t, b, count(n * k, b_bits), b_bits)
    c_sources = _registers(t, c, count(m * n, c_bits), c_bits)
    a_row, a_k = multiplicand_positions(m, k, a_bits)
    b_column, b_k = multiplicand_positions(n, k, b_bits)
    row, column = accumulator_positions(m, n)

    def step(group: Group) -> None:
        left = _matrix(group, a_sources, a_type, a_row, a_k, (m, k))
        right = _matrix(group, b_sources, b_type, b_k, b_column, (k, n))
        total = left @ right + _matrix(group, c_sources, c_type, row, column, (m, n))
        if saturate and d_type == "s32":
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        pack_results(group, to_fragments(total, row, column), d_type, destinations)

    gate_whole_warps(t)
    return step


def gate_whole_warps(t: Translator) -> None:
    """All lanes of a warp take part in `.aligned` instructions."""
    every = np.array([0xFFFFFFFF], np.uint32)
    t.current.gate = lambda group: group.wave.warp_ready(group, every)


# ---------------------------------------------------------------------------- loads and stores


def _matrix_access(t: Translator, instruction: Instruction) -> tuple[Any, int, bool]:
    """(space, number of matrices, transposed) of ldmatrix and stmatrix."""
    space, rest = spaces_of(instruction.modifiers)
    transposed = "trans" in rest
    rest = [m for m in rest if m not in ("sync", "aligned", "trans")]
    counts = {"x1": 1, "x2": 2, "x4": 4}
    if len(rest) != 3 or rest[0] != "m8n8" or rest[1] not in counts or rest[2] != "b16":
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    gate_whole_warps(t)
    return space, counts[rest[1]], transposed


def _rows_taking_part(group: Group, count: int) -> tuple[Array, Array]:
    """Positions of the lanes whose addresses count, and their lanes in the wave."""
    positions = group.active
    if positions is None:
        positions = np.arange(group.size)
    lanes = positions if group.lanes is None else group.lanes[positions]
    chosen = lanes % 32 < 8 * count
    return positions[chosen], lanes[chosen]


def _ldmatrix(t: Translator, instruction: Instruction) -> Step:
    space, count, transposed = _matrix_access(t, instruction)
    d, address = instruction.operands
    parts = list(d.elements) if isinstance(d, Tuple) else [d]
    if len(parts) != count:
        raise UnsupportedInstruction(f"{count} destination registers are expected")
    destinations = [t.destination(part, "b32") for part in parts]
    locate = t.address(address)

    def step(group: Group) -> None:
        positions, lanes = _rows_taking_part(group, count)
        loaded = space.load(group, group.full(locate(group)), positions, _UNIT)
        rows = np.zeros(group.wave.size, _UNIT)
        rows[lanes] = loaded
        warps = rows.reshape(-1, 32)
        for number, destination in enumerate(destinations):
            matrix = np.ascontiguousarray(warps[:, 8 * number : 8 * number + 8]).view(np.uint16)
            matrix = matrix.reshape(-1, 8, 8)
            if transposed:
                matrix = np.ascontiguousarray(matrix.transpose(0, 2, 1))
            write_lanes(group, destination, matrix.reshape(-1).view(np.uint32))

    return step


def _stmatrix(t: Translator, instruction: Instruction) -> Step:
    space, count, transposed = _matrix_access(t, instruction)
    address, r = instruction.operands
    sources = _registers(t, r, count, 32)
    locate = t.address(address)

    def step(group: Group) -> None:
        positions, lanes = _rows_taking_part(group, count)
        rows = np.zeros((group.wave.size // 32, 32), _UNIT)
        for number, source in enumerate(sources):
            raw = np.ascontiguousarray(group.spread(source.read(group)))
            matrix = raw.view(np.uint16).reshape(-1, 8, 8)
            if transposed:
                matrix = matrix.transpose(0, 2, 1)
            rows[:, 8 * number : 8 * number + 8] = np.ascontiguousarray(matrix).view(_UNIT).reshape(-1, 8)
        space.store(group, group.full(locate(group)), positions, rows.reshape(-1)[lanes])

    return step


def _movmatrix(t: Translator, instruction: Instruction) -> Step:
    if instruction.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    destination = t.destination(instruction.operands[0], "b32")
    source = t.source(instruction.operands[1], "b32")
    gate_whole_warps(t)

    def step(group: Group) -> None:
        raw = np.ascontiguousarray(group.spread(source.read(group)))
        matrix = raw.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
        write_lanes(group, destination, np.ascontiguousarray(matrix).reshape(-1).view(np.uint32))

    return step


HANDLERS: dict[str, Handler] = {
    "mma": _mma,
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "movmatrix": _movmatrix,
}
