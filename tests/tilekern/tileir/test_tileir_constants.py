"""Bytes of constants; expected from NumPy, ml_dtypes, and what NVIDIA's disassembler prints."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from tileir_op_samples import kernel

from tilekern.tileir import element_bits, encode_elements, types
from tilekern.tileir.errors import BytecodeError

FLOATS = {
    types.f16: np.float16,
    types.bf16: ml_dtypes.bfloat16,
    types.f32: np.float32,
    types.f64: np.float64,
    types.f8e4m3fn: ml_dtypes.float8_e4m3fn,
    types.f8e5m2: ml_dtypes.float8_e5m2,
    types.f8e8m0fnu: ml_dtypes.float8_e8m0fnu,
    types.f4e2m1fn: ml_dtypes.float4_e2m1fn,
}
VALUES = [0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("element", FLOATS, ids=str)
def test_floats_are_what_numpy_stores(element: types.NumberType) -> None:
    kind = types.tile(element, (4,))
    expected = np.array(VALUES).astype(FLOATS[element]).tobytes()
    assert encode_elements(kind, VALUES) == expected
    assert encode_elements(kind, np.array(VALUES)) == expected
    size = len(expected) // 4
    assert encode_elements(kind, 2.0) == expected[2 * size : 3 * size]


@pytest.mark.parametrize("element", [types.i8, types.i16, types.i32, types.i64], ids=str)
def test_integers_are_two_s_complement(element: types.NumberType) -> None:
    kind = types.tile(element, (2,))
    low, high = -(1 << (element.bits - 1)), (1 << (element.bits - 1)) - 1
    assert encode_elements(kind, [low, high]) == np.array([low, high], f"<i{element.bits // 8}").tobytes()
    assert encode_elements(kind, low) == low.to_bytes(element.bits // 8, "little", signed=True)
    assert encode_elements(kind, (1 << element.bits) - 1) == b"\xff" * (element.bits // 8)


@pytest.mark.parametrize("value", [1 << 32, -(1 << 31) - 1, [0, 1 << 32], 0.5, [0.5, 1.0]], ids=str)
def test_integers_that_do_not_fit_are_refused(value: object) -> None:
    with pytest.raises(BytecodeError, match=r"do(es)? not fit i32|integer"):
        encode_elements(types.tile(types.i32, (2,)), value)


def test_booleans_are_packed_bits() -> None:
    assert encode_elements(types.tile(types.i1, (4,)), True) == b"\xff"
    assert encode_elements(types.tile(types.i1, (32,)), False) == b"\x00"
    assert encode_elements(types.tile(types.i1, (4,)), [True, False, True, True]) == bytes([0b1101])
    bits = np.arange(16) % 3 == 0
    assert (
        encode_elements(types.tile(types.i1, (16,)), bits) == np.packbits(bits, bitorder="little").tobytes()
    )


def test_f32_overflow_becomes_infinity() -> None:
    for value, sign in ((1e300, 1), (-1e300, -1)):
        assert encode_elements(types.tile(types.f32), value) == np.float32(sign * np.inf).tobytes()
        assert encode_elements(types.tile(types.f32, (1,)), [value]) == np.float32(sign * np.inf).tobytes()


def test_numbers_are_rounded_once() -> None:
    number = 1 + 2.0**-8 + 2.0**-40  # half way in float32
    for given in (number, [number]):
        assert encode_elements(types.tile(types.bf16, (1,)), given) == b"\x81\x3f"
    assert encode_elements(types.tile(types.tf32), 1 + 2.0**-11 + 2.0**-40) == (127 << 10 | 1).to_bytes(
        3, "little"
    )
    assert encode_elements(types.tile(types.f32), 2**60 + 2**36 + 1) == np.float32(2**60 + 2**37).tobytes()


def test_nan_stays_nan() -> None:
    for element in (types.f16, types.bf16, types.f32, types.f64):
        data = encode_elements(types.tile(element), float("nan"))
        assert np.isnan(np.frombuffer(data, FLOATS[element]).astype(np.float64)).all()
    tf32 = int.from_bytes(encode_elements(types.tile(types.tf32), float("nan")), "little")
    assert tf32 >> 10 & 0xFF == 0xFF
    assert tf32 & 0x3FF


@pytest.mark.parametrize(
    ("element", "value", "text"),
    [
        (types.tf32, 1.0 + 2.0**-10, "1.000980e+00"),
        (types.tf32, 1.0 + 2.0**-11, "1.000000e+00"),  # a tie, to even
        (types.tf32, 1.0 + 3 * 2.0**-11, "1.001950e+00"),  # a tie, to even
        (types.tf32, -3.5, "-3.500000e+00"),
        (types.f16, 65504.0, "6.550400e+04"),
        (types.bf16, -0.15625, "-1.562500e-01"),
        (types.f8e4m3fn, 448.0, "4.480000e+02"),
        (types.f8e5m2, -57344.0, "-5.734400e+04"),
        (types.f8e8m0fnu, 2.0**-3, "1.250000e-01"),
        (types.f4e2m1fn, 6.0, "6.000000e+00"),
        (types.i8, -128, "-128"),
        (types.i64, -(2**63), "-9223372036854775808"),
        (types.i1, True, "true"),
    ],
)
def test_disassembler_reads_the_value(
    element: types.NumberType, value: float, text: str, disassembled: Callable[..., str]
) -> None:
    with kernel((13, 3)) as sample:
        sample.fn.constant(types.tile(element, (16,)), value)
        sample.fn.constant(types.tile(element, (16,)), [value] * 16)
    lines = [line for line in disassembled(sample.module.to_bytes()).splitlines() if "constant <" in line]
    assert f": {text}>" in lines[0]
    assert all(text in line for line in lines)


def test_arrays_are_row_major(disassembled: Callable[..., str]) -> None:
    with kernel((13, 3)) as sample:
        sample.fn.constant(types.tile(types.i32, (2, 4)), np.arange(8).reshape(2, 4, order="C"))
        sample.fn.constant(types.tile(types.i32, (4, 2)), np.arange(8).reshape(2, 4).T)
    text = disassembled(sample.module.to_bytes())
    assert "[[0, 1, 2, 3], [4, 5, 6, 7]]" in text
    assert "[[0, 4], [1, 5], [2, 6], [3, 7]]" in text


def test_wrong_shapes_and_types_are_refused() -> None:
    with pytest.raises(BytecodeError, match=r"needs an array of shape \(4,\), got \(3,\)"):
        encode_elements(types.tile(types.f32, (4,)), [1.0, 2.0, 3.0])
    with pytest.raises(BytecodeError, match="there are no constants of i4"):
        encode_elements(types.tile(types.i4, (4,)), 1)
    with pytest.raises(BytecodeError, match="there are no constants of ptr<f32>"):
        encode_elements(types.tile(types.ptr(types.f32)), 0)
    with kernel((13, 3)) as sample, pytest.raises(BytecodeError, match="has 4 or 16 bytes, got 8"):
        sample.fn.constant_bytes(types.tile(types.f32, (4,)), bytes(8))


@pytest.mark.parametrize(
    ("element", "value", "bits"),
    [
        (types.f32, -0.0, 0x80000000),
        (types.f16, float("-inf"), 0xFC00),
        (types.bf16, 1.0, 0x3F80),
        (types.f64, -1.5, 0xBFF8000000000000),
        (types.tf32, 1.0, 0x1FC00),
        (types.i32, -1, 0xFFFFFFFF),
        (types.i1, True, 1),
    ],
)
def test_element_bits(element: types.NumberType, value: float, bits: int) -> None:
    assert element_bits(element, value) == bits


@pytest.mark.parametrize(
    ("element", "identity", "text"),
    [
        (types.f32, float("-inf"), "0xFF800000 : f32"),
        (types.f64, -1.5, "-1.500000e+00"),
        (types.f16, -2.0, "-2.000000e+00 : f16"),
        (types.bf16, float("inf"), "0x7F80 : bf16"),
        (types.i64, -(2**63), "-9223372036854775808]"),
        (types.i8, -1, "-1 : i8"),
        (types.i1, True, "true"),
        (types.i1, False, "false"),
    ],
)
def test_identities_of_reductions(
    element: types.NumberType, identity: float, text: str, disassembled: Callable[..., str]
) -> None:
    with kernel((13, 3)) as sample, sample.fn.reduce([sample.tile(element)], 0, [identity]) as body:
        sample.fn.yield_(body.arguments[0])
    assert f"identities=[{text}" in disassembled(sample.module.to_bytes())
