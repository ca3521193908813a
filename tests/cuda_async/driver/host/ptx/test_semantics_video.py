"""Video instructions against the manual's pseudo-code."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest

from cuda_async.driver.host.ptx._semantics import UnsupportedInstruction, operation

LANES = 200
COMBINE: dict[str, Callable[[int, int], int]] = {
    "vadd": operator.add,
    "vsub": operator.sub,
    "vavrg": lambda x, y: (x + y + 1) >> 1 if x + y >= 0 else (x + y) >> 1,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
}
TYPES = [(d, a, b) for d in ("u32", "s32") for a in ("u32", "s32") for b in ("u32", "s32")]


def words(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    edges = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80FF7F01, 0x00FF00FF, 0x7FFF8000]
    return np.array([*rng.permutation(edges), *rng.integers(0, 2**32, LANES - len(edges))], np.uint32)


def parts(word: int, bits: int, ptx_type: str) -> list[int]:
    fields = [word >> at & ((1 << bits) - 1) for at in range(0, 32, bits)]
    return [f - (1 << bits) if ptx_type == "s32" and f >> (bits - 1) else f for f in fields]


def clamp(value: int, bits: int, ptx_type: str) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if ptx_type == "s32" else (0, (1 << bits) - 1)
    return max(low, min(high, value))


def pack(fields: list[int], bits: int) -> int:
    return sum((f & ((1 << bits) - 1)) << (bits * i) for i, f in enumerate(fields))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", list(COMBINE))
def test_packed_combinations(name: str, bits: int) -> None:
    a, b, c = words(1), words(2), words(3)
    opcode = f"{name}{32 // bits}"
    for dtype, atype, btype in TYPES:
        (plain,) = operation(opcode, (dtype, atype, btype)).fn(a, b, c)
        (saturated,) = operation(opcode, (dtype, atype, btype, "sat")).fn(a, b, c)
        (total,) = operation(opcode, (dtype, atype, btype, "add")).fn(a, b, c)
        for i in range(LANES):
            values = [
                COMBINE[name](x, y)
                for x, y in zip(parts(int(a[i]), bits, atype), parts(int(b[i]), bits, btype))
            ]
            assert int(plain[i]) == pack(values, bits)
            assert int(saturated[i]) == pack([clamp(v, bits, dtype) for v in values], bits)
            assert int(total[i]) == (int(c[i]) + sum(values)) & 0xFFFFFFFF


def test_packed_comparison() -> None:
    a, b, c = words(4), words(5), words(6)
    (plain,) = operation("vset4", ("s32", "u32", "lt")).fn(a, b, c)
    (total,) = operation("vset2", ("s32", "s32", "ge", "add")).fn(a, b, c)
    for i in range(LANES):
        flags = [x < y for x, y in zip(parts(int(a[i]), 8, "s32"), parts(int(b[i]), 8, "u32"))]
        assert int(plain[i]) == pack(flags, 8)
        flags = [x >= y for x, y in zip(parts(int(a[i]), 16, "s32"), parts(int(b[i]), 16, "s32"))]
        assert int(total[i]) == (int(c[i]) + sum(flags)) & 0xFFFFFFFF


def number(word: int, ptx_type: str) -> int:
    return word - (1 << 32) if ptx_type == "s32" and word >> 31 else word


@pytest.mark.parametrize("name", ["vadd", "vsub", "vabsdiff", "vmin", "vmax"])
def test_scalar_combinations(name: str) -> None:
    a, b, c = words(7), words(8), words(9)
    for dtype, atype, btype in TYPES:
        (plain,) = operation(name, (dtype, atype, btype), 2).fn(a, b)
        (total,) = operation(name, (dtype, atype, btype, "add"), 3).fn(a, b, c)
        for i in range(LANES):
            value = COMBINE[name](number(int(a[i]), atype), number(int(b[i]), btype))
            assert int(plain[i]) == value & 0xFFFFFFFF
            assert int(total[i]) == value + int(c[i]) & 0xFFFFFFFF


def test_scalar_comparison() -> None:
    a, b, c = words(10), words(11), words(12)
    (plain,) = operation("vset", ("s32", "u32", "gt"), 2).fn(a, b)
    (added,) = operation("vset", ("s32", "u32", "gt", "add"), 3).fn(a, b, c)
    flags = (a.view(np.int32).astype(np.int64) > b).astype(np.uint32)
    assert np.array_equal(plain, flags)
    assert np.array_equal(added, c + flags)


@pytest.mark.parametrize("second", ["min", "max", "sat"])
@pytest.mark.parametrize("name", ["vadd", "vsub", "vabsdiff", "vmin", "vmax", "vset"])
def test_secondary_choice_is_refused(name: str, second: str) -> None:
    """The manual and the driver disagree on these."""
    modifiers = ("s32", "u32", "gt", second) if name == "vset" else ("s32", "s32", "s32", second)
    written = r"\.".join((name, *modifiers))
    with pytest.raises(
        UnsupportedInstruction, match=rf"{written}: these modifiers are not supported for {name}"
    ):
        operation(name, modifiers, 3)
