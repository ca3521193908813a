"""Scans. Those that NVIDIA's assembler would get wrong are gone: see passes/_expand_scans.py."""

from __future__ import annotations

from ..ir import ScanOp, ScanWithOp
from ._combine import combine, identities_of
from ._elementwise import dtype_of_value
from ._lowerer import Lowerer, lowers
from ._reduce import combined, identity

__all__: list[str] = []


@lowers(ScanOp)
def _scan(b: Lowerer, op: ScanOp) -> None:
    dtype = dtype_of_value(op.source)
    with b.fn.scan([b[op.source]], op.axis, [identity(op.kind, dtype)], reverse=op.reverse) as body:
        element, acc = body.arguments
        b.fn.yield_(combined(b, op, dtype, element, acc))
    (b[op.result],) = body.results


@lowers(ScanWithOp)
def _scan_with(b: Lowerer, op: ScanWithOp) -> None:
    combine(b, op, b.fn.scan(b.all(op.sources), op.axis, identities_of(op), reverse=op.reverse))
