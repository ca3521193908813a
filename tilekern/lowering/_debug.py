"""Assertions, printing, and dependent launches."""

from __future__ import annotations

import re

from ..dtypes import bool_, float32, int32
from ..ir import CONVERSION, AssertOp, GridLaunchDependentsOp, GridWaitOp, PrintOp
from ..tileir import Signedness, types
from ..tileir import Value as TileValue
from ._elementwise import convert, dtype_of_value
from ._lowerer import Lowerer, element_type, lowers, signedness

__all__: list[str] = []


@lowers(AssertOp)
def _assert(b: Lowerer, op: AssertOp) -> None:
    message = op.message or "assertion failed"
    text = f"{op.location}: {message}" if op.location else message
    b.fn.assert_(b[op.condition], text)  # noqa: PT009 - the operation, not unittest's


@lowers(PrintOp)
def _print(b: Lowerer, op: PrintOp) -> None:
    """Numbers go as C passes them: integers with 32 or 64 bits, floats as float32 or float64."""
    values: list[TileValue] = []
    lengths: list[str] = []
    for value in op.values:
        dtype, tile = dtype_of_value(value), b[value]
        is_long = dtype.is_integer and dtype.bits == 64
        if dtype.is_float and dtype.bits < 32:
            tile = convert(b, tile, dtype, float32)
        elif not dtype.is_float and dtype.bits < 32:
            sign = Signedness.UNSIGNED if dtype is bool_ else signedness(dtype)
            tile = b.fn.exti(tile, element_type(int32), sign)
        values.append(tile)
        lengths.append("ll" if is_long else "")
    rest = iter(lengths)

    def conversion(match: re.Match[str]) -> str:
        return "%%" if match.group() == "%%" else f"%{match.group(1)}{next(rest)}{match.group(2)}"

    b.ordered_print(CONVERSION.sub(conversion, op.text), values)


@lowers(GridWaitOp)
def _grid_wait(b: Lowerer, op: GridWaitOp) -> None:
    token = None if op.token is None else b[op.token]
    (b[op.result_token],) = b.fn.emit("gdc_wait_tko", (token,), {}, (types.token,))


@lowers(GridLaunchDependentsOp)
def _grid_launch_dependents(b: Lowerer, op: GridLaunchDependentsOp) -> None:
    token = None if op.token is None else b[op.token]
    (b[op.result_token],) = b.fn.emit("gdc_launch_dependents_tko", (token,), {}, (types.token,))
