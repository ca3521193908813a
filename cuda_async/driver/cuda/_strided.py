"""Strided copies: bring one into its simplest form, and the kernels for what no copy call can do.

A copy of an N-d array is a set of element copies; their order does not matter (destination elements are
distinct). So the form may be simplified freely (`plan_copy`):

1. axes of extent 1 vanish; axes are ordered by destination stride, largest first;
2. neighbours that are one run in both arrays merge;
3. elements are widened while the innermost axis is contiguous, and narrowed where an address or a stride is
   not aligned to them, to the largest unit of 1, 2, 4, 8 or 16 bytes that fits everything.

What is left is one run of bytes (a plain copy), equal rows at two pitches (a 2-D copy, used when rows are
long: copy engines are slow on short ones), or up to 8 axes for a kernel. More axes are split into several
launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._errors import invalid_value
from ._kernel_text import KernelText, elementwise_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "MAX_KERNEL_AXES",
    "CopyPlan",
    "fill_kernel",
    "plan_copy",
    "split_axes",
    "strided_arguments",
    "strided_kernel",
]

MAX_KERNEL_AXES = 8
MAX_UNIT = 16


@dataclass(frozen=True, kw_only=True)
class CopyPlan:
    """A strided copy in its simplest form; outermost axis first. No axes: one unit."""

    dst: int
    src: int
    unit: int
    """Bytes moved per element: 1, 2, 4, 8 or 16."""
    shape: tuple[int, ...]
    dst_strides: tuple[int, ...]
    src_strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many units."""
        product = 1
        for extent in self.shape:
            product *= extent
        return product

    @property
    def run_bytes(self) -> int | None:
        """Size, when the copy is one contiguous run."""
        if not self.shape:
            return self.unit
        if len(self.shape) == 1 and self.dst_strides[0] == self.src_strides[0] == self.unit:
            return self.shape[0] * self.unit
        return None

    @property
    def rows(self) -> tuple[int, int] | None:
        """(bytes in a row, rows), when it is rows at a positive pitch in both arrays that do not overlap."""
        if len(self.shape) != 2 or not self.dst_strides[1] == self.src_strides[1] == self.unit:
            return None
        row = self.shape[1] * self.unit
        if self.dst_strides[0] < row or self.src_strides[0] < row:
            return None
        return row, self.shape[0]


def plan_copy(
    dst: int,
    dst_strides: Sequence[int],
    src: int,
    src_strides: Sequence[int],
    shape: Sequence[int],
    itemsize: int,
) -> CopyPlan | None:
    """The copy in its simplest form; None when there is nothing to copy.

    Raises:
        DriverError: the three sequences differ in length, an extent is negative, or the destination has a
            zero stride on an axis with more than one element.
    """
    given = (
        f"shape {tuple(shape)}, strides {tuple(dst_strides)} and {tuple(src_strides)}, {itemsize}-byte items"
    )
    if not len(shape) == len(dst_strides) == len(src_strides):
        raise invalid_value("strided copy", f"each axis needs a stride in both arrays: {given}")
    if itemsize <= 0 or any(extent < 0 for extent in shape):
        raise invalid_value("strided copy", f"extents cannot be negative, nor the item size 0: {given}")
    if any(stride == 0 and extent > 1 for stride, extent in zip(dst_strides, shape)):
        raise invalid_value(
            "strided copy", f"a stride of 0 in the destination: its elements would overlap: {given}"
        )
    if 0 in shape:
        return None
    axes = [(d, s, n) for d, s, n in zip(dst_strides, src_strides, shape) if n > 1]
    axes.sort(key=lambda axis: abs(axis[0]), reverse=True)
    # The item itself is one more axis of bytes: alignment then decides the unit.
    axes.append((1, 1, itemsize))
    unit = _widest_unit(dst, src, axes)
    merged = _merge(axes)
    d, s, n = merged[-1]
    assert d == s == 1
    merged[-1] = (unit, unit, n // unit)
    merged = [axis for axis in merged if axis[2] > 1]
    return CopyPlan(
        dst=dst,
        src=src,
        unit=unit,
        shape=tuple(n for _, _, n in merged),
        dst_strides=tuple(d for d, _, _ in merged),
        src_strides=tuple(s for _, s, _ in merged),
    )


def _merge(axes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join each axis to the one inside it where both arrays step over exactly that one."""
    merged = [axes[-1]]
    for d, s, n in reversed(axes[:-1]):
        inner_d, inner_s, inner_n = merged[0]
        if d == inner_d * inner_n and s == inner_s * inner_n:
            merged[0] = (inner_d, inner_s, inner_n * n)
        else:
            merged.insert(0, (d, s, n))
    return merged


def _widest_unit(dst: int, src: int, axes: list[tuple[int, int, int]]) -> int:
    """The largest power of two, at most 16, that divides both addresses, the run and all outer strides."""
    merged = _merge(axes)
    bits = dst | src | merged[-1][2] | MAX_UNIT
    for d, s, _ in merged[:-1]:
        bits |= abs(d) | abs(s)
    return bits & -bits


def split_axes(plan: CopyPlan) -> Iterator[CopyPlan]:
    """`plan` in pieces of at most `MAX_KERNEL_AXES` axes."""
    if len(plan.shape) <= MAX_KERNEL_AXES:
        yield plan
        return
    for i in range(plan.shape[0]):
        yield from split_axes(
            CopyPlan(
                dst=plan.dst + i * plan.dst_strides[0],
                src=plan.src + i * plan.src_strides[0],
                unit=plan.unit,
                shape=plan.shape[1:],
                dst_strides=plan.dst_strides[1:],
                src_strides=plan.src_strides[1:],
            )
        )


_MOVE = {1: ("u8", "%r0_0"), 2: ("u16", "%h0_0"), 4: ("u32", "%r0_0"), 8: ("u64", "%rd0_3")}
_AXIS_BYTES = 24


def strided_kernel(unit: int, *, wide_index: bool) -> KernelText:
    """Copy `count` units between two arrays of up to 8 axes.

    Parameters: dst, src, count, and a table of (extent, destination stride, source stride) for each axis, the
    innermost first. The flat index is divided by one extent after the other until nothing of it is left, so
    the number of axes need not be known.

    Args:
        unit: 1, 2, 4, 8 or 16 bytes.
        wide_index: divide in 64 bits, for 2^32 units or more; 32-bit division is several times faster.
    """
    # rd0: destination, rd1: source, rd2: index on one axis, rd3, rd7: what is moved, rd4 or r1: what is
    # left of the flat index, rd5: one axis of the table, rd6, rd8, rd9: its numbers
    lines = [
        "mov.b64 %rd0_0, %rd_dst;",
        "mov.b64 %rd0_1, %rd_src;",
        "mov.b64 %rd0_5, %rd_table;",
        "mov.b64 %rd0_4, %rd_i0;" if wide_index else "cvt.u32.u64 %r0_1, %rd_i0;",
        "$L_axis:",
        "ld.param.u64 %rd0_6, [%rd0_5];",
        "ld.param.u64 %rd0_8, [%rd0_5+8];",
        "ld.param.u64 %rd0_9, [%rd0_5+16];",
    ]
    if wide_index:
        lines += [
            "div.u64 %rd0_10, %rd0_4, %rd0_6;",
            "mul.lo.u64 %rd0_11, %rd0_10, %rd0_6;",
            "sub.u64 %rd0_2, %rd0_4, %rd0_11;",
            "mov.b64 %rd0_4, %rd0_10;",
            "setp.ne.u64 %p0_0, %rd0_4, 0;",
        ]
    else:
        lines += [
            "cvt.u32.u64 %r0_2, %rd0_6;",
            "div.u32 %r0_3, %r0_1, %r0_2;",
            "mul.lo.u32 %r0_4, %r0_3, %r0_2;",
            "sub.u32 %r0_5, %r0_1, %r0_4;",
            "mov.b32 %r0_1, %r0_3;",
            "cvt.u64.u32 %rd0_2, %r0_5;",
            "setp.ne.u32 %p0_0, %r0_1, 0;",
        ]
    lines += [
        "mad.lo.s64 %rd0_0, %rd0_2, %rd0_8, %rd0_0;",
        "mad.lo.s64 %rd0_1, %rd0_2, %rd0_9, %rd0_1;",
        f"add.u64 %rd0_5, %rd0_5, {_AXIS_BYTES};",
        "@%p0_0 bra $L_axis;",
    ]
    if unit == MAX_UNIT:
        lines += [
            "ld.global.v2.u64 {%rd0_3, %rd0_7}, [%rd0_1];",
            "st.global.v2.u64 [%rd0_0], {%rd0_3, %rd0_7};",
        ]
    else:
        kind, register = _MOVE[unit]
        lines += [f"ld.global.{kind} {register}, [%rd0_1];", f"st.global.{kind} [%rd0_0], {register};"]
    return elementwise_kernel(
        f"ca_copy_strided_{unit}_{'wide' if wide_index else 'narrow'}",
        ["dst", "src", "count"],
        lambda _: lines,
        table_bytes=MAX_KERNEL_AXES * _AXIS_BYTES,
    )


def strided_arguments(plan: CopyPlan) -> list[int]:
    """The 64-bit numbers of `strided_kernel`'s parameters, in order."""
    values = [plan.dst, plan.src, plan.count]
    for extent, dst_stride, src_stride in zip(
        reversed(plan.shape), reversed(plan.dst_strides), reversed(plan.src_strides)
    ):
        values += [extent, dst_stride, src_stride]
    return values


def fill_kernel() -> KernelText:
    """Write `count` copies of a 64-bit `value` at `dst`."""

    def element(k: int) -> list[str]:
        return [
            f"shl.b64 %rd{k}_0, %rd_i{k}, 3;",
            f"add.u64 %rd{k}_0, %rd_dst, %rd{k}_0;",
            f"st.global.u64 [%rd{k}_0], %rd_value;",
        ]

    return elementwise_kernel("ca_fill_64", ["dst", "value", "count"], element, unroll=4)
