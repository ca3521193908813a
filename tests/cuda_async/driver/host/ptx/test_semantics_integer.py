"""Integer instructions against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cuda_async.driver.host.ptx._semantics import bits_dtype, operation, type_bits

ALL = ("u16", "s16", "u32", "s32", "u64", "s64")
LANES = 300


def registers(ptx_type: str, place: int, lanes: int = LANES) -> np.ndarray:
    """Edge values crossed with each other, then random ones of all sizes."""
    rng = np.random.default_rng([place, *ptx_type.encode()])
    bits = type_bits(ptx_type)
    edges = [0, 1, 2, 3, 7, (1 << bits) - 1, (1 << bits) - 2, 1 << (bits - 1), (1 << (bits - 1)) - 1]
    values = []
    for i in range(lanes):
        if i < len(edges) ** 2:
            values.append(edges[i % len(edges)] if place == 0 else edges[i // len(edges) % len(edges)])
        else:
            number = int(rng.integers(0, 2**63)) >> int(rng.integers(0, 63))
            values.append((number if rng.integers(2) else ~number) & ((1 << bits) - 1))
    return np.array(values, dtype=bits_dtype(ptx_type))


def number(bits: int, ptx_type: str) -> int:
    """The integer a register holds."""
    width = type_bits(ptx_type)
    return bits - (1 << width) if ptx_type[0] == "s" and bits >> (width - 1) else bits


def clamp(value: int, ptx_type: str) -> int:
    width = type_bits(ptx_type)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if ptx_type[0] == "s" else (0, (1 << width) - 1)
    return max(low, min(high, value))


def check(opcode: str, modifiers: tuple[str, ...], reference: Callable[..., int]) -> None:
    op = operation(opcode, modifiers)
    operands = [registers(t, i) for i, t in enumerate(op.operand_types)]
    (result,) = op.fn(*operands)
    mask = (1 << type_bits(op.result_types[0])) - 1
    for lane in range(LANES):
        given = [number(int(o[lane]), t) for o, t in zip(operands, op.operand_types)]
        assert int(result[lane]) == reference(*given) & mask, (opcode, modifiers, given)


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


SIMPLE: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "min": min,
    "max": max,
    "sad": lambda a, b, c: c + abs(a - b),
    # The manual leaves division by zero open; the hardware gives all ones for both.
    "div": lambda a, b: truncated(a, b) if b else -1,
    "rem": lambda a, b: a - b * truncated(a, b) if b else -1,
}


@pytest.mark.parametrize("ptx_type", ALL)
@pytest.mark.parametrize("opcode", list(SIMPLE))
def test_arithmetic(opcode: str, ptx_type: str) -> None:
    check(opcode, (ptx_type,), SIMPLE[opcode])


@pytest.mark.parametrize("ptx_type", ["s16", "s32", "s64"])
def test_absolute_and_negated(ptx_type: str) -> None:
    check("abs", (ptx_type,), abs)
    check("neg", (ptx_type,), lambda a: -a)


@pytest.mark.parametrize("ptx_type", ALL)
def test_products(ptx_type: str) -> None:
    bits = type_bits(ptx_type)
    check("mul", ("lo", ptx_type), lambda a, b: a * b)
    check("mul", ("hi", ptx_type), lambda a, b: a * b >> bits)
    check("mad", ("lo", ptx_type), lambda a, b, c: a * b + c)
    check("mad", ("hi", ptx_type), lambda a, b, c: (a * b >> bits) + c)
    if bits < 64:
        check("mul", ("wide", ptx_type), lambda a, b: a * b)
        check("mad", ("wide", ptx_type), lambda a, b, c: a * b + c)


def test_saturating_sums() -> None:
    check("add", ("sat", "s32"), lambda a, b: clamp(a + b, "s32"))
    check("sub", ("sat", "s32"), lambda a, b: clamp(a - b, "s32"))
    check("add", ("sat", "u32"), lambda a, b: clamp(a + b, "u32"))
    check("mad", ("hi", "sat", "s32"), lambda a, b, c: clamp((a * b >> 32) + c, "s32"))


def test_minimum_and_maximum_with_relu() -> None:
    check("min", ("relu", "s32"), lambda a, b: max(0, min(a, b)))
    check("max", ("relu", "s32"), lambda a, b: max(0, a, b))


def low24(value: int, signed: bool) -> int:
    low = value & 0xFFFFFF
    return low - (1 << 24) if signed and low >> 23 else low


@pytest.mark.parametrize("ptx_type", ["u32", "s32"])
@pytest.mark.parametrize(("mode", "shift"), [("lo", 0), ("hi", 16)])
def test_24_bit_products(ptx_type: str, mode: str, shift: int) -> None:
    def product(a: int, b: int) -> int:
        full = low24(a, ptx_type == "s32") * low24(b, ptx_type == "s32")
        result = full >> shift & 0xFFFFFFFF
        return number(result, ptx_type)

    check("mul24", (mode, ptx_type), product)
    check("mad24", (mode, ptx_type), lambda a, b, c: product(a, b) + c)
    if (mode, ptx_type) == ("hi", "s32"):
        check("mad24", ("hi", "sat", "s32"), lambda a, b, c: clamp(product(a, b) + c, "s32"))


def parts(value: int, bits: int, signed: bool) -> list[int]:
    fields = [value >> at & ((1 << bits) - 1) for at in range(0, 32, bits)]
    return [f - (1 << bits) if signed and f >> (bits - 1) else f for f in fields]


def packed(fields: list[int], bits: int) -> int:
    return sum((f & ((1 << bits) - 1)) << (bits * i) for i, f in enumerate(fields))


@pytest.mark.parametrize("ptx_type", ["u16x2", "s16x2", "u8x4", "s8x4"])
def test_packed_arithmetic(ptx_type: str) -> None:
    part, signed = ptx_type.split("x")[0], ptx_type[0] == "s"
    bits = int(part[1:])

    def on_parts(fn: Callable[[int, int], int]) -> Callable[[int, int], int]:
        return lambda a, b: packed(
            [fn(x, y) for x, y in zip(parts(a, bits, signed), parts(b, bits, signed))], bits
        )

    check("add", (ptx_type,), on_parts(lambda x, y: x + y))
    check("add", ("sat", ptx_type), on_parts(lambda x, y: clamp(x + y, part)))
    check("min", (ptx_type,), on_parts(min))
    check("max", (ptx_type,), on_parts(max))
    if bits == 8:
        check("sub", (ptx_type,), on_parts(lambda x, y: x - y))
        check("sub", ("sat", ptx_type), on_parts(lambda x, y: clamp(x - y, part)))
    if signed:
        check("max", ("relu", ptx_type), on_parts(lambda x, y: max(x, y, 0)))


@pytest.mark.parametrize("b_type", ["u32", "s32"])
@pytest.mark.parametrize("a_type", ["u32", "s32"])
def test_dot_products(a_type: str, b_type: str) -> None:
    a_signed, b_signed = a_type == "s32", b_type == "s32"

    def four(a: int, b: int, c: int) -> int:
        return c + sum(x * y for x, y in zip(parts(a, 8, a_signed), parts(b, 8, b_signed)))

    def two(first: int) -> Callable[[int, int, int], int]:
        return lambda a, b, c: (
            c + sum(x * y for x, y in zip(parts(a, 16, a_signed), parts(b, 8, b_signed)[first : first + 2]))
        )

    check("dp4a", (a_type, b_type), four)
    check("dp2a", ("lo", a_type, b_type), two(0))
    check("dp2a", ("hi", a_type, b_type), two(2))


def test_dot_product_types_follow_signedness() -> None:
    assert operation("dp4a", ("u32", "u32")).operand_types == ("u32", "u32", "u32")
    assert operation("dp4a", ("u32", "s32")).operand_types == ("u32", "s32", "s32")


@pytest.mark.parametrize("ptx_type", ["u32", "s32", "u64", "s64"])
def test_carry_chains(ptx_type: str) -> None:
    """Each instruction with both values of the flag; a subtraction adds the complement and the flag.

    That is what the hardware does and compilers rely on: a clear flag is a borrow.
    """
    bits = type_bits(ptx_type)
    top, mask = 1 << bits, (1 << bits) - 1
    a, b, c = (registers(ptx_type, i) for i in range(3))
    carry = np.arange(LANES) % 2 == 1

    def product(i: int, mode: str) -> int:
        full = number(int(a[i]), ptx_type) * number(int(b[i]), ptx_type)
        return (full >> bits if mode == "hi" else full) & mask

    for reads in (False, True):
        extra = (carry,) if reads else ()
        suffix = "c" if reads else ""
        flags = carry.astype(int) if reads else np.zeros(LANES, int)
        kept = carry.astype(int) if reads else np.ones(LANES, int)
        total, out = operation(f"add{suffix}", ("cc", ptx_type)).fn(a, b, *extra)
        rest, kept_out = operation(f"sub{suffix}", ("cc", ptx_type)).fn(a, b, *extra)
        for i in range(LANES):
            x, y, f = int(a[i]), int(b[i]), int(flags[i])
            assert (int(total[i]), bool(out[i])) == (x + y + f & mask, x + y + f >= top)
            difference = x + (y ^ mask) + int(kept[i])
            assert (int(rest[i]), bool(kept_out[i])) == (difference & mask, difference >= top)
        for mode in ("lo", "hi"):
            value, out = operation(f"mad{suffix}", (mode, "cc", ptx_type)).fn(a, b, c, *extra)
            for i in range(LANES):
                exact = product(i, mode) + int(c[i]) + int(flags[i])
                assert (int(value[i]), bool(out[i])) == (exact & mask, exact >= top)


def test_carry_is_read_and_written_as_spelled() -> None:
    flags = {
        spelling: (op.reads_carry, op.writes_carry)
        for spelling in ("add.cc.u32", "addc.cc.u32", "addc.u32", "subc.s64", "madc.hi.cc.u64", "mad.lo.u32")
        for op in [operation(spelling.split(".")[0], tuple(spelling.split(".")[1:]))]
    }
    assert flags == {
        "add.cc.u32": (False, True),
        "addc.cc.u32": (True, True),
        "addc.u32": (True, False),
        "subc.s64": (True, False),
        "madc.hi.cc.u64": (True, True),
        "mad.lo.u32": (False, False),
    }


def test_128_bit_difference_from_carries() -> None:
    rng = np.random.default_rng(10)
    a, b = (rng.integers(0, 2**64, (2, 200), dtype=np.uint64) for _ in range(2))
    low, flag = operation("sub", ("cc", "u64")).fn(a[0], b[0])
    (high,) = operation("subc", ("u64",)).fn(a[1], b[1], flag)
    for i in range(200):
        x, y = (int(v[0, i]) | int(v[1, i]) << 64 for v in (a, b))
        assert int(low[i]) | int(high[i]) << 64 == (x - y) % 2**128


def test_128_bit_product_from_carries() -> None:
    """The manual's example: a 64-bit product from 32-bit halves, as compilers write it."""
    rng = np.random.default_rng(9)
    a, b = (rng.integers(0, 2**64, 200, dtype=np.uint64) for _ in range(2))
    a0, a1, b0, b1 = (v.astype(np.uint32) for v in (a, a >> np.uint64(32), b, b >> np.uint64(32)))
    (r0,) = operation("mul", ("lo", "u32")).fn(a0, b0)
    (r1,) = operation("mul", ("hi", "u32")).fn(a0, b0)
    r1, flag = operation("mad", ("lo", "cc", "u32")).fn(a1, b0, r1)
    (r2,) = operation("madc", ("hi", "u32")).fn(a1, b0, np.zeros(1, np.uint32), flag)
    r1, flag = operation("mad", ("lo", "cc", "u32")).fn(a0, b1, r1)
    r2, flag = operation("madc", ("hi", "cc", "u32")).fn(a0, b1, r2, flag)
    (r3,) = operation("addc", ("u32",)).fn(np.zeros(1, np.uint32), np.zeros(1, np.uint32), flag)
    r2, flag = operation("mad", ("lo", "cc", "u32")).fn(a1, b1, r2)
    (r3,) = operation("madc", ("hi", "u32")).fn(a1, b1, r3, flag)
    for i in range(200):
        whole = int(r0[i]) | int(r1[i]) << 32 | int(r2[i]) << 64 | int(r3[i]) << 96
        assert whole == int(a[i]) * int(b[i])
