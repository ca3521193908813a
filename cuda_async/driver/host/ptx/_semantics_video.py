"""Video instructions: section 9.7.19, the SIMD ones and the scalar arithmetic and comparison.

Only whole operands: the selectors that pick bytes or halves of an operand (`r1.b0`, `.h10` masks) are part of
the operand, not of the opcode, and compilers do not write them. The SIMD forms take the parts of a against
those of b; their third operand is a total to add to with `.add` and unused otherwise.

The scalar forms with a secondary `.min` or `.max` are left out: the manual compares in the destination's type,
where NVIDIA's driver gives the larger unsigned value for `.min` too, and no compiler writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._semantics_forms import Array, Form, Operation, Picks, form, is_signed, same_lanes

__all__ = ["FORMS"]


def _average(x: Array, y: Array) -> Array:
    """Half of the sum, rounded away from zero for positive ones and down for negative ones."""
    total = x + y
    half: Array = (total + (total >= 0)) >> 1
    return half


_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": _average,
    "vabsdiff": lambda x, y: np.abs(x - y),
    "vmin": np.minimum,
    "vmax": np.maximum,
}
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _clamp(values: Array, signed: bool, bits: int) -> Array:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return np.minimum(np.maximum(values, low), high)


def _combination(picks: Picks) -> Callable[[Array, Array], Array]:
    """What is done with the extended operands, on int64."""
    name = picks["opcode"].rstrip("24")
    if name != "vset":
        return _COMBINE[name]
    compare = _COMPARE[picks["cmp"]]
    return lambda x, y: compare(x, y).astype(np.int64)


def _packed(picks: Picks) -> Operation:
    """vadd2, vadd4 and so on."""
    bits = 16 if picks["opcode"].endswith("2") else 8
    combine, saturate, total = _combination(picks), "sat" in picks, "add" in picks
    result_type = picks.get("dtype", "u32")
    part = np.dtype(f"u{bits // 8}")

    def parts(a: Array, ptx_type: str) -> Array:
        kind: np.dtype[Any] = np.dtype(f"i{bits // 8}") if is_signed(ptx_type) else part
        return a.view(kind).astype(np.int64)

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        a, b, c = same_lanes(a, b, c)
        values = combine(parts(a, picks["atype"]), parts(b, picks["btype"]))
        if total:
            sums = values.reshape(-1, 32 // bits).sum(axis=1)
            return (c + sums.astype(np.uint32),)
        if saturate:
            values = _clamp(values, is_signed(result_type), bits)
        return (values.astype(part).view(np.uint32),)

    operands = (picks["atype"], picks["btype"], result_type)
    return Operation(run, operands, (result_type,))


def _scalar(picks: Picks) -> Operation:
    """vadd, vsub, vabsdiff, vmin, vmax, vset on 33-bit intermediate values, then added to a third operand.

    Without .sat, and without .min and .max as second operation: there an H200 does not do what the manual says.
    """
    combine = _combination(picks)
    result_type = picks.get("dtype", "u32")

    def wide(a: Array, ptx_type: str) -> Array:
        return (a.view(np.int32) if is_signed(ptx_type) else a).astype(np.int64)

    def first(a: Array, b: Array) -> Array:
        return combine(wide(a, picks["atype"]), wide(b, picks["btype"]))

    def plain(a: Array, b: Array) -> tuple[Array, ...]:
        return (first(a, b).astype(np.uint32),)

    def added(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        return (first(a, b).astype(np.uint32) + c,)

    if "add" in picks:
        return Operation(added, (picks["atype"], picks["btype"], result_type), (result_type,))
    return Operation(plain, (picks["atype"], picks["btype"]), (result_type,))


_WORDS = "u32 s32"
_CMP = " ".join(_COMPARE)
_SIMD = "vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4"
_SCALAR = "vadd vsub vabsdiff vmin vmax"

FORMS: list[Form] = [
    *form(_SIMD, ".dtype.atype.btype{.sat}", _packed, dtype=_WORDS, atype=_WORDS, btype=_WORDS),
    *form(_SIMD, ".dtype.atype.btype.add", _packed, dtype=_WORDS, atype=_WORDS, btype=_WORDS),
    *form("vset2 vset4", ".atype.btype.cmp{.add}", _packed, atype=_WORDS, btype=_WORDS, cmp=_CMP),
    *form(
        _SCALAR,
        ".dtype.atype.btype{.add}",
        _scalar,
        dtype=_WORDS,
        atype=_WORDS,
        btype=_WORDS,
    ),
    *form(
        "vset",
        ".atype.btype.cmp{.add}",
        _scalar,
        atype=_WORDS,
        btype=_WORDS,
        cmp=_CMP,
    ),
]
