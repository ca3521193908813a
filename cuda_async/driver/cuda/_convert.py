"""Conversion kernels: one PTX text per pair of element types.

The results are those of the host device, so that a program prints the same numbers everywhere:

- One rounding, to nearest, ties to even; for bfloat16 and the 8-bit floats too.
- Overflow: float16, bfloat16 and float8_e5m2 to infinity, float8_e4m3fn (which has no infinity) to NaN.
- NaN stays NaN with its sign; its payload is not kept.
- Float to integer truncates, then clamps to the integer's range; NaN gives 0.
- Integers keep their low bits; anything to bool is `!= 0`, so NaN is true. Bytes of a bool other than 0
  and 1 count as 1.

This is what `astype` of NumPy and ml_dtypes gives, but for values they leave undefined and for float64 and
wide integers to bfloat16 or an 8-bit float, which ml_dtypes rounds twice, by way of float32. Here the float32
on the way is rounded to odd (towards zero, and the last bit set if anything was dropped), so that the second
rounding sees what the first one dropped.

bfloat16 and 8-bit floats are rounded in integer arithmetic: no architecture needs to have instructions for
them, and those instructions saturate where `astype` does not.

Rounding a float32 of magnitude bits `a` to a format with m mantissa bits and exponent bias b: drop s = 23 - m
bits with `(a + (2^(s-1) - 1) + bit s of a) >> s`, then subtract `(127 - b) << m`. Results below the smallest
normal number are counted in steps of the smallest subnormal number q instead: adding 2^23 q in float32
makes the hardware round to a multiple of q.

Sources: PTX ISA, "cvt"; S. Boldo, G. Melquiond, "When double rounding is odd", 2005.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._errors import invalid_value
from ._kernel_text import KernelText, elementwise_kernel

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CONVERTIBLE", "check_convertible", "convert_kernel"]

# name -> (bytes, how it is held in registers)
_INTEGERS = {
    "int8": (1, "s32"),
    "int16": (2, "s32"),
    "int32": (4, "s32"),
    "int64": (8, "s64"),
    "uint8": (1, "u32"),
    "uint16": (2, "u32"),
    "uint32": (4, "u32"),
    "uint64": (8, "u64"),
}
_FLOATS = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}

CONVERTIBLE = ("bool", *_INTEGERS, *_FLOATS)
"""Names of the NumPy and ml_dtypes types that can be converted into one another."""


@dataclass(frozen=True)
class _Narrow:
    """A float format that is rounded by hand."""

    mantissa: int
    bias: int
    overflow: int
    """Magnitude bits of the result for a value beyond the largest finite one, and for infinity."""
    nan: int
    largest: int
    """Magnitude bits of the largest finite number."""


_NARROW = {
    "bfloat16": _Narrow(mantissa=7, bias=127, overflow=0x7F80, nan=0x7FC0, largest=0x7F7F),
    "float8_e4m3fn": _Narrow(mantissa=3, bias=7, overflow=0x7F, nan=0x7F, largest=0x7E),
    "float8_e5m2": _Narrow(mantissa=2, bias=15, overflow=0x7C, nan=0x7E, largest=0x7B),
}


def check_convertible(dtype: np.dtype[np.generic]) -> str:
    """The name of a dtype that conversions know.

    Raises:
        DriverError: it is none of `CONVERTIBLE`.
    """
    name = dtype.name
    if name not in CONVERTIBLE or dtype.byteorder == ">":
        raise invalid_value(
            "convert", f"there is no conversion of {dtype}; known are {', '.join(CONVERTIBLE)}"
        )
    return name


def convert_kernel(dst: str, src: str) -> KernelText:
    """Convert `count` elements of type `src` at `src` to type `dst` at `dst` (names of `CONVERTIBLE`)."""

    def element(k: int) -> list[str]:
        writer = _Element(k)
        held = writer.load(src)
        writer.store(dst, writer.convert(dst, held))
        return writer.lines

    return elementwise_kernel(f"ca_convert_{src}_to_{dst}", ["dst", "src", "count"], element, unroll=4)


def _size(name: str) -> int:
    if name == "bool":
        return 1
    return _INTEGERS[name][0] if name in _INTEGERS else _FLOATS[name]


def _f32(value: float) -> str:
    import struct

    return f"0f{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"


class _Element:
    """Instructions for one element. A held value is (class, register): s32, u32, s64, u64, f32 or f64."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.lines: list[str] = []
        self._next = dict.fromkeys(("p", "h", "r", "rd", "f", "d"), 0)

    def new(self, file: str) -> str:
        """A register that was not used yet."""
        number = self._next[file]
        self._next[file] = number + 1
        return f"%{file}{self.k}_{number}"

    def emit(self, opcode: str, *operands: str) -> None:
        self.lines.append(f"{opcode} {', '.join(operands)};")

    def op(self, file: str, opcode: str, *operands: str) -> str:
        """Emit an instruction whose result is a new register of `file`."""
        result = self.new(file)
        self.emit(opcode, result, *operands)
        return result

    def address(self, base: str, size: int) -> str:
        index = f"%rd_i{self.k}"
        offset = index if size == 1 else self.op("rd", "shl.b64", index, str(size.bit_length() - 1))
        return self.op("rd", "add.u64", base, offset)

    # -- loading

    def load(self, src: str) -> tuple[str, str]:
        address = f"[{self.address('%rd_src', _size(src))}]"
        if src == "bool":
            byte = self.op("r", "ld.global.u8", address)
            nonzero = self.op("p", "setp.ne.u32", byte, "0")
            return "u32", self.op("r", "selp.b32", "1", "0", nonzero)
        if src in _INTEGERS:
            size, held = _INTEGERS[src]
            file = "rd" if size == 8 else "r"
            return held, self.op(file, f"ld.global.{held[0]}{8 * size}", address)
        if src == "float64":
            return "f64", self.op("d", "ld.global.f64", address)
        if src == "float32":
            return "f32", self.op("f", "ld.global.f32", address)
        if src == "float16":
            return "f32", self.op("f", "cvt.f32.f16", self.op("h", "ld.global.b16", address))
        if src == "bfloat16":
            bits = self.op("r", "ld.global.u16", address)
            return "f32", self.op("f", "mov.b32", self.op("r", "shl.b32", bits, "16"))
        byte = self.op("r", "ld.global.u8", address)
        if src == "float8_e5m2":  # the upper half of a float16
            half = self.op("h", "cvt.u16.u32", self.op("r", "shl.b32", byte, "8"))
            return "f32", self.op("f", "cvt.f32.f16", half)
        return "f32", self._decode_e4m3fn(byte)

    def _decode_e4m3fn(self, byte: str) -> str:
        """Exponent and mantissa put where float32 has them are off by a factor 2^(127 - 7)."""
        magnitude = self.op("r", "and.b32", byte, "127")
        scaled = self.op("f", "mov.b32", self.op("r", "shl.b32", magnitude, "20"))
        value = self.op("f", "mul.rn.f32", scaled, _f32(2.0**120))
        is_nan = self.op("p", "setp.eq.u32", magnitude, "127")
        bits = self.op("r", "mov.b32", value)
        bits = self.op("r", "selp.b32", str(0x7FC00000), bits, is_nan)
        sign = self.op("r", "shl.b32", self.op("r", "and.b32", byte, "128"), "24")
        return self.op("f", "mov.b32", self.op("r", "or.b32", bits, sign))

    # -- converting

    def convert(self, dst: str, held: tuple[str, str]) -> str:
        """The register to store for a `dst`: %r for up to 32-bit integers, bool and hand-made floats."""
        if dst == "bool":
            return self._to_bool(held)
        if dst in _INTEGERS:
            return self._to_integer(dst, held)
        if dst == "float64":
            return self._to_f64(held)
        if dst == "float16" and held[0] == "f64":
            return self.op("h", "cvt.rn.f16.f64", held[1])
        if dst == "float32":
            return self._to_f32(held)
        if dst == "float16":  # an integer that float32 does not hold is infinite in float16 either way
            return self.op("h", "cvt.rn.f16.f32", self._to_f32(held))
        return self._round(self._to_odd_f32(held), _NARROW[dst])

    def _to_bool(self, held: tuple[str, str]) -> str:
        kind, register = held
        if kind in ("f32", "f64"):
            zero = "0f00000000" if kind == "f32" else "0d0000000000000000"
            nonzero = self.op("p", f"setp.neu.{kind}", register, zero)
        else:
            nonzero = self.op("p", f"setp.ne.{kind}", register, "0")
        return self.op("r", "selp.b32", "1", "0", nonzero)

    def _to_integer(self, dst: str, held: tuple[str, str]) -> str:
        kind, register = held
        size = _size(dst)
        if kind in ("f32", "f64"):
            return self._truncate(dst, kind, register)
        if size == 8:
            return register if kind in ("s64", "u64") else self.op("rd", f"cvt.{kind[0]}64.{kind}", register)
        return self.op("r", "cvt.u32.u64", register) if kind in ("s64", "u64") else register

    def _truncate(self, dst: str, kind: str, register: str) -> str:
        """`cvt.rzi` clamps to 32 and 64 bits; for NaN it gives 0 only between 32-bit types."""
        size, held = _INTEGERS[dst]
        file = "rd" if size == 8 else "r"
        if size < 4:
            limits = (
                (0, (1 << 8 * size) - 1) if held == "u32" else (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1)
            )
            whole = self.op("r", f"cvt.rzi.s32.{kind}", register)
            whole = self.op("r", "max.s32", self.op("r", "min.s32", whole, str(limits[1])), str(limits[0]))
        else:
            whole = self.op(file, f"cvt.rzi.{held}.{kind}", register)
        is_nan = self.op("p", f"setp.nan.{kind}", register, register)
        return self.op(file, f"selp.b{64 if size == 8 else 32}", "0", whole, is_nan)

    def _to_f64(self, held: tuple[str, str]) -> str:
        kind, register = held
        if kind == "f64":
            return register
        return self.op("d", "cvt.f64.f32" if kind == "f32" else f"cvt.rn.f64.{kind}", register)

    def _to_f32(self, held: tuple[str, str]) -> str:
        kind, register = held
        return register if kind == "f32" else self.op("f", f"cvt.rn.f32.{kind}", register)

    def _to_odd_f32(self, held: tuple[str, str]) -> str:
        """As float32: exact, or rounded to odd."""
        kind, register = held
        if kind == "f32":
            return register
        if kind in ("s32", "u32"):
            kind, register = "f64", self._to_f64(held)
        towards_zero = self.op("f", f"cvt.rz.f32.{kind}", register)
        if kind == "f64":
            back = self.op("d", "cvt.f64.f32", towards_zero)
            dropped = self.op("p", "setp.ne.f64", back, register)  # false for NaN
        else:
            back = self.op("rd", f"cvt.rzi.{kind}.f32", towards_zero)
            dropped = self.op("p", f"setp.ne.{kind}", back, register)
        last_bit = self.op("r", "selp.b32", "1", "0", dropped)
        return self.op(
            "f", "mov.b32", self.op("r", "or.b32", self.op("r", "mov.b32", towards_zero), last_bit)
        )

    def _round(self, value: str, to: _Narrow) -> str:
        """The bits of float32 `value` in a narrower format (see the module's head)."""
        drop = 23 - to.mantissa
        bits = self.op("r", "mov.b32", value)
        magnitude = self.op("r", "and.b32", bits, str(0x7FFFFFFF))
        odd = self.op("r", "and.b32", self.op("r", "shr.u32", magnitude, str(drop)), "1")
        half = self.op("r", "add.u32", magnitude, str((1 << (drop - 1)) - 1))
        rounded = self.op("r", "shr.u32", self.op("r", "add.u32", half, odd), str(drop))
        result = rounded
        if to.bias != 127:
            result = self.op("r", "sub.u32", rounded, str((127 - to.bias) << to.mantissa))
            smallest_normal = 2.0 ** (1 - to.bias)
            magic = 2.0 ** (1 - to.bias - to.mantissa) * 2.0**23
            absolute = self.op("f", "mov.b32", magnitude)
            stepped = self.op("r", "mov.b32", self.op("f", "add.rn.f32", absolute, _f32(magic)))
            steps = self.op("r", "sub.u32", stepped, str(int(_f32(magic)[2:], 16)))
            is_small = self.op("p", "setp.lt.f32", absolute, _f32(smallest_normal))
            result = self.op("r", "selp.b32", steps, result, is_small)
            too_big = self.op("p", "setp.gt.s32", result, str(to.largest))
            result = self.op("r", "selp.b32", str(to.overflow), result, too_big)
        is_nan = self.op("p", "setp.gt.u32", magnitude, str(0x7F800000))
        result = self.op("r", "selp.b32", str(to.nan), result, is_nan)
        width = 8 if to.mantissa < 7 else 16
        sign = self.op("r", "shl.b32", self.op("r", "shr.u32", bits, "31"), str(width - 1))
        return self.op("r", "or.b32", result, sign)

    # -- storing

    def store(self, dst: str, register: str) -> None:
        address = f"[{self.address('%rd_dst', _size(dst))}]"
        if dst in ("float32", "float64"):
            kind = f"f{8 * _size(dst)}"
        elif dst == "float16":
            kind = "b16"
        else:
            kind = f"u{8 * _size(dst)}"
        self.emit(f"st.global.{kind}", address, register)
