"""Embedding lookup, transposition, mean pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import raw
from ._operands import (
    FLOATS,
    INT32,
    INTEGERS,
    Operand,
    check_dtype,
    check_shape,
    first_of,
    output,
    power_of_two,
    tuned,
    viewed,
    with_tensors,
)

if TYPE_CHECKING:
    from cuda_async import DeviceOp, Tensor

__all__ = ["embedding", "mean_pool", "transpose"]


def embedding(ids: Operand, table: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """table[ids]; zeros for an id that the table does not have.

    Args:
        ids: int32 or int64, (...); contiguous. table: (entries, columns).
        out: where the result goes, (..., columns); new memory if not given.
    """

    def launch(ids: Tensor, table: Tensor) -> DeviceOp[Tensor]:
        check_dtype("embedding", INTEGERS, ids=ids)
        check_dtype("embedding", FLOATS, table=table)
        check_shape("embedding", ("entries", "columns"), table=table)
        columns = table.shape[1]
        width = min(1024, power_of_two(columns))
        # Of 4096 rows of 384 on an H200, two in a block take 7.4 us, and one 8.0; of 512 rows of 576 one is enough.
        elements = 2048 if ids.size * columns >= 1 << 20 else 1024
        tile = (min(max(1, elements // width), power_of_two(ids.size)), width)
        shape = (*ids.shape, columns)
        place = output("embedding", out, shape, table.dtype, view=(ids.size, columns)).partition(tile)
        kernel = tuned(raw.embedding, occupancy=8)
        return first_of(kernel(place, viewed("embedding", (-1,), ids=ids), table), shape)

    return with_tensors("embedding", launch, {"out": out}, ids=ids, table=table)


def transpose(x: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The matrix (n, m) with x[i, j] at (j, i), in memory of its own; `x.T` is a view and copies nothing.

    Args:
        x: (m, n), or (batch, m, n) for each matrix of a batch; any strides.
        out: where the result goes; new memory if not given.
    """

    def launch(x: Tensor) -> DeviceOp[Tensor]:
        check_dtype("transpose", FLOATS, x=x)
        if x.ndim not in (2, 3):
            raise ValueError(
                f"transpose: x has the shape {tuple(x.shape)}, it must be (m, n) or (batch, m, n)"
            )
        *batch, rows, columns = x.shape
        tile = (*(1 for _ in batch), min(64, power_of_two(columns)), min(64, power_of_two(rows)))
        place = output("transpose", out, (*batch, columns, rows), x.dtype).partition(tile)
        kernel = raw.batched_transpose if batch else raw.transpose
        return first_of(tuned(kernel, occupancy=4)(place, x))

    return with_tensors("transpose", launch, {"out": out}, x=x)


def mean_pool(x: Operand, lengths: Operand | None = None, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The mean over the tokens of each sequence, summed in float32.

    Args:
        x: (batch, tokens, columns).
        lengths: int32 (batch,): the tokens that count, the first ones; all if left out, or if there are not as many. 0
            and less give zeros.
        out: where the result goes, (batch, columns); new memory if not given.
    """

    def launch(x: Tensor, lengths: Tensor | None) -> DeviceOp[Tensor]:
        check_dtype("mean_pool", FLOATS, x=x)
        check_dtype("mean_pool", INT32, lengths=lengths)
        check_shape("mean_pool", ("batch", "tokens", "columns"), x=x)
        batch, tokens, columns = x.shape
        check_shape("mean_pool", (batch,), lengths=lengths)
        width = min(128, power_of_two(columns))
        place = output("mean_pool", out, (batch, columns), x.dtype).partition((1, width))
        rows = min(32, power_of_two(tokens))
        return first_of(tuned(raw.mean_pool, occupancy=4)(place, x, lengths, rows))

    return with_tensors("mean_pool", launch, {"out": out}, optional=1, x=x, lengths=lengths)
