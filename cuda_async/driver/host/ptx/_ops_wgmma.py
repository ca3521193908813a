"""wgmma: matrix products of four warps, with operands in shared memory.

A 64-bit descriptor says where an operand lies: start address, two strides and the swizzle. All parts of an
operand are 16-byte chunks, which is what swizzling moves around: chunk addresses get the bits above the
128-byte line mixed into the bits of the chunk's place in it. PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions", "Matrix Descriptor Format"; with T = 16 bytes / element size and W = width of the swizzle:

- K-major: element (row, k) is in chunk k / T of its row. Swizzled, rows are W bytes apart and groups of eight
  rows one stride. Without swizzle, rows are 16 bytes apart, groups of eight rows one stride, and chunks one
  leading dimension.
- M- or N-major (16-bit types): element (k, row) is in chunk row / T of its k. Swizzled, chunks follow each
  other up to W bytes and then go on one leading dimension further; k are W bytes apart, groups of eight k
  one stride. Without swizzle, chunks are one stride apart, k 16 bytes, groups of eight k one leading
  dimension.

The product is done at once, which every later wait allows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ._lanes import Array
from ._ops_matrix import (
    ELEMENTS,
    accumulator_positions,
    elements_of,
    gate_whole_warps,
    multiplicand_positions,
    pack_results,
    to_fragments,
)
from ._semantics import UnsupportedInstruction
from ._spaces import SHARED
from ._syntax import Immediate, Instruction, Tuple
from ._translate import Handler, Source, Translator

if TYPE_CHECKING:
    from ._code import Step
    from ._lanes import Group, Lanes

__all__ = ["HANDLERS"]

_UNIT = np.dtype(np.complex128)
_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
_WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}
"""Swizzle field of a descriptor -> bytes of a swizzled row."""
_TF32 = np.uint32(0xFFFFE000)


def _chunk_offsets(rows: int, chunks: int, major: str, leading: Lanes, stride: Lanes, width: int) -> Array:
    """Byte offsets of the chunks of an operand, (descriptors, slices, chunks of a slice).

    A slice is a row of K-major operands and a k of the others.
    """
    outer = np.arange(rows if major == "k" else chunks)[:, None]
    inner = np.arange(chunks if major == "k" else rows)[None, :]
    leading, stride = leading[:, None, None], stride[:, None, None]
    groups, within = outer // 8, outer % 8
    if major == "k":
        if width > 16:
            return groups * stride + within * width + inner * 16
        return groups * stride + within * 16 + inner * leading
    per_row = width // 16
    if width > 16:
        return groups * stride + within * width + inner % per_row * 16 + inner // per_row * leading
    return groups * leading + within * 16 + inner * stride


def _operand(
    group: Group, descriptors: Array, leaders: Lanes, rows: int, name: str, transposed: bool
) -> Array:
    """The operand's values as (warpgroups, rows, k), in float64."""
    dtype, bits = ELEMENTS[name]
    per_chunk = 128 // bits
    depth = _DEPTH[name]
    out = np.zeros((descriptors.size, rows, depth))
    swizzle = (descriptors >> np.uint64(62)).astype(np.int64)
    fields = [
        ((descriptors >> np.uint64(at)) & np.uint64(0x3FFF)).astype(np.int64) << 4 for at in (0, 16, 32)
    ]
    for number in np.unique(swizzle).tolist():
        chosen = np.flatnonzero(swizzle == number)
        width = _WIDTHS[number]
        start, leading, stride = (field[chosen] for field in fields)
        if transposed:
            offsets = _chunk_offsets(rows // per_chunk, depth, "mn", leading, stride, width)
        else:
            offsets = _chunk_offsets(rows, depth // per_chunk, "k", leading, stride, width)
        addresses = start[:, None, None] + offsets
        if width > 16:
            addresses ^= ((addresses >> 7) & (width // 16 - 1)) << 4
        flat = addresses.reshape(-1).astype(np.uint64)
        lanes = np.repeat(leaders[chosen], offsets.shape[1] * offsets.shape[2])
        values = SHARED.load_at(group, flat, lanes, _UNIT).view(np.uint32)
        if name == "tf32":
            values = values & _TF32
        table = values.view(dtype).astype(np.float64).reshape(chosen.size, offsets.shape[1], -1)
        out[chosen] = table.transpose(0, 2, 1) if transposed else table
    return out


def _mma(t: Translator, instruction: Instruction) -> Step | None:
    written = ".".join(instruction.modifiers)
    if written in ("fence.sync.aligned", "commit_group.sync.aligned", "wait_group.sync.aligned"):
        return None
    match = re.fullmatch(
        r"mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(\w+)\.(\w+)\.(\w+)(?:\.(satfinite))?", written
    )
    if match is None:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    n, k = int(match[1]), int(match[2])
    d_type, a_type, b_type, saturate = match[3], match[4], match[5], match[6]
    if _DEPTH.get(a_type) != k or _DEPTH.get(b_type) != k or n % 8 or not 8 <= n <= 256:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    d, a, b, scale_d, *rest = instruction.operands
    numbers = [operand.value for operand in rest if isinstance(operand, Immediate)]
    integer = a_type in ("s8", "u8")
    sixteen = a_type in ("f16", "bf16")
    in_registers = isinstance(a, Tuple)
    wanted = 0 if integer else 2 + (sixteen and 2 - in_registers)
    if len(numbers) != len(rest) or len(numbers) != wanted:
        raise UnsupportedInstruction(f"{instruction.spelling} with these operands")
    scale_a, scale_b = (numbers[0], numbers[1]) if not integer else (1, 1)
    a_transposed = bool(numbers[2]) if sixteen and not in_registers else False
    b_transposed = bool(numbers[-1]) if sixteen else False
    d_bits = ELEMENTS[d_type][1]
    d_parts = list(d.elements) if isinstance(d, Tuple) else [d]
    if len(d_parts) != 64 * n // 128 // (32 // d_bits):
        raise UnsupportedInstruction(f"{len(d_parts)} registers for a 64 by {n} result of .{d_type}")
    destinations = [t.destination(part, "b32") for part in d_parts]
    old = [t.source(part, "b32") for part in d_parts]
    use_old = t.source(scale_d, "pred")
    a_sources = [t.source(part, "b32") for part in a.elements] if isinstance(a, Tuple) else []
    a_descriptor = None if isinstance(a, Tuple) else t.source(a, "b64")
    b_descriptor = t.source(b, "b64")
    a_row, a_k = multiplicand_positions(16, k, ELEMENTS[a_type][1])
    row, column = accumulator_positions(16, n)

    def step(group: Group) -> None:
        warpgroups, leaders = _warpgroups(group)
        if a_descriptor is None:
            values = np.concatenate(elements_of(group, a_sources, a_type), axis=2)
            warps: Array = np.zeros((values.shape[0], 16, k))
            warps[:, a_row, a_k] = values
            left = warps.reshape(-1, 64, k)[warpgroups]
        else:
            left = _operand(
                group, _of_leaders(group, a_descriptor, leaders), leaders, 64, a_type, a_transposed
            )
        right = _operand(group, _of_leaders(group, b_descriptor, leaders), leaders, n, b_type, b_transposed)
        total = scale_a * scale_b * (left @ right.transpose(0, 2, 1))
        fragments = np.zeros((group.wave.size // 32, 32, row.shape[1]))
        quarter = to_fragments(total.reshape(-1, 16, n), row, column)
        fragments.reshape(-1, 4, 32, row.shape[1])[warpgroups] = quarter.reshape(-1, 4, 32, row.shape[1])
        keep = use_old.read(group)
        if keep.any():
            before = np.concatenate(elements_of(group, old, d_type), axis=2)
            kept = group.spread(keep).reshape(-1, 32)[:, :, None]
            fragments = fragments + np.where(kept, before, 0.0)
        if saturate:
            fragments = np.clip(fragments, -(2.0**31), 2.0**31 - 1)
        pack_results(group, fragments, d_type, destinations)

    gate_whole_warps(t)
    return step


def _warpgroups(group: Group) -> tuple[Lanes, Lanes]:
    """Numbers of the wave's warpgroups that are active, and the first lane of each."""
    if group.wave.lanes_per_block % 128:
        group.wave.fail(group, "wgmma needs blocks of whole warpgroups: a multiple of 128 threads")
    active = group.active_lanes().reshape(-1, 128).any(axis=1)
    numbers = np.flatnonzero(active)
    return numbers, numbers * 128


def _of_leaders(group: Group, source: Source, leaders: Lanes) -> Array:
    descriptor: Array = group.spread(source.read(group))[leaders]
    return descriptor


HANDLERS: dict[str, Handler] = {"wgmma": _mma}
