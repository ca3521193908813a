"""Element types: what a tile or tensor is made of.

Integers have a sign here (`int32` is not `uint32`); the bytecode, whose integers have none, gets it
through the operations. A type's `short` name is its spelling in printed IR.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import ml_dtypes
import numpy as np

from cuda_async._rounding import odd_float32, odd_float64
from cuda_async._rounding import rounded as once_rounded

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = [
    "DTYPES",
    "DType",
    "bfloat16",
    "bool_",
    "dtype_of",
    "float4_e2m1fn",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "tfloat32",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

_Kind = Literal["bool", "int", "uint", "float"]


class DType:
    """An element type. There is one object per type, so `is` compares them.

    In a kernel, calling one converts: `tk.float32(t)` is `t.astype(tk.float32)`. `np.dtype(t)` gives the
    NumPy type that stores it.

    Attributes:
        name: public name, such as "float32".
        short: name in printed IR, such as "f32".
        kind: "bool", "int" (signed), "uint" or "float".
        bits: width of a value; a bool has 1.
        restricted: storage and matrix products only: no arithmetic without a cast (fp8, fp4, tf32).
    """

    __slots__ = ("bits", "dtype", "kind", "name", "restricted", "short")

    dtype: np.dtype[np.generic]
    """How NumPy holds it: tf32 values in float32, all others in a type of their own."""

    def __init__(
        self, name: str, short: str, kind: _Kind, bits: int, dtype: DTypeLike, restricted: bool = False
    ) -> None:
        self.name = name
        self.short = short
        self.kind: _Kind = kind
        self.bits = bits
        self.dtype = np.dtype(dtype)
        self.restricted = restricted

    @property
    def is_float(self) -> bool:
        """Any float, the restricted ones too."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """A signed or unsigned integer; bool is neither."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        """A signed integer."""
        return self.kind == "int"

    @property
    def itemsize(self) -> int:
        """Bytes an element takes in memory; a bool takes one."""
        return self.dtype.itemsize

    @property
    def lowest(self) -> int:
        """Smallest value of an integer type or bool."""
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def highest(self) -> int:
        """Largest value of an integer type or bool."""
        return (1 << (self.bits - 1)) - 1 if self.kind == "int" else (1 << self.bits) - 1

    def rounded(self, number: float) -> float:
        """The number of a float type that `number` is converted to: the nearest one.

        Beyond the largest number of fp8 and fp4 it is that one; float8_e8m0fnu takes the power of two at or below.

        Raises:
            OverflowError: an int that is larger than every float64.
        """
        number = float(number) if self.bits == 64 else odd_float64(number)
        if self.bits == 64 or number != number:
            return number
        if self.name == "float8_e8m0fnu":
            exponent = (
                math.frexp(abs(number))[1] - 1
                if math.isfinite(number) and number
                else 127
                if number
                else -127
            )
            return 2.0 ** max(-127, min(exponent, 127))
        if self.bits <= 8:
            largest = float(ml_dtypes.finfo(self.dtype).max)
            number = max(-largest, min(number, largest))
        if self.name == "tfloat32":
            bits = int(odd_float32(np.asarray(number)).view(np.uint32))
            if bits & 0x7F800000 != 0x7F800000:
                bits = (bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000
            return float(np.asarray(bits, np.uint32).view(np.float32))
        with np.errstate(over="ignore"):
            return float(once_rounded(np.asarray(number), self.dtype))

    def holds(self, value: int) -> bool:
        """True when an integer type can hold `value` exactly."""
        return self.lowest <= value <= self.highest

    def __repr__(self) -> str:
        return f"tilekern.{self.name}"

    def __str__(self) -> str:
        return self.short

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _by_name, (self.name,)


bool_: Final = DType("bool_", "bool", "bool", 1, np.bool_)
int8: Final = DType("int8", "i8", "int", 8, np.int8)
int16: Final = DType("int16", "i16", "int", 16, np.int16)
int32: Final = DType("int32", "i32", "int", 32, np.int32)
int64: Final = DType("int64", "i64", "int", 64, np.int64)
uint8: Final = DType("uint8", "u8", "uint", 8, np.uint8)
uint16: Final = DType("uint16", "u16", "uint", 16, np.uint16)
uint32: Final = DType("uint32", "u32", "uint", 32, np.uint32)
uint64: Final = DType("uint64", "u64", "uint", 64, np.uint64)
float16: Final = DType("float16", "f16", "float", 16, np.float16)
bfloat16: Final = DType("bfloat16", "bf16", "float", 16, ml_dtypes.bfloat16)
float32: Final = DType("float32", "f32", "float", 32, np.float32)
float64: Final = DType("float64", "f64", "float", 64, np.float64)
tfloat32: Final = DType("tfloat32", "tf32", "float", 19, np.float32, restricted=True)
float8_e4m3fn: Final = DType(
    "float8_e4m3fn", "f8e4m3fn", "float", 8, ml_dtypes.float8_e4m3fn, restricted=True
)
float8_e5m2: Final = DType("float8_e5m2", "f8e5m2", "float", 8, ml_dtypes.float8_e5m2, restricted=True)
float8_e8m0fnu: Final = DType(
    "float8_e8m0fnu", "f8e8m0fnu", "float", 8, ml_dtypes.float8_e8m0fnu, restricted=True
)
"""A power of two, 2**-127 to 2**127, or NaN: the scale of a block of numbers."""
float4_e2m1fn: Final = DType(
    "float4_e2m1fn", "f4e2m1fn", "float", 4, ml_dtypes.float4_e2m1fn, restricted=True
)
"""0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. NumPy holds one in a byte; in memory two share one."""

DTYPES: Final[dict[str, DType]] = {
    dtype.short: dtype
    for dtype in (
        *(bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
        *(float16, bfloat16, float32, float64, tfloat32, float8_e4m3fn, float8_e5m2),
        *(float8_e8m0fnu, float4_e2m1fn),
    )
}
"""Every element type by its short name."""

_OF_NUMPY: Final = {dtype.dtype: dtype for dtype in DTYPES.values() if dtype is not tfloat32}
_OF_NAME: Final = {dtype.name: dtype for dtype in DTYPES.values()}


def dtype_of(dtype: DTypeLike) -> DType:
    """The element type that a NumPy (or ml_dtypes) type stores.

    Raises:
        TypeError: kernels have no such type, complex numbers for one.
    """
    found = _OF_NUMPY.get(np.dtype(dtype))
    if found is None:
        raise TypeError(
            f"tile kernels have no element type {np.dtype(dtype)}; there are {', '.join(_OF_NAME)}"
        )
    return found


def _by_name(name: str) -> DType:
    return _OF_NAME[name]
