"""Everything that rounds, against exact rational arithmetic.

The reference computes with `Fraction` and rounds by comparing with the two neighbours in the format, so it
shares nothing with the implementation's error-free transformations and integer significands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

from cuda_async.driver.host.ptx._semantics import bits_dtype, operation, type_bits

MODES = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True)
class Form:
    """A binary format for the reference."""

    width: int
    fraction: int
    bias: int
    infinite: bool = True
    nan: ClassVar[object] = object()

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    def value(self, bits: int) -> Fraction | float:
        """The exact value; float infinities and NaN where not finite."""
        magnitude = bits & (self.sign - 1)
        field, fraction = magnitude >> self.fraction, magnitude & ((1 << self.fraction) - 1)
        if self.infinite and field == (self.sign >> self.fraction) - 1:
            return math.nan if fraction else math.copysign(math.inf, -1 if bits & self.sign else 1)
        whole = fraction + (1 << self.fraction if field else 0)
        number = Fraction(whole) * Fraction(2) ** (max(field, 1) - self.bias - self.fraction)
        return -number if bits & self.sign else number

    def largest(self) -> int:
        return (self.sign - 1) - (1 << self.fraction) if self.infinite else self.sign - 1

    def rounded(self, exact: Fraction, mode: str, largest: int | None = None) -> int:
        """Bits of a non-zero exact value rounded once; beyond `largest` to it or to infinity."""
        sign = self.sign if exact < 0 else 0
        size = abs(exact)
        top = self.largest() if largest is None else largest
        # The largest magnitude pattern whose value is not above: patterns order like values.
        low, high = 0, top
        while low < high:
            middle = (low + high + 1) // 2
            if self.value(middle) <= size:
                low = middle
            else:
                high = middle - 1
        below = self.value(low)
        if below == size:
            return sign | low
        away = {"rz": False, "rm": bool(sign), "rp": not sign}.get(mode)
        if away is None:
            step = self.value(low) - self.value(low - 1) if low == top else self.value(low + 1) - below
            half = below + step / 2
            away = size > half or (size == half and (mode == "rna" or low & 1 == 1))
        return sign | (low + 1 if away else low)


FORMS = {
    "f64": Form(64, 52, 1023),
    "f32": Form(32, 23, 127),
    "f16": Form(16, 10, 15),
    "bf16": Form(16, 7, 127),
}
EDGES = {
    "f16": "0 1 2 3ff 400 401 3800 3c00 3c01 3bff 3e00 4000 7bff 7800 5bff 6800 1400 200",
    "bf16": "0 1 2 7f 80 81 3f00 3f80 3f81 3f7f 3fc0 4000 7f7f 7f00 4f00 4b00 0040 1fff",
    "f32": "0 1 2 7fffff 800000 800001 3f000000 3f800000 3f800001 3f7fffff 3fc00000 40000000 7f7fffff 7f000000 "
    "4b800000 33800000 33000001 38800000 387fe000 477fe000 477fefff 477ff000 00400000 1f800000 20000000",
    "f64": "0 1 2 fffffffffffff 10000000000000 10000000000001 3fe0000000000000 3ff0000000000000 3ff0000000000001 "
    "3fefffffffffffff 3ff8000000000000 4000000000000000 7fefffffffffffff 36a0000000000000 3690000000000001 "
    "3810000000000000 47efffffefffffff 47effffff0000000 1ff0000000000000 2000000000000000 3ca0000000000000",
}


def finite_operands(name: str, count: int, lanes: int, seed: int) -> list[np.ndarray]:
    """Finite operands: edges crossed, random patterns, close magnitudes, and cancelling third operands."""
    rng = np.random.default_rng(seed)
    form = FORMS[name]
    dtype = bits_dtype(name)
    edges = [int(e, 16) for e in EDGES[name].split()]
    edges += [e | form.sign for e in edges]
    operands = []
    for _ in range(count):
        lane = []
        for i in range(lanes):
            choice = i % 4
            if choice == 0:
                bits = edges[int(rng.integers(len(edges)))]
            elif choice == 1:
                bits = int(rng.integers(0, 2**64, dtype=np.uint64)) & (2 * form.sign - 1)
            else:
                middle = form.bias << form.fraction
                spread = 6 << form.fraction
                bits = middle + int(rng.integers(-spread, spread)) | (form.sign if rng.integers(2) else 0)
            if not isinstance(form.value(bits), Fraction):
                bits = edges[i % len(edges)]
            lane.append(bits)
        operands.append(lane)
    if count == 3:
        for i in range(3, lanes, 8):
            product = form.value(operands[0][i]) * form.value(operands[1][i])
            if product:
                bits = form.rounded(-product, "rz") + int(rng.integers(-1, 2))
                operands[2][i] = bits if isinstance(form.value(bits), Fraction) else operands[2][i]
    return [np.array(lane, dtype=dtype) for lane in operands]


def square_root(exact: Fraction) -> Fraction:
    """Near enough that any rounding of it is that of the root: irrational roots end in one more bit."""
    scale = 1 << 1200
    root = math.isqrt(exact.numerator * exact.denominator * scale * scale)
    inexact = root * root != exact.numerator * exact.denominator * scale * scale
    return Fraction(2 * root + inexact, 2 * exact.denominator * scale)


def expected(opcode: str, form: Form, operands: list[int], mode: str) -> int | None:
    """Bits of the result of finite operands; None where the case is not one of rounding."""
    values = [form.value(o) for o in operands]
    signs = [bool(o & form.sign) for o in operands]
    if opcode == "sub":
        values[1], signs[1] = -values[1], not signs[1]
    if opcode in ("add", "sub"):
        exact, terms = values[0] + values[1], signs
    elif opcode == "mul":
        exact, terms = values[0] * values[1], [signs[0] != signs[1]]
    elif opcode in ("fma", "mad"):
        exact, terms = values[0] * values[1] + values[2], [signs[0] != signs[1], signs[2]]
    elif opcode == "div":
        if values[1] == 0:
            return None
        exact, terms = values[0] / values[1], [signs[0] != signs[1]]
    elif opcode == "rcp":
        if values[0] == 0:
            return None
        exact, terms = 1 / values[0], signs
    else:
        if values[0] < 0:
            return None
        exact, terms = square_root(values[0]), signs
    if exact == 0:
        # The manual's (IEEE 754's) rule for zeros: equal signs stay, others give -0 only rounding down.
        negative = terms[0] if len(set(terms)) == 1 else mode == "rm"
        return form.sign if negative else 0
    return form.rounded(exact, mode)


COUNTS = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3, "div": 2, "rcp": 1, "sqrt": 1}
CASES = [
    *((op, m, t) for op in COUNTS for m in MODES for t in ("f32", "f64")),
    *((op, "rn", t) for op in ("add", "sub", "mul", "fma") for t in ("f16", "bf16")),
]


@pytest.mark.parametrize(("opcode", "mode", "name"), CASES, ids=lambda v: v)
def test_arithmetic_rounds_exact_result(opcode: str, mode: str, name: str) -> None:
    operands = finite_operands(name, COUNTS[opcode], 320, seed=len(opcode) * 7 + len(name))
    (result,) = operation(opcode, (mode, name)).fn(*operands)
    for lane in range(result.size):
        given = [int(o[lane]) for o in operands]
        want = expected(opcode, FORMS[name], given, mode)
        if want is not None:
            assert int(result[lane]) == want, (opcode, mode, name, [hex(g) for g in given], hex(want))


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_fma_breaks_ties_by_what_is_far_below(name: str) -> None:
    """Products that are ties of the result, with an addend too small to show in any fixed-width sum."""
    form = FORMS[name]
    one = form.bias << form.fraction
    rng = np.random.default_rng(3)
    a, b, c = [], [], []
    for _ in range(200):
        # (2**k + 1) * (1 + 2**-j) has its last bit where a tie would be for k + j = fraction + 1.
        k = int(rng.integers(1, form.fraction))
        a.append(one + (1 << (form.fraction - k)))
        b.append(one + (1 << (form.fraction - min(form.fraction, form.fraction + 1 - k))))
        c.append(int(rng.integers(1, one // 2)) | (form.sign if rng.integers(2) else 0))
    operands = [np.array(v, bits_dtype(name)) for v in (a, b, c)]
    for mode in MODES:
        (result,) = operation("fma", (mode, name)).fn(*operands)
        want = [expected("fma", form, [int(o[i]) for o in operands], mode) for i in range(200)]
        assert result.tolist() == want


def test_bf16_fma_breaks_ties_by_what_is_far_below() -> None:
    tie, tiny = 0x3F81, 0x0080  # 1.0078125 squared needs 15 bits
    a, b = np.array([tie] * 2, np.uint16), np.array([0x3FC0] * 2, np.uint16)
    c = np.array([tiny, tiny | 0x8000], np.uint16)
    (result,) = operation("fma", ("rn", "bf16")).fn(a, b, c)
    assert result.tolist() == [expected("fma", FORMS["bf16"], [tie, 0x3FC0, int(v)], "rn") for v in c]
    assert result[0] != result[1]


def test_packed_arithmetic_is_two_of_scalar() -> None:
    for name in ("f16", "bf16"):
        a, b, c = finite_operands(name, 3, 64, seed=5)
        (scalar,) = operation("fma", ("rn", name)).fn(a, b, c)
        (packed,) = operation("fma", ("rn", f"{name}x2")).fn(*[v.view(np.uint32) for v in (a, b, c)])
        assert np.array_equal(packed.view(np.uint16), scalar)
    a, b, c = finite_operands("f32", 3, 64, seed=6)
    (scalar,) = operation("fma", ("rz", "f32")).fn(a, b, c)
    (packed,) = operation("fma", ("rz", "f32x2")).fn(*[v.view(np.uint64) for v in (a, b, c)])
    assert np.array_equal(packed.view(np.uint32), scalar)


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("mode", MODES)
def test_mixed_precision_rounds_exact_result(half: str, mode: str) -> None:
    (a, b), (c,) = finite_operands(half, 2, 300, seed=7), finite_operands("f32", 1, 300, seed=8)
    (added,) = operation("add", (mode, "f32", half)).fn(a, c)
    (taken,) = operation("sub", (mode, "f32", half)).fn(a, c)
    (fused,) = operation("fma", (mode, "f32", half)).fn(a, b, c)
    wide, half_form = FORMS["f32"], FORMS[half]
    for i in range(300):
        x, y, z = half_form.value(int(a[i])), half_form.value(int(b[i])), wide.value(int(c[i]))
        for result, exact in ((added, x + z), (taken, x - z), (fused, x * y + z)):
            if exact:
                assert int(result[i]) == wide.rounded(exact, mode)


NARROWING = [
    (target, source, mode)
    for source, targets in {"f64": "f32 f16 bf16", "f32": "f16 bf16", "f16": "bf16", "bf16": "f16"}.items()
    for target in targets.split()
    for mode in MODES
]


@pytest.mark.parametrize(("target", "source", "mode"), NARROWING, ids=lambda v: v)
def test_narrowing_conversion_rounds_once(target: str, source: str, mode: str) -> None:
    (given,) = finite_operands(source, 1, 500, seed=11)
    (result,) = operation("cvt", (mode, target, source)).fn(given)
    narrow, wide = FORMS[target], FORMS[source]
    for i, bits in enumerate(given.tolist()):
        exact = wide.value(bits)
        sign = narrow.sign if bits & wide.sign else 0
        want = narrow.rounded(exact, mode) if exact else sign
        assert int(result[i]) == want, (hex(bits), hex(want))


def test_f64_to_f16_does_not_round_twice() -> None:
    """1 + 2**-11 + 2**-40 is above a tie of f16; through f32 it would become the tie."""
    given = np.array([1 + 2.0**-11 + 2.0**-40]).view(np.uint64)
    assert operation("cvt", ("rn", "f16", "f64")).fn(given)[0].tolist() == [0x3C01]
    given = np.array([1 + 2.0**-8 + 2.0**-40]).view(np.uint64)
    assert operation("cvt", ("rn", "bf16", "f64")).fn(given)[0].tolist() == [0x3F81]


INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def integers(name: str, lanes: int) -> np.ndarray:
    rng = np.random.default_rng([2, *name.encode()])
    bits = type_bits(name)
    edges = [0, 1, (1 << (bits - 1)) - 1, 1 << (bits - 1), (1 << bits) - 1]
    random = [int(rng.integers(0, 2**63)) >> int(rng.integers(0, 63)) for _ in range(lanes - len(edges))]
    random = [r | (r << 1 & 1 << 63) for r in random]
    return np.array([e & ((1 << bits) - 1) for e in edges + random], dtype=np.uint64).astype(bits_dtype(name))


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", list(FORMS))
def test_integer_to_float_rounds_once(target: str, source: str) -> None:
    given = integers(source, 150)
    signed = given.view(f"i{given.itemsize}") if source[0] == "s" else given
    for mode in MODES:
        (result,) = operation("cvt", (mode, target, source)).fn(given)
        want = [FORMS[target].rounded(Fraction(v), mode) if v else 0 for v in signed.tolist()]
        assert result.tolist() == want


NARROW = {
    "e4m3": (Form(8, 3, 7, infinite=False), 0x7E),
    "e5m2": (Form(8, 2, 15), 0x7B),
    "e2m3": (Form(6, 3, 1, infinite=False), 0x1F),
    "e3m2": (Form(6, 2, 3, infinite=False), 0x1F),
    "e2m1": (Form(4, 1, 1, infinite=False), 0x7),
}


def saturated(exact: Fraction, form: Form, largest: int) -> int:
    top = form.value(largest)
    return form.rounded(max(-top, min(top, exact)), "rn", largest)


@pytest.mark.parametrize("name", list(NARROW))
def test_narrow_formats_round_and_saturate(name: str) -> None:
    form, largest = NARROW[name]
    rng = np.random.default_rng(4)
    scale = 2.0 ** rng.integers(-18, 18, 600)
    numbers = (rng.standard_normal(600) * scale).astype(np.float32)
    numbers[:6] = [0.5, 1.5, 2.5, 448, 464, 480]
    (result,) = operation("cvt", ("rn", "satfinite", f"{name}x2", "f32")).fn(
        numbers.view(np.uint32), np.zeros(1, np.uint32)
    )
    shift = 4 if name == "e2m1" else 8
    want = [saturated(Fraction(float(v)), form, largest) << shift for v in numbers]
    assert result.tolist() == want


@pytest.mark.parametrize("mode", ["rn", "rz", "rna"])
def test_tf32_rounds_the_last_bits_away(mode: str) -> None:
    (given,) = finite_operands("f32", 1, 500, seed=13)
    (result,) = operation("cvt", (mode, "tf32", "f32")).fn(given)
    form = Form(19, 10, 127)
    for bits, got in zip(given.tolist(), result.tolist()):
        exact = FORMS["f32"].value(bits)
        assert got == (form.rounded(exact, mode) << 13 if exact else bits)


def test_stochastic_rounding_adds_the_random_bits() -> None:
    """With random bits r of n, a value is rounded away when its discarded fraction is at least 1 - r / 2**n."""
    value = 1 + 2.0**-10 * 0.25  # a quarter of f16's last place above 1
    given = np.full(4, value, np.float32).view(np.uint32)
    random = np.array([0, 0x17FF, 0x1800, 0x1FFF], np.uint32)  # of 13 bits; 0x1800 is three quarters
    zero = np.zeros(4, np.uint32)
    (result,) = operation("cvt", ("rs", "f16x2", "f32")).fn(zero, given, random)
    assert result.tolist() == [0x3C00, 0x3C00, 0x3C01, 0x3C01]
