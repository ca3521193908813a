"""Assertions, printing, and the waiting of dependent launches, of which there is none here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import numpy as np

from cuda_async.driver.host import c_text

from ..dtypes import DType
from ..errors import KernelAssertionError, KernelIndexError
from ..ir import CONVERSION, AssertOp, GridLaunchDependentsOp, GridWaitOp, PrintOp
from ._elementwise import dtype_of_value
from ._machine import Array, Frame, runs

__all__: list[str] = []

_OPTIONS = re.compile(r"([-+ #0]*)(\d*)(?:\.(\d+))?")

_NO_TOKEN = np.zeros(1, bool)


@runs(AssertOp)
def _assert(frame: Frame, op: AssertOp) -> None:
    if op.bounds == "here":
        return  # the access itself says more
    if not frame[op.condition].all():
        message = op.message or "an assertion did not hold"
        kind = KernelIndexError if op.bounds else KernelAssertionError
        raise kind(op.location.describe(message) if op.location else message)


@runs(PrintOp)
def _print(frame: Frame, op: PrintOp) -> None:
    """Once per block, in order of the blocks."""
    arrays = [frame[v] for v in op.values]
    dtypes = [dtype_of_value(v) for v in op.values]
    lines = []
    for row in range(frame.size):
        values = iter([(a[row % len(a)], d) for a, d in zip(arrays, dtypes, strict=True)])

        def put(match: re.Match[str], values: object = values) -> str:
            if match.group() == "%%":
                return "%"
            value, dtype = next(values)  # type: ignore[call-overload]  # the iterator of this block
            return _text(value, _formatter(match.group(1), match.group(2), dtype))

        lines.append(CONVERSION.sub(put, op.text))
    sys.stdout.write("".join(lines))


def _formatter(options: str, kind: str, dtype: DType) -> Callable[[object], str]:
    """How one element is written, as C does it with the integer it is passed as."""
    bits = max(32, dtype.bits)
    match = _OPTIONS.fullmatch(options)
    assert match is not None
    flags, width, precision = match.groups()

    def write(element: object) -> str:
        number = float(element) if dtype.is_float else int(element)  # type: ignore[call-overload,arg-type]
        if kind in "uxXo" and number < 0:
            number += 1 << bits
        return c_text(flags, width, precision, kind, number)

    return write


def _text(value: Array, write: Callable[[object], str]) -> str:
    if not np.ndim(value):
        return write(value)
    return f"[{', '.join([_text(part, write) for part in value])}]"


@runs(GridWaitOp)
def _grid_wait(frame: Frame, op: GridWaitOp) -> None:
    """A launch of the host device begins when the one before it on the stream has ended."""
    frame[op.result_token] = _NO_TOKEN


@runs(GridLaunchDependentsOp)
def _grid_launch_dependents(frame: Frame, op: GridLaunchDependentsOp) -> None:
    frame[op.result_token] = _NO_TOKEN
