"""Integers as bytes. Expected bytes: DWARF 5, figure 22 and 24 (LEB128); protobuf encoding guide (zigzag)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilekern.tileir._primitives import ByteReader, ByteWriter
from tilekern.tileir.errors import DecodeError


def written(method: str, value: int) -> bytes:
    out = ByteWriter()
    getattr(out, method)(value)
    return bytes(out.data)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (2, "02"),
        (127, "7f"),
        (128, "80 01"),
        (129, "81 01"),
        (12857, "b9 64"),
        (624485, "e5 8e 26"),
        (2**64 - 1, "ff ff ff ff ff ff ff ff ff 01"),
    ],
)
def test_varint_matches_the_standard(value: int, data: str) -> None:
    assert written("varint", value) == bytes.fromhex(data)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, 0), (-1, 1), (1, 2), (-2, 3), (2**31 - 1, 2**32 - 2), (-(2**31), 2**32 - 1), (-(2**63), 2**64 - 1)],
)
def test_signed_varint_is_zigzag(value: int, encoded: int) -> None:
    assert written("signed_varint", value) == written("varint", encoded)


@given(st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_varints_are_read_back(unsigned: int, signed: int) -> None:
    reader = ByteReader(written("varint", unsigned) + written("signed_varint", signed))
    assert reader.varint() == unsigned
    assert reader.signed_varint() == signed
    assert reader.at_end


@pytest.mark.parametrize("value", [-1, 2**64])
def test_varint_refuses_what_does_not_fit(value: int) -> None:
    with pytest.raises(ValueError, match=r"0 to 2\*\*64-1"):
        written("varint", value)


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63])
def test_signed_varint_refuses_what_does_not_fit(value: int) -> None:
    with pytest.raises(ValueError, match="signed varint"):
        written("signed_varint", value)


def test_padding_is_relative_to_the_start() -> None:
    out = ByteWriter()
    out.byte(1)
    out.align(4)
    out.align(4)
    assert bytes(out.data) == bytes.fromhex("01 cb cb cb")
    reader = ByteReader(b"\xff" + bytes(out.data), start=1)
    reader.byte()
    reader.align(4)
    assert reader.offset == 5


def test_reading_past_the_end_is_an_error() -> None:
    with pytest.raises(DecodeError, match="4 bytes wanted where 2 are left"):
        ByteReader(b"\x00\x00").u32()
    with pytest.raises(DecodeError, match="more than 64 bits"):
        ByteReader(b"\xff" * 10 + b"\x01").varint()
