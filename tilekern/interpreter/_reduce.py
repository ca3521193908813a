"""Reductions, scans and matrix products.

Float sums are kept in a wider type and rounded at the end: the most exact of the results that an open order
of combination allows.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import DType, float32, float64
from ..ir import ArgReduceOp, MmaOp, ReduceOp, ScanOp
from ._elementwise import dtype_of_value
from ._machine import Array, Frame, runs
from ._numeric import narrow, wide

__all__: list[str] = []


def _accumulated(array: Array, dtype: DType) -> Array:
    """`array` in the type sums are kept in; integers in their own, where they wrap."""
    return array.astype(np.float64) if dtype.is_float else array


@runs(ReduceOp)
def _reduce(frame: Frame, op: ReduceOp) -> None:
    dtype, axis = dtype_of_value(op.source), 1 + op.axis
    source = frame[op.source]
    if op.kind in ("sum", "prod"):
        function = np.add if op.kind == "sum" else np.multiply
        values = _accumulated(source, dtype)
        result = function.reduce(values, axis=axis, dtype=values.dtype)
    else:
        values = wide(source, dtype)
        propagate = op.propagate_nan or not dtype.is_float
        extreme: np.ufunc = np.fmax if op.kind == "max" else np.fmin
        if propagate:
            extreme = np.maximum if op.kind == "max" else np.minimum
        result = extreme.reduce(values, axis=axis)
    frame[op.result] = narrow(result, dtype) if dtype.is_float else result


@runs(ArgReduceOp)
def _arg_reduce(frame: Frame, op: ArgReduceOp) -> None:
    source = wide(frame[op.source], dtype_of_value(op.source))
    function = np.argmax if op.kind == "max" else np.argmin
    frame[op.result] = function(source, axis=1 + op.axis).astype(np.int32)


@runs(ScanOp)
def _scan(frame: Frame, op: ScanOp) -> None:
    dtype, axis = dtype_of_value(op.source), 1 + op.axis
    values = _accumulated(frame[op.source], dtype)
    if op.reverse:
        values = np.flip(values, axis)
    function = np.add if op.kind == "sum" else np.multiply
    result = function.accumulate(values, axis=axis, dtype=values.dtype)
    if op.reverse:
        result = np.flip(result, axis)
    frame[op.result] = narrow(result, dtype) if dtype.is_float else result


@runs(MmaOp)
def _mma(frame: Frame, op: MmaOp) -> None:
    """Products are exact in the type they are computed in: float64 for float32 factors and integers."""
    dtype, kept = dtype_of_value(op.lhs), dtype_of_value(op.acc)
    lhs, rhs, acc = frame[op.lhs], frame[op.rhs], frame[op.acc]
    in_double = dtype in (float32, float64) or not dtype.is_float
    compute = np.float64 if in_double else np.float32
    product = np.matmul(lhs.astype(compute), rhs.astype(compute))
    if kept.is_float:
        frame[op.result] = narrow(product + acc.astype(compute), kept)
    else:
        frame[op.result] = (product.astype(np.int64) + acc).astype(kept.dtype)
