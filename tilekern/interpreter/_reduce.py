"""Reductions, scans and matrix products.

Float sums are kept in a wider type and rounded at the end: the most exact of the results that an open order
of combination allows.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import DType, float32, float64
from ..ir import ArgReduceOp, MmaOp, MmaScaledOp, ReduceOp, ScanOp
from ._convert import convert
from ._elementwise import arithmetic, dtype_of_value
from ._machine import Array, Frame, runs
from ._numeric import narrow, wide
from ._rounding import flush

__all__: list[str] = []


def _accumulated(array: Array, dtype: DType) -> Array:
    """`array` in the type sums are kept in; integers in their own, where they wrap."""
    return array.astype(np.float64) if dtype.is_float else array


@runs(ReduceOp)
def _reduce(frame: Frame, op: ReduceOp) -> None:
    dtype, axis = dtype_of_value(op.source), 1 + op.axis
    source = frame[op.source]
    if op.flush_to_zero:
        source = flush(source)
    if op.kind in ("sum", "prod") and (op.rounding != "nearest_even" or op.flush_to_zero):
        result = _tree(np.moveaxis(source, axis, -1), op, dtype)
    elif op.kind in ("sum", "prod"):
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
        if dtype.is_float:
            result = _with_sign_of_zero(result, values, axis, op.kind)
    frame[op.result] = narrow(result, dtype) if dtype.is_float else result


def _with_sign_of_zero(result: Array, values: Array, axis: int, kind: str) -> Array:
    """+0 is larger than -0, which NumPy's reductions do not look at."""
    if not (result == 0).any():
        return result
    negative = np.signbit(values) & (values == 0)
    positive = ~np.signbit(values) & (values == 0)
    is_negative = negative.any(axis=axis) if kind == "min" else ~positive.any(axis=axis)
    return np.where(result == 0, np.where(is_negative, -0.0, 0.0).astype(result.dtype), result)


@runs(ArgReduceOp)
def _arg_reduce(frame: Frame, op: ArgReduceOp) -> None:
    dtype, axis = dtype_of_value(op.source), 1 + op.axis
    source = wide(frame[op.source], dtype)
    function = np.argmax if op.kind == "max" else np.argmin
    result = function(source, axis=axis)
    if dtype.is_float and not op.propagate_nan:
        is_nan = np.isnan(source)
        last = -np.inf if op.kind == "max" else np.inf
        numbers = np.where(is_nan, last, source)
        best = (
            np.max(numbers, axis, keepdims=True) if op.kind == "max" else np.min(numbers, axis, keepdims=True)
        )
        # the first number that is the best one; where there is no number at all, the first element
        result = np.argmax(~is_nan & (numbers == best), axis=axis)
    frame[op.result] = result.astype(np.int32)


def _tree(values: Array, op: ReduceOp | ScanOp, dtype: DType) -> Array:
    """Along the last axis, in pairs, every step rounded as told."""
    name = "add" if op.kind == "sum" else "mul"
    while values.shape[-1] > 1:
        left, right = values[..., ::2], values[..., 1::2]
        values = arithmetic(name, left, right, dtype, op.rounding, op.flush_to_zero)
    return np.asarray(values[..., 0])


def _rounded_scan(values: Array, op: ScanOp, dtype: DType) -> Array:
    """Along the last axis, from the first to the last, every step rounded as told."""
    name = "add" if op.kind == "sum" else "mul"
    steps = [values[..., 0]]
    for place in range(1, values.shape[-1]):
        steps.append(arithmetic(name, steps[-1], values[..., place], dtype, op.rounding, op.flush_to_zero))
    return np.stack(steps, axis=-1)


@runs(ScanOp)
def _scan(frame: Frame, op: ScanOp) -> None:
    dtype, axis = dtype_of_value(op.source), 1 + op.axis
    if op.rounding != "nearest_even" or op.flush_to_zero:
        moved = np.moveaxis(
            frame[op.source], axis, -1
        )  # the first is combined with nothing, and stays as it is
        moved = np.flip(moved, -1) if op.reverse else moved
        result = _rounded_scan(moved, op, dtype)
        result = np.flip(result, -1) if op.reverse else result
        frame[op.result] = np.moveaxis(result, -1, axis)
        return
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


@runs(MmaScaledOp)
def _mma_scaled(frame: Frame, op: MmaScaledOp) -> None:
    """Scaled factors are exact in float64; sums are rounded once."""
    factors = []
    for value, scale, axis in ((op.lhs, op.lhs_scale, -1), (op.rhs, op.rhs_scale, -2)):
        numbers, scales = (convert(frame[v], dtype_of_value(v), float64) for v in (value, scale))
        repeats = numbers.shape[axis] // scales.shape[axis]
        factors.append(numbers * np.repeat(scales, repeats, axis=axis))
    frame[op.result] = narrow(np.matmul(*factors) + frame[op.acc].astype(np.float64), float32)
