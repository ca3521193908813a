"""Read-modify-write of memory that no other access comes between, element by element.

A tile as a whole is not atomic. Which of a tile's elements is first is open; the interpreter goes through
them in row-major order.
"""

from __future__ import annotations

from typing import ClassVar

from ..dtypes import DType
from ._memory import ATOMIC_ORDERINGS, MemoryOp, verify_access
from ._op import Operand, Operands, OptionalOperand, Result
from ._pointers import check_pointers

__all__ = ["ATOMIC_MODES", "AtomicCasOp", "AtomicOp", "AtomicReduceOp", "atomic_types"]

ATOMIC_MODES = ("add", "max", "min", "and", "or", "xor", "xchg")

_WORDS = ("i32", "i64", "u32", "u64")
_TYPES = {
    "add": (*_WORDS, "f16", "bf16", "f32", "f64"),
    "xchg": (*_WORDS, "f32", "f64"),
    "cas": (*_WORDS, "f32", "f64"),
}


def atomic_types(mode: str) -> tuple[str, ...]:
    """Short names of the element types that an atomic operation is there for; "cas" is compare-and-swap."""
    return _TYPES.get(mode, _WORDS)


class _AtomicOp(MemoryOp):
    orderings: ClassVar[tuple[str, ...]] = ATOMIC_ORDERINGS

    def check_mode(self, mode: str, dtype: DType) -> None:
        if mode not in (*ATOMIC_MODES, "cas"):
            raise self.fail(f"mode is one of {', '.join(ATOMIC_MODES)}, got {mode}")
        if dtype.short not in atomic_types(mode):
            raise self.fail(f"atomic {mode} is for {', '.join(atomic_types(mode))}, got {dtype}")


class AtomicOp(_AtomicOp, mnemonic="atomic", effect="write"):
    """Combine a tile with memory; gives what was there. Without meaning where the mask is not set.

    `xchg` puts the tile in place of what was there.
    """

    through = "pointers"
    pointers: Operand
    tile: Operand
    mask: OptionalOperand = None
    token: OptionalOperand = None
    mode: str
    ordering: str = "acq_rel"
    scope: str | None = "device"
    result: Result
    result_token: Result

    def verify(self) -> None:
        kind = check_pointers(self, self.mask)
        self.check_mode(self.mode, kind.number)
        if self.tile.type != kind or self.result.type != kind:
            raise self.fail(f"tile and result are {kind}, got {self.tile.type} and {self.result.type}")
        self.check_order()


class AtomicCasOp(_AtomicOp, mnemonic="atomic_cas", effect="write"):
    """Write `desired` where memory is `expected` bit for bit; gives what was there, `expected` where masked."""

    through = "pointers"
    pointers: Operand
    expected: Operand
    desired: Operand
    mask: OptionalOperand = None
    token: OptionalOperand = None
    ordering: str = "acq_rel"
    scope: str | None = "device"
    result: Result
    result_token: Result

    def verify(self) -> None:
        kind = check_pointers(self, self.mask)
        self.check_mode("cas", kind.number)
        if not (self.expected.type == self.desired.type == self.result.type == kind):
            raise self.fail(
                f"expected, desired and result are {kind}, got {self.expected.type}, {self.desired.type} and "
                f"{self.result.type}"
            )
        self.check_order()


class AtomicReduceOp(_AtomicOp, mnemonic="atomic_reduce", effect="write"):
    """Combine a tile with the tile of a view at an index; elements past the tensor's edge are dropped."""

    orderings = ("relaxed",)
    view: Operand
    tile: Operand
    index: Operands
    token: OptionalOperand = None
    mode: str
    ordering: str = "relaxed"
    scope: str | None = "device"
    result_token: Result

    def verify(self) -> None:
        verify_access(self, self.index, self.tile)
        kind = self.accessed.type
        self.check_mode(self.mode, kind.tensor.dtype)  # type: ignore[union-attr]  # a view, as just checked
        if self.mode == "xchg":
            raise self.fail("xchg gives what was there, and a reduction gives nothing")
        self.check_order()
        if self.scope == "sys":
            raise self.fail("the scope of a reduction is block or device, got sys")
