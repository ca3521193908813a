"""Comparison, selection, minimum and maximum: integers against Python, floats against the manual's rules."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np
import pytest

from cuda_async.driver.host.ptx._semantics import bits_dtype, operation, type_bits

PLAIN: dict[str, Callable] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
BOOLEAN = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
# ±0, subnormals, ordinary numbers, infinities and NaN of each format
FLOATS = {
    "f16": "0 8000 1 8001 3c00 3c01 bc00 7c00 fc00 7e00 7c01 fe00 4000",
    "bf16": "0 8000 1 8001 3f80 3f81 bf80 7f80 ff80 7fc0 7f81 ffc0 4000",
    "f32": "0 80000000 1 80000001 3f800000 3f800001 bf800000 7f800000 ff800000 7fc00000 7f800001 ffc00000",
    "f64": "0 8000000000000000 1 8000000000000001 3ff0000000000000 bff0000000000000 7ff0000000000000 "
    "fff0000000000000 7ff8000000000000 7ff0000000000001",
}


def crossed(ptx_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Every edge value against every other."""
    bits, dtype = type_bits(ptx_type), bits_dtype(ptx_type)
    if ptx_type in FLOATS:
        edges = [int(e, 16) for e in FLOATS[ptx_type].split()]
    else:
        edges = [0, 1, 5, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1]
    values = np.array(edges, dtype)
    return np.repeat(values, values.size), np.tile(values, values.size)


def number(bits: int, ptx_type: str) -> float:
    """The exact value of a pattern; of integers by their sign, of halves through their layout."""
    width = type_bits(ptx_type)
    if ptx_type in ("f32", "f64"):
        return float(np.array([bits], bits_dtype(ptx_type)).view(f"f{width // 8}")[0])
    if ptx_type in FLOATS:
        fraction = 10 if ptx_type == "f16" else 7
        field, rest = (bits & 0x7FFF) >> fraction, bits & ((1 << fraction) - 1)
        sign = -1.0 if bits >> 15 else 1.0
        if field == 0x7FFF >> fraction:
            return math.nan if rest else sign * math.inf
        bias = 15 if ptx_type == "f16" else 127
        return sign * (rest + (field > 0) * 2**fraction) * 2.0 ** (max(field, 1) - bias - fraction)
    return bits - (1 << width) if ptx_type[0] == "s" and bits >> (width - 1) else bits


def related(name: str, a: float, b: float) -> bool:
    """The comparison by the manual: plain ones are false with NaN, `u` ones true."""
    unordered = math.isnan(a) or math.isnan(b)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if name in PLAIN:
        return not unordered and PLAIN[name](a, b)
    if name in UNSIGNED_NAMES:
        return PLAIN[UNSIGNED_NAMES[name]](a, b)
    return unordered or PLAIN[name.removesuffix("u")](a, b)


FLOAT_RELATIONS = [*PLAIN, *(f"{n}u" for n in PLAIN), "num", "nan"]
CASES = [
    *((n, t) for t in ("s16", "s32", "s64") for n in PLAIN),
    *((n, t) for t in ("u16", "u32", "u64") for n in (*PLAIN, *UNSIGNED_NAMES)),
    *((n, t) for t in ("b16", "b32", "b64") for n in ("eq", "ne")),
    *((n, t) for t in FLOATS for n in FLOAT_RELATIONS),
]


@pytest.mark.parametrize(("name", "ptx_type"), CASES, ids=lambda v: v)
def test_comparisons(name: str, ptx_type: str) -> None:
    a, b = crossed(ptx_type)
    want = [related(name, number(int(x), ptx_type), number(int(y), ptx_type)) for x, y in zip(a, b)]
    p, q = operation("setp", (name, ptx_type)).fn(a, b)
    assert p.tolist() == want
    assert q.tolist() == [not w for w in want]
    c = np.arange(a.size) % 3 == 0
    for boolean, combine in BOOLEAN.items():
        p, q = operation("setp", (name, boolean, ptx_type)).fn(a, b, c)
        assert p.tolist() == [combine(w, bool(flag)) for w, flag in zip(want, c)]
        assert q.tolist() == [combine(not w, bool(flag)) for w, flag in zip(want, c)]
    (result,) = operation("set", (name, "u32", ptx_type)).fn(a, b)
    assert result.tolist() == [0xFFFFFFFF if w else 0 for w in want]
    (result,) = operation("set", (name, "and", "s32", ptx_type)).fn(a, b, c)
    assert result.tolist() == [0xFFFFFFFF if w and flag else 0 for w, flag in zip(want, c)]


@pytest.mark.parametrize(("dtype", "one"), [("f32", 0x3F800000), ("f16", 0x3C00), ("bf16", 0x3F80)])
def test_set_gives_one_for_float_results(dtype: str, one: int) -> None:
    a = np.array([1, 2, 3], np.uint32)
    (result,) = operation("set", ("ge", dtype, "u32")).fn(a, np.array([2], np.uint32))
    assert result.tolist() == [0, one, one]


@pytest.mark.parametrize(("half", "one"), [("f16", 0x3C00), ("bf16", 0x3F80)])
def test_packed_comparisons_take_halves_apart(half: str, one: int) -> None:
    a, b = crossed(half)
    (low_first,) = operation("set", ("ltu", "u16", half)).fn(a, b)
    packed_a, packed_b = (
        (np.append(v, v[:1]).view(np.uint32) for v in (a, b))
        if a.size % 2
        else (v.view(np.uint32) for v in (a, b))
    )
    p, q = operation("setp", ("ltu", f"{half}x2")).fn(packed_a, packed_b)
    want = low_first[: 2 * p.size].astype(bool)
    assert p[: want.size // 2].tolist() == want[0::2].tolist()[: want.size // 2]
    assert q[: want.size // 2].tolist() == want[1::2].tolist()
    (result,) = operation("set", ("ltu", f"{half}x2", f"{half}x2")).fn(packed_a, packed_b)
    assert result.view(np.uint16)[: want.size].tolist() == [one if w else 0 for w in want]
    (result,) = operation("set", ("ltu", "u32", f"{half}x2")).fn(packed_a, packed_b)
    assert result.view(np.uint16)[: want.size].tolist() == [0xFFFF if w else 0 for w in want]


def test_flushed_comparison_takes_subnormals_for_zero() -> None:
    small, zero = np.array([1], np.uint32), np.zeros(1, np.uint32)
    assert operation("setp", ("gt", "f32")).fn(small, zero)[0].tolist() == [True]
    assert operation("setp", ("gt", "ftz", "f32")).fn(small, zero)[0].tolist() == [False]
    assert operation("setp", ("eq", "ftz", "f32")).fn(small, zero)[0].tolist() == [True]


@pytest.mark.parametrize("ptx_type", ["b16", "u32", "s64", "f32", "f64"])
def test_selection(ptx_type: str) -> None:
    a, b = crossed(ptx_type if ptx_type in FLOATS else f"u{type_bits(ptx_type)}")
    c = np.arange(a.size) % 2 == 0
    (result,) = operation("selp", (ptx_type,)).fn(a, b, c)
    assert result.tolist() == [int(x if f else y) for x, y, f in zip(a, b, c)]
    sign = np.array([0, 0x80000000, 1, 0xFFFFFFFF], np.uint32)[np.arange(a.size) % 4]
    (result,) = operation("slct", (ptx_type, "s32")).fn(a, b, sign)
    assert result.tolist() == [int(y if s >> 31 else x) for x, y, s in zip(a, b, sign.tolist())]


def test_selection_by_float_sign() -> None:
    """-0 counts as not negative, NaN as negative, and a flushed negative subnormal as -0."""
    c = np.array([0x80000000, 0x7FC00000, 0x80000001, 0x3F800000, 0xBF800000], np.uint32)
    a, b = np.full(5, 1, np.uint32), np.full(5, 2, np.uint32)
    assert operation("slct", ("b32", "f32")).fn(a, b, c)[0].tolist() == [1, 2, 2, 1, 2]
    assert operation("slct", ("ftz", "b32", "f32")).fn(a, b, c)[0].tolist() == [1, 2, 1, 1, 2]


CANONICAL = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def chosen(values: list[tuple[int, float]], largest: bool, nan_wins: bool, nan: int) -> int:
    """min or max of (pattern, value) by the manual: NaN loses or wins, -0 is less than +0."""
    numbers = [v for v in values if not math.isnan(v[1])]
    if not numbers or (nan_wins and len(numbers) < len(values)):
        return nan
    return (max if largest else min)(numbers, key=lambda v: (v[1], math.copysign(1, v[1])))[0]


@pytest.mark.parametrize("opcode", ["min", "max"])
@pytest.mark.parametrize("ptx_type", ["f16", "bf16", "f32"])
def test_float_minimum_and_maximum(ptx_type: str, opcode: str) -> None:
    a, b = crossed(ptx_type)
    sign, nan = 1 << (type_bits(ptx_type) - 1), CANONICAL[ptx_type]
    for modifiers in ((), ("NaN",), ("xorsign", "abs"), ("NaN", "xorsign", "abs")):
        (result,) = operation(opcode, (*modifiers, ptx_type), 2).fn(a, b)
        for x, y, got in zip(a.tolist(), b.tolist(), result.tolist()):
            given = [v & ~sign if "abs" in modifiers else v for v in (x, y)]
            pairs = [(v, number(v, ptx_type)) for v in given]
            want = chosen(pairs, opcode == "max", "NaN" in modifiers, nan)
            if "abs" in modifiers and want != nan:
                want |= (x ^ y) & sign
            assert got == want, (modifiers, hex(x), hex(y))


@pytest.mark.parametrize("opcode", ["min", "max"])
def test_f64_minimum_and_maximum(opcode: str) -> None:
    a, b = crossed("f64")
    (result,) = operation(opcode, ("f64",)).fn(a, b)
    for x, y, got in zip(a.tolist(), b.tolist(), result.tolist()):
        pairs = [(v, number(v, "f64")) for v in (x, y)]
        want = chosen(pairs, opcode == "max", False, -1)
        assert got == want if want >= 0 else math.isnan(number(got, "f64"))


def test_minimum_of_three() -> None:
    a, b = crossed("f32")
    c = np.roll(b, 5)
    for modifiers in ((), ("NaN",), ("abs",)):
        (result,) = operation("min", (*modifiers, "f32"), 3).fn(a, b, c)
        for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), result.tolist()):
            given = [v & 0x7FFFFFFF if "abs" in modifiers else v for v in (x, y, z)]
            pairs = [(v, number(v, "f32")) for v in given]
            assert got == chosen(pairs, False, "NaN" in modifiers, 0x7FFFFFFF)


def test_properties() -> None:
    for ptx_type in ("f32", "f64"):
        a, _ = crossed(ptx_type)
        bits = type_bits(ptx_type)
        top = 0xFF if bits == 32 else 0x7FF
        tests = {
            "finite": lambda v: math.isfinite(v),
            "infinite": math.isinf,
            "number": lambda v: not math.isnan(v),
            "notanumber": math.isnan,
        }
        for name, reference in tests.items():
            (result,) = operation("testp", (name, ptx_type)).fn(a)
            assert result.tolist() == [reference(number(v, ptx_type)) for v in a.tolist()]
        fields = (a >> (23 if bits == 32 else 52)) & top
        (normal,) = operation("testp", ("normal", ptx_type)).fn(a)
        (subnormal,) = operation("testp", ("subnormal", ptx_type)).fn(a)
        zero = (a << 1) == 0
        assert np.array_equal(normal, ((fields > 0) & (fields < top)) | zero)
        assert np.array_equal(subnormal, (fields == 0) & ~zero)


def test_copysign_takes_the_first_operands_sign() -> None:
    a, b = crossed("f32")
    (result,) = operation("copysign", ("f32",)).fn(a, b)
    assert np.array_equal(result, (a & 0x80000000) | (b & 0x7FFFFFFF))
