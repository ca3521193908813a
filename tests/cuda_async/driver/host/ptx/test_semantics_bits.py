"""Logic, shifts and bit fields against Python's integers and the manual's pseudo-code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cuda_async.driver.host.ptx._semantics import bits_dtype, operation, type_bits

LANES = 250
COUNTS = [0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255]


def words(ptx_type: str, place: int) -> np.ndarray:
    rng = np.random.default_rng([place, *ptx_type.encode()])
    if ptx_type == "pred":
        return rng.integers(0, 2, LANES).astype(bool)
    bits = type_bits(ptx_type)
    edges = [
        0,
        1,
        1 << (bits - 1),
        (1 << bits) - 1,
        (1 << (bits - 1)) - 1,
        0xAAAAAAAAAAAAAAAA & ((1 << bits) - 1),
    ]
    random = [int(rng.integers(0, 2**64, dtype=np.uint64)) >> int(rng.integers(0, 64)) for _ in range(LANES)]
    return np.array([v & ((1 << bits) - 1) for v in (edges + random)[:LANES]], dtype=bits_dtype(ptx_type))


def counts(large: bool = True) -> np.ndarray:
    """Shift amounts and field positions, some far too large."""
    rng = np.random.default_rng(1)
    values = [*COUNTS, 2**31, 2**32 - 1] if large else COUNTS
    return rng.choice(np.array(values, np.uint32), LANES)


def check(opcode: str, modifiers: tuple[str, ...], operands: list[np.ndarray], reference: Callable) -> None:
    op = operation(opcode, modifiers)
    assert len(operands) == len(op.operand_types)
    (result,) = op.fn(*operands)
    mask = (1 << type_bits(op.result_types[0])) - 1
    for lane in range(LANES):
        given = [int(o[lane % o.size]) for o in operands]
        assert int(result[lane]) == reference(*given) & mask, (opcode, modifiers, [hex(g) for g in given])


@pytest.mark.parametrize("ptx_type", ["pred", "b16", "b32", "b64"])
def test_logic(ptx_type: str) -> None:
    a, b = words(ptx_type, 0), words(ptx_type, 1)
    check("and", (ptx_type,), [a, b], lambda x, y: x & y)
    check("or", (ptx_type,), [a, b], lambda x, y: x | y)
    check("xor", (ptx_type,), [a, b], lambda x, y: x ^ y)
    check("not", (ptx_type,), [a], lambda x: ~x)
    if ptx_type != "pred":
        check("cnot", (ptx_type,), [a], lambda x: int(x == 0))


def test_lop3_follows_its_table() -> None:
    a, b, c = (words("b32", i) for i in range(3))
    for table in range(256):
        (result,) = operation("lop3", ("b32",)).fn(a, b, c, np.array([table], np.uint32))
        want = np.zeros(LANES, np.uint32)
        for i in range(8):
            if table >> i & 1:
                want |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        assert np.array_equal(result, want), hex(table)


def test_lop3_table_of_the_manual() -> None:
    """immLut is the function applied to 0xF0, 0xCC, 0xAA."""
    a, b, c = (words("b32", i) for i in range(3))
    table = ((0xF0 & 0xCC) | 0xAA) ^ 0xF0
    (result,) = operation("lop3", ("b32",)).fn(a, b, c, np.array([table], np.uint32))
    assert np.array_equal(result, ((a & b) | c) ^ a)


def test_lop3_combines_with_predicate() -> None:
    a, b, c, q = (words(t, i) for i, t in enumerate(("b32", "b32", "b32", "pred")))
    for name, combine in (("or", np.logical_or), ("and", np.logical_and)):
        d, p = operation("lop3", (name, "b32")).fn(a, b, c, np.array([0x80], np.uint32), q)
        assert np.array_equal(d, a & b & c)
        assert np.array_equal(p, combine(d != 0, q))


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp_their_amount(bits: int) -> None:
    a, amount = words(f"b{bits}", 0), counts()
    check("shl", (f"b{bits}",), [a, amount], lambda x, n: x << min(n, bits))
    for kind in "bu":
        check("shr", (f"{kind}{bits}",), [a, amount], lambda x, n: x >> min(n, bits))
    check("shr", (f"s{bits}",), [a, amount], lambda x, n: signed(x, bits) >> min(n, bits))


LIMITS: dict[str, Callable[[int], int]] = {"clamp": lambda n: min(n, 32), "wrap": lambda n: n & 31}


@pytest.mark.parametrize("mode", list(LIMITS))
def test_funnel_shifts(mode: str) -> None:
    a, b, amount = words("b32", 0), words("b32", 1), counts()
    limit = LIMITS[mode]
    check("shf", ("l", mode, "b32"), [a, b, amount], lambda x, y, n: (y << 32 | x) << limit(n) >> 32)
    check("shf", ("r", mode, "b32"), [a, b, amount], lambda x, y, n: (y << 32 | x) >> limit(n))


def permuted(a: int, b: int, digits: list[int]) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for place, digit in enumerate(digits):
        byte = source[digit & 7]
        if digit & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << (8 * place)
    return result


def test_permute_by_selector() -> None:
    a, b, c = (words("b32", i) for i in range(3))
    check("prmt", ("b32",), [a, b, c], lambda x, y, s: permuted(x, y, [s >> (4 * i) & 15 for i in range(4)]))


def test_permute_by_constant_selector() -> None:
    a, b = words("b32", 0), words("b32", 1)
    for selector in (0x3210, 0x7654, 0x0123, 0x5410, 0x7632, 0x8888, 0x9BFD, 0x4440, 0x6240, 0x3340):
        constant = np.array([selector], np.uint32)
        digits = [selector >> (4 * i) & 15 for i in range(4)]
        check("prmt", ("b32",), [a, b, constant], lambda x, y, _, d=digits: permuted(x, y, d))


# From the manual's table: source bytes of the result, most significant first, for the two low bits of c.
MODES = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


@pytest.mark.parametrize("mode", list(MODES))
def test_permute_modes(mode: str) -> None:
    a, b, c = (words("b32", i) for i in range(3))
    check(
        "prmt",
        ("b32", mode),
        [a, b, c],
        lambda x, y, s: permuted(x, y, [int(d) for d in reversed(MODES[mode][s & 3])]),
    )


@pytest.mark.parametrize("ptx_type", ["u32", "s32", "u64", "s64"])
def test_extract_follows_the_manual(ptx_type: str) -> None:
    top = type_bits(ptx_type) - 1

    def extracted(a: int, at: int, length: int) -> int:
        unsigned = ptx_type[0] == "u" or length == 0
        sign = 0 if unsigned else a >> min(at + length - 1, top) & 1
        return sum(
            ((a >> (at + i) & 1) if i < length and at + i <= top else sign) << i for i in range(top + 1)
        )

    a, at, length = words(ptx_type, 0), counts(large=False), np.roll(counts(large=False), 3)
    check("bfe", (ptx_type,), [a, at, length], extracted)
    for i in range(60):  # the same position for all lanes
        check("bfe", (ptx_type,), [a, at[i : i + 1], length[i : i + 1]], extracted)


@pytest.mark.parametrize("bits", [32, 64])
def test_insert_follows_the_manual(bits: int) -> None:
    def inserted(a: int, b: int, at: int, length: int) -> int:
        for i in range(length):
            if at + i < bits:
                b = b & ~(1 << (at + i)) | (a >> i & 1) << (at + i)
        return b

    name = f"b{bits}"
    a, b, at, length = words(name, 0), words(name, 1), counts(large=False), np.roll(counts(large=False), 3)
    check("bfi", (name,), [a, b, at, length], inserted)
    for i in range(60):  # the same position for all lanes
        check("bfi", (name,), [a, b, at[i : i + 1], length[i : i + 1]], inserted)


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_counting(bits: int) -> None:
    a = words(f"b{bits}", 0)
    check("popc", (f"b{bits}",), [a], lambda x: x.bit_count())
    check("clz", (f"b{bits}",), [a], lambda x: bits - x.bit_length())
    check("brev", (f"b{bits}",), [a], lambda x: int(f"{x:0{bits}b}"[::-1], 2))
    for kind in "us":

        def position(x: int, kind: str = kind) -> int:
            x = x ^ ((1 << bits) - 1) if kind == "s" and x >> (bits - 1) else x
            return x.bit_length() - 1

        check("bfind", (f"{kind}{bits}",), [a], position)
        check(
            "bfind",
            ("shiftamt", f"{kind}{bits}"),
            [a],
            lambda x, f=position: bits - 1 - f(x) if f(x) >= 0 else -1,
        )


def test_find_nth_set_bit() -> None:
    def found(mask: int, base: int, offset: int) -> int:
        offset = signed(offset, 32)
        if offset == 0:
            return base if mask >> base & 1 else -1
        left, step = abs(offset), 1 if offset > 0 else -1
        while 0 <= base < 32:
            left -= mask >> base & 1
            if left == 0:
                return base
            base += step
        return -1

    rng = np.random.default_rng(2)
    mask, base = words("b32", 0), rng.integers(0, 32, LANES).astype(np.uint32)
    offset = rng.integers(-12, 13, LANES).astype(np.int32).view(np.uint32)
    check("fns", ("b32",), [mask, base, offset], found)
    examples = [(0xAAAAAAAA, 3, 1, 3), (0xAAAAAAAA, 3, -1, 3), (0xAAAAAAAA, 2, 1, 3), (0xAAAAAAAA, 2, -1, 1)]
    for m, b, o, want in examples:  # of the manual
        given = [np.array([v & 0xFFFFFFFF], np.uint32) for v in (m, b, o)]
        assert operation("fns", ("b32",)).fn(*given)[0].tolist() == [want]


@pytest.mark.parametrize("mode", list(LIMITS))
def test_sign_and_zero_extension(mode: str) -> None:
    a, amount = words("b32", 0), counts()
    limit = LIMITS[mode]

    def low(x: int, n: int) -> int:
        return x & ((1 << limit(n)) - 1)

    def extended(x: int, n: int) -> int:
        return signed(low(x, n), limit(n)) if limit(n) else 0

    check("szext", (mode, "u32"), [a, amount], low)
    check("szext", (mode, "s32"), [a, amount], extended)


def test_bit_masks() -> None:
    at, width = counts(), np.roll(counts(), 3)
    check("bmsk", ("wrap", "b32"), [at, width], lambda a, b: ((1 << (b & 31)) - 1) << (a & 31))
    check("bmsk", ("clamp", "b32"), [at, width], lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32))
