"""Functions of the rows of a tensor: softmax and normalisations. Rows run along the last axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import cuda_async as ca
from cuda_async import DeviceOp

from . import raw
from ._operands import (
    FLOATS,
    LONGEST_ROW,
    Operand,
    check_dtype,
    check_rows,
    check_shape,
    first_of,
    following,
    is_number,
    mutable,
    occupancy_of,
    output,
    power_of_two,
    row_tile,
    rows_of,
    tuned,
    with_later,
    with_tensors,
)
from ._plans import multiprocessors

if TYPE_CHECKING:
    from cuda_async import Tensor

    from ..jit import Kernel

__all__ = ["add_layer_norm", "add_rms_norm", "layer_norm", "rms_norm", "softmax"]

CHUNK = 4096
"""Elements of a long row that are loaded at once, where there are many rows."""

WORTH_WALKING = 60_000
"""Elements for each multiprocessor from which on persistent blocks are faster than a block for each tile."""


class _Family(NamedTuple):
    """Kernels of rows that fit into a tile, and what was fastest for them on an H200, of 16-bit numbers."""

    kernel: Kernel
    persistent: Kernel
    walkers: int = 2
    """Persistent blocks that a multiprocessor runs at once."""
    elements: int = 4096
    """Of a tile that such a block takes, where rows have more than 1024; else 4096."""
    walks: Callable[[int], bool] = lambda side: side >= 128
    """Whether they pay for tiles of that many columns, a power of two."""
    takes_tma: bool = True


SOFTMAX = _Family(
    raw.row_softmax, raw.persistent_row_softmax, walkers=8, walks=lambda side: side >= 1024, takes_tma=False
)
RMS_NORM = _Family(raw.rms_norm, raw.persistent_rms_norm, elements=8192)
ADD_RMS_NORM = _Family(
    raw.add_rms_norm, raw.persistent_add_rms_norm, walks=lambda side: side >= 128 and side not in (2048, 4096)
)
LAYER_NORM = _Family(raw.layer_norm, raw.persistent_layer_norm)
ADD_LAYER_NORM = _Family(raw.add_layer_norm, raw.persistent_add_layer_norm)


def _planned(family: _Family, across: Tensor) -> tuple[Kernel, Callable[[Tensor | DeviceOp[Tensor]], Any]]:
    """The kernel for rows of `across`, hints included, and how it takes an output (rows, columns).

    Many rows of numbers of two bytes are gone over by persistent blocks: on an H200, softmax of 16384 x 4096 bfloat16
    takes 0.87 of the time that a block for each tile takes, RMS norm 0.8, layer norm 0.72. Float32 reaches the
    bandwidth of the memory without.
    """
    rows, columns = across.shape
    side = power_of_two(columns)
    count = multiprocessors(across)
    if across.dtype.itemsize == 2 and rows * columns >= WORTH_WALKING * count and family.walks(side):
        walkers = family.walkers if side <= 4096 else min(family.walkers, 4)
        tile = (max(1, (family.elements if side > 1024 else 4096) // side), side)
        kernel = tuned(family.persistent, occupancy=walkers, allow_tma=family.takes_tma)
        return kernel, lambda place: _mapped(place.partition(tile), walkers * count)
    tile = row_tile(rows, columns)
    size = tile[0] * tile[1]
    # threads load small tiles faster than the accelerator
    takes_tma = family.takes_tma and size > 2048
    kernel = tuned(family.kernel, occupancy=occupancy_of(size), allow_tma=takes_tma)
    return kernel, lambda place: place.partition(tile)


def _mapped(tiles: Any, blocks: int) -> Any:
    return (tiles.map_partition if isinstance(tiles, DeviceOp) else tiles.map)((1, 1), blocks)


def _by_rows(
    name: str, family: _Family, long: Kernel, x: Tensor, rest: tuple[Any, ...], out: Tensor | None
) -> DeviceOp[Tensor]:
    """The family's `kernel(out, x, *rest)`, or for long rows `long(out, x, *rest, chunk)`."""
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
    kernel, cut = _planned(family, across)
    return first_of(kernel(cut(place), across, *rest), x.shape)


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
        return _by_rows("softmax", SOFTMAX, raw.long_softmax, x, (), out)

    return with_tensors("softmax", launch, {"out": out}, x=x)


def _softmax_in_shares(x: Tensor, chunk: int, out: Tensor | None) -> DeviceOp[Tensor]:
    """Few rows that are long: blocks take shares of a row, at most 1024, and others put them together."""
    across = rows_of("softmax", x=x)
    rows, columns = across.shape
    count = -(-columns // chunk)

    def made() -> DeviceOp[Tensor]:
        place = output("softmax", out, x.shape, x.dtype, view=(rows, columns)).partition((1, chunk))
        largest, total = (ca.empty((rows, count), ca.float32).partition((1, 1)) for _ in range(2))
        return raw.softmax_shares(largest, total, across, chunk).then(
            lambda found: first_of(
                following(raw.softmax_of_shares)(
                    place, across, found[0].tensor, found[1].tensor, power_of_two(count)
                ),
                x.shape,
            )
        )

    return with_later("softmax", made, out=out)


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
        return _by_rows("rms_norm", RMS_NORM, raw.long_rms_norm, x, (weight, epsilon), out)

    return with_tensors("rms_norm", launch, {"out": out}, x=x, weight=weight)


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
        return _by_rows("layer_norm", LAYER_NORM, raw.long_layer_norm, x, rest, out)

    return with_tensors("layer_norm", launch, {"out": out}, optional=1, x=x, weight=weight, bias=bias)


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
        kernel, cut = _planned(ADD_RMS_NORM, across)
        places = [
            cut(output("add_rms_norm", place, shape, x.dtype, view=(rows, columns), parameter=parameter))
            for parameter, place in (("out", out), ("total", total))
        ]
        op = kernel(*places, across, rows_of("add_rms_norm", residual=residual), weight, epsilon)
        return op.map(
            lambda made: (made[0].unpartition().reshape(shape), made[1].unpartition().reshape(shape))
        )

    return with_tensors(
        "add_rms_norm", launch, {"out": out, "total": total}, x=x, residual=residual, weight=weight
    )


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
        kernel, cut = _planned(ADD_LAYER_NORM, across)
        others = rows_of("add_layer_norm", residual=residual)
        return first_of(kernel(cut(place), across, others, weight, bias, epsilon), x.shape)

    return with_tensors(
        "add_layer_norm", launch, {"out": out}, optional=1, x=x, residual=residual, weight=weight, bias=bias
    )


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
