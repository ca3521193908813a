"""What holds for every instruction: types, shapes, silence, and the same result for any number of lanes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cuda_async.driver.host.ptx._semantics import (
    FORMS,
    Operation,
    UnsupportedInstruction,
    bits_dtype,
    operation,
    type_bits,
)
from cuda_async.errors import CudaAsyncError

# Zeros, ones, the smallest and largest of integers; zeros, subnormals, infinities and NaN of floats.
PATTERNS = {
    8: "0 1 7f 80 ff",
    16: "0 1 7fff 8000 ffff 3c00 7c00 7c01 fe00 8001 3f80 7f81 ff80 0400 7bff",
    32: "0 1 7fffffff 80000000 ffffffff 3f800000 7f800000 7f800001 ffc00000 80000001 7c013c00 7f817f81 00800000",
    64: "0 1 7fffffffffffffff 8000000000000000 ffffffffffffffff 3ff0000000000000 7ff0000000000000 "
    "7ff0000000000001 fff8000000000000 8000000000000001 0010000000000000 7fefffffffffffff 7f8000013f800000",
}
LANES = 61  # prime, so that vector loops have a tail


def spellings(opcode: str) -> Iterator[tuple[tuple[str, ...], Operation]]:
    for form in FORMS[opcode]:
        for modifiers in form.spellings():
            yield modifiers, operation(opcode, modifiers, form.operands)


def operands_of(op: Operation) -> list[np.ndarray]:
    rng = np.random.default_rng(len(op.operand_types))
    operands = []
    for ptx_type in (*op.operand_types, *(("pred",) if op.reads_carry else ())):
        if ptx_type == "pred":
            operands.append(rng.integers(0, 2, LANES).astype(bool))
            continue
        bits = type_bits(ptx_type)
        edges = np.array([int(p, 16) for p in PATTERNS[bits].split()], dtype=np.uint64)
        random = rng.integers(0, 2**64, LANES, dtype=np.uint64) >> np.uint64(64 - bits)
        use_edge = rng.integers(0, 3, LANES) > 0
        operands.append(np.where(use_edge, rng.choice(edges, LANES), random).astype(bits_dtype(ptx_type)))
    return operands


def is_immediate_only(opcode: str, place: int) -> bool:
    """lop3's table is one for all lanes."""
    return opcode == "lop3" and place == 3


@pytest.mark.parametrize("opcode", sorted(FORMS))
def test_every_spelling_keeps_the_contract(opcode: str) -> None:
    for modifiers, op in spellings(opcode):
        operands = operands_of(op)
        operands = [o[:1] if is_immediate_only(opcode, i) else o for i, o in enumerate(operands)]
        before = [o.copy() for o in operands]
        results = op.fn(*operands)
        types = (*op.result_types, *(("pred",) if op.writes_carry else ()))
        assert [r.dtype for r in results] == [bits_dtype(t) for t in types], modifiers
        assert all(type(r) is np.ndarray and r.shape in ((LANES,), (1,)) for r in results), modifiers
        assert all(np.array_equal(o, b) for o, b in zip(operands, before)), modifiers
        # Single lanes take NumPy's loops for the odd ends of arrays, and the 0-d way in.
        for lane in (0, 17, LANES - 1):
            scalars = [o[lane % o.size].reshape(()) for o in operands]
            for whole, one in zip(results, op.fn(*scalars)):
                assert one.shape == (1,)
                assert one[0] == np.broadcast_to(whole, LANES)[lane], (modifiers, scalars)
        with np.errstate(all="ignore"):
            mixed = op.unguarded(operands[0], *[o[5:6] if o.size > 1 else o for o in operands[1:]])
        if len(operands) > 1:
            alone = op.fn(*[o[5 % o.size].reshape(()) for o in operands])
            assert all(m[5 % m.size] == a[0] for m, a in zip(mixed, alone)), modifiers


def test_modifiers_may_come_in_another_order() -> None:
    given = [np.array([v], np.uint32) for v in (0x3F800000, 0x00000001)]
    usual = operation("add", ("rz", "ftz", "f32")).fn(*given)
    other = operation("add", ("ftz", "rz", "f32")).fn(*given)
    assert usual[0] == other[0]
    # Types do not: the first is the result's.
    assert operation("cvt", ("rn", "f16", "f32")).result_types == ("f16",)
    assert operation("cvt", ("f32", "f16")).result_types == ("f32",)


def test_number_of_operands_tells_forms_apart() -> None:
    assert len(operation("min", ("f32",)).operand_types) == 2
    assert len(operation("min", ("f32",), 2).operand_types) == 2
    assert len(operation("min", ("f32",), 3).operand_types) == 3


def test_operand_types_give_widths() -> None:
    assert operation("shl", ("b64",)).operand_types == ("b64", "u32")
    assert operation("mul", ("wide", "s16")).result_types == ("s32",)
    assert operation("mad", ("wide", "u32")).operand_types == ("u32", "u32", "u64")
    assert operation("popc", ("b64",)).result_types == ("u32",)
    assert operation("setp", ("lt", "and", "s32")).operand_types == ("s32", "s32", "pred")
    assert operation("setp", ("lt", "s32")).result_types == ("pred", "pred")
    assert operation("slct", ("f64", "s32")).operand_types == ("f64", "f64", "s32")
    assert operation("cvt", ("rn", "satfinite", "e4m3x2", "f32")).operand_types == ("f32", "f32")


def test_operation_is_made_once() -> None:
    assert operation("add", ("s32",)) is operation("add", ("s32",))


@pytest.mark.parametrize(
    ("opcode", "modifiers", "message"),
    [
        (
            "frobnicate",
            ("s32",),
            r"frobnicate\.s32: the interpreter has no register instruction 'frobnicate'",
        ),
        ("add", ("rn", "s32"), r"add\.rn\.s32: these modifiers are not supported for add; known are add\("),
        ("popc", ("b16",), r"popc\.b16: .*popc\(\.b32\|\.b64\)"),
        ("cvt", ("f16", "f32"), r"cvt\.f16\.f32: "),
        ("cvt", ("rn", "ftz", "f16", "f64"), r"cvt\.rn\.ftz\.f16\.f64: "),
        ("min", ("relu", "u32"), r"min\.relu\.u32: "),
    ],
    ids=lambda v: v if isinstance(v, str) else ".".join(v),
)
def test_unknown_instruction_says_what_is_known(opcode: str, modifiers: tuple, message: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=message):
        operation(opcode, modifiers)
    assert issubclass(UnsupportedInstruction, CudaAsyncError)
