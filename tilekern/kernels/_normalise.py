"""Functions of the rows of a tensor: softmax and normalisations. Rows run along the last axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import cuda_async as ca

from . import raw
from ._operands import (
    FLOATS,
    LONGEST_ROW,
    Operand,
    by_rows,
    check_dtype,
    check_operands,
    check_rows,
    check_shape,
    first_of,
    following,
    is_number,
    mutable,
    output,
    power_of_two,
    row_tile,
    rows_of,
    tuned,
    with_tensors,
)
from ._plans import multiprocessors

if TYPE_CHECKING:
    from cuda_async import DeviceOp, Tensor

    from ..jit import Kernel

__all__ = ["add_layer_norm", "add_rms_norm", "layer_norm", "rms_norm", "softmax"]

CHUNK = 4096
"""Elements of a long row that are loaded at once, where there are many rows."""


def _by_rows(
    name: str, kernel: Kernel, long: Kernel, x: Tensor, rest: tuple[Any, ...], out: Tensor | None
) -> DeviceOp[Tensor]:
    """`kernel(out, x, *rest)`, or for long rows `long(out, x, *rest, chunk)`; all take rows."""
    across = rows_of(name, x=x)
    rows, columns = across.shape
    place = output(name, out, x.shape, x.dtype, view=(rows, columns))
    if columns > LONGEST_ROW:
        # with a row for each multiprocessor at most, a block has one to itself
        is_alone = rows <= multiprocessors(x)
        chunk = LONGEST_ROW if is_alone else CHUNK
        long = tuned(long, occupancy=1, num_worker_warps=8) if is_alone else tuned(long, occupancy=4)
        op: DeviceOp[Tensor] = long(mutable(place), across, *rest, chunk).grid(rows).first()
        return op if x.ndim == 2 else op.reshape(x.shape)
    tile = row_tile(rows, columns)
    return first_of(by_rows(kernel, tile)(place.partition(tile), across, *rest), x.shape)


def softmax(x: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """exp(x) / sum of exp(x) along the last axis, computed in float32.

    Args:
        x: (..., columns).
        out: where the result goes; new memory if not given.
    """

    def launch(x: Tensor) -> DeviceOp[Tensor]:
        check_dtype("softmax", FLOATS, x=x)
        check_rows("softmax", x)
        rows, columns = rows_of("softmax", x=x).shape
        chunk = max(512, power_of_two(-(-columns // 1024)))
        if LONGEST_ROW < columns <= LONGEST_ROW * 1024 and rows <= multiprocessors(x):
            return _softmax_in_shares(x, chunk, out)
        return _by_rows("softmax", raw.row_softmax, raw.long_softmax, x, (), out)

    return with_tensors(launch, x)


def _softmax_in_shares(x: Tensor, chunk: int, out: Tensor | None) -> DeviceOp[Tensor]:
    """Few rows that are long: blocks take shares of a row, at most 1024, and others put them together."""
    across = rows_of("softmax", x=x)
    rows, columns = across.shape
    count = -(-columns // chunk)
    place = output("softmax", out, x.shape, x.dtype, view=(rows, columns)).partition((1, chunk))
    check_operands("softmax", out, x=x)
    largest, total = (ca.empty((rows, count), ca.float32).partition((1, 1)) for _ in range(2))
    return raw.softmax_shares(largest, total, across, chunk).then(
        lambda made: first_of(
            following(raw.softmax_of_shares)(
                place, across, made[0].tensor, made[1].tensor, power_of_two(count)
            ),
            x.shape,
        )
    )


def rms_norm(
    x: Operand, weight: Operand, *, eps: float = 1e-5, out: Tensor | None = None
) -> DeviceOp[Tensor]:
    """x / sqrt(mean of x * x along the last axis + eps) * weight, computed in float32.

    Args:
        x: (..., columns). weight: (columns,), any float type.
        out: where the result goes; new memory if not given.
    """

    epsilon = _epsilon("rms_norm", eps)

    def launch(x: Tensor, weight: Tensor) -> DeviceOp[Tensor]:
        check_dtype("rms_norm", FLOATS, x=x, weight=weight)
        check_rows("rms_norm", x)
        check_shape("rms_norm", x.shape[-1:], weight=weight)
        return _by_rows("rms_norm", raw.rms_norm, raw.long_rms_norm, x, (weight, epsilon), out)

    return with_tensors(launch, x, weight)


def layer_norm(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    eps: float = 1e-5,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """(x - mean) / sqrt(variance + eps) * weight + bias, mean and variance along the last axis, in float32.

    Args:
        x: (..., columns). weight, bias: (columns,), any float type; `bias` may be left out.
        out: where the result goes; new memory if not given.
    """

    epsilon = _epsilon("layer_norm", eps)

    def launch(x: Tensor, weight: Tensor, bias: Tensor | None) -> DeviceOp[Tensor]:
        check_dtype("layer_norm", FLOATS, x=x, weight=weight, bias=bias)
        check_rows("layer_norm", x)
        check_shape("layer_norm", x.shape[-1:], weight=weight, bias=bias)
        rest = (weight, bias, epsilon)
        return _by_rows("layer_norm", raw.layer_norm, raw.long_layer_norm, x, rest, out)

    return with_tensors(launch, x, weight, bias, optional=1)


def add_rms_norm(
    x: Operand,
    residual: Operand,
    weight: Operand,
    *,
    eps: float = 1e-5,
    out: Tensor | None = None,
    total: Tensor | None = None,
) -> DeviceOp[tuple[Tensor, Tensor]]:
    """The `rms_norm` of x + residual, and x + residual itself: (normalised, total).

    Args:
        x, residual: (..., columns), of one element type, up to 8192 columns. weight: (columns,).
        out, total: where the results go; new memory if not given.
    """

    epsilon = _epsilon("add_rms_norm", eps)

    def launch(x: Tensor, residual: Tensor, weight: Tensor) -> DeviceOp[tuple[Tensor, Tensor]]:
        _check_pair("add_rms_norm", x, residual, weight)
        across = rows_of("add_rms_norm", x=x)
        shape, (rows, columns) = x.shape, across.shape
        tile = row_tile(rows, columns)
        places = [
            output(
                "add_rms_norm", place, shape, x.dtype, view=(rows, columns), parameter=parameter
            ).partition(tile)
            for parameter, place in (("out", out), ("total", total))
        ]
        kernel = by_rows(raw.add_rms_norm, tile)
        op = kernel(*places, across, rows_of("add_rms_norm", residual=residual), weight, epsilon)
        return op.map(
            lambda made: (made[0].unpartition().reshape(shape), made[1].unpartition().reshape(shape))
        )

    return with_tensors(launch, x, residual, weight)


def add_layer_norm(
    x: Operand,
    residual: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    eps: float = 1e-5,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """The `layer_norm` of x + residual.

    Args:
        x, residual: (..., columns), of one element type, up to 8192 columns. weight, bias: (columns,).
        out: where the result goes; new memory if not given.
    """

    epsilon = _epsilon("add_layer_norm", eps)

    def launch(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None) -> DeviceOp[Tensor]:
        _check_pair("add_layer_norm", x, residual, weight)
        check_dtype("add_layer_norm", FLOATS, bias=bias)
        check_shape("add_layer_norm", x.shape[-1:], bias=bias)
        across = rows_of("add_layer_norm", x=x)
        rows, columns = across.shape
        place = output("add_layer_norm", out, x.shape, x.dtype, view=(rows, columns))
        tile = row_tile(rows, columns)
        kernel = by_rows(raw.add_layer_norm, tile)
        op = kernel(
            place.partition(tile), across, rows_of("add_layer_norm", residual=residual), weight, bias, epsilon
        )
        return first_of(op, x.shape)

    return with_tensors(launch, x, residual, weight, bias, optional=1)


def _epsilon(name: str, eps: float) -> float:
    if not is_number(eps) or not 0.0 <= eps < math.inf:
        raise ValueError(f"{name}: eps is a number from 0 on, got {eps!r}")
    return float(eps)


def _check_pair(name: str, x: Tensor, residual: Tensor, weight: Tensor) -> None:
    check_dtype(name, FLOATS, x=x, weight=weight)
    check_dtype(name, (x.dtype,), residual=residual)
    check_rows(name, x)
    check_shape(name, x.shape, residual=residual)
    check_shape(name, x.shape[-1:], weight=weight)
    if x.shape[-1] > LONGEST_ROW:
        raise ValueError(
            f"{name}: rows of {x.shape[-1]} are longer than {LONGEST_ROW}; add first, then normalise"
        )
