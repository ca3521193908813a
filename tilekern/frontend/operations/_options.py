"""Options that operations share: how a float result is rounded, whether small numbers are flushed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...dtypes import DType, float32
from ...language import RoundingMode
from .._values import describe

if TYPE_CHECKING:
    from .._translator import Translator

__all__ = ["flush_option", "rounding_option"]

_FLOAT32_ONLY = ("approx", "full")


def rounding_option(t: Translator, mode: object, what: str, dtype: DType, allowed: Sequence[str]) -> str:
    """How a result of `dtype` is rounded, in the IR's words; `allowed` begins with what None stands for.

    Raises:
        KernelTypeError: no rounding mode, or of something that is not rounded. KernelValueError: a mode
            that `what` does not have.
    """
    if mode is None:
        return allowed[0]
    if not isinstance(mode, RoundingMode):
        raise t.wrong_type(f"rounding_mode is one of tk.RoundingMode, got {describe(mode)}")
    if not dtype.is_float:
        if mode.value == allowed[0]:
            return allowed[0]
        raise t.wrong_type(f"{what} is exact or wraps and takes no rounding mode")
    usable = [a for a in allowed if a not in _FLOAT32_ONLY or dtype is float32 or a == allowed[0]]
    if mode.value not in usable:
        names = ", ".join(RoundingMode(a).name for a in usable)
        raise t.wrong_value(f"{what} takes the rounding modes {names}, got {mode.name}")
    return mode.value


def flush_option(t: Translator, value: object, name: str, dtype: DType) -> bool:
    """Whether numbers too small to be normal are made zero; float32 only."""
    flush = t.static_bool(value, "flush_to_zero")
    if flush and dtype is not float32:
        raise t.wrong_type(f"flush_to_zero is for float32; {name} here is of {dtype.name}")
    return flush
