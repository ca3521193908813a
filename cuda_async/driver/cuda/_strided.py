"""Strided copies: bring one into its simplest form, and the kernels for what no copy call can do.

A copy of an N-d array is a set of element copies; their order does not matter (destination elements are
distinct). So the form may be simplified freely (`plan_copy`):

1. axes of extent 1 vanish; axes are ordered by destination stride, largest first;
2. neighbours that are one run in both arrays merge;
3. elements are widened while the innermost axis is contiguous, and narrowed where an address or a stride is
   not aligned to them, to the largest unit of 1, 2, 4, 8 or 16 bytes that fits everything.

What is left is one run of bytes (a plain copy), equal rows at two pitches (a 2-D copy, used when rows are
long: copy engines are slow on short ones), or up to 8 axes for a kernel made for the unit and the number
of axes. More axes are split into several launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._errors import invalid_value
from ._kernel_text import KernelText, elementwise_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MAX_KERNEL_AXES", "CopyPlan", "fill_kernel", "plan_copy", "split_axes", "strided_kernel"]

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


_MOVE = {1: ("u8", "%r{k}_0"), 2: ("u16", "%h{k}_0"), 4: ("u32", "%r{k}_0"), 8: ("u64", "%rd{k}_3")}


def strided_kernel(unit: int, axes: int, *, wide_index: bool) -> KernelText:
    """Copy `count` units between two arrays of `axes` axes (1 to 8).

    Parameters: dst, src, count, then extents of axes 1.., destination strides, source strides (bytes).

    Args:
        unit: 1, 2, 4, 8 or 16.
        axes: how many axes; the outermost one's extent is not needed.
        wide_index: divide in 64 bits, for 2^32 units or more; 32-bit division is several times faster.
    """
    name = f"ca_copy_strided_{unit}_{axes}_{'wide' if wide_index else 'narrow'}"
    parameters = [
        "dst",
        "src",
        "count",
        *(f"n{axis}" for axis in range(1, axes)),
        *(f"ds{axis}" for axis in range(axes)),
        *(f"ss{axis}" for axis in range(axes)),
    ]
    prologue: list[str] = []
    if not wide_index:
        for axis in range(1, axes):
            prologue += [f".reg .b32 %r_n{axis};", f"cvt.u32.u64 %r_n{axis}, %rd_n{axis};"]

    def element(k: int) -> list[str]:
        # rd0: destination, rd1: source, rd2: index on one axis; r1 or rd4: what is left of the flat index
        lines = [f"mov.u64 %rd{k}_0, %rd_dst;", f"mov.u64 %rd{k}_1, %rd_src;"]
        lines.append(f"mov.u64 %rd{k}_4, %rd_i{k};" if wide_index else f"cvt.u32.u64 %r{k}_1, %rd_i{k};")
        for axis in range(axes - 1, -1, -1):
            if wide_index:
                if axis:
                    lines += [
                        f"div.u64 %rd{k}_5, %rd{k}_4, %rd_n{axis};",
                        f"mul.lo.u64 %rd{k}_6, %rd{k}_5, %rd_n{axis};",
                        f"sub.u64 %rd{k}_2, %rd{k}_4, %rd{k}_6;",
                        f"mov.u64 %rd{k}_4, %rd{k}_5;",
                    ]
                else:
                    lines.append(f"mov.u64 %rd{k}_2, %rd{k}_4;")
            elif axis:
                lines += [
                    f"div.u32 %r{k}_2, %r{k}_1, %r_n{axis};",
                    f"mul.lo.u32 %r{k}_3, %r{k}_2, %r_n{axis};",
                    f"sub.u32 %r{k}_3, %r{k}_1, %r{k}_3;",
                    f"mov.u32 %r{k}_1, %r{k}_2;",
                    f"cvt.u64.u32 %rd{k}_2, %r{k}_3;",
                ]
            else:
                lines.append(f"cvt.u64.u32 %rd{k}_2, %r{k}_1;")
            lines += [
                f"mad.lo.s64 %rd{k}_0, %rd{k}_2, %rd_ds{axis}, %rd{k}_0;",
                f"mad.lo.s64 %rd{k}_1, %rd{k}_2, %rd_ss{axis}, %rd{k}_1;",
            ]
        if unit == 16:
            return [
                *lines,
                f"ld.global.v2.u64 {{%rd{k}_3, %rd{k}_7}}, [%rd{k}_1];",
                f"st.global.v2.u64 [%rd{k}_0], {{%rd{k}_3, %rd{k}_7}};",
            ]
        kind, register = _MOVE[unit]
        register = register.format(k=k)
        return [
            *lines,
            f"ld.global.{kind} {register}, [%rd{k}_1];",
            f"st.global.{kind} [%rd{k}_0], {register};",
        ]

    return elementwise_kernel(name, parameters, prologue, element)


def fill_kernel() -> KernelText:
    """Write `count` copies of a 64-bit `value` at `dst`."""

    def element(k: int) -> list[str]:
        return [
            f"shl.b64 %rd{k}_0, %rd_i{k}, 3;",
            f"add.u64 %rd{k}_0, %rd_dst, %rd{k}_0;",
            f"st.global.u64 [%rd{k}_0], %rd_value;",
        ]

    return elementwise_kernel("ca_fill_64", ["dst", "value", "count"], [], element)
